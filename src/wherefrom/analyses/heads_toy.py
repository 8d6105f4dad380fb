"""Head ablations on a model of the lab: one evaluation with any set of heads ablated, and the fast map of all heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.analyses.ablation import Ablation, check_ablations, donated, donors
from wherefrom.analyses.head_map import HeadMap, PerExample, stacked
from wherefrom.capture.head_projection import recorded, replaced, toy_projections
from wherefrom.models.toy import Block, Pass, ToyTransformer
from wherefrom.tasks.base import IGNORED, Examples
from wherefrom.training.scores import BATCH, per_example

DENSE = 0.75
"""Share of asked tokens above which the last layer is run on all tokens: picking them costs more than it saves."""
ALONE = 8
"""A piece of equally long examples is cut off as soon as it has a `rows / ALONE` part of the rows: without padding it
needs no mask, and heads fill up the rows."""


@contextmanager
def evaluating(model: ToyTransformer) -> Iterator[None]:
    """Evaluation mode without gradients; the model's mode is put back, whatever happens."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def ablated_scores(
    model: ToyTransformer, data: Examples, ablations: Sequence[Ablation] = (), seed: int = 0, batch: int = BATCH
) -> PerExample:
    """Loss and accuracy of each example with some heads ablated: one plain evaluation, `batch` examples at a time.

    Ablations may name several heads and layers; their order does not matter. What `mean` and `resample` put in place of
    a head is taken from the whole model on `data`. Raises BadInput for a head that is not there.
    """
    projections = toy_projections(model)
    check_ablations(projections, ablations)
    with evaluating(model):
        source = _Source(model, data, {a.how for a in ablations}, seed)
        losses, right = [], []
        for start in range(0, len(data), batch):
            index = torch.arange(start, min(start + batch, len(data)))
            examples = data.take(index).to(_device(model))
            replacement: dict[int, dict[int, Tensor | float]] = {}
            donated_here = source.donated(index, examples.token_ids.shape[1])
            for ablation in ablations:
                columns = projections[ablation.layer].columns
                for head in ablation.heads:
                    value = source.instead(ablation.how, ablation.layer, donated_here)
                    chosen = value if isinstance(value, float) else value[..., columns[head]]
                    replacement.setdefault(ablation.layer, {})[head] = chosen
            with replaced(projections, replacement):
                found = per_example(model(examples.token_ids, examples.lengths).logits, examples)
            losses.append(found[0].cpu())
            right.append(found[1].cpu())
    return PerExample(torch.cat(losses), torch.cat(right))


def toy_map(model: ToyTransformer, data: Examples, how: str, seed: int = 0, rows: int = BATCH) -> HeadMap:
    """Every head ablated alone; equal to `ablated_scores` head by head, in a fraction of the time.

    What does not change is not computed again: layers below the ablated head, its own layer's attention (the head's
    columns of the output projection are subtracted), padding (examples are taken in the order of their lengths), and
    in the last layer tokens that nothing is read from. `rows` sequences, heads times examples, are run at once.
    """
    with evaluating(model):
        fast = _FastMap(model, data, how, seed, rows)
        order, parts = [], []
        for index in fast.pieces():
            order.append(index)
            parts.append(fast.piece(index))
    places = torch.cat(order)
    layers = range(model.settings.layers)
    loss, right = ({k: stacked([part[1 + k][side] for part in parts], places) for k in layers} for side in (0, 1))
    base = PerExample(*(stacked([part[0][side] for part in parts], places) for side in (0, 1)))
    return HeadMap(how, base, loss, right)


def _device(model: ToyTransformer) -> torch.device:
    return next(model.parameters()).device


class _Source:
    """What the ablated head hands on instead, from the whole model on the same examples."""

    def __init__(self, model: ToyTransformer, data: Examples, hows: set[str], seed: int) -> None:
        self.model, self.data = model, data
        self.means = self._means() if "mean" in hows else {}
        self.donors = donors(data.lengths, seed) if "resample" in hows else None

    def _mixed(self, examples: Examples) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        with recorded(toy_projections(self.model), found):
            self.model.body(examples.token_ids, examples.lengths)
        return found

    def _means(self) -> dict[int, Tensor]:
        sums: dict[int, Tensor] = {}
        for batch in self.data.batches(BATCH):
            examples = batch.to(_device(self.model))
            real = torch.arange(examples.token_ids.shape[1], device=examples.lengths.device) < examples.lengths[:, None]
            for layer, mixed in self._mixed(examples).items():
                total = mixed.double().masked_fill(~real[..., None], 0).sum((0, 1))
                sums[layer] = sums[layer] + total if layer in sums else total
        return {layer: total / int(self.data.lengths.sum()) for layer, total in sums.items()}

    def donated(self, index: Tensor, length: int) -> dict[int, Tensor]:
        """The donors' outputs for some examples, layer -> (batch length width); empty unless resampling."""
        if self.donors is None:
            return {}
        examples = self.data.take(self.donors[index]).to(_device(self.model))
        mixed = self._mixed(examples)
        return {layer: donated(outputs, examples.lengths, length) for layer, outputs in mixed.items()}

    def instead(self, how: str, layer: int, donated_here: dict[int, Tensor]) -> Tensor | float:
        """0, or (… width) for all heads of a layer."""
        if how == "zero":
            return 0.0
        return self.means[layer] if how == "mean" else donated_here[layer]


Scored = tuple[Tensor, Tensor]
"""Loss and share of right answers, (example,) or (head example)."""


@dataclass
class _Layer:
    """What the base pass keeps of a layer."""

    mixed: Tensor
    """What enters the output projection, (batch length width)."""
    middle: Tensor
    """The stream after attention, (batch length width)."""


class _FastMap:
    def __init__(self, model: ToyTransformer, data: Examples, how: str, seed: int, rows: int) -> None:
        self.model, self.data, self.how, self.rows = model, data, how, rows
        self.source = _Source(model, data, {how}, seed)
        self.projections = toy_projections(model)
        self.weights = {layer: projection.weight() for layer, projection in self.projections.items()}
        self.blocks: list[Block] = list(model.body.blocks)  # type: ignore[arg-type]

    def pieces(self) -> Iterator[Tensor]:
        """Indices of examples that are run together, (example,)."""
        if not self.model.cuttable:
            yield from torch.arange(len(self.data)).split(self.rows)
            return
        order = self.data.lengths.cpu().argsort(stable=True)
        lengths = self.data.lengths.cpu()[order].tolist()
        least, start = max(1, self.rows // ALONE), 0
        for end in range(1, len(order) + 1):
            last = end == len(order)
            changes = not last and lengths[end] != lengths[end - 1] and end - start >= least
            if last or changes or end - start == self.rows:
                yield order[start:end]
                start = end

    def piece(self, index: Tensor) -> list[Scored]:
        """Scores of some examples: with all heads, then of each layer (head example)."""
        examples = self.data.take(index).to(_device(self.model))
        cut = self.model.cuttable and int(examples.lengths.min()) == examples.token_ids.shape[1]
        lengths = None if cut else examples.lengths
        x, shared = self.model.body.start(examples.token_ids, lengths)
        self.examples, self.lengths, self.shared = examples, lengths, shared
        self.wanted = _wanted(self.model, examples)
        self.donated = self.source.donated(index, examples.token_ids.shape[1])
        layers: list[_Layer] = []
        for block in self.blocks:
            mixed = block.attention.head_outputs(block.attention_norm(x), shared)
            middle = x + block.attention.output(mixed)
            layers.append(_Layer(mixed, middle))
            x = block.after_attention(middle)
        base = self._scored(_picked(x, self.wanted), 1)
        found = [(base[0][0], base[1][0])]
        return [*found, *(self._layer(number, layer) for number, layer in enumerate(layers))]

    def _layer(self, number: int, layer: _Layer) -> Scored:
        heads, together = self.projections[number].heads, max(1, self.rows // len(self.examples))
        parts = [
            self._without(number, layer, slice(low, min(low + together, heads))) for low in range(0, heads, together)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _without(self, number: int, layer: _Layer, heads: slice) -> Scored:
        """Scores without each of some heads of a layer, (head example)."""
        wanted = self.wanted if number == len(self.blocks) - 1 else None
        instead = self.source.instead(self.how, number, self.donated)
        gone = layer.mixed if isinstance(instead, float) else layer.mixed - instead.to(layer.mixed)
        gone, middle = _picked(gone, wanted), _picked(layer.middle, wanted)
        columns = self.projections[number].columns[heads]
        apart = gone[..., columns.to(gone.device)].flatten(0, 1).transpose(0, 1)  # (head batch*length dim)
        removed = torch.bmm(apart, self.weights[number][heads]).view(len(columns), *middle.shape)
        x = (middle - removed).flatten(0, 1)
        x = self.blocks[number].after_attention(x)
        shared = self.shared.repeated(len(columns))
        for upper in range(number + 1, len(self.blocks)):
            block = self.blocks[upper]
            if upper == len(self.blocks) - 1 and self.wanted is not None:
                x = _last_block(block, x, shared, self.wanted.repeat(len(columns), 1))
            else:
                x = block(x, shared)
        return self._scored(x, len(columns))

    def _scored(self, x: Tensor, times: int) -> Scored:
        """Scores from the stream that leaves the last block: (times example) twice."""
        hidden, labels = self.model.body.norm(x), self.examples.labels
        lengths = None
        if self.wanted is None:
            lengths = None if self.lengths is None else self.lengths.repeat(times)
        elif labels.ndim == 2:
            labels = labels.gather(1, self.wanted)
        output_logits = self.model.read(hidden, lengths)
        repeated = labels.repeat(times, *(1 for _ in labels.shape[1:]))
        batch = Examples(self.examples.token_ids, self.examples.lengths, repeated)
        loss, right = per_example(output_logits, batch)
        return loss.view(times, -1).cpu(), right.view(times, -1).cpu()


def _wanted(model: ToyTransformer, examples: Examples) -> Tensor | None:
    """Places from which something is read, (batch place); None: all."""
    readout = model.settings.readout
    if readout == "mean":
        return None
    if readout == "last":
        return (examples.lengths - 1)[:, None]
    asked = examples.labels != IGNORED
    most = int(asked.sum(1).max())
    if most > DENSE * asked.shape[1]:
        return None
    return asked.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]


def _picked(x: Tensor, wanted: Tensor | None) -> Tensor:
    """Some places of (batch length width); all without a choice."""
    return x if wanted is None else x.gather(1, wanted[..., None].expand(-1, -1, x.shape[-1]))


def _last_block(block: Block, x: Tensor, shared: Pass, wanted: Tensor) -> Tensor:
    mixed = block.attention.head_outputs(block.attention_norm(x), shared)
    return block.after_attention(_picked(x, wanted) + block.attention.output(_picked(mixed, wanted)))

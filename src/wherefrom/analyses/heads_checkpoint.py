"""Head ablations on a checkpoint, scored by its next-token loss: plain evaluations, and the fast map of all heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from wherefrom.analyses.ablation import Ablation, check_ablations, donors
from wherefrom.capture.head_projection import recorded, replaced
from wherefrom.capture.output_projection import decoder_projections
from wherefrom.capture.replay import Recorded, evaluation, output_logits, record, replay
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder

ROWS = 4096
"""Tokens, heads times length, that run through a block at once."""
OUTPUT_NUMBERS = 1 << 25
"""Vocabulary logits held at once."""
ROUNDINGS = 1000
"""How far, in roundings of the model's precision, a replay may be from the pass that it replays."""


class CheckpointAblation:
    """Heads of a checkpoint ablated on fixed inputs.

    `token_ids` (input length); `hows`: kinds of ablation; `layers`: attention layers whose heads are ablated, all
    without a choice. Raises BadInput for a layer that is not there, or a family whose heads are not apart anywhere.
    """

    def __init__(
        self,
        decoder: Decoder,
        token_ids: Tensor,
        hows: Sequence[str],
        seed: int = 0,
        layers: Sequence[int] | None = None,
    ) -> None:
        self.decoder, self.token_ids = decoder, token_ids
        self.projections = decoder_projections(decoder)
        unknown = [layer for layer in layers or () if layer not in self.projections]
        if unknown:
            raise BadInput(f"There is no attention layer {unknown[0]}; there are {_spans(sorted(self.projections))}.")
        self.layers = sorted(self.projections) if layers is None else sorted(set(layers))
        self.hows = tuple(hows)
        inside = [{id(module) for module in block.modules()} for block in decoder.blocks]
        where = {layer: id(module) for layer, module in decoder.attention.items()}
        self.block = {layer: next(k for k, ids in enumerate(inside) if where[layer] in ids) for layer in where}
        with evaluation(decoder):
            self.means = self._means() if "mean" in hows else {}
            lengths = torch.full((len(token_ids),), token_ids.shape[1])
            self.donors = donors(lengths, seed) if "resample" in hows else None
            self.cuts = self._replays()

    def scores(self, ablations: Sequence[Ablation] = ()) -> Tensor:
        """(input,) loss in nats, one plain evaluation of the whole model on each input."""
        check_ablations(self.projections, ablations)
        with evaluation(self.decoder):
            found = []
            for index in range(len(self.token_ids)):
                replacement: dict[int, dict[int, Tensor | float]] = {}
                for ablation in ablations:
                    instead = self._instead(ablation.how, ablation.layer, self._donated(index, [ablation.how]))
                    for head in ablation.heads:
                        columns = self.projections[ablation.layer].columns[head]
                        value = instead if isinstance(instead, float) else instead[..., columns]
                        replacement.setdefault(ablation.layer, {})[head] = value
                ids = self.token_ids[index : index + 1].to(self.decoder.device)
                with replaced(self.projections, replacement):
                    logits = self.decoder.model(ids, use_cache=False).logits
                found.append(_losses(logits[0, :-1], ids[0, 1:]).double().mean())
        return torch.stack(found).cpu()

    def one_input(self, index: int) -> tuple[float, dict[str, dict[int, Tensor]]]:
        """The input's loss, and kind of ablation -> layer -> (head,) loss without each head, nats, float64.

        Equal to `scores` head by head, up to rounding. What does not change is not computed again: blocks below the
        ablated head's are taken from one pass over the input, and all heads of a layer run side by side.
        """
        with evaluation(self.decoder):
            base = record(self.decoder, self.token_ids[index : index + 1])
            donated = self._donated(index, self.hows)
            found = {how: {layer: self._layer(base, how, layer, donated) for layer in self.layers} for how in self.hows}
            return float(self._loss(base, base.hidden)[0]), found

    def _layer(self, base: Recorded, how: str, layer: int, donated: dict[int, Tensor]) -> Tensor:
        projection, length = self.projections[layer], self.token_ids.shape[1]
        instead = self._instead(how, layer, donated)
        start = self.block[layer] if self.cuts else 0
        parts = []
        for heads in torch.arange(projection.heads).split(max(1, ROWS // length)):
            hidden = replay(self.decoder, base, start, projection, heads.tolist(), instead)
            parts.append(self._loss(base, hidden))
        return torch.cat(parts)

    def _loss(self, base: Recorded, hidden: Tensor) -> Tensor:
        """(copy,) mean loss of next tokens from the stack's output (copy length dim)."""
        copies, length = hidden.shape[0], hidden.shape[1] - 1
        rows = hidden[:, :-1].flatten(0, 1)
        labels = base.token_ids[0, 1:].to(rows.device).repeat(copies)
        step = max(1, OUTPUT_NUMBERS // self.decoder.vocabulary)
        losses = [
            _losses(output_logits(self.decoder, base, rows[low : low + step]), labels[low : low + step])
            for low in range(0, len(rows), step)
        ]
        return torch.cat(losses).double().view(copies, length).mean(1).cpu()

    def _instead(self, how: str, layer: int, donated: dict[int, Tensor]) -> Tensor | float:
        if how == "zero":
            return 0.0
        return self.means[layer] if how == "mean" else donated[layer]

    def _donated(self, index: int, hows: Sequence[str]) -> dict[int, Tensor]:
        """layer -> (length width): what the heads hand on at the input that stands in for this one."""
        if self.donors is None or "resample" not in hows:
            return {}
        return self._mixed(int(self.donors[index]))

    def _mixed(self, index: int) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        with recorded(self.projections, found):
            self.decoder.body(self.token_ids[index : index + 1].to(self.decoder.device), use_cache=False)
        return {layer: mixed.reshape(-1, mixed.shape[-1]) for layer, mixed in found.items()}

    def _means(self) -> dict[int, Tensor]:
        sums: dict[int, Tensor] = {}
        for index in range(len(self.token_ids)):
            for layer, mixed in self._mixed(index).items():
                total = mixed.double().sum(0)
                sums[layer] = sums[layer] + total if layer in sums else total
        return {layer: total / self.token_ids.numel() for layer, total in sums.items()}

    def _replays(self) -> bool:
        """Whether a pass from the middle gives what the whole pass gives: not where blocks hand each other more than
        the stream, as keys and values shared between layers."""
        base = record(self.decoder, self.token_ids[:1])
        layer = self.layers[-1]
        projection = self.projections[layer]
        own = self._mixed(0)[layer]  # put back in place of themselves
        hidden = replay(self.decoder, base, self.block[layer], projection, [0], own)
        allowed = ROUNDINGS * torch.finfo(hidden.dtype).eps * float(base.hidden.abs().max())
        return float((hidden - base.hidden).abs().max()) <= allowed


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(row,) cross-entropy in nats, at least in float32."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, labels, reduction="none")


def _spans(numbers: Sequence[int]) -> str:
    consecutive = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if consecutive and len(numbers) > 2 else ", ".join(map(str, numbers))

"""What a leak trace keeps of each attention call: sums over inputs, nothing per input, nothing L x L.

For one layer and one query range, with D the chosen offsets, s the logits, z the log-denominator:
reference r = mean of s over D, profile s' = s - r, level z' = z - r (DESIGN 4.1). Position curves are averaged into
bins and summed over inputs; the second moments that the unbiased estimate subtracts are summed beside them. Sums of
different inputs, processes or machines merge by addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.kernels import widen
from wherefrom.capture.plan import LeakPlan, QueryRange
from wherefrom.capture.profile import profile_sums
from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import CheckFailed


@dataclass
class LeakCell:
    """Sums of one layer and one query range. `head` is the first axis everywhere."""

    rule: MaskRule
    sums: dict[str, Tensor] = field(default_factory=dict)
    """`shape` (head offset bin), `level`, `reference`, `first_token`, `learned_sink` (head bin): sums of curves.
    `square_*`, `cross_*`: sums over inputs of the mean over bins of centred products, float64.
    `profile`, `profile_count`: sums of s' by offset over sampled rows, key 0 left out.
    `sink_odds` (head): sum of the mean log-odds of the learned sink against the keys."""

    def add(self, name: str, value: Tensor) -> None:
        """Add to a sum."""
        self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()


class LeakSums:
    """The sums of one run (one edit) over one group of inputs."""

    def __init__(self, plan: LeakPlan) -> None:
        self.plan = plan
        self.cells: dict[tuple[int, int], LeakCell] = {}
        self.inputs = 0
        self.denominator_error = 0.0

    def observe(self, call: AttentionCall, indices: Sequence[int]) -> None:
        """Take one attention call of a batch of inputs."""
        if call.rule not in self.plan.rules:
            raise CheckFailed(
                f"Layer {call.layer} follows {call.rule}, which the trace was not planned for ({set(self.plan.rules)})."
            )
        diagonals = {o: (lo, call.logits_at_offset(o, lo, hi)) for o, (lo, hi) in self.plan.reach().items()}
        for number, span in enumerate(self.plan.ranges):
            cell = self.cells.setdefault((call.layer, number), LeakCell(call.rule))
            parts = [diagonals[o] for o in span.offsets]
            logits = torch.stack([part[..., span.start - lo : span.stop - lo] for lo, part in parts], 2)
            self._take(cell, call, span, indices, logits)

    def count(self, batch: int) -> None:
        """Count the inputs of a finished batch."""
        self.inputs += batch

    def _take(
        self, cell: LeakCell, call: AttentionCall, span: QueryRange, indices: Sequence[int], logits: Tensor
    ) -> None:
        """Add one range of one call; `logits` (batch head offset query) are those on the range's offsets."""
        start, stop = span.start, span.stop
        reference = logits.mean(2)
        level = widen(call.log_denominator[..., start:stop]) - reference
        self._add_rows(cell, call, span, indices, reference)
        logits -= reference.unsqueeze(2)
        shape_curve, level_curve, reference_curve = (binned(x, span.bins) for x in (logits, level, reference))
        cell.add("shape", shape_curve.sum(0))
        cell.add("level", level_curve.sum(0))
        cell.add("reference", reference_curve.sum(0))

        shape, flat, moved = centred(shape_curve), centred(level_curve), centred(reference_curve)
        raw_logit, raw_denominator = shape + moved.unsqueeze(2), (flat + moved).unsqueeze(2)
        cell.add("square_shape", inner(shape, shape))
        cell.add("square_level", inner(flat, flat))
        cell.add("square_attention", inner(shape - flat.unsqueeze(2), shape - flat.unsqueeze(2)))
        cell.add("square_raw_logit", inner(raw_logit, raw_logit))
        cell.add("square_raw_denominator", inner(raw_denominator, raw_denominator))
        cell.add("cross_raw", inner(raw_logit, raw_denominator))

        z = widen(call.log_denominator[..., start:stop])
        hands = {"first_token": self._first_token_hand(call, span, z)}
        if call.sink is not None:
            sink = call.sink.to(z).view(1, -1, 1) - z
            hands["learned_sink"] = -log_without(sink, z)
            cell.add("sink_odds", (sink + hands["learned_sink"]).mean(-1).double().sum(0))
        for name, hand in hands.items():
            curve = binned(hand, span.bins)
            cell.add(name, curve.sum(0))
            cell.add(f"cross_{name}", inner(centred(curve), flat))

    def _add_rows(
        self, cell: LeakCell, call: AttentionCall, span: QueryRange, indices: Sequence[int], reference: Tensor
    ) -> None:
        """Add sampled full rows to the mean profile; on input 0 also check z against them."""
        for item, index in enumerate(indices):
            phase = index % span.stride
            rows = slice(span.start + phase, span.stop, span.stride)
            sums, count = profile_sums(call, item, rows, reference[item, :, phase :: span.stride])
            cell.add("profile", sums)
            cell.add("profile_count", count)
            if index == 0:
                self._check_denominator(call, rows)

    def _check_denominator(self, call: AttentionCall, rows: slice) -> None:
        query = torch.arange(call.length, device=call.query.device)[rows]
        visible = call.rule.visible(query[:, None], torch.arange(call.length, device=query.device)[None])
        naive = torch.logsumexp(call.logit_rows(0, rows, call.length).masked_fill(~visible, float("-inf")), -1)
        if call.sink is not None:
            naive = torch.logaddexp(naive, call.sink.to(naive).view(-1, 1))
        error = float((naive - widen(call.log_denominator[0][:, query])).abs().max())
        self.denominator_error = max(self.denominator_error, error)

    def _first_token_hand(self, call: AttentionCall, span: QueryRange, z: Tensor) -> Tensor:
        """-log(1 - attention to key 0): what key 0 adds to each log-denominator; 0 where it is unseen or alone."""
        position = torch.arange(span.start, span.stop, device=z.device)
        present = sees_first_among_others(call.rule, position, call.length)
        hand = -log_without(call.logits_to_first[..., span.start : span.stop] - z, z)
        return torch.where(present, hand, 0.0)


def sees_first_among_others(rule: MaskRule, query: Tensor, length: int) -> Tensor:
    """Whether a query sees key 0 and at least one other key."""
    return rule.visible(query, torch.zeros_like(query)) & (rule.visible_count(query, length) > 1)


def log_without(log_weight: Tensor, z: Tensor) -> Tensor:
    """log(1 - exp(log_weight)), floored at the rounding of the log-denominator z that the weight was formed with."""
    floor = torch.finfo(z.dtype).eps * z.abs().clamp(min=1)
    return torch.log(torch.maximum(-torch.expm1(log_weight.clamp(max=0)), floor))


def binned(curve: Tensor, bins: int) -> Tensor:
    """Average the last axis into `bins` bins whose sizes differ by at most one position."""
    size = curve.shape[-1]
    if size == bins:
        return curve
    if size % bins == 0:
        return curve.unflatten(-1, (bins, size // bins)).mean(-1)
    edges = torch.linspace(0, size, bins + 1, dtype=torch.float64).round().long().tolist()
    return torch.stack([curve[..., a:b].mean(-1) for a, b in zip(edges, edges[1:], strict=False)], -1)


def centred(curve: Tensor) -> Tensor:
    """Subtract the mean over positions."""
    return curve - curve.mean(-1, keepdim=True)


def inner(one: Tensor, other: Tensor) -> Tensor:
    """Sum over inputs of the mean over positions of a product, float64."""
    return (one * other).mean(-1).double().sum(0)

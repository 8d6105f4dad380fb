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
from wherefrom.capture.profile import lowest_offset, mean_log_profile, offset_sums
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
    `sink_level` (head): sum of the learned sink's mean logit relative to r."""
    pending: list[dict[str, Tensor]] = field(default_factory=list)
    """Level, first-token logit (and sink) of inputs whose group is not closed yet: z_F needs the group's profile."""

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
        for number, span in enumerate(self.plan.ranges):
            cell = self.cells.setdefault((call.layer, number), LeakCell(call.rule))
            self._take(cell, call, span, indices)

    def count(self, batch: int) -> None:
        """Count the inputs of a finished batch."""
        self.inputs += batch

    def _take(self, cell: LeakCell, call: AttentionCall, span: QueryRange, indices: Sequence[int]) -> None:
        start, stop = span.start, span.stop
        logits = torch.stack([call.logits_at_offset(o, start, stop) for o in span.offsets], 2)
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

        waiting = {"level": level, "first": call.logits_to_first[..., start:stop] - reference}
        if call.sink is not None:
            waiting["sink"] = call.sink.to(reference).view(1, -1, 1) - reference
        cell.pending.append(waiting)

    def _add_rows(
        self, cell: LeakCell, call: AttentionCall, span: QueryRange, indices: Sequence[int], reference: Tensor
    ) -> None:
        """Add sampled full rows to the mean profile; on input 0 also check z against them."""
        low, keys = lowest_offset(call.rule, call.length), span.stop if call.rule.causal else call.length
        key = torch.arange(keys, device=call.query.device)
        for item, index in enumerate(indices):
            phase = index % span.stride
            first = span.start + phase
            query = torch.arange(first, span.stop, span.stride, device=key.device)
            visible = call.rule.visible(query[:, None], key[None])
            rows = call.logit_rows(item, slice(first, span.stop, span.stride), keys)
            if index == 0:
                self._check_denominator(call, rows.masked_fill(~visible, float("-inf")), query)
            ordinary = visible & (key > 0)
            rows = (rows - reference[item, :, phase :: span.stride, None]).masked_fill_(~ordinary, 0.0)
            cell.add("profile", offset_sums(rows, first, span.stride, low, span.stop))
            counted = offset_sums(ordinary.to(rows.dtype)[None], first, span.stride, low, span.stop)
            cell.add("profile_count", counted[0])

    def _check_denominator(self, call: AttentionCall, rows: Tensor, query: Tensor) -> None:
        naive = torch.logsumexp(rows, -1)
        if call.sink is not None:
            naive = torch.logaddexp(naive, call.sink.to(naive).view(-1, 1))
        error = float((naive - widen(call.log_denominator[0][:, query])).abs().max())
        self.denominator_error = max(self.denominator_error, error)

    def close(self) -> None:
        """Turn what is pending into the `first_token` and `learned_sink` curves, with this group's mean profile."""
        for (_, number), cell in self.cells.items():
            span = self.plan.ranges[number]
            if cell.pending:
                _close(cell, span, self.plan.length)
                cell.pending.clear()


def _close(cell: LeakCell, span: QueryRange, length: int) -> None:
    waiting = {name: torch.cat([p[name] for p in cell.pending]).double() for name in cell.pending[0]}
    level = waiting["level"]
    position = torch.arange(span.start, span.stop, device=level.device)
    low = lowest_offset(cell.rule, length)
    profile = mean_log_profile(cell.sums["profile"], cell.sums["profile_count"])
    sees_first = cell.rule.visible(position, torch.zeros_like(position))
    dtype = cell.sums["level"].dtype
    parts = {"first_token": (waiting["first"], profile[:, position - low], sees_first)}
    if "sink" in waiting:
        ordinary_sink = waiting["sink"].mean((0, 2)).unsqueeze(-1)
        parts["learned_sink"] = (waiting["sink"], ordinary_sink, torch.ones_like(sees_first))
        cell.add("sink_level", waiting["sink"].mean(-1).sum(0))
    flat = centred(binned(level, span.bins))
    for name, (logit, ordinary, present) in parts.items():
        # What this term adds to the level beyond an ordinary one: z' - log(exp z' - exp s' + m). Where the term takes
        # all attention, 1 - exp(s' - z') is rounding noise around 0; the ordinary term keeps the logarithm finite.
        others = -torch.expm1((logit - level).clamp(max=0))
        hand = -torch.log(others + torch.exp(ordinary - level))
        curve = binned(torch.where(present, hand, 0.0), span.bins)
        cell.add(name, curve.sum(0).to(dtype))
        cell.add(f"cross_{name}", inner(centred(curve), flat))


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

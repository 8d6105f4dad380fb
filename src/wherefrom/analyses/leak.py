"""Leak trace: how much of attention depends on absolute position, and through which door it came (DESIGN 4.1).

Everything is an unbiased covariance over query positions of input-means,

    C(x, y) = (1/n) sum_i [ (sum_b x_b(i)) (sum_b y_b(i)) - sum_b x_b(i) y_b(i) ] / (B (B - 1)),

with x, y centred over the positions of the range: each product pairs two different inputs, so sampling noise cancels.
It may come out slightly negative where the truth is 0, and is never clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wherefrom.analyses.jackknife import leave_one_out, standard_error
from wherefrom.capture.leak_sums import LeakCell, LeakSums, binned, centred, sees_first_among_others
from wherefrom.capture.plan import LeakPlan, QueryRange
from wherefrom.capture.profile import log_mask_level, mean_log_profile, ordinary_first_token
from wherefrom.errors import BadInput
from wherefrom.rows import Row

SPLIT = ("attention_leak", "shape_leak", "level_leak", "mask", "first_token", "learned_sink", "rest", "residual")
"""attention = shape + level; level = mask + first_token (+ learned_sink) + rest; residual = attention - mask."""
RAW = ("raw_logit_leak", "raw_denominator_leak", "raw_interaction", "count")
"""The row-dependent split of paper [R]'s kind, for comparison: V(s), V(z), -2 C(s, z), V(log n)."""
BY_OFFSET = ("attention_leak", "shape_leak", "raw_logit_leak", "raw_interaction")
"""Metrics that exist per offset; the others belong to a whole row."""


@dataclass
class LeakEstimate:
    """Estimates and jackknife replicates of one run."""

    plan: LeakPlan
    layers: list[int]
    inputs: int
    values: dict[tuple[int, int, str], Tensor]
    """(layer, range number, metric) -> (1 + groups, head), float64: the estimate, then the replicates."""
    by_offset: dict[tuple[int, int, str], Tensor]
    """(layer, range number, metric) -> (1 + groups, head, offset)."""
    closure: float
    """Largest |attention - shape - level| over layers, heads and ranges, in nats squared."""
    denominator_error: float
    """Largest difference between the kernel's log-denominator and one formed from full rows, in nats."""

    def over_heads(self, layer: int, number: int, metric: str) -> Tensor:
        """Mean over heads: (1 + groups,)."""
        return self.values[layer, number, metric].mean(1)

    def over_layers(self, number: int, metric: str) -> Tensor:
        """Mean over heads, then layers: (1 + groups,)."""
        return torch.stack([self.over_heads(layer, number, metric) for layer in self.layers]).mean(0)

    def metrics(self) -> list[str]:
        """The metrics this run has."""
        present = {metric for _, _, metric in self.values}
        return [metric for metric in (*SPLIT, *RAW) if metric in present]


def estimate_leak(groups: Sequence[LeakSums]) -> LeakEstimate:
    """Estimate every leak metric from the closed sums of all jackknife groups of one run.

    Raises BadInput for fewer than two inputs.
    """
    plan = groups[0].plan
    counts = torch.tensor([group.inputs for group in groups], dtype=torch.float64)
    if counts.sum() < 2:
        raise BadInput("A leak is a variance over inputs and needs at least two; use --inputs of 2 or more.")
    values: dict[tuple[int, int, str], Tensor] = {}
    by_offset: dict[tuple[int, int, str], Tensor] = {}
    closure = 0.0
    for layer, number in groups[0].cells:
        cells = [group.cells[layer, number] for group in groups]
        scalars, curves = _estimate_cell(cells, counts, plan.ranges[number], plan.length)
        values |= {(layer, number, metric): value for metric, value in scalars.items()}
        by_offset |= {(layer, number, metric): value for metric, value in curves.items()}
        gap = scalars["attention_leak"] - scalars["shape_leak"] - scalars["level_leak"]
        closure = max(closure, float(gap[0].abs().max()))
    layers = sorted({layer for layer, _ in groups[0].cells})
    error = max(group.denominator_error for group in groups)
    return LeakEstimate(plan, layers, int(counts.sum()), values, by_offset, closure, error)


def _estimate_cell(
    cells: Sequence[LeakCell], counts: Tensor, span: QueryRange, length: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Estimates of one layer and range: scalars (1 + groups, head) and per offset (1 + groups, head, offset)."""

    def gathered(name: str) -> Tensor:
        return leave_one_out(torch.stack([cell.sums[name].double().cpu() for cell in cells]))

    n = leave_one_out(counts)
    shape, level, reference = (centred(gathered(name)) for name in ("shape", "level", "reference"))

    def unbiased(x: Tensor, y: Tensor, same_input: Tensor) -> Tensor:
        pairs = (n * (n - 1)).view(-1, *[1] * (same_input.ndim - 1))
        return ((x * y).mean(-1) - same_input) / pairs

    def constant(curve: Tensor, y: Tensor) -> Tensor:
        """C(x, y) for a curve x that is the same for every input."""
        return (centred(curve) * y).mean(-1) / n.view(-1, 1)

    wide = level.unsqueeze(2)
    raw_logit, raw_denominator = shape + reference.unsqueeze(2), (level + reference).unsqueeze(2)
    curves = {
        "attention_leak": unbiased(shape - wide, shape - wide, gathered("square_attention")),
        "shape_leak": unbiased(shape, shape, gathered("square_shape")),
        "raw_logit_leak": unbiased(raw_logit, raw_logit, gathered("square_raw_logit")),
        "raw_interaction": -2 * unbiased(raw_logit, raw_denominator, gathered("cross_raw")),
    }
    scalars = {metric: value.mean(-1) for metric, value in curves.items()}
    scalars["level_leak"] = unbiased(level, level, gathered("square_level"))
    scalars["raw_denominator_leak"] = unbiased(raw_denominator, raw_denominator, gathered("square_raw_denominator"))[
        ..., 0
    ]
    scalars["count"] = _count_leak(cells[0], span, length).expand_as(scalars["level_leak"])

    mask, ordinary = _mask_levels(cells, n, span, length)
    scalars["mask"] = constant(mask, level)
    parts = ["mask"]
    for name, usual in ordinary.items():
        hand = unbiased(centred(gathered(name)), level, gathered(f"cross_{name}"))
        scalars[name] = hand - constant(usual, level)
        parts.append(name)
    scalars["rest"] = scalars["level_leak"] - torch.stack([scalars[part] for part in parts]).sum(0)
    scalars["residual"] = scalars["shape_leak"] + scalars["level_leak"] - scalars["mask"]
    return scalars, curves


def _count_leak(cell: LeakCell, span: QueryRange, length: int) -> Tensor:
    """V(log n_i): what the number of visible keys alone would do to a uniform head's denominator."""
    position = torch.arange(span.start, span.stop)
    curve = centred(binned(cell.rule.visible_count(position, length).double().log(), span.bins))
    return curve.square().mean()


def _mask_levels(
    cells: Sequence[LeakCell], n: Tensor, span: QueryRange, length: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """z_M of every replicate, and what an ordinary first token (and learned sink) adds to it.

    All (1 + groups, head, bin), nats. "Ordinary" means weighing what the mean profile gives it beside the other keys,
    so that a key 0 like any other, and a sink that only gets diluted by more keys, leave nothing to their own parts.
    """
    profile = leave_one_out(torch.stack([cell.sums["profile"].double().cpu() for cell in cells]))
    count = leave_one_out(torch.stack([cell.sums["profile_count"].double().cpu() for cell in cells]))
    rule = cells[0].rule
    position = torch.arange(span.start, span.stop)
    present = sees_first_among_others(rule, position, length)
    odds = None
    if "sink_odds" in cells[0].sums:
        odds = leave_one_out(torch.stack([cell.sums["sink_odds"].cpu() for cell in cells])) / n.view(-1, 1)
    levels: list[Tensor] = []
    ordinary: dict[str, list[Tensor]] = {name: [] for name in ("first_token", "learned_sink") if name in cells[0].sums}
    for replicate in range(len(n)):
        log_profile = mean_log_profile(profile[replicate], count[replicate])
        keys = level = log_mask_level(log_profile, rule, span.start, span.stop, length)
        if odds is not None:
            # The sink's weight in units of the profile: its mean odds against the keys, times the keys' mean weight.
            sink = odds[replicate].unsqueeze(-1) + keys.mean(-1, keepdim=True)
            level = torch.logaddexp(keys, sink)
            ordinary["learned_sink"].append(binned(level - keys, span.bins))
        first = ordinary_first_token(log_profile, level, rule, span.start, length)
        ordinary["first_token"].append(binned(torch.where(present, first, 0.0), span.bins))
        levels.append(binned(level, span.bins))
    return torch.stack(levels), {name: torch.stack(curves) for name, curves in ordinary.items()}


def leak_rows(estimate: LeakEstimate, edit: str = "none") -> list[Row]:
    """Every leak metric as rows: per head, per layer, over all; per offset where the metric has one; and the share."""
    rows: list[Row] = []
    for number, span in enumerate(estimate.plan.ranges):

        def emit(metric: str, replicates: Tensor, span: QueryRange = span, axis: str = "", **where: Any) -> None:
            unit = "share" if metric == "residual_share" else "nats2"
            flat = replicates.reshape(replicates.shape[0], -1)
            for index, (value, error) in enumerate(zip(flat[0].tolist(), _errors(flat), strict=True)):
                if axis:
                    where[axis] = span.offsets[index] if axis == "offset" else index
                rows.append(
                    Row("leak", metric, value, unit, estimate.inputs, error, edit, query_range=span.text, **where)
                )

        for metric in estimate.metrics():
            for layer in estimate.layers:
                emit(metric, estimate.values[layer, number, metric], layer=layer, axis="head")
                emit(metric, estimate.over_heads(layer, number, metric), layer=layer)
            emit(metric, estimate.over_layers(number, metric))
        for metric in BY_OFFSET:
            curves = [estimate.by_offset[layer, number, metric] for layer in estimate.layers]
            for layer, curve in zip(estimate.layers, curves, strict=True):
                for head in range(curve.shape[1]):
                    emit(metric, curve[:, head], layer=layer, head=head, axis="offset")
                emit(metric, curve.mean(1), layer=layer, axis="offset")
            emit(metric, torch.stack([c.mean(1) for c in curves]).mean(0), axis="offset")
        for place in (None, *estimate.layers):
            emit("residual_share", _pick(estimate, place, number, "residual_share"), layer=place)
    return rows


def removed_rows(base: LeakEstimate, edited: LeakEstimate, edit: str) -> list[Row]:
    """Removed fraction 1 - V_edit / V_base of every metric, paired on the same inputs, over all and per layer."""
    rows = []
    for number, span in enumerate(base.plan.ranges):
        for metric in base.metrics():
            if metric == "count":
                continue
            for layer in (None, *base.layers):
                before, after = (_pick(run, layer, number, metric) for run in (base, edited))
                if float(before[0]) == 0.0:
                    continue  # nothing was there that could be removed
                removed = (1 - after / before).unsqueeze(1)
                value, error = float(removed[0]), _errors(removed)[0]
                rows.append(
                    Row("removed", metric, value, "share", base.inputs, error, edit, layer, query_range=span.text)
                )
    return rows


def _errors(replicates: Tensor) -> list[float | None]:
    """Standard errors of (1 + groups, k) replicates; None where there are too few inputs for one."""
    errors = standard_error(replicates[1:]).tolist()
    return [error if math.isfinite(error) else None for error in errors]


def _pick(estimate: LeakEstimate, layer: int | None, number: int, metric: str) -> Tensor:
    if metric == "residual_share":
        return _pick(estimate, layer, number, "residual") / _pick(estimate, layer, number, "attention_leak")
    if layer is None:
        return estimate.over_layers(number, metric)
    return estimate.over_heads(layer, number, metric)

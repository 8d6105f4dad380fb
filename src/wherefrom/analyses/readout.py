"""Position readout: how much of the residual stream is absolute position, in how many directions (DESIGN 4.8).

Per depth, over the sampled positions (position 0 left out):

- `position_share`: variance over positions of the input-mean stream, as a share of the stream's whole variance, from
  pairs of different inputs so that sampling noise is no position; `direction_share`: the same of the stream scaled to
  length 1 at every position, as the blocks behind a norm read it, where a few very long vectors cannot be the whole;
- `position_rank`: effective number of directions of that variance, (sum of eigenvalues)² / sum of their squares, from
  products of four disjoint sets of inputs;
- `probe_error`: root-mean-square error in tokens of a ridge probe that reads the position, trained on three quarters of
  the inputs and tested on the others, in closed form from sums; `probe_chance` is the error of guessing the middle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wherefrom.analyses.jackknife import leave_one_out, standard_error
from wherefrom.capture.position_sums import PositionSums
from wherefrom.rows import Row

FOLDS = 4
"""Sets of inputs: the probe is tested on each in turn, and the rank needs four."""
RIDGES = (0.01, 0.1, 1.0, 10.0)
"""Ridge penalties per training sample, features scaled to variance 1. Each test fold gets the one that does best
between the other folds, so that the held-out error has not chosen it."""
CLEAR = 3.0
"""A rank is given where the position variance exceeds this many standard errors; below it there is nothing to rank."""


def readout_rows(groups: Sequence[PositionSums], edit: str, query_range: str) -> list[Row]:
    """Rows of analysis `readout`; `layer` is the depth k: the stream entering block k, or leaving the last one."""
    inputs = sum(group.inputs for group in groups)
    rows: list[Row] = []

    def write(metric: str, unit: str, depth: int | None, value: float, error: float) -> None:
        if math.isfinite(value):
            known = error if math.isfinite(error) else None
            rows.append(Row("readout", metric, value, unit, inputs, known, edit, layer=depth, query_range=query_range))

    for depth in sorted(groups[0].depths):
        position, whole = position_variance(groups, depth)
        for metric, share in (
            ("position_share", position / whole),
            ("direction_share", _direction_share(groups, depth)),
        ):
            write(metric, "share", depth, float(share[0]), float(standard_error(share[1:])))
        clear = float(position[0]) > CLEAR * float(standard_error(position[1:]))
        if clear and len(groups) >= FOLDS:
            rank = position_rank(groups, depth)
            write("position_rank", "directions", depth, float(rank[0]), float(standard_error(rank[1:])))
        errors = probe_errors(groups, depth)
        if len(errors):
            mean = errors.square().mean().sqrt()
            write("probe_error", "tokens", depth, float(mean), float(errors.std() / len(errors) ** 0.5))
    write("probe_chance", "tokens", None, float(_positions(groups[0]).std(correction=0)), math.nan)
    return rows


def position_variance(groups: Sequence[PositionSums], depth: int) -> tuple[Tensor, Tensor]:
    """Variance over positions of the input-mean stream, and the whole variance: (1 + groups,) replicates each."""

    def gathered(name: str) -> Tensor:
        return leave_one_out(torch.stack([group.depths[depth][name].double().cpu() for group in groups]))

    n = leave_one_out(torch.tensor([group.inputs for group in groups], dtype=torch.float64))
    stream = gathered("stream")
    centred = stream - stream.mean(1, keepdim=True)
    position = (_mean_square(centred) - gathered("centred_square")) / (n * (n - 1))
    content = (gathered("square") - _mean_square(stream) / n) / (n - 1)
    return position, position + content


def _direction_share(groups: Sequence[PositionSums], depth: int) -> Tensor:
    """The position share of the stream scaled to length 1: (1 + groups,) replicates."""
    n = leave_one_out(torch.tensor([group.inputs for group in groups], dtype=torch.float64))
    total = leave_one_out(torch.stack([group.depths[depth]["direction"].double().cpu() for group in groups]))
    own = leave_one_out(torch.stack([group.depths[depth]["centred_direction"].double().cpu() for group in groups]))
    position = (_mean_square(total - total.mean(1, keepdim=True)) - own) / (n * (n - 1))
    content = (n - _mean_square(total) / n) / (n - 1)
    return position / (position + content)


def _positions(sums: PositionSums) -> Tensor:
    return torch.tensor(list(sums.plan.positions), dtype=torch.float64)


def _mean_square(stream: Tensor) -> Tensor:
    return stream.square().sum(-1).mean(-1)


def position_rank(groups: Sequence[PositionSums], depth: int) -> Tensor:
    """Effective rank of the position variance, (1 + groups,) replicates: participation ratio without noise bias."""
    means = [group.depths[depth]["stream"].double().cpu() for group in groups]
    sizes = [group.inputs for group in groups]
    ranks: list[Tensor] = []
    for out in (None, *range(len(groups))):
        folds = []
        for fold in range(FOLDS):
            members = [g for g in range(fold, len(groups), FOLDS) if g != out]
            if not members:
                return torch.tensor([float("nan")]) if out is None else torch.stack(ranks[:1])
            mean = torch.stack([means[g] for g in members]).sum(0) / sum(sizes[g] for g in members)
            folds.append(mean - mean.mean(0))
        ranks.append(_participation(folds))
    return torch.stack(ranks)


def _participation(folds: Sequence[Tensor]) -> Tensor:
    """(sum of eigenvalues)² / sum of squared eigenvalues of the covariance over positions, folds (position dim)."""
    gram = {pair: folds[pair[0]] @ folds[pair[1]].T for pair in itertools.combinations(range(FOLDS), 2)}
    trace = torch.stack([g.diagonal().sum() for g in gram.values()]).mean()
    squares = []
    for one, other in (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))):
        a, b = (gram[pair] + gram[pair].T for pair in (one, other))
        squares.append((a * b).sum() / 4)
    return trace.square() / torch.stack(squares).mean()


Fold = tuple[int, Tensor, Tensor, Tensor]
"""Samples, and their sums of feature products, features, and features times position."""


def probe_errors(groups: Sequence[PositionSums], depth: int) -> Tensor:
    """Held-out root-mean-square error of the ridge probe, (fold,) in tokens; nothing for fewer than FOLDS groups."""
    position = _positions(groups[0])
    if len(groups) < FOLDS:
        return torch.zeros(0)
    folds: list[Fold] = []
    for fold, first in enumerate(groups[:FOLDS]):
        inputs = sum(group.inputs for group in groups[fold::FOLDS])
        moment, feature, cross = (first.depths[depth][name].double().cpu() for name in ("moment", "feature", "cross"))
        folds.append((inputs * len(position), moment, feature, cross))
    errors = []
    for test in range(FOLDS):
        others = [fold for number, fold in enumerate(folds) if number != test]
        trial = [float(_held_out(others[1:], others[0], ridge, position)) for ridge in RIDGES]
        errors.append(_held_out(others, folds[test], RIDGES[trial.index(min(trial))], position))
    return torch.stack(errors)


def _held_out(train: Sequence[Fold], test: Fold, ridge: float, position: Tensor) -> Tensor:
    """Fit on some folds and test on another; everything from second moments."""
    n = sum(fold[0] for fold in train)
    moment = torch.stack([fold[1] for fold in train]).sum(0) / n
    feature, cross = (torch.stack([fold[k] for fold in train]).sum(0) / n for k in (2, 3))  # type: ignore[misc]
    mean = position.mean()
    covariance = moment - feature[:, None] * feature[None]
    scale = covariance.diagonal().clamp(min=0).sqrt()
    scale = torch.where(scale > 1e-9 * scale.max(), scale, torch.inf)
    system = covariance / scale[:, None] / scale[None] + ridge * torch.eye(len(scale), dtype=torch.float64)
    weight = torch.linalg.solve(system, (cross - mean * feature) / scale) / scale
    # Prediction: mean + weight · (x - feature), judged by the held-out fold's own sums.
    held, moment, feature_sum, cross_sum = test
    shift = weight @ feature
    square = weight @ moment @ weight - 2 * shift * (weight @ feature_sum) + held * shift.square()
    product = weight @ cross_sum - mean * (weight @ feature_sum)  # position is centred: the shift drops out
    variance = held * position.var(correction=0)
    return ((square - 2 * product + variance).clamp(min=0) / held).sqrt()

"""Which query rows of the logits a split looks at, and which part of them a function of the offset can explain.

The inner product of two row-centred logit matrices is <A, B> = mean over the chosen rows of the mean over the row's
visible keys of A B: every query counts once, however many keys it sees. Rows are few, keys are all: nothing here is
L x L unless every row is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput

ALL_ROWS = 128
"""Inputs of up to this many tokens are taken whole."""
SAMPLED_ROWS = 64
"""Query rows taken of longer inputs at most, evenly spaced."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Evenly spaced queries, the same for every input. Position 0 sees one key, so no row of it can vary."""

    length: int
    first: int
    stride: int
    count: int

    @property
    def positions(self) -> range:
        """The chosen queries."""
        return range(self.first, self.first + self.stride * self.count, self.stride)

    @property
    def exact(self) -> bool:
        """Whether every query that sees more than itself is taken."""
        return self.stride == 1 and self.first == 1 and self.count == self.length - 1

    def slice(self) -> slice:
        """The chosen queries as a slice of the query axis."""
        return slice(self.first, self.positions[-1] + 1, self.stride)


def plan_rows(length: int, rows: int | None = None) -> RowPlan:
    """Rows for inputs of `length` tokens, at most `rows`; None: all up to ALL_ROWS, else SAMPLED_ROWS.

    Raises BadInput for an input too short or fewer than two rows.
    """
    if length < 4:
        raise BadInput(f"Inputs of {length} tokens are too short to split; use --length of at least 4.")
    available = length - 1
    wanted = (available if length <= ALL_ROWS else SAMPLED_ROWS) if rows is None else min(rows, available)
    if wanted < 2:
        raise BadInput(f"{wanted} query rows cannot show how logits vary; use --rows of at least 2.")
    stride = -(-available // wanted)
    count = -(-available // stride)
    # The last row is the last query; what does not divide is left out in front, where rows see fewest keys.
    return RowPlan(length, available - stride * (count - 1), stride, count)


class OffsetFit:
    """Orthogonal projection of row-centred logits onto functions of the offset, for one mask rule.

    A function t of the offset explains t(i - j) minus its mean over the row. The best t solves a singular system (t is
    free up to constants) of one equation per offset, which is solved through one unknown per row.
    """

    def __init__(self, plan: RowPlan, rule: MaskRule, device: torch.device | None = None) -> None:
        self.plan, self.rule = plan, rule
        self.query = torch.tensor(list(plan.positions), device=device)
        key = torch.arange(plan.length, device=device)
        self.visible = rule.visible(self.query[:, None], key[None])
        """(row key) boolean."""
        self.count = self.visible.sum(1).double()
        seen_more = self.count > 1
        if not bool(seen_more.any()):
            raise BadInput(f"Every query sees one key only ({rule}), so logits cannot vary along a row.")
        self.rows = int(seen_more.sum())
        self.low = 0 if rule.causal else 1 - plan.length
        self.high = plan.positions[-1] + 1
        self.weight = torch.where(seen_more, 1.0 / (self.rows * self.count), 0.0)
        """(row,): weight of each visible key of a row; they sum to 1 over everything."""

    @cached_property
    def seen(self) -> Tensor:
        """(row offset) boolean: which offsets, `low` first, each row sees."""
        offset = torch.arange(self.low, self.high, device=self.query.device)
        key = self.query[:, None] - offset[None]
        inside = (key >= 0) & (key < self.plan.length)
        return inside & self.visible.gather(1, key.clamp(0, self.plan.length - 1))

    def centred(self, rows: Tensor) -> Tensor:
        """Subtract each row's mean over its visible keys; invisible entries become 0. (... row key)"""
        hidden = rows.masked_fill(~self.visible, 0.0)
        return (hidden - hidden.sum(-1, keepdim=True) / self.count[:, None].to(rows)).masked_fill(~self.visible, 0.0)

    def weighted(self, rows: Tensor) -> Tensor:
        """Times the weight of each entry: (... row key)."""
        return rows * self.weight[:, None].to(rows)

    def offset_sums(self, weighted: Tensor) -> Tensor:
        """Sum along equal offsets: (head row key) to (head offset). Invisible entries must be 0."""
        heads, rows, keys = weighted.shape
        first, last = self.plan.positions[0], self.plan.positions[-1]
        left, right = max(0, self.high - 1 - first), max(0, last - self.low - (keys - 1))
        width = left + keys + right
        padded = F.pad(weighted, (left, right)).contiguous()
        # One row down moves the query by `stride`, so an equal offset lies `width + stride` entries further on.
        diagonals = padded.as_strided(
            (heads, rows, self.high - self.low),
            (rows * width, width + self.plan.stride, 1),
            left + first - self.high + 1,
        )
        return diagonals.sum(1).flip(-1)

    @cached_property
    def _solver(self) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.seen.double()
        mass = (self.weight[:, None] * seen).sum(0)
        inverse = torch.where(mass > 0, 1 / mass.clamp(min=1e-300), 0.0)
        rows = seen * (self.weight / self.count.clamp(min=1)).sqrt()[:, None]
        small = torch.eye(len(rows), dtype=torch.float64, device=seen.device) - (rows * inverse) @ rows.T
        return inverse, rows, torch.linalg.pinv(small, hermitian=True, rtol=1e-9)

    def profile(self, sums: Tensor) -> Tensor:
        """Best function of the offset from weighted offset sums (... offset), float64; its weighted mean is 0."""
        inverse, rows, small = self._solver
        start = sums.double() * inverse
        found = start + ((start @ rows.T) @ small) @ (rows * inverse)
        mass = (self.weight[:, None] * self.seen).sum(0)
        return (found - (found * mass).sum(-1, keepdim=True)) * (mass > 0)

    def at_first_key(self, profile: Tensor) -> Tensor:
        """What a profile (... offset) explains of each row's key 0: (... row), row mean subtracted, 0 where unseen."""
        mean = profile @ (self.seen.double() / self.count.clamp(min=1)[:, None]).T
        return (profile[..., self.query - self.low] - mean) * self.visible[:, 0]

    def explained(self, profile: Tensor) -> Tensor:
        """The profile as row-centred logits: (... offset) to (... row key)."""
        key = torch.arange(self.plan.length, device=self.query.device)
        index = (self.query[:, None] - key[None] - self.low).clamp(0, self.high - self.low - 1)
        return self.centred(profile[..., index])

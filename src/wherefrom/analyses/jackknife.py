"""Standard errors by the delete-one-group jackknife."""

from __future__ import annotations

import torch
from torch import Tensor


def standard_error(replicates: Tensor) -> Tensor:
    """Standard error from replicates along axis 0, replicate g leaving group g out; NaN for fewer than two groups."""
    groups = replicates.shape[0]
    if groups < 2:
        return torch.full(replicates.shape[1:], float("nan"), dtype=replicates.dtype)
    spread = replicates - replicates.mean(0)
    return ((groups - 1) / groups * spread.square().sum(0)).sqrt()


def leave_one_out(per_group: Tensor) -> Tensor:
    """(groups ...) sums to (groups + 1 ...): the total at index 0, then the total without group g at g + 1.

    One group alone has nothing to be left out of: only the total comes back.
    """
    if len(per_group) == 1:
        return per_group
    total = per_group.sum(0, keepdim=True)
    return torch.cat([total, total - per_group])

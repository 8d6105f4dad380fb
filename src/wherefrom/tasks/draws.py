"""Random tables that tasks are made of, each drawn from one generator and from nothing else.

Types are stated everywhere: a default type or device that the caller has set must not change an example.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wherefrom.tasks.base import PAD


def integers(least: int, most: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Whole numbers from `least` to `most`, both included, all equally likely: int64, of the given shape."""
    return torch.randint(least, most + 1, shape, generator=generator, dtype=torch.int64)


def orders(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """One random order of 0 … size−1 in each row: (rows size), int64."""
    keys = torch.rand((rows, size), generator=generator, dtype=torch.float64)
    return keys.argsort(dim=1, stable=True)


def places(lengths: Tensor) -> Tensor:
    """0, 1, 2, … up to the longest of `lengths`, for comparison with values of shape (batch 1): (1 length)."""
    return torch.arange(int(lengths.max()), dtype=torch.int64)[None]


def pad(token_ids: Tensor, lengths: Tensor) -> Tensor:
    """`token_ids` (batch length) with PAD from each row's length on, cut to the longest row."""
    place = places(lengths)
    return token_ids[:, : place.shape[1]].masked_fill(place >= lengths[:, None], PAD)

"""Sums behind the first-token analysis: the residual stream at position 0, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from wherefrom.capture.kernels import widen


class ResidualSums:
    """Sums over inputs, per depth k: the stream entering block k; the last k is what leaves the last block."""

    def __init__(self) -> None:
        self.depths: dict[int, dict[str, Tensor]] = {}
        self.inputs = 0

    def observe(self, depth: int, hidden: Tensor) -> None:
        """Take the stream (batch length dim) at one depth."""
        norms = torch.linalg.vector_norm(widen(hidden), dim=-1)
        first = widen(hidden[:, 0])
        later = norms[:, 1:].mean(1) if hidden.shape[1] > 1 else norms[:, 0]
        sums = {
            "norm": norms[:, 0].sum(0),
            "square_norm": norms[:, 0].square().sum(0),
            "ratio": (norms[:, 0] / later).sum(0),
            "square_ratio": (norms[:, 0] / later).square().sum(0),
            "direction": torch.nn.functional.normalize(first, dim=-1).sum(0),
        }
        kept = self.depths.setdefault(depth, {})
        for name, value in sums.items():
            kept[name] = kept[name] + value if name in kept else value.clone()

    def count(self, batch: int) -> None:
        """Count the inputs of a finished batch."""
        self.inputs += batch

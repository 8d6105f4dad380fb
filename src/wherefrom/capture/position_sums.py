"""Sums behind the position readout: the residual stream at the sampled positions, depth by depth.

Position 0 is left out: its stream is a trajectory of its own, often hundreds of times as long as the others
(DESIGN 4.3), and would be most of any variance.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wherefrom.capture.kernels import widen
from wherefrom.capture.query_rows import RowPlan

PROBE_WIDTH = 512
"""The probe reads at most this many features; wider streams go through a fixed random projection first."""


@dataclass
class PositionSums:
    """Sums of one jackknife group, per depth k (the stream entering block k; the last: leaving the last block).

    `stream` (position dim): the stream summed over inputs. `square`, `centred_square` (): sum over inputs of the mean
    over positions of its squared norm, as it is and with the input's own mean over positions taken away. `direction`,
    `centred_direction`: the same of the stream scaled to length 1. For the probe, over all inputs and positions:
    `moment` (feature feature), `feature` (feature,), `cross` (feature,) with the position.
    """

    plan: RowPlan
    depths: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    inputs: int = 0

    def observe(self, depth: int, hidden: Tensor, indices: Sequence[int]) -> None:
        """Take the stream (batch length dim) at one depth."""
        stream = widen(hidden[:, self.plan.slice()])
        exact = stream.double()
        centred = exact - exact.mean(1, keepdim=True)
        direction = torch.nn.functional.normalize(exact, dim=-1)
        features = projected(exact).flatten(0, 1)
        position = torch.tensor(list(self.plan.positions), dtype=torch.float64, device=hidden.device)
        values = {
            "stream": stream.sum(0),
            "square": exact.square().sum(-1).mean(-1).sum(),
            "centred_square": centred.square().sum(-1).mean(-1).sum(),
            "direction": direction.sum(0).to(stream.dtype),
            "centred_direction": (direction - direction.mean(1, keepdim=True)).square().sum(-1).mean(-1).sum(),
            "moment": features.T @ features,
            "feature": features.sum(0),
            "cross": features.T @ position.repeat(len(stream)),
        }
        kept = self.depths.setdefault(depth, {})
        for name, value in values.items():
            kept[name] = kept[name] + value if name in kept else value

    def count(self, indices: Sequence[int]) -> None:
        """Count the inputs of a finished batch."""
        self.inputs += len(indices)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Flat tensors and a JSON-able header, for safetensors."""
        flat = {f"{depth}/{name}": value for depth, sums in self.depths.items() for name, value in sums.items()}
        return flat, {"inputs": self.inputs}

    @classmethod
    def from_tensors(cls, plan: RowPlan, flat: dict[str, Tensor], header: dict[str, Any]) -> PositionSums:
        """The inverse of `tensors`."""
        found = cls(plan, inputs=header["inputs"])
        for key, value in flat.items():
            depth, _, name = key.partition("/")
            found.depths.setdefault(int(depth), {})[name] = value
        return found


def projected(stream: Tensor) -> Tensor:
    """The probe's features (... feature): the stream itself, or PROBE_WIDTH random directions of a wider one."""
    width = stream.shape[-1]
    if width <= PROBE_WIDTH:
        return stream
    return stream @ _directions(width).to(stream)


@functools.lru_cache(maxsize=4)
def _directions(width: int) -> Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randn(width, PROBE_WIDTH, generator=generator, dtype=torch.float64) / width**0.5

"""A layer's frequencies in a few numbers: the base if they are geometric, and the wavelengths."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from wherefrom.capture.layer_rotation import LayerRotation

GEOMETRIC = 1e-5
"""Largest distance of log frequencies from a straight line; float32 tables stay below 1e-6."""


@dataclass(frozen=True)
class RotarySummary:
    """How one layer rotates."""

    pairing: str
    """`half`, `interleaved`, `other` or `none`."""
    rotary_dims: int
    """Dimensions of the rotary block."""
    start: int
    """First dimension of the block."""
    pairs: int
    """Pairs in the block."""
    still_pairs: int
    """Pairs of the block whose frequency is 0."""
    base: float | None
    """θ of frequencies first · θ^(−m/pairs), as read from them; None where they are not geometric."""
    first_frequency: float | None
    """Fastest pair, radians per token."""
    shortest_wavelength: float | None
    """Tokens per turn of the fastest pair."""
    longest_wavelength: float | None
    """Tokens per turn of the slowest pair that turns."""
    attention_scaling: float
    """Factor on rotated queries and on rotated keys."""
    logit_scaling: float
    """Its square: what a logit feels."""
    scaling_read: bool
    """False where the scaling could not be told from the vectors' own length."""
    sign: int
    """+1: the first dimension of a pair turns towards the second."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def summarise(rotation: LayerRotation, rounding: float = 0.0) -> RotarySummary:
    """The summary of a rotation; `rounding` is the relative precision in which its frequencies are stored."""
    moving = rotation.frequencies[rotation.frequencies > 0]
    fastest = float(moving.max()) if moving.numel() else None
    slowest = float(moving.min()) if moving.numel() else None
    return RotarySummary(
        rotation.pairing,
        rotation.rotary_dims,
        rotation.start,
        rotation.first.numel(),
        int((rotation.frequencies == 0).sum()),
        geometric_base(rotation, rounding),
        fastest,
        None if fastest is None else 2 * math.pi / fastest,
        None if slowest is None else 2 * math.pi / slowest,
        rotation.magnitude,
        rotation.magnitude**2,
        rotation.magnitude_read,
        rotation.sign,
    )


def geometric_base(rotation: LayerRotation, rounding: float = 0.0) -> float | None:
    """The base of geometric frequencies, or None.

    Pairs that stand still count as places of the sequence (the `proportional` convention spreads frequencies over the
    whole head), but must all come last.
    """
    frequencies = rotation.frequencies
    count = int((frequencies > 0).sum())
    if count < 2 or not bool((frequencies[:count] > 0).all()):
        return None
    logs = frequencies[:count].log()
    place = torch.arange(count, dtype=torch.float64)
    step = float((logs[-1] - logs[0]) / (count - 1))
    if float((logs - logs[0] - step * place).abs().max()) > max(GEOMETRIC, 2 * rounding):
        return None
    return math.exp(-step * frequencies.numel())

"""Rotary frequency schedules: how a rotation's frequencies are stretched for longer sequences.

Each schedule is a frozen dataclass whose `frequencies(dim, theta, length)` returns the radians per token of every band,
(band,) in float64, and the factor on cosines and sines. That factor enters a logit squared. `dim` is the number of
dimensions the frequencies spread over, `length` the longest position of the call plus one, in tokens.

The two schedules that tell bands apart by more than one rule, YaRN and LongRoPE, are in `scaling_bands`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.errors import BadInput
from wherefrom.settings import Settings, check_count, check_number


def inverse_frequencies(dim: int, theta: float = 10000.0, device: torch.device | None = None) -> Tensor:
    """theta^(-2m/dim) for m = 0 … dim/2 - 1: radians per token, (band,), float64 (float32 on devices without it).

    Raises BadInput for an odd `dim`. Source: Su et al., arXiv 2104.09864, eq. (15).
    """
    check_count("rope", "rotary_dim", dim, least=2, even=True)
    check_number("rope", "theta", theta)
    dtype = torch.float32 if device is not None and device.type == "mps" else torch.float64
    return float(theta) ** -(torch.arange(0, dim, 2, dtype=dtype, device=device) / dim)


def ntk_theta(theta: float, factor: float, dim: int) -> float:
    """The base that stretches the slowest band by `factor` and leaves the fastest alone: theta·factor^(dim/(dim-2)).

    Raises BadInput for dim = 2, which has one band only. Source: Peng et al., arXiv 2309.00071, section 3.1.
    """
    if dim <= 2:
        raise BadInput(f"NTK scaling stretches the slowest band against the fastest, but {dim} dimensions have one.")
    return theta * factor ** (dim / (dim - 2))


@dataclass(frozen=True, slots=True)
class Scaling(Settings):
    """Base of the schedules."""

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies of a call change with its length."""
        return False

    def frequencies(
        self, dim: int, theta: float, length: int | None = None, device: torch.device | None = None
    ) -> tuple[Tensor, float]:
        """Radians per token of each band, (band,), and the factor on cosines and sines."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class DefaultScaling(Scaling):
    """The plain geometric frequencies.

    Formula: θ_m = theta^(−2m/dim)

    Source: Su et al., arXiv 2104.09864, eq. (15)
    """

    name: ClassVar[str] = "default"

    def frequencies(
        self, dim: int, theta: float, length: int | None = None, device: torch.device | None = None
    ) -> tuple[Tensor, float]:
        return inverse_frequencies(dim, theta, device), 1.0


@dataclass(frozen=True, slots=True)
class LinearScaling(Scaling):
    """Position interpolation: every band slower by the same factor.

    Formula: θ'_m = θ_m / factor

    Source: Chen et al., arXiv 2306.15595, section 2.3
    """

    name: ClassVar[str] = "linear"

    factor: float
    """How many times slower every band turns."""

    def __post_init__(self) -> None:
        check_number(self.name, "factor", self.factor)

    def frequencies(
        self, dim: int, theta: float, length: int | None = None, device: torch.device | None = None
    ) -> tuple[Tensor, float]:
        return inverse_frequencies(dim, theta, device) / self.factor, 1.0


@dataclass(frozen=True, slots=True)
class NtkScaling(Scaling):
    """A larger base: the slowest band slower by the factor, the fastest unchanged, at every length.

    Formula: theta' = theta · factor^(dim/(dim−2))

    Source: Peng et al., arXiv 2309.00071, section 3.1
    """

    name: ClassVar[str] = "ntk"

    factor: float
    """How many times slower the slowest band turns."""

    def __post_init__(self) -> None:
        check_number(self.name, "factor", self.factor)

    def frequencies(
        self, dim: int, theta: float, length: int | None = None, device: torch.device | None = None
    ) -> tuple[Tensor, float]:
        return inverse_frequencies(dim, ntk_theta(theta, self.factor, dim), device), 1.0


@dataclass(frozen=True, slots=True)
class DynamicNtkScaling(Scaling):
    """NTK scaling that grows with the length of the call. A result depends on its input alone, never on earlier calls.

    Because the base depends on the whole call, a longer call turns the same query and key by other angles: this is the
    model's property. Fix it with `length`.

    Formula: theta' = theta · (factor·n/n₀ − factor + 1)^(dim/(dim−2)),  n = max(length, n₀)

    Source: Peng et al., arXiv 2309.00071, section 3.3
    """

    name: ClassVar[str] = "dynamic"

    factor: float
    """Growth of the stretch per original length."""
    original_max_length: int
    """Length n₀ in tokens up to which nothing is stretched."""
    length: int | None = None
    """Length in tokens to compute the base for; None: the longest position of each call plus one."""

    def __post_init__(self) -> None:
        check_number(self.name, "factor", self.factor, least=1.0)
        check_count(self.name, "original_max_length", self.original_max_length)
        if self.length is not None:
            check_count(self.name, "length", self.length)

    @property
    def depends_on_length(self) -> bool:
        return self.length is None

    def frequencies(
        self, dim: int, theta: float, length: int | None = None, device: torch.device | None = None
    ) -> tuple[Tensor, float]:
        longest = max(self.length or length or 0, self.original_max_length)
        stretch = self.factor * longest / self.original_max_length - (self.factor - 1)
        return inverse_frequencies(dim, ntk_theta(theta, stretch, dim), device), 1.0


@dataclass(frozen=True, slots=True)
class Llama3Scaling(Scaling):
    """Fast bands unchanged, slow bands slower by the factor, a linear blend between.

    Formula: with w = 2π/θ_m and γ = (n₀/w − low)/(high − low) cut to [0, 1]:  θ'_m = (1 − γ) θ_m/factor + γ θ_m

    Source: Llama 3.1 model code; Grattafiori et al., arXiv 2407.21783, section 3.4.2
    """

    name: ClassVar[str] = "llama3"

    factor: float
    """How many times slower the slow bands turn."""
    original_max_length: int
    """Original length n₀ in tokens."""
    low_frequency_factor: float = 1.0
    """Bands that turn at most this often within the original length are slow."""
    high_frequency_factor: float = 4.0
    """Bands that turn at least this often within the original length are fast."""

    def __post_init__(self) -> None:
        check_number(self.name, "factor", self.factor)
        check_count(self.name, "original_max_length", self.original_max_length)
        check_number(self.name, "low_frequency_factor", self.low_frequency_factor)
        check_number(self.name, "high_frequency_factor", self.high_frequency_factor)
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise BadInput(
                f"`high_frequency_factor` of `llama3` is {self.high_frequency_factor}, but it must exceed "
                f"`low_frequency_factor`, which is {self.low_frequency_factor}; change one of them."
            )

    def frequencies(
        self, dim: int, theta: float, length: int | None = None, device: torch.device | None = None
    ) -> tuple[Tensor, float]:
        plain = inverse_frequencies(dim, theta, device)
        turns = self.original_max_length * plain / (2 * math.pi)
        span = self.high_frequency_factor - self.low_frequency_factor
        fast = ((turns - self.low_frequency_factor) / span).clamp(0, 1)
        return (1 - fast) * plain / self.factor + fast * plain, 1.0

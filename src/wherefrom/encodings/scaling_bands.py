"""The rotary schedules that also rescale attention: YaRN and LongRoPE."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.encodings.scaling import Scaling, inverse_frequencies
from wherefrom.errors import BadInput
from wherefrom.settings import check_count, check_number


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor on cosines and sines, 0.1·weight·ln(factor) + 1 (1 where factor ≤ 1). It enters logits squared.

    Source: Peng et al., arXiv 2309.00071, section 3.4; the weight is DeepSeek's `mscale`.
    """
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


@dataclass(frozen=True, slots=True)
class YarnScaling(Scaling):
    """Bands that turn often stay, bands that turn rarely slow down, a ramp over the band index between.

    Formula: θ'_m = (1 − r_m) θ_m + r_m θ_m/factor, r a ramp over m between the bands that turn beta_fast and beta_slow
    times within n₀; cosines and sines times 0.1 ln(factor) + 1

    Source: Peng et al., arXiv 2309.00071, sections 3.2 and 3.4
    """

    name: ClassVar[str] = "yarn"

    factor: float
    """How many times slower the slow bands turn."""
    original_max_length: int
    """Original length n₀ in tokens."""
    beta_fast: float = 32.0
    """Bands that turn more often than this within the original length stay as they are."""
    beta_slow: float = 1.0
    """Bands that turn less often than this within the original length are slowed by the whole factor."""
    attention_factor: float | None = None
    """Factor on cosines and sines, overriding every rule; None: 0.1·ln(factor) + 1, or the ratio of the two mscales."""
    mscale: float | None = None
    """Weight in the numerator of the ratio (DeepSeek); has an effect only beside `mscale_all_dim`."""
    mscale_all_dim: float | None = None
    """Weight in the denominator of the ratio (DeepSeek); has an effect only beside `mscale`."""
    truncate: bool = True
    """Whether the ends of the ramp are rounded outwards to whole bands."""

    def __post_init__(self) -> None:
        check_number(self.name, "factor", self.factor)
        check_count(self.name, "original_max_length", self.original_max_length)
        check_number(self.name, "beta_slow", self.beta_slow)
        check_number(self.name, "beta_fast", self.beta_fast)
        if self.beta_fast < self.beta_slow:
            raise BadInput(
                f"`beta_fast` of `yarn` is {self.beta_fast}, below `beta_slow`, which is {self.beta_slow}; swap them."
            )
        for key in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(self, key) is not None:
                check_number(self.name, key, getattr(self, key), least=0.0)

    @property
    def magnitude(self) -> float:
        """The factor on cosines and sines."""
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return yarn_magnitude(self.factor, self.mscale) / yarn_magnitude(self.factor, self.mscale_all_dim)
        return yarn_magnitude(self.factor)

    def frequencies(
        self, dim: int, theta: float, length: int | None = None, device: torch.device | None = None
    ) -> tuple[Tensor, float]:
        plain = inverse_frequencies(dim, theta, device)
        if theta <= 1:
            raise BadInput(f"YaRN orders bands by how often they turn, which needs a base above 1, not {theta:g}.")

        def band(turns: float) -> float:
            """The (fractional) band that turns `turns` times within the original length."""
            return dim * math.log(self.original_max_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = band(self.beta_fast), band(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001  # a ramp of no width would divide by zero; this is the width every implementation gives it
        index = torch.arange(dim // 2, dtype=plain.dtype, device=device)
        slow = ((index - low) / (high - low)).clamp(0, 1)
        return (1 - slow) * plain + slow * plain / self.factor, self.magnitude


@dataclass(frozen=True, slots=True)
class LongRopeScaling(Scaling):
    """Every band slower by its own factor: one list for short calls, one for calls beyond the original length.

    As with dynamic NTK, which list is used depends on the whole call; fix it with `length`.

    Formula: θ'_m = θ_m / λ_m; cosines and sines times √(1 + ln(factor)/ln(n₀))

    Source: Ding et al., arXiv 2402.13753, section 3; attention factor as in the Phi-3 model code
    """

    name: ClassVar[str] = "longrope"

    short_factors: tuple[float, ...]
    """Factor of each band for calls up to the original length."""
    long_factors: tuple[float, ...]
    """Factor of each band for longer calls."""
    original_max_length: int
    """Original length n₀ in tokens."""
    factor: float = 1.0
    """Ratio of the extended to the original length, for the attention factor."""
    attention_factor: float | None = None
    """Factor on cosines and sines; None: sqrt(1 + ln(factor)/ln(original_max_length)), or 1 where factor ≤ 1."""
    length: int | None = None
    """Length in tokens by which the list is chosen; None: the longest position of each call plus one."""

    def __post_init__(self) -> None:
        for key in ("short_factors", "long_factors"):
            for value in getattr(self, key):
                check_number(self.name, key, value)
        check_count(self.name, "original_max_length", self.original_max_length, least=2)
        check_number(self.name, "factor", self.factor)
        if self.attention_factor is not None:
            check_number(self.name, "attention_factor", self.attention_factor, least=0.0)
        if self.length is not None:
            check_count(self.name, "length", self.length)

    @property
    def depends_on_length(self) -> bool:
        return self.length is None and self.short_factors != self.long_factors

    @property
    def magnitude(self) -> float:
        """The factor on cosines and sines."""
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_length))

    def frequencies(
        self, dim: int, theta: float, length: int | None = None, device: torch.device | None = None
    ) -> tuple[Tensor, float]:
        long = (self.length or length or 0) > self.original_max_length
        factors = self.long_factors if long else self.short_factors
        if len(factors) != dim // 2:
            key = "long_factors" if long else "short_factors"
            raise BadInput(
                f"`{key}` of `longrope` has {len(factors)} numbers for {dim // 2} bands; give one for each band."
            )
        plain = inverse_frequencies(dim, theta, device)
        return plain / torch.tensor(factors, dtype=plain.dtype, device=device), self.magnitude

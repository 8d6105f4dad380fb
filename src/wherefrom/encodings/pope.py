"""PoPE: polar coordinates, content as magnitude and position as phase."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, angle_dtype, compute_dtype
from wherefrom.encodings.rotary import rotary_angles
from wherefrom.settings import check_choice, check_number

InitialPhase = Literal["zero", "uniform"]


@dataclass(frozen=True, slots=True)
class PopeConfig(EncodingConfig):
    """Settings of PoPE."""

    name: ClassVar[str] = "pope"

    theta: float = 10000.0
    """Base of the frequencies: dimension c of d turns by theta^(-c/d) radians per token."""
    initial_phase: InitialPhase = "zero"
    """Learned phases start at 0 (`zero`) or anywhere in [-2π, 0] (`uniform`)."""

    def __post_init__(self) -> None:
        check_number(self.name, "theta", self.theta)
        check_choice(self.name, "initial_phase", self.initial_phase, get_args(InitialPhase))


class Pope(Encoding):
    """Polar encoding: every dimension is a complex number whose length is content and whose angle is position.

    `transform` doubles the last axis (all cosine parts, then all sine parts); the logit scale stays 1/√d. The learned
    phase is turned into the query, so that keys shared by several heads need no copy of it.

    Formula: s(i,j) = Σ_c softplus(q_i[c]) softplus(k_j[c]) cos((j−i) θ_c + δ_{h,c}) / √d,
    θ_c = theta^(−c/d), −2π ≤ δ ≤ 0

    Source: Gopalakrishnan et al., arXiv 2509.10534, section 3
    """

    kind = "multiplicative"
    reference = "relative"
    learned = True
    rotation = True
    config: PopeConfig

    def __init__(self, config: PopeConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        phase = torch.zeros(dimensions.heads, dimensions.head_dim)
        if config.initial_phase == "uniform":
            phase = -2 * math.pi * torch.rand(phase.shape)
        self.phase = nn.Parameter(phase)

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Radians per token of each dimension, (dim,), float64 (float32 on devices without it)."""
        head_dim = self.dimensions.head_dim
        dtype = torch.float64 if device is None else angle_dtype(device)
        return float(self.config.theta) ** -(torch.arange(head_dim, dtype=dtype, device=device) / head_dim)

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        frequencies = self.frequencies(query.device)
        phase = self.phase.to(frequencies.dtype).clamp(-2 * math.pi, 0.0)
        query_angle = rotary_angles(query_positions, frequencies) - phase[:, None, :]
        return _polar(query, query_angle), _polar(key, rotary_angles(key_positions, frequencies))

    def facts(self) -> dict[str, object]:
        return {"frequencies": self.frequencies().tolist(), "phases": self.phase.clamp(-2 * math.pi, 0).tolist()}


def _polar(x: Tensor, angle: Tensor) -> Tensor:
    """Lengths softplus(x) at `angle`, as cosine parts and sine parts side by side."""
    dtype = compute_dtype(x)
    length = nn.functional.softplus(x.to(dtype))
    return torch.cat((length * angle.cos().to(dtype), length * angle.sin().to(dtype)), dim=-1).to(x.dtype)

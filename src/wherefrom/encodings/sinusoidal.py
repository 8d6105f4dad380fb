"""Sinusoidal absolute encoding, added to the embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, angle_dtype, check_positions
from wherefrom.errors import BadInput
from wherefrom.settings import check_choice, check_count, check_number

Layout = Literal["interleaved", "concatenated"]


@dataclass(frozen=True, slots=True)
class SinusoidalConfig(EncodingConfig):
    """Settings of the sinusoidal encoding."""

    name: ClassVar[str] = "sinusoidal"

    theta: float = 10000.0
    """Base of the frequencies: pair i turns by theta^(-2i/d_model) radians per token."""
    layout: Layout = "interleaved"
    """`interleaved`: sin, cos, sin, cos …; `concatenated`: all sines, then all cosines."""
    amplitude: float = 1.0
    """Factor on the sines and cosines, to set their size against that of the token embeddings."""

    def __post_init__(self) -> None:
        check_number(self.name, "theta", self.theta)
        check_choice(self.name, "layout", self.layout, get_args(Layout))
        check_number(self.name, "amplitude", self.amplitude)


def sinusoidal_table(positions: Tensor, d_model: int, theta: float = 10000.0, layout: str = "interleaved") -> Tensor:
    """Sines and cosines of `positions` (…): (… d_model), in float64 (float32 on devices without it).

    Raises BadInput for an odd `d_model`. Source: Vaswani et al., arXiv 1706.03762, section 3.5.
    """
    check_count("sinusoidal", "d_model", d_model, least=2, even=True)
    check_choice("sinusoidal", "layout", layout, get_args(Layout))
    dtype = angle_dtype(positions.device)
    exponent = torch.arange(0, d_model, 2, dtype=dtype, device=positions.device) / d_model
    angle = check_positions(positions).to(dtype)[..., None] * theta**-exponent
    if layout == "concatenated":
        return torch.cat((angle.sin(), angle.cos()), dim=-1)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


class Sinusoidal(Encoding):
    """Sines and cosines of the position, added to the embeddings.

    Formula: x_i ← x_i + a·p_i,  p_i[2m] = sin(i θ_m),  p_i[2m+1] = cos(i θ_m),  θ_m = theta^(−2m/d_model)

    Source: Vaswani et al., arXiv 1706.03762, section 3.5
    """

    kind = "additive"
    reference = "absolute"
    config: SinusoidalConfig

    def __init__(self, config: SinusoidalConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        if dimensions.d_model % 2:
            raise BadInput(f"`sinusoidal` pairs sines with cosines, so d_model must be even, not {dimensions.d_model}.")

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        table = sinusoidal_table(positions, x.shape[-1], self.config.theta, self.config.layout)
        return x + (self.config.amplitude * table).to(x.dtype)

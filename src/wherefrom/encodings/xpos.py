"""xPos: rotation with exponential decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, angle_dtype, compute_dtype
from wherefrom.encodings.rotary import Pairing, join_pairs, rope_frequencies, rotate
from wherefrom.errors import BadInput
from wherefrom.settings import check_choice, check_number


@dataclass(frozen=True, slots=True)
class XposConfig(EncodingConfig):
    """Settings of xPos."""

    name: ClassVar[str] = "xpos"

    theta: float = 10000.0
    """Base of the frequencies."""
    gamma: float = 0.4
    """Evens out the decay: pair m of n decays by (m/n + gamma)/(1 + gamma) per `scale_base` tokens."""
    scale_base: float = 512.0
    """Tokens per unit of the decay's exponent."""
    pairing: Pairing = "interleaved"
    """Which dimensions turn together."""

    def __post_init__(self) -> None:
        check_number(self.name, "theta", self.theta)
        check_number(self.name, "gamma", self.gamma)
        check_number(self.name, "scale_base", self.scale_base)
        check_choice(self.name, "pairing", self.pairing, get_args(Pairing))


class Xpos(Encoding):
    """Rotary encoding whose pairs also decay with the offset, the slow ones least.

    Queries shrink and keys grow with their own position, so that only the offset remains in the product; norms are not
    kept. Positions so far out that a key overflows its dtype are refused.

    Formula: s(i,j) = Re Σ_m ζ_m^{(i−j)/B} q_i[m] conj(k_j[m]) e^{iθ_m(i−j)} / √d,  ζ_m = (2m/d + γ)/(1 + γ)

    Source: Sun et al., arXiv 2212.10554, algorithm 1
    """

    kind = "multiplicative"
    reference = "relative"
    config: XposConfig

    def __init__(self, config: XposConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.frequencies()

    def frequencies(self, device: torch.device | None = None) -> tuple[Tensor, float]:
        """Radians per token of each pair, (band,), and the factor on cosines and sines (1)."""
        return rope_frequencies(self.dimensions.head_dim, self.config.theta, device=device)

    def log_decay(self, device: torch.device | None = None) -> Tensor:
        """ln ζ_m per `scale_base` tokens, (band,): negative, the last one nearest to 0."""
        head_dim, gamma = self.dimensions.head_dim, self.config.gamma
        dtype = torch.float64 if device is None else angle_dtype(device)
        share = torch.arange(0, head_dim, 2, dtype=dtype, device=device) / head_dim
        return torch.log((share + gamma) / (1 + gamma))

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        frequencies, _ = self.frequencies(query.device)
        log_decay = self.log_decay(query.device)
        turned = []
        for x, positions, sign in ((query, query_positions, 1), (key, key_positions, -1)):
            exponent = positions.to(log_decay.dtype)[..., None] * log_decay * (sign / self.config.scale_base)
            if float(exponent.detach().abs().max()) > 0.9 * math.log(torch.finfo(x.dtype).max):
                raise BadInput(
                    f"xPos scales vectors at position {int(positions.abs().max())} beyond the range of {x.dtype}; use "
                    "shorter inputs, a larger `scale_base`, or a wider dtype."
                )
            scale = join_pairs(exponent.exp(), exponent.exp(), self.config.pairing)
            scale = scale[:, None] if scale.ndim == 3 else scale
            # Turn and scale before rounding back: half precision would otherwise round twice.
            rotated = rotate(x.to(compute_dtype(x)), positions, frequencies, self.config.pairing)
            turned.append((rotated * scale.to(rotated.dtype)).to(x.dtype))
        return turned[0], turned[1]

    def facts(self) -> dict[str, object]:
        return {
            "frequencies": self.frequencies()[0].tolist(),
            "decay_per_token": (self.log_decay() / self.config.scale_base).exp().tolist(),
            "pairing": self.config.pairing,
        }

"""The MLA of the code published with paper [G], kept for comparison. It contains a fault: it does not rotate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, compute_dtype
from wherefrom.encodings.mla import decoupled_dim, shared_part, with_part
from wherefrom.encodings.rotary import rotary_angles
from wherefrom.encodings.scaling import inverse_frequencies
from wherefrom.settings import check_count, check_number


@dataclass(frozen=True, slots=True)
class PublishedMlaConfig(EncodingConfig):
    """Settings of the published MLA."""

    name: ClassVar[str] = "published-mla"

    rotary_dim: int | None = None
    """How many of the last dimensions of a head are the position part; None: half the head, rounded down to even."""
    theta: float = 10000.0
    """Base of the frequencies."""
    shared_key: bool = True
    """Every head reads the first head's position key, as in the published code."""
    shared_query: bool = True
    """Every head reads the first head's position query, as in the published code."""

    def __post_init__(self) -> None:
        if self.rotary_dim is not None:
            check_count(self.name, "rotary_dim", self.rotary_dim, least=2, even=True)
        check_number(self.name, "theta", self.theta)


def published_table(positions: Tensor, rotary_dim: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """What the published code takes for sines and cosines, (… band) each.

    The table is [all sines | all cosines] but is read as sin, cos, sin, cos …: the first pairs get the sines of two
    different frequencies, the last pairs the cosines of two. Neither "sin² + cos² = 1" nor "depends on i-j" survives.
    """
    angle = rotary_angles(positions, inverse_frequencies(rotary_dim, theta, positions.device))
    table = torch.cat((angle.sin(), angle.cos()), dim=-1)
    return table[..., 0::2], table[..., 1::2]


class PublishedMla(Encoding):
    """MLA as in the code of paper [G]: **a fault, for comparison only**; `mla` is the encoding it was meant to be.

    Norms change with position and equal offsets give different logits, so it is declared absolute. The published model
    also adds a learned absolute table (initially 0): write `learned:initial_std=0+published-mla` for all of it.

    Formula: pair m of the position part is multiplied by (c_m, s_m), where [s_0, c_0, s_1, c_1, …] is read from
    [sin iθ_0, sin iθ_1, …, cos iθ_0, cos iθ_1, …]

    Source: code of Gu et al., arXiv 2505.13027
    """

    kind = "mixed"
    reference = "absolute"
    config: PublishedMlaConfig

    def __init__(self, config: PublishedMlaConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.rotary_dim = decoupled_dim(config.name, dimensions.head_dim, config.rotary_dim)

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        return (
            self._read(query, query_positions, self.config.shared_query),
            self._read(key, key_positions, self.config.shared_key),
        )

    def _read(self, x: Tensor, positions: Tensor, shared: bool) -> Tensor:
        dtype = compute_dtype(x)
        sine, cosine = (value.to(dtype) for value in published_table(positions, self.rotary_dim, self.config.theta))
        part = shared_part(x, self.rotary_dim, shared).to(dtype)
        even, odd = part[..., 0::2], part[..., 1::2]
        part = torch.cat((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).to(x.dtype)
        return with_part(x, part)

    def facts(self) -> dict[str, object]:
        return {"rotary_dim": self.rotary_dim, "fault": "the table of sines and cosines is read in the wrong order"}

"""KERPLE: kernelised relative biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, compute_dtype, offsets
from wherefrom.settings import check_choice

KernelForm = Literal["log", "power"]


@dataclass(frozen=True, slots=True)
class KerpleConfig(EncodingConfig):
    """Settings of KERPLE."""

    name: ClassVar[str] = "kerple"

    form: KernelForm = "log"
    """`log`: -a·log(1 + b·distance); `power`: -a·distance^b with b between 0 and 2."""

    def __post_init__(self) -> None:
        check_choice(self.name, "form", self.form, get_args(KernelForm))


class Kerple(Encoding):
    """A conditionally positive definite kernel of the distance, with two learned numbers per head.

    The numbers stay in their range by construction (softplus; 2·sigmoid for the exponent), where the original clamps,
    so that neither can get stuck with a zero gradient at its border.

    Formula: log: s(i,j) = q_i·k_j / √d − a_h log(1 + b_h |i−j|);
    power: s(i,j) = q_i·k_j / √d − a_h |i−j|^b_h, 0 < b_h < 2

    Source: Chi et al., arXiv 2205.09921, section 4
    """

    kind = "additive"
    reference = "relative"
    learned = True
    config: KerpleConfig

    def __init__(self, config: KerpleConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.raw_amplitude = nn.Parameter(torch.randn(dimensions.heads))
        self.raw_shape = nn.Parameter(torch.randn(dimensions.heads))

    def amplitude_and_shape(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """a_h (nats) and b_h (per token, or an exponent), each (head,)."""
        amplitude = nn.functional.softplus(self.raw_amplitude.to(dtype))
        raw = self.raw_shape.to(dtype)
        return amplitude, nn.functional.softplus(raw) if self.config.form == "log" else 2 * torch.sigmoid(raw)

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        dtype = compute_dtype(query)
        distance = offsets(query_positions, key_positions).to(dtype).abs()
        amplitude, shape = (value[:, None, None] for value in self.amplitude_and_shape(dtype))
        return -amplitude * (torch.log1p(shape * distance) if self.config.form == "log" else distance**shape)

    def facts(self) -> dict[str, object]:
        amplitude, shape = self.amplitude_and_shape()
        return {"form": self.config.form, "amplitude": amplitude.tolist(), "shape": shape.tolist()}

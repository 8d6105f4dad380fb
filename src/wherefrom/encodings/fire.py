"""FIRE: functional interpolation of relative positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, compute_dtype, offsets
from wherefrom.settings import check_count, check_number


@dataclass(frozen=True, slots=True)
class FireConfig(EncodingConfig):
    """Settings of FIRE."""

    name: ClassVar[str] = "fire"

    hidden: int = 32
    """Width of the small network that maps a normalised distance to a bias."""
    threshold: float = 512.0
    """Initial query position L up to which distances are normalised alike; learned from there, in tokens."""
    steepness: float = 0.1
    """Initial c of the transform log(1 + c·x), per token; learned from there."""

    def __post_init__(self) -> None:
        check_count(self.name, "hidden", self.hidden)
        check_number(self.name, "threshold", self.threshold)
        check_number(self.name, "steepness", self.steepness)


class Fire(Encoding):
    """A learned function of the distance, as a share of the query's position.

    Up to position L it depends on the offset alone; beyond L the divisor grows with the query, so equal offsets get
    different biases. It is therefore declared absolute, although its paper files it under relative encodings.
    Keys after the query count by their distance. The network's last layer has no constant: softmax could not see it.

    Formula: s(i,j) = q_i·k_j / √d + f_h( ψ(|i−j|) / ψ(max(L, i)) ),  ψ(x) = log(1 + c x),
    f a network with one hidden layer

    Source: Li et al., arXiv 2310.04418, section 3
    """

    kind = "additive"
    reference = "absolute"
    learned = True
    config: FireConfig

    def __init__(self, config: FireConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.steepness = nn.Parameter(torch.tensor(float(config.steepness)))
        self.threshold_factor = nn.Parameter(torch.tensor(1.0))
        self.hidden = nn.Linear(1, config.hidden)
        # No constant here: it would move whole rows of logits, which softmax cannot see, and never get a gradient.
        self.readout = nn.Linear(config.hidden, dimensions.heads, bias=False)

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        dtype = compute_dtype(query)
        distance = offsets(query_positions, key_positions).to(dtype).abs()
        position = query_positions.to(dtype)
        position = position[:, None, :, None] if position.ndim == 2 else position[None, None, :, None]
        steepness = self.steepness.to(dtype).abs()
        threshold = (self.threshold_factor.to(dtype) * self.config.threshold).abs()
        norm = torch.log1p(steepness * torch.maximum(threshold, position))
        # The smallest normal number only guards 0/0 when both learned scalars have been driven to exactly 0.
        share = torch.log1p(steepness * distance) / norm.clamp(min=torch.finfo(dtype).tiny)
        weights = (self.hidden.weight, self.hidden.bias, self.readout.weight)
        in_weight, in_bias, out_weight = (weight.to(dtype) for weight in weights)
        hidden = torch.relu(nn.functional.linear(share[..., None], in_weight, in_bias))
        return nn.functional.linear(hidden, out_weight)[:, 0].permute(0, 3, 1, 2)

    def facts(self) -> dict[str, object]:
        return {
            "threshold": abs(float(self.threshold_factor.detach()) * self.config.threshold),
            "steepness": abs(float(self.steepness.detach())),
        }

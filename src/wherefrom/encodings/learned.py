"""Learned absolute encoding, added to the embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, check_positions
from wherefrom.errors import BadInput
from wherefrom.settings import check_number


@dataclass(frozen=True, slots=True)
class LearnedConfig(EncodingConfig):
    """Settings of the learned absolute encoding."""

    name: ClassVar[str] = "learned"

    initial_std: float = 0.02
    """Standard deviation of the initial table; 0 starts from no position at all."""

    def __post_init__(self) -> None:
        check_number(self.name, "initial_std", self.initial_std, least=0.0)


class Learned(Encoding):
    """One free vector per position, added to the embeddings. Positions outside the table are refused.

    Formula: x_i ← x_i + P[i]

    Source: Gehring et al., arXiv 1705.03122, section 3.1; Devlin et al., arXiv 1810.04805
    """

    kind = "additive"
    reference = "absolute"
    learned = True
    limited = True
    config: LearnedConfig

    def __init__(self, config: LearnedConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        if dimensions.max_length is None:
            raise BadInput("`learned` keeps one vector per position; say how many with `max_length`.")
        self.max_length = dimensions.max_length
        self.table = nn.Parameter(config.initial_std * torch.randn(dimensions.max_length, dimensions.d_model))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        positions = check_positions(positions).long()
        lowest, highest = int(positions.min()), int(positions.max())
        if lowest < 0 or highest >= self.table.shape[0]:
            wrong = lowest if lowest < 0 else highest
            raise BadInput(
                f"Position {wrong} is outside the learned table of {self.table.shape[0]} positions; shorten the input, "
                "or build the encoding with a larger `max_length`."
            )
        return x + self.table[positions].to(x.dtype)

"""A free bias per head and offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, compute_dtype, offsets
from wherefrom.settings import check_count, check_number


@dataclass(frozen=True, slots=True)
class RelativeTableConfig(EncodingConfig):
    """Settings of the free table of offsets."""

    name: ClassVar[str] = "relative-table"

    max_distance: int | None = None
    """Offsets beyond this many tokens share the outermost entry; None: `max_length - 1`, or 127 without one."""
    initial_std: float = 0.02
    """Standard deviation of the initial entries, in nats."""

    def __post_init__(self) -> None:
        if self.max_distance is not None:
            check_count(self.name, "max_distance", self.max_distance)
        check_number(self.name, "initial_std", self.initial_std, least=0.0)


class RelativeTable(Encoding):
    """One free number per head and clipped offset, added to the logits. Not T5's buckets: see `t5`.

    Formula: s(i,j) = q_i·k_j / √d + T[h, clip(i−j, −D, D)]

    Source: the clipped offsets of Shaw et al., arXiv 1803.02155, section 3.2, as a scalar bias
    """

    kind = "additive"
    reference = "relative"
    learned = True
    config: RelativeTableConfig

    def __init__(self, config: RelativeTableConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.max_distance = config.max_distance or max((dimensions.max_length or 128) - 1, 1)
        shape = (dimensions.heads, 2 * self.max_distance + 1)
        self.table = nn.Parameter(config.initial_std * torch.randn(shape))

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        offset = offsets(query_positions, key_positions)[:, 0].long()
        index = offset.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return self.table[:, index].transpose(0, 1).to(compute_dtype(query))

    def facts(self) -> dict[str, object]:
        return {"max_distance": self.max_distance}

"""T5's bucketed relative bias."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, compute_dtype, offsets
from wherefrom.errors import BadInput
from wherefrom.settings import check_count, check_number


@dataclass(frozen=True, slots=True)
class T5Config(EncodingConfig):
    """Settings of T5's bucketed bias."""

    name: ClassVar[str] = "t5"

    buckets: int = 32
    """Number of buckets, over both directions together."""
    max_distance: int = 128
    """Offset in tokens from which all share the last bucket."""
    bidirectional: bool | None = None
    """Whether keys after the query have buckets of their own; None: as the model's mask needs."""
    initial_std: float = 0.02
    """Standard deviation of the initial entries, in nats."""

    def __post_init__(self) -> None:
        check_count(self.name, "buckets", self.buckets, least=4, even=True)
        check_count(self.name, "max_distance", self.max_distance)
        check_number(self.name, "initial_std", self.initial_std, least=0.0)
        exact = self.buckets // (2 if self.bidirectional is False else 4)
        if self.max_distance <= exact:
            raise BadInput(
                f"`max_distance` of `t5` is {self.max_distance}, but the first {exact} offsets have a bucket each; "
                f"use more than {exact}, or fewer buckets."
            )


def t5_bucket(offset: Tensor, buckets: int = 32, max_distance: int = 128, bidirectional: bool = False) -> Tensor:
    """Bucket of each `offset` = query position - key position, any shape, int64.

    Half the buckets of a direction hold one offset each, the other half grow logarithmically up to `max_distance`.
    One-directional: keys after the query share bucket 0 with the query itself. The logarithm is taken in float32, since
    trained checkpoints were: float64 would move offsets that stand exactly on a border.
    Source: Raffel et al., arXiv 1910.10683, section 2.1.
    """
    offset = offset.long()
    first = torch.zeros_like(offset)
    if bidirectional:
        buckets //= 2
        first = torch.where(offset < 0, buckets, 0)
        distance = offset.abs()
    else:
        distance = offset.clamp(min=0)
    exact = buckets // 2
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    logarithmic = exact + (ratio * (buckets - exact)).long()
    return first + torch.where(distance < exact, distance, logarithmic.clamp(max=buckets - 1))


class T5(Encoding):
    """One learned number per head and bucket of offsets, added to the logits.

    Formula: s(i,j) = q_i·k_j / √d + T[h, bucket(i−j)]

    Source: Raffel et al., arXiv 1910.10683, section 2.1
    """

    kind = "additive"
    reference = "relative"
    learned = True
    config: T5Config

    def __init__(self, config: T5Config, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.bidirectional = not dimensions.causal if config.bidirectional is None else config.bidirectional
        exact = config.buckets // (4 if self.bidirectional else 2)
        if config.max_distance <= exact:
            raise BadInput(
                f"`max_distance` of `t5` is {config.max_distance}, but the first {exact} offsets have a bucket each; "
                f"use more than {exact}, or fewer buckets."
            )
        self.table = nn.Parameter(config.initial_std * torch.randn(config.buckets, dimensions.heads))

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        offset = offsets(query_positions, key_positions)[:, 0]
        bucket = t5_bucket(offset, self.config.buckets, self.config.max_distance, self.bidirectional)
        return self.table[bucket].permute(0, 3, 1, 2).to(compute_dtype(query))

    def facts(self) -> dict[str, object]:
        return {"buckets": self.config.buckets, "bidirectional": self.bidirectional}

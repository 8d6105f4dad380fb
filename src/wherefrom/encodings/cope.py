"""CoPE: positions counted by content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, compute_dtype, offsets, repeat_heads
from wherefrom.settings import check_count


@dataclass(frozen=True, slots=True)
class CopeConfig(EncodingConfig):
    """Settings of CoPE."""

    name: ClassVar[str] = "cope"

    max_count: int | None = None
    """Counts above this share the last embedding; None: `max_length - 1`, or 63 without one."""
    shared_heads: bool = True
    """Whether all heads share one table of count embeddings."""
    scaled_gates: bool = True
    """Whether gates see q·k/√d, as in the paper's listing, or q·k, as in its equations."""

    def __post_init__(self) -> None:
        if self.max_count is not None:
            check_count(self.name, "max_count", self.max_count)


class Cope(Encoding):
    """Contextual position: the distance to a key is the number of tokens between that the query counts.

    Keys after the query are not counted and stand at count 0; the encoding is meant for causal models. Counts between
    two whole numbers interpolate their embeddings. Positions give the order of the keys, nothing else.

    Formula: s(i,j) = q_i·k_j / √d + q_i·e[p_ij],  p_ij = Σ_{j≤t≤i} σ(q_i·k_t / √d), cut at `max_count`

    Source: Golovneva et al., arXiv 2405.18719, section 4
    """

    kind = "additive"
    reference = "content"
    learned = True
    config: CopeConfig

    def __init__(self, config: CopeConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.max_count = config.max_count or max((dimensions.max_length or 64) - 1, 1)
        tables = 1 if config.shared_heads else dimensions.heads
        self.table = nn.Parameter(torch.zeros(tables, self.max_count + 1, dimensions.head_dim))

    def counts(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """p_ij, (batch head query key): 0 for keys after the query."""
        dtype = compute_dtype(query)
        key = repeat_heads(key, query.shape[1])
        scale = query.shape[-1] ** -0.5 if self.config.scaled_gates else 1.0
        gates = torch.sigmoid(query.to(dtype) @ key.to(dtype).transpose(-1, -2) * scale)
        gates = torch.where(offsets(query_positions, key_positions) >= 0, gates, 0.0)
        order = key_positions.argsort(dim=-1, descending=True)
        order = (order[:, None, None] if order.ndim == 2 else order[None, None, None]).expand_as(gates)
        summed = gates.gather(-1, order).cumsum(dim=-1)
        return torch.zeros_like(gates).scatter(-1, order, summed).clamp(max=self.max_count)

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        dtype = compute_dtype(query)
        counts = self.counts(query, key, query_positions, key_positions)
        values = query.to(dtype) @ self.table.to(dtype).transpose(-1, -2)
        lower = counts.floor()
        share = counts - lower
        below = values.gather(-1, lower.long())
        above = values.gather(-1, counts.ceil().long())
        return share * above + (1 - share) * below

    def facts(self) -> dict[str, object]:
        return {"max_count": self.max_count, "scaled_gates": self.config.scaled_gates}

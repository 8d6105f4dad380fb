"""DeBERTa's disentangled attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, compute_dtype, offsets, repeat_heads
from wherefrom.errors import BadInput
from wherefrom.settings import check_count, check_number


@dataclass(frozen=True, slots=True)
class DebertaConfig(EncodingConfig):
    """Settings of disentangled attention."""

    name: ClassVar[str] = "deberta"

    max_distance: int | None = None
    """Offsets beyond this many tokens share the outermost embedding; None: `max_length`, or 128 without one."""
    content_to_position: bool = True
    """Whether queries read the embedding of the offset."""
    position_to_content: bool = True
    """Whether keys read the embedding of the offset, as seen from the key."""
    rescale: bool = True
    """Divide all terms by √(number of terms), as the paper's 1/√(3d); false leaves content at 1/√d."""
    initial_std: float = 0.02
    """Standard deviation of the initial offset embeddings."""

    def __post_init__(self) -> None:
        if self.max_distance is not None:
            check_count(self.name, "max_distance", self.max_distance)
        check_number(self.name, "initial_std", self.initial_std, least=0.0)
        if not (self.content_to_position or self.position_to_content):
            raise BadInput("`deberta` with neither position term has no position; use `none`, or switch one term on.")


def deberta_index(offset: Tensor, max_distance: int) -> Tensor:
    """Row of the offset table, 0 to 2·max_distance - 1: offset + max_distance, cut at both ends (eq. 3)."""
    return (offset.long() + max_distance).clamp(0, 2 * max_distance - 1)


class Deberta(Encoding):
    """Content and offset attend to each other through separate projections.

    Formula: s(i,j) = ( q_i·k_j + q_i·kʳ[δ(i,j)] + k_j·qʳ[δ(j,i)] ) / √(3d),  δ(i,j) = i−j+D cut to [0, 2D−1]

    Source: He et al., arXiv 2006.03654, section 3.1, eqs. (3) and (4)
    """

    kind = "additive"
    reference = "relative"
    learned = True
    config: DebertaConfig

    def __init__(self, config: DebertaConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.max_distance = config.max_distance or dimensions.max_length or 128
        width = dimensions.heads * dimensions.head_dim
        self.table = nn.Parameter(config.initial_std * torch.randn(2 * self.max_distance, dimensions.d_model))
        self.terms = 1 + config.content_to_position + config.position_to_content
        self.key_projection: nn.Linear | None = None
        self.query_projection: nn.Linear | None = None
        if config.content_to_position:
            self.key_projection = nn.Linear(dimensions.d_model, width, bias=False)
        if config.position_to_content:
            self.query_projection = nn.Linear(dimensions.d_model, width, bias=False)

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        return (query * self.terms**-0.5 if self.config.rescale else query), key

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        dtype = compute_dtype(query)
        query, key = query.to(dtype), repeat_heads(key, query.shape[1]).to(dtype)
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        offset = offsets(query_positions, key_positions)
        total = torch.zeros(shape, dtype=dtype, device=query.device)
        if self.key_projection is not None:
            values = query @ self._rows(self.key_projection, dtype).transpose(-1, -2)
            total = total + values.gather(-1, deberta_index(offset, self.max_distance).expand(shape))
        if self.query_projection is not None:
            values = key @ self._rows(self.query_projection, dtype).transpose(-1, -2)
            index = deberta_index(-offset, self.max_distance).expand(shape)
            total = total + values.gather(-1, index.transpose(-1, -2)).transpose(-1, -2)
        scale = (query.shape[-1] * (self.terms if self.config.rescale else 1)) ** -0.5
        return total * scale

    def _rows(self, projection: nn.Linear, dtype: torch.dtype) -> Tensor:
        """Offset embeddings seen through a projection, (head, row, dim)."""
        rows = nn.functional.linear(self.table.to(dtype), projection.weight.to(dtype))
        return rows.view(rows.shape[0], self.dimensions.heads, -1).transpose(0, 1)

    def facts(self) -> dict[str, object]:
        return {"max_distance": self.max_distance, "terms": self.terms}

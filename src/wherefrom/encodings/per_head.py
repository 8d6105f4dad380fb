"""Different encodings on different heads, such as `rope@0-3;none@4-7`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, repeat_heads
from wherefrom.errors import BadInput


@dataclass(frozen=True, slots=True)
class PerHeadConfig(EncodingConfig):
    """Settings of encodings by head."""

    name: ClassVar[str] = "per-head"

    parts: tuple[tuple[EncodingConfig, tuple[int, ...]], ...]
    """Each encoding with the query heads that have it; heads that are not named have none."""

    def __post_init__(self) -> None:
        seen: set[int] = set()
        for config, heads in self.parts:
            twice = seen & set(heads)
            if twice:
                raise BadInput(f"Head {min(twice)} is given `{config.spelling()}` and another encoding; keep one.")
            seen |= set(heads)

    def spelling(self) -> str:
        """`a@0/1;b@2/3`, each part with its settings."""
        return ";".join(f"{config.spelling()}@{'/'.join(map(str, heads))}" for config, heads in self.parts)


class PerHead(Encoding):
    """One encoding per head, each of which sees its own heads only.

    Encodings that act on the embeddings reach every head and are refused. Key heads must be as many as query heads
    where a part turns keys.

    Formula: s(h,i,j) = the logit of the encoding that head h has

    Source: ours; RoPE on some heads only is section 5 of arXiv 2505.13027
    """

    config: PerHeadConfig

    def __init__(self, config: PerHeadConfig, dimensions: Dimensions, parts: list[Encoding]) -> None:
        super().__init__(config, dimensions)
        self.parts = nn.ModuleList(parts)
        self.groups = [heads for _, heads in config.parts]
        for part, heads in zip(parts, self.groups, strict=True):
            if type(part).embed is not Encoding.embed:
                raise BadInput(
                    f"`{part.config.name}` is added to the embeddings, which all heads read; give it to all."
                )
            if max(heads, default=0) >= dimensions.heads:
                raise BadInput(f"There is no head {max(heads)}: the model has {dimensions.heads}, counted from 0.")
        kinds = {part.kind for part in parts} | ({"none"} if sum(map(len, self.groups)) < dimensions.heads else set())
        self.kind = kinds.pop() if len(kinds) == 1 else "mixed"
        references = {part.reference for part in parts} - {"none"}
        strongest = [name for name in ("absolute", "content", "relative") if name in references]
        self.reference = strongest[0] if strongest else "none"
        self.learned = any(part.learned for part in parts)
        limits = [part.max_length for part in parts if part.max_length is not None]
        self.max_length = min(limits) if limits else None
        self.depends_on_length = any(part.depends_on_length for part in parts)
        self.rotation = all(part.rotation or part.kind == "none" for part in parts)

    def _members(self) -> list[tuple[Encoding, list[int]]]:
        return [(p, list(h)) for p, h in zip(self.parts, self.groups, strict=True) if isinstance(p, Encoding) and h]

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        turned_query, turned_key = query, key
        for part, heads in self._members():
            if type(part).transform is Encoding.transform:
                continue
            key = repeat_heads(key, query.shape[1])
            new_query, new_key = part.transform(query[:, heads], key[:, heads], query_positions, key_positions)
            if new_query.shape[-1] != query.shape[-1]:
                raise BadInput(f"`{part.config.name}` widens its heads, so all heads must have it.")
            turned_query = turned_query.index_copy(1, torch.tensor(heads, device=query.device), new_query)
            turned_key = repeat_heads(turned_key, query.shape[1])
            turned_key = turned_key.index_copy(1, torch.tensor(heads, device=query.device), new_key)
        return turned_query, turned_key

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        total: Tensor | None = None
        for part, heads in self._members():
            # Slopes and tables belong to head numbers, so a part makes its bias for all heads and keeps its own.
            bias = part.bias(query, key, query_positions, key_positions)
            if bias is None:
                continue
            bias = bias.expand(-1, query.shape[1], -1, -1)
            if total is None:
                total = torch.zeros_like(bias)
            total = total + torch.zeros_like(bias).index_copy(
                1, torch.tensor(heads, device=bias.device), bias[:, heads]
            )
        return total

    def facts(self) -> dict[str, object]:
        return {f"{part.config.name}@{'/'.join(map(str, heads))}": part.facts() for part, heads in self._members()}

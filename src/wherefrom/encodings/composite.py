"""Sums of encodings, such as `rope+sinusoidal`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig
from wherefrom.errors import BadInput


@dataclass(frozen=True, slots=True)
class CompositeConfig(EncodingConfig):
    """Settings of a sum."""

    name: ClassVar[str] = "sum"

    parts: tuple[EncodingConfig, ...]
    """The encodings to add, in order."""

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise BadInput(f"A sum of encodings needs at least two, not {len(self.parts)}; name them as `a+b`.")
        if any(isinstance(part, CompositeConfig) for part in self.parts):
            raise BadInput("A sum of encodings cannot hold another sum; list all parts in one.")

    def spelling(self) -> str:
        """`a+b`, each part with its settings."""
        return "+".join(part.spelling() for part in self.parts)


class Composite(Encoding):
    """Several encodings at once: embeddings and biases add, and at most one part turns queries and keys.

    Content-dependent biases read the queries and keys before the turn.

    Formula: s(i,j) = Σ_parts bias(i,j) + the logit of the part that turns

    Source: ours; `rope+sinusoidal:layout=concatenated` is the RoPE arm of the code of arXiv 2505.13027
    """

    config: CompositeConfig

    def __init__(self, config: CompositeConfig, dimensions: Dimensions, parts: list[Encoding]) -> None:
        super().__init__(config, dimensions)
        turning = [part.config.name for part in parts if part.kind in ("multiplicative", "mixed")]
        if len(turning) > 1:
            raise BadInput(
                f"`{config.spelling()}` holds {len(turning)} encodings that turn queries and keys "
                f"({', '.join(turning)}); keep one of them."
            )
        self.parts = nn.ModuleList(parts)
        kinds = {part.kind for part in parts} - {"none"}
        references = {part.reference for part in parts} - {"none"}
        limits = [part.max_length for part in parts if part.max_length is not None]
        self.kind = kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else "none")
        strongest = [name for name in ("absolute", "content", "relative") if name in references]
        self.reference = strongest[0] if strongest else "none"
        self.learned = any(part.learned for part in parts)
        self.max_length = min(limits) if limits else None
        self.depends_on_length = any(part.depends_on_length for part in parts)
        self.rotation = any(part.rotation for part in parts)

    def encodings(self) -> list[Encoding]:
        """The parts, in order."""
        return [part for part in self.parts if isinstance(part, Encoding)]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        for part in self.encodings():
            x = part.embed(x, positions)
        return x

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        for part in self.encodings():
            query, key = part.transform(query, key, query_positions, key_positions)
        return query, key

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        total: Tensor | None = None
        for part in self.encodings():
            bias = part.bias(query, key, query_positions, key_positions)
            if bias is not None:
                total = bias if total is None else total + bias
        return total

    def facts(self) -> dict[str, object]:
        return {part.config.name: part.facts() for part in self.encodings()}

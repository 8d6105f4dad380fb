"""Absolute embeddings beside RoPE: what becomes of the additive directions."""

from __future__ import annotations

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import setting

ENCODINGS = ("rope", "sinusoidal", "rope+sinusoidal", "learned", "rope+learned")


def _cells(scale: ScaleName) -> list[Cell]:
    chosen = ENCODINGS[:3] if scale == "quick" else ENCODINGS
    layers = 4 if scale != "published" else 6
    return [
        Cell(
            {"task": "distance", "encoding": encoding},
            setting(scale, "distance", encoding, layers=layers),
            ("heads", "position"),
            ("position",),
        )
        for encoding in chosen
    ]


ABSOLUTE_AND_ROPE = Recipe(
    "absolute+rope",
    "Whether the additive positional directions disappear behind layer 2 where RoPE does the work: share of the "
    "residual stream that absolute position explains, by depth and through training.",
    _cells,
)

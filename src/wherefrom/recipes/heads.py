"""RoPE on 0, 1, 2, … all heads of every layer."""

from __future__ import annotations

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import SIZES, setting


def _counts(heads: int, scale: ScaleName) -> list[int]:
    if scale == "quick":
        return [0, 1, heads]
    return [0, 1, 2, *[k for k in (4, 8, 16) if 2 < k < heads], heads]


def _cells(scale: ScaleName) -> list[Cell]:
    heads = int(SIZES[scale]["heads"])
    cells = []
    for count in _counts(heads, scale):
        encoding = "none" if count == 0 else ("rope" if count == heads else f"rope@0-{count - 1}")
        cells.append(Cell({"task": "distance", "rope_heads": str(count)}, setting(scale, "distance", encoding)))
    return cells


ROPE_HEADS = Recipe(
    "rope-heads",
    "How many heads need RoPE: on none, one, two, … of the heads (paper: one alone still reaches about 90 %).",
    _cells,
)

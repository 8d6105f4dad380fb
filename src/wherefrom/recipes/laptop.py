"""Which encoding learns what: the paper's table, on two cores or at its own scale."""

from __future__ import annotations

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import setting

ENCODINGS = ("rope", "mla", "alibi", "none", "sinusoidal", "learned", "t5")
QUICK = ("rope", "alibi", "none", "t5")


def _cells(scale: ScaleName) -> list[Cell]:
    chosen = [("distance", encoding) for encoding in QUICK] if scale == "quick" else [
        (task, encoding) for task in ("distance", "count") for encoding in ENCODINGS
    ]  # fmt: skip
    return [Cell({"task": task, "encoding": encoding}, setting(scale, task, encoding)) for task, encoding in chosen]


LAPTOP = Recipe(
    "laptop",
    "Which encodings learn the distance task and which the counting task, and whether a single first-layer head ends "
    "up carrying position (two cores, under 45 minutes; with --quick RoPE against three others in under 10).",
    _cells,
)
PUBLISHED = Recipe(
    "published",
    "The same at the size and length of training of arXiv 2505.13027, without the faults of its code (needs a GPU).",
    _cells,
    scale="published",
)

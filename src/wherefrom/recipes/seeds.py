"""Gradient seeds: which encodings give a head a reason to carry position, before any does."""

from __future__ import annotations

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import setting

ENCODINGS = ("rope", "alibi", "relative-table", "none", "mla")


def _cells(scale: ScaleName) -> list[Cell]:
    return [
        Cell(
            {"task": task, "encoding": encoding},
            setting(scale, task, encoding, evaluations=5),
            ("heads", "seeds"),
            ("seeds", "deposit"),
        )
        for task, encoding in [*(("distance", name) for name in ENCODINGS), ("count", "rope")]
    ]


SEEDS = Recipe(
    "seeds",
    "Gradient seeds of position per head, at initialisation and through training: whether multiplicative ones are "
    "there from the start, whether additive ones cancel, and whether the leading head's margin grows downwards.",
    _cells,
)

"""How much position the mask alone makes: stacks that were never trained."""

from __future__ import annotations

import dataclasses

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import setting

VARIANTS = {"none": "none", "rope": "rope", "alibi": "alibi"}


def _cells(scale: ScaleName) -> list[Cell]:
    cells = []
    for name, encoding in VARIANTS.items():
        for causal in (True, False):
            config = setting(scale, "distance", encoding, causal=causal)
            config = dataclasses.replace(config, steps=1, learning_rate=1e-12, warmup=0.0, evaluations=1)
            labels = {"encoding": name, "mask": "causal" if causal else "none"}
            cells.append(Cell(labels, config, ("leak",)))
    return cells


BASELINES = Recipe(
    "baselines",
    "How much absolute position a random stack makes out of its mask alone, by the leak measures.",
    _cells,
)

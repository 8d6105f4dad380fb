"""How much position the mask alone makes: stacks that were never trained."""

from __future__ import annotations

from typing import Any

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import setting

ALONE: dict[str, Any] = {"d_ff": 0, "heads": 1, "weights": "identity"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "random, none": ("none", {}),
    "random, rope": ("rope", {}),
    "random, alibi": ("alibi", {}),
    "no parameters, none": ("none", ALONE),
    "no parameters, rope": ("rope", ALONE),
}
"""Stack: encoding, and changes to the model."""


def _cells(scale: ScaleName) -> list[Cell]:
    return [
        Cell(
            {"stack": name, "mask": "causal" if causal else "none"},
            setting(scale, "distance", encoding, causal=causal, steps=0, evaluations=1, **changes),
            ("fine-leak", "position"),
        )
        for name, (encoding, changes) in VARIANTS.items()
        for causal in (True, False)
    ]


BASELINES = Recipe(
    "baselines",
    "How much absolute position a stack makes out of its mask alone: random weights, and no parameters at all (Kim et "
    "al., arXiv 2509.21042), with and without the causal mask.",
    _cells,
)

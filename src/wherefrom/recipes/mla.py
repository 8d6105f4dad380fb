"""MLA by its parts: shared or separate rotary keys and queries, a latent vector, and the published form."""

from __future__ import annotations

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import setting

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "rope": ("rope", {}),
    "half-rope": ("mla:shared_key=false", {}),
    "shared-key": ("mla", {}),
    "shared-key-and-query": ("mla:shared_query=true", {}),
    "latent": ("mla", {"attention": "mla"}),
    "published": ("learned:initial_std=0+published-mla", {}),
}
"""Variant: encoding, and changes to the model. `half-rope` rotates half of each head and shares nothing."""


def _cells(scale: ScaleName) -> list[Cell]:
    tasks = ("distance",) if scale == "quick" else ("distance", "count")
    return [
        Cell({"task": task, "variant": name}, setting(scale, task, encoding, **changes))
        for task in tasks
        for name, (encoding, changes) in VARIANTS.items()
    ]


MLA = Recipe(
    "mla",
    "What in MLA keeps position off a single head: the position-free half, the shared rotary key, or the published "
    "code's shared query and absolute table.",
    _cells,
)

"""On what the single-head deposit depends: one change at a time from one base."""

from __future__ import annotations

from typing import Any

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import DISTANCE, setting

PUBLISHED_TASK: dict[ScaleName, str] = {
    "quick": "distance:vocabulary=64,max_between=20,side=8",
    "laptop": "distance:vocabulary=64,max_between=30,side=12",
    "published": "distance",
}


def _variants(scale: ScaleName) -> dict[str, tuple[str, dict[str, Any]]]:
    base = setting(scale, "distance", "rope")
    few, many = max(1, base.heads // 2), base.heads * 2
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "base": ("rope", {}),
        f"heads={few}": ("rope", {"heads": few}),
        f"heads={many}": ("rope", {"heads": many}),
        "width x2": ("rope", {"d_model": 2 * base.d_model, "d_ff": 2 * base.d_ff}),
        f"layers={base.layers + 2}": ("rope", {"layers": base.layers + 2}),
        "layers=1": ("rope", {"layers": 1}),
        "steps x3": ("rope", {"steps": 3 * base.steps}),
        "rate /4": ("rope", {"learning_rate": base.learning_rate / 4, "steps": 2 * base.steps}),
        "causal, last": ("rope", {"causal": True, "readout": "last"}),
        "published task": ("rope", {"task": PUBLISHED_TASK[scale]}),
        "published padding": ("rope", {"task": PUBLISHED_TASK[scale], "published_padding": True}),
        "memory keys": ("rope", {"memory_keys": True}),
        "rope+sinusoidal": ("rope+sinusoidal", {}),
        "all quirks": (
            "rope:pairing=interleaved+sinusoidal:layout=concatenated",
            {"task": PUBLISHED_TASK[scale], "published_padding": True, "memory_keys": True},
        ),
        "theta=100": ("rope:theta=100", {}),
        "half of each head": (f"rope:rotary_dim={base.d_model // base.heads // 4 * 2}", {}),
        "mla": ("mla", {}),
        "head dropout": ("rope", {"head_dropout": 0.2}),
    }
    if scale != "quick":
        return found
    kept = (
        "base", f"heads={few}", f"heads={many}", "layers=1", "causal, last", "published task", "memory keys",
        "rope+sinusoidal", "all quirks", "half of each head", "mla", "head dropout",
    )  # fmt: skip
    return {name: found[name] for name in kept}


def _cells(scale: ScaleName) -> list[Cell]:
    cells = []
    for name, (encoding, changes) in _variants(scale).items():
        changes = dict(changes)
        task = changes.pop("task", DISTANCE[scale])
        config = setting(scale, task, encoding, **changes)
        cells.append(Cell({"task": "distance", "variant": name}, config, ("heads",), ("deposit",)))
    return cells


DEPOSIT = Recipe(
    "deposit",
    "Where the single-head deposit comes from: number and size of heads, depth, length of training, learning rate, the "
    "published quirks one by one, and what prevents it (MLA, partial rotation, head dropout).",
    _cells,
)

"""Three language models, alike but for standard RoPE, NTK-scaled RoPE and a sliding window (arXiv 2606.06160)."""

from __future__ import annotations

from typing import Any

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import setting

LENGTH: dict[ScaleName, int] = {"quick": 64, "laptop": 128, "published": 512}
SIZES: dict[ScaleName, dict[str, Any]] = {
    "quick": {"d_model": 64, "heads": 4, "layers": 3, "d_ff": 128, "steps": 400, "batch": 16, "learning_rate": 3e-3},
    "laptop": {"d_model": 96, "heads": 6, "layers": 4, "d_ff": 192, "steps": 1000, "batch": 16, "learning_rate": 3e-3},
    "published": {"d_model": 512, "heads": 8, "layers": 12, "d_ff": 2048, "steps": 20_000, "batch": 64},
}


def _cells(scale: ScaleName) -> list[Cell]:
    length = LENGTH[scale]
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        "standard": ("rope", {}),
        "ntk": ("rope:scaling=ntk,factor=4", {}),
        "window": ("rope", {"window": length // 4}),
    }
    return [
        Cell(
            {"architecture": name},
            setting(
                scale,
                f"text:length={length}",
                encoding,
                **{**SIZES[scale], "causal": True, "evaluations": 5, **changes},
            ),
            ("leak",),
            ("leak",),
        )
        for name, (encoding, changes) in variants.items()
    ]


ARCHITECTURES = Recipe(
    "architectures",
    "How standard RoPE, NTK-scaled RoPE and a sliding window differ in where absolute position comes from, in language "
    "models trained alike on real text, through training.",
    _cells,
)

"""The sizes at which recipes run: minutes on a laptop, or the published setting on a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

from wherefrom.errors import BadInput
from wherefrom.recipes.base import ScaleName
from wherefrom.suggest import suggestion
from wherefrom.training.config import TrainConfig

DISTANCE: dict[ScaleName, str] = {
    "quick": "distance:vocabulary=64,max_between=20,side=2,shift=8,same_length=true",
    "laptop": "distance:vocabulary=64,max_between=30,side=2,shift=16,same_length=true",
    "published": "distance",
}
"""Task 1. On a laptop neither the length of the sequence nor the place of a trigger gives the answer away; the
published task lets both."""
COUNT: dict[ScaleName, str] = {
    "quick": "count:vocabulary=64,length=32,triggers=8,max_count=16",
    "laptop": "count:vocabulary=64,length=48,triggers=8,max_count=24",
    "published": "count",
}
"""Task 2."""
SIZES: dict[ScaleName, dict[str, Any]] = {
    "quick": {"d_model": 64, "heads": 8, "layers": 2, "d_ff": 128, "steps": 450, "batch": 64, "learning_rate": 2e-3},
    "laptop": {"d_model": 64, "heads": 8, "layers": 3, "d_ff": 128, "steps": 550, "batch": 64, "learning_rate": 4e-3},
    "published": {
        "d_model": 256, "heads": 16, "layers": 6, "d_ff": 512, "batch": 512, "learning_rate": 1e-4,
        "examples": 70_000, "steps": 100 * (70_000 // 512), "clip": 0.0, "test_examples": 10_000, "evaluations": 20,
    },
}  # fmt: skip
"""Model and training. `published`: section 5 of arXiv 2505.13027 (100 epochs of 70,000 examples)."""


def check_scale(scale: str) -> ScaleName:
    """`scale` if there is one of that name. Raises BadInput otherwise."""
    for name in SIZES:
        if name == scale:
            return name
    raise BadInput(f"There is no scale '{scale}'{suggestion(scale, SIZES) or '; use quick, laptop or published.'}")


def setting(scale: ScaleName, task: str, encoding: str, **changes: Any) -> TrainConfig:
    """A training at one scale: `task` is `distance`, `count` or a setting string."""
    spelled = {"distance": DISTANCE, "count": COUNT}.get(task, {}).get(scale, task)
    base = TrainConfig(task=spelled, encoding=encoding, **SIZES[scale])
    return dataclasses.replace(base, **changes)

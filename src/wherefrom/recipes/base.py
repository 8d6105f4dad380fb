"""What a recipe is: a function from a scale to cells, each of them one training with what is measured on it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from wherefrom.errors import BadInput
from wherefrom.training.config import TrainConfig

ScaleName = Literal["quick", "laptop", "published"]


@dataclass(frozen=True)
class Cell:
    """One training of a recipe."""

    labels: dict[str, str]
    """What tells it from the other cells, seed aside: column of the table to value."""
    config: TrainConfig
    """What is trained."""
    measures: tuple[str, ...] = ("heads",)
    """What is measured after the last step, by name (`workflows.measures`)."""
    along: tuple[str, ...] = ()
    """What is measured at the held-out scores before the last one."""

    @property
    def slug(self) -> str:
        """A folder name: readable, and different for different cells."""
        digest = hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:8]
        words = "-".join(self.labels.values())
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in words)[:48]
        return f"{safe}-s{self.config.seed}-{digest}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "labels": self.labels,
            "config": self.config.to_dict(),
            "measures": list(self.measures),
            "along": list(self.along),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cell:
        """The inverse of `to_dict`."""
        config = TrainConfig.from_dict(values["config"])
        return cls(dict(values["labels"]), config, tuple(values["measures"]), tuple(values["along"]))


@dataclass(frozen=True)
class Recipe:
    """An experiment by name."""

    name: str
    """The name on the command line."""
    summary: str
    """What it asks, in one sentence."""
    cells: Callable[[ScaleName], list[Cell]]
    """The cells of a scale, for seed 0."""
    seeds: dict[ScaleName, int] = field(default_factory=lambda: {"quick": 5, "laptop": 3, "published": 3})
    """How many seeds each cell has by default."""
    scale: ScaleName = "laptop"
    """The scale that is meant where none is asked for."""

    def seeded(self, scale: ScaleName, seeds: int | None = None) -> list[Cell]:
        """All cells with seeds 0 to `seeds - 1`, seed by seed, so that an interrupted sweep has whole tables.

        Raises BadInput for no seeds at all.
        """
        cells = self.cells(scale)
        seeds = self.seeds[scale] if seeds is None else seeds
        if seeds < 1:
            raise BadInput(f"{seeds} seeds train nothing; use at least 1.")
        return [
            dataclasses.replace(cell, config=dataclasses.replace(cell.config, seed=seed))
            for seed in range(seeds)
            for cell in cells
        ]

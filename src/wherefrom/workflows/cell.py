"""One cell of a recipe, end to end: train, then measure."""

from __future__ import annotations

from pathlib import Path

from wherefrom.progress import Progress
from wherefrom.recipes.base import Cell
from wherefrom.training.loop import Measure, Training, fingerprint, train
from wherefrom.workflows.measures import at_the_end, measure, on_the_way


def cell_measures(cell: Cell) -> dict[str, Measure]:
    """What is measured on a cell, by name: along the way, and after the last step only."""
    last = cell.config.steps
    return {f"along {name}": on_the_way(measure(name), last) for name in cell.along} | {
        name: at_the_end(measure(name), last) for name in cell.measures
    }


def cell_identity(cell: Cell) -> str:
    """What the run folder of a cell is known by."""
    return fingerprint(cell.config, cell_measures(cell))


def run_cell(cell: Cell, folder: Path | None, device: str = "auto", progress: Progress | None = None) -> Training:
    """Train and measure one cell. The same cell gives the same rows alone and among others.

    Raises BadInput as `train` does.
    """
    return train(cell.config, folder, device, progress, measures=cell_measures(cell), durable=False)

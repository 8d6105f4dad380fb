"""What is written beside the rows of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wherefrom.recipes.base import Cell
from wherefrom.results.versions import versions


def sweep_manifest(
    name: str, cells: Sequence[Cell], failed: dict[str, str], seconds: float, workers: int
) -> dict[str, Any]:
    """Everything a reader needs to trust and repeat a sweep."""
    return {
        "kind": "sweep",
        **versions(),
        "recipe": name,
        "model": {"source": f"recipe {name}", "name": name},
        "labels": list(dict.fromkeys(key for cell in cells for key in cell.labels)),
        "chance": {cell.config.task: cell.config.build_task().chance() for cell in cells},
        "cells": [{"cell": cell.slug, **cell.to_dict()} for cell in cells],
        "failed": failed,
        "workers": workers,
        "seconds": seconds,
        "edits": [],
        "query_ranges": [],
    }

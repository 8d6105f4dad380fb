"""What `wherefrom sweep --json` prints."""

from __future__ import annotations

from typing import Any

import polars as pl

from wherefrom.report.sweep_table import Estimate, arms


def sweep_summary(rows: pl.DataFrame, manifest: dict[str, Any]) -> dict[str, Any]:
    """One object per arm: labels, what was measured over seeds, deposit verdicts."""
    return {
        "recipe": manifest["recipe"],
        "seconds": manifest["seconds"],
        "failed": manifest["failed"],
        "arms": [
            {
                **arm.labels,
                **{name: _plain(estimate) for name, estimate in arm.found.items()},
                "deposits": arm.deposits,
                "deposits_any_layer": arm.deepest,
                "judged": arm.judged,
            }
            for arm in arms(rows, manifest)
        ],
    }


def _plain(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.mean, "half_width_95": estimate.half_width, "seeds": list(estimate.values)}

"""What `wherefrom sweep --json` prints."""

from __future__ import annotations

from typing import Any

import polars as pl

from wherefrom.report.sweep_table import Estimate, arms


def sweep_summary(rows: pl.DataFrame, manifest: dict[str, Any]) -> dict[str, Any]:
    """One object per arm: labels, accuracies and head drops over seeds, deposit verdicts."""
    return {
        "recipe": manifest["recipe"],
        "seconds": manifest["seconds"],
        "failed": manifest["failed"],
        "arms": [
            {
                **arm.labels,
                "accuracy": _plain(arm.accuracy),
                "long_accuracy": _plain(arm.long_accuracy),
                "largest_drop": _plain(arm.largest_drop),
                "second_drop": _plain(arm.second_drop),
                "deposits": arm.deposits,
                "deposits_any_layer": arm.deepest,
                "judged": arm.judged,
            }
            for arm in arms(rows, manifest)
        ],
    }


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"value": estimate.mean, "half_width_95": estimate.half_width, "seeds": list(estimate.values)}

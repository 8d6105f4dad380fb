"""The result of one training in words."""

from __future__ import annotations

import polars as pl

from wherefrom.report.formatting import percent
from wherefrom.report.source import Run


def finals(run: Run) -> dict[str, tuple[float, float | None]]:
    """Scores after the last step: metric -> (value, standard error over examples)."""
    whole = run.rows.filter(pl.col("offset").is_null() & pl.col("length").is_null() & pl.col("step").is_not_null())
    last = whole.filter((pl.col("analysis") == "training") & (pl.col("step") == pl.col("step").max()))
    return {row["metric"]: (row["value"], row["stderr"]) for row in last.iter_rows(named=True)}


def sentence(run: Run) -> str:
    """The result in one sentence."""
    found = finals(run)
    if "test_accuracy" not in found:
        return "This run holds no held-out score after its last step."
    text = (
        f"{run.get('training', 'encoding')} reaches {percent(*found['test_accuracy'])} on held-out examples of "
        f"{run.get('training', 'task')}"
    )
    if "long_accuracy" in found:
        text += f", and {percent(*found['long_accuracy'])} on longer ones"
    return f"{text} (by chance: {percent(run.get('chance'))})."

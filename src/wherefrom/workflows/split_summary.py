"""What `wherefrom split --json` prints: shares over all, by depth and by head, as nested values with errors."""

from __future__ import annotations

from typing import Any

import polars as pl

METRICS = (
    "content_content_share", "content_position_share", "position_content_share", "position_position_share",
    "turned_mean_share", "toeplitz_share", "absolute_share", "first_key_share", "content_share", "positional_share",
    "logit_variance",
)  # fmt: skip


def summary(rows: pl.DataFrame, manifest: dict[str, Any]) -> dict[str, Any]:
    """Keys: model, parity, closure, rotation, seconds, class_rule; `split` (per edit and layer), `heads`, `readout`."""
    table: dict[tuple[str, int | str, int | None], dict[str, Any]] = {}
    split = rows.filter((pl.col("analysis") == "split") & pl.col("offset").is_null())
    for row in split.iter_rows(named=True):
        layer = "all" if row["layer"] is None else row["layer"]
        place = (row["edit"], layer, row["head"])
        if row["metric"] in METRICS:
            entry = table.setdefault(place, {"edit": row["edit"], "layer": layer, "head": row["head"]})
            entry[row["metric"]] = {"value": row["value"], "stderr": row["stderr"]}
        elif row["metric"].startswith("class_") and row["head"] is not None:
            table[place]["class"] = row["metric"].removeprefix("class_")
    readout = rows.filter(pl.col("analysis") == "readout")
    entries = list(table.values())
    return {
        "model": manifest["model"]["source"],
        "parity_max_abs": manifest["parity"].get("max_abs"),
        "closure_max_abs": manifest["closure_max_abs"],
        "rotation_max_relative": manifest["rotation_max_relative"],
        "seconds": manifest["seconds"],
        "class_rule": manifest["class_rule"],
        "split": [{k: v for k, v in e.items() if k != "head"} for e in entries if e["head"] is None],
        "heads": [e for e in entries if e["head"] is not None],
        "readout": readout.select("edit", "layer", "metric", "value", "stderr").to_dicts(),
    }

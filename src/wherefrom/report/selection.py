"""Picking rows: which edits, ranges and metrics there are, and the rows of one kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import polars as pl

from wherefrom.report.terms import UNEDITED

Axis = Literal["each", "averaged"]
"""`each`: rows with a value in that column; `averaged`: rows where the column is null."""


def pick(
    rows: pl.DataFrame,
    analysis: str,
    metrics: Iterable[str] | None = None,
    *,
    layer: Axis = "averaged",
    head: Axis = "averaged",
    offset: Axis = "averaged",
    token: Axis = "averaged",
) -> pl.DataFrame:
    """Rows of one analysis, each of the named axes either spelled out or averaged over."""
    wanted = pl.col("analysis") == analysis
    if metrics is not None:
        wanted &= pl.col("metric").is_in(list(metrics))
    for column, axis in (("layer", layer), ("head", head), ("offset", offset), ("token", token)):
        wanted &= pl.col(column).is_not_null() if axis == "each" else pl.col(column).is_null()
    return rows.filter(wanted)


def one(rows: pl.DataFrame, metric: str, edit: str, query_range: str | None) -> tuple[float, float | None] | None:
    """Value and standard error of the one row about `metric`, or None where there is none."""
    same_range = pl.col("query_range").eq_missing(pl.lit(query_range, dtype=pl.String))
    found = rows.filter((pl.col("metric") == metric) & (pl.col("edit") == edit) & same_range)
    if found.is_empty():
        return None
    return found["value"][0], found["stderr"][0]


def edits_of(rows: pl.DataFrame) -> list[str]:
    """The edits in their order of appearance, the unedited run first."""
    edits = rows["edit"].unique(maintain_order=True).to_list()
    return sorted(edits, key=lambda edit: edit != UNEDITED)


def ranges_of(rows: pl.DataFrame) -> list[str]:
    """The query ranges by where they start."""
    return sorted(rows["query_range"].drop_nulls().unique().to_list(), key=range_order)


def metrics_of(rows: pl.DataFrame, wanted: Iterable[str]) -> list[str]:
    """Those of `wanted` that occur, in the order of `wanted`."""
    present = set(rows["metric"].unique().to_list())
    return [metric for metric in wanted if metric in present]


def range_order(query_range: str) -> tuple[int, int, str]:
    """Sort key of a query range; anything that is not `start:stop` goes last."""
    start, _, stop = query_range.partition(":")
    if start.isascii() and start.isdigit() and stop.isascii() and stop.isdigit():
        return int(start), int(stop), ""
    return 1 << 62, 1 << 62, query_range


def edit_label(edit: str) -> str:
    """The edit as the reader meets it."""
    return "unedited" if edit == UNEDITED else edit

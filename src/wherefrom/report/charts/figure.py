"""One still picture that tells the story: leak by depth, and what the edits removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from wherefrom.report.charts.common import AnyChart, inline, labelled_edits, layer_axis, named_rows, require, top_legend
from wherefrom.report.charts.stack import component_colour, stack_data, stacked
from wherefrom.report.formatting import NORMAL_INTERVAL, percent
from wherefrom.report.headline import headline_range
from wherefrom.report.selection import edit_label, edits_of, one, pick
from wherefrom.report.terms import UNEDITED

WIDTH = 720
ROOM_FOR_WORDS = 250


def readme_figure(rows: pl.DataFrame, manifest: Mapping[str, Any]) -> alt.VConcatChart:
    """Leak by depth split into its components (above); the averages under every edit and what each removed (below).

    Both panels show the range of queries that the report's headline speaks about. No menus: the picture is for paper.

    Raises:
        BadInput: no leak rows per layer, or none averaged over layers.
    """
    query_range = headline_range(rows)
    model = manifest.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    where = ", ".join(str(part) for part in (name, f"queries {query_range}") if part)
    depth = _depth(rows, query_range).properties(
        title=_title("How much attention depends on absolute position, and why", f"{where}; whiskers: 95 % interval")
    )
    edits = _edits(rows, query_range).properties(
        title=_title("What changes under each edit", f"{where}, mean over layers and heads")
    )
    return alt.vconcat(depth, edits, spacing=26)


def _title(text: str, subtitle: str) -> alt.Title:
    return alt.Title(text, subtitle=subtitle, frame="group", anchor="start", offset=12)


def _colour(leak: pl.DataFrame) -> alt.Color:
    """The legend of a picture that stands without the report's explanations."""
    words = "datum.label === 'mask' ? 'causal mask' : 'residual stream: ' + datum.label"
    return component_colour(leak).legend(**top_legend() | {"orient": "bottom", "labelExpr": words})


def _depth(rows: pl.DataFrame, query_range: str) -> AnyChart:
    chosen = (pl.col("query_range") == query_range) & (pl.col("edit") == UNEDITED)
    leak = require(pick(rows, "leak", layer="each").filter(chosen), "leak per layer of an unedited run")
    base = alt.Chart(inline(stack_data(leak, "layer")))
    return stacked(base, layer_axis(), "leak (nats²)", _colour(leak), []).properties(width=WIDTH, height=230)


def _edits(rows: pl.DataFrame, query_range: str) -> AnyChart:
    leak = labelled_edits(pick(rows, "leak").filter(pl.col("query_range") == query_range))
    leak = require(leak, "leak averaged over layers")
    edits = edits_of(leak)
    axis = named_rows("edit_label:N", [edit_label(edit) for edit in edits]).title(None)
    base = alt.Chart(inline(stack_data(leak, "edit_label")))
    bars = stacked(base, axis, "leak (nats²)", _colour(leak), [])
    words = alt.Chart(inline(_words(rows, leak, query_range))).mark_text(align="left", dx=8)
    chart = alt.layer(bars, words.encode(axis, alt.X("end:Q"), text="words:N"))
    return chart.properties(width=WIDTH - ROOM_FOR_WORDS, height=alt.Step(24))


def _words(rows: pl.DataFrame, leak: pl.DataFrame, query_range: str) -> pl.DataFrame:
    """What each edit did to the residual-stream part, in words, behind the end of its bar."""
    removed = pick(rows, "removed", ["residual"])
    made = []
    for edit in edits_of(leak):
        found = one(removed, "residual", edit, query_range)
        own = stack_data(leak.filter(pl.col("edit") == edit))
        positive = own.filter(pl.col("component").is_not_null() & (pl.col("value") > 0))["value"].sum()
        high = own["high"].max()
        made.append(
            {
                "edit_label": edit_label(edit),
                "end": max(float(positive), float(high) if isinstance(high, int | float) else 0.0),
                "words": "" if found is None else _said(*found),
            }
        )
    return pl.DataFrame(made)


def _said(value: float, stderr: float | None) -> str:
    if abs(value) <= NORMAL_INTERVAL * (stderr or 0.0):
        return "residual-stream part: no clear change"
    change = "less" if value > 0 else "more"
    return f"{percent(abs(value), stderr)} {change} through the residual stream"

"""Leak by depth, split into its components, and the same for averages over layers."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from wherefrom.report.charts.common import (
    CHOSEN_EDIT,
    CHOSEN_METRIC,
    CHOSEN_RANGE,
    DEFAULT_WIDTH,
    AnyChart,
    Width,
    dark_parameter,
    edit_colour,
    edit_dash,
    edit_menu,
    error_tip,
    inline,
    labelled_edits,
    layer_axis,
    metric_menu,
    named_rows,
    number_tip,
    panels,
    placed,
    range_menu,
    require,
    row_header,
    with_interval,
    zero_rule,
)
from wherefrom.report.charts.stack import component_colour, stack_data, stacked
from wherefrom.report.selection import edit_label, edits_of, metrics_of, pick, ranges_of

COMPARED: tuple[str, ...] = ("attention_leak", "residual", "mask", "shape_leak", "first_token", "rest", "learned_sink")
"""Metrics that `edits_by_depth` offers."""


def leak_by_depth(
    rows: pl.DataFrame,
    *,
    width: Width = DEFAULT_WIDTH,
    height: int = 280,
    query_range: str | None = None,
    edit: str | None = None,
) -> AnyChart:
    """Stacked signed components of the leak per layer, in nats², with the total and its 95 % interval.

    Menus choose query range and edit, unless `query_range` and `edit` fix them.

    Raises:
        BadInput: no leak rows per layer.
    """
    leak = require(pick(rows, "leak", layer="each"), "leak per layer")
    leak, menus, filters = _narrow(leak, query_range, edit)
    return (
        _stack_by_layer(leak, ["layer", "edit", "query_range"], filters, height)
        .properties(width=width)
        .add_params(*menus)
    )


def leak_by_depth_of_runs(
    runs: Mapping[str, pl.DataFrame], *, width: int = DEFAULT_WIDTH, height: int = 170
) -> alt.FacetChart:
    """`leak_by_depth` for several runs, one row of the picture per run, on shared axes."""
    named = [pick(rows, "leak", layer="each").with_columns(run=pl.lit(name)) for name, rows in runs.items()]
    leak = require(placed(pl.concat(named), "run", list(runs)), "leak per layer")
    keys = ["run", "panel", "layer", "edit", "query_range"]
    layered = _stack_by_layer(leak, keys, [CHOSEN_RANGE, CHOSEN_EDIT], height)
    return (
        layered.properties(width=width)
        .facet(row=panels("run:N"))
        .resolve_scale(y="shared")
        .add_params(range_menu(leak), edit_menu(leak))
    )


def _narrow(
    leak: pl.DataFrame, query_range: str | None, edit: str | None
) -> tuple[pl.DataFrame, list[alt.Parameter], list[str]]:
    """Fix the range and the edit, or return menus and filters that let the reader choose."""
    menus: list[alt.Parameter] = []
    filters: list[str] = []
    if query_range is not None:
        leak = require(leak.filter(pl.col("query_range") == query_range), f"leak at queries {query_range}")
    else:
        menus.append(range_menu(leak))
        filters.append(CHOSEN_RANGE)
    if edit is not None:
        leak = require(leak.filter(pl.col("edit") == edit), f"leak under edit {edit}")
    else:
        menus.append(edit_menu(leak))
        filters.append(CHOSEN_EDIT)
    return leak, menus, filters


def _stack_by_layer(leak: pl.DataFrame, keys: list[str], filters: list[str], height: int) -> AnyChart:
    base = alt.Chart(inline(stack_data(leak, *keys)))
    for condition in filters:
        base = base.transform_filter(condition)
    chart = stacked(base, layer_axis(), "leak (nats²)", component_colour(leak), ["layer:O"])
    return chart.properties(height=height)


def leak_by_range(rows: pl.DataFrame, *, width: int = DEFAULT_WIDTH) -> alt.FacetChart:
    """Components averaged over layers and heads: one bar per edit, one block per query range."""
    leak = require(labelled_edits(pick(rows, "leak")), "leak averaged over layers")
    leak = placed(leak.drop_nulls("query_range"), "query_range", ranges_of(leak))
    base = alt.Chart(inline(stack_data(leak, "query_range", "panel", "edit_label")))
    axis = named_rows("edit_label:N", [edit_label(edit) for edit in edits_of(leak)]).title(None)
    tips = [alt.Tooltip("query_range:N").title("queries"), alt.Tooltip("edit_label:N").title("edit")]
    title = "leak (nats²), mean over layers and heads"
    return (
        stacked(base, axis, title, component_colour(leak), tips)
        .properties(width=width, height=alt.Step(20))
        .facet(row=panels("query_range:N").header(**row_header(), labelExpr="'queries ' + datum.value"))
        .properties(spacing=16)
    )


def edits_by_depth(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int = 260) -> AnyChart:
    """One line per edit over depth, with a 95 % band; menus choose the metric and the query range."""
    leak = require(labelled_edits(pick(rows, "leak", COMPARED, layer="each")), "leak per layer")
    data = with_interval(leak.select("layer", "edit_label", "query_range", "metric", "value", "stderr"))
    edits = edits_of(leak)
    base = alt.Chart(inline(data)).transform_filter(CHOSEN_RANGE).transform_filter(CHOSEN_METRIC)
    band = base.mark_area(opacity=0.18).encode(
        layer_axis(), alt.Y("low:Q").title("leak (nats²)"), alt.Y2("high:Q"), edit_colour(edits)
    )
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=24)).encode(
        layer_axis(),
        alt.Y("value:Q"),
        edit_colour(edits),
        edit_dash(edits),
        tooltip=[alt.Tooltip("edit_label:N").title("edit"), "layer:O", number_tip("value", "nats²"), error_tip()],
    )
    menus = [metric_menu(metrics_of(leak, COMPARED)), range_menu(leak), dark_parameter()]
    return alt.layer(band, zero_rule(base), line).properties(width=width, height=height).add_params(*menus)

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
    number_tip,
    range_menu,
    require,
    top_legend,
    with_interval,
    zero_rule,
)
from wherefrom.report.selection import edit_label, edits_of, metrics_of, pick, ranges_of
from wherefrom.report.terms import COMPONENT_COLOURS, COMPONENTS, label

TOTAL = "attention leak (total)"
COMPARED: tuple[str, ...] = ("attention_leak", "residual", "mask", "shape_leak", "first_token", "rest", "learned_sink")
"""Metrics that `edits_by_depth` offers."""


def components(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The component rows with `component` (words), `place` (stacking order) and the named key columns."""
    names = list(COMPONENTS)
    return rows.filter(pl.col("metric").is_in(names)).select(
        *keys,
        "value",
        "stderr",
        component=pl.col("metric").replace_strict({name: label(name) for name in names}, return_dtype=pl.String),
        place=pl.col("metric").replace_strict({name: i for i, name in enumerate(names)}, return_dtype=pl.Int64),
    )


def totals(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The attention leak with its 95 % interval."""
    return with_interval(rows.filter(pl.col("metric") == "attention_leak").select(*keys, "value", "stderr"))


def component_colour(rows: pl.DataFrame) -> alt.Color:
    """The fixed colour of each component that occurs."""
    present = metrics_of(rows, COMPONENTS)
    scale = alt.Scale(domain=[label(name) for name in present], range=[COMPONENT_COLOURS[name] for name in present])
    return alt.Color("component:N").scale(scale).legend(**top_legend())


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
    leak = require(pl.concat(named), "leak per layer")
    layered = _stack_by_layer(leak, ["run", "layer", "edit", "query_range"], [CHOSEN_RANGE, CHOSEN_EDIT], height)
    return (
        layered.properties(width=width)
        .facet(
            row=alt.Row("run:N", sort=list(runs))
            .title(None)
            .header(labelAngle=0, labelAlign="left", labelOrient="top", labelAnchor="start")
        )
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
    """Bars, totals and a zero line over one data set, so that the chart can also be faceted."""
    data = pl.concat([components(leak, *keys), totals(leak, *keys)], how="diagonal")
    base = alt.Chart(inline(data))
    for condition in filters:
        base = base.transform_filter(condition)
    axis = layer_axis()
    value = alt.Y("value:Q").title("leak (nats²)")
    bars = (
        base.transform_filter("isValid(datum.component)")
        .mark_bar()
        .encode(
            axis,
            value.stack("zero"),
            component_colour(leak),
            alt.Order("place:Q"),
            tooltip=["layer:O", "component:N", number_tip("value", "nats²"), error_tip()],
        )
    )
    total = base.transform_filter("!isValid(datum.component)")
    whisker = total.mark_rule(strokeWidth=1.5).encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"))
    dot = total.mark_point(filled=True, size=26, opacity=1).encode(
        axis, value, tooltip=["layer:O", number_tip("value", TOTAL), error_tip()]
    )
    zero = zero_rule(base)
    return alt.layer(bars, zero, whisker, dot).properties(height=height)


def leak_by_range(rows: pl.DataFrame, *, width: int = DEFAULT_WIDTH, query_range: str | None = None) -> alt.FacetChart:
    """Components averaged over layers and heads: one bar per edit, one block per query range."""
    leak = require(labelled_edits(pick(rows, "leak")), "leak averaged over layers")
    if query_range is not None:
        leak = require(leak.filter(pl.col("query_range") == query_range), f"leak at queries {query_range}")
    keys = ["query_range", "edit_label"]
    data = pl.concat([components(leak, *keys), totals(leak, *keys)], how="diagonal")
    order = [edit_label(edit) for edit in edits_of(leak)]
    base = alt.Chart(inline(data))
    axis = alt.Y("edit_label:N", sort=order).title(None)
    value = alt.X("value:Q").title("leak (nats²), mean over layers and heads")
    value = value.axis(tickCount=6, labelOverlap="greedy", labelSeparation=8)
    bars = (
        base.transform_filter("isValid(datum.component)")
        .mark_bar()
        .encode(
            axis,
            value.stack("zero"),
            component_colour(leak),
            alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("query_range:N").title("queries"),
                alt.Tooltip("edit_label:N").title("edit"),
                "component:N",
                number_tip("value", "nats²"),
                error_tip(),
            ],
        )
    )
    total = base.transform_filter("!isValid(datum.component)")
    whisker = total.mark_rule(strokeWidth=1.5).encode(axis, alt.X("low:Q"), alt.X2("high:Q"))
    dot = total.mark_point(filled=True, size=26, opacity=1).encode(
        axis, value, tooltip=["edit_label:N", number_tip("value", TOTAL), error_tip()]
    )
    zero = zero_rule(base, vertical=True)
    blocks = alt.Row("query_range:N", sort=ranges_of(leak)).title(None)
    header = alt.Header(
        labelAngle=0,
        labelAlign="left",
        labelOrient="top",
        labelAnchor="start",
        labelPadding=0,
        labelExpr="'queries ' + datum.value",
    )
    return (
        alt.layer(bars, zero, whisker, dot)
        .properties(width=width, height=alt.Step(20))
        .facet(row=blocks.header(header))
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

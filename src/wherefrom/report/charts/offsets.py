"""Leak by offset."""

from __future__ import annotations

import altair as alt
import polars as pl

from wherefrom.report.charts.common import (
    CHOSEN_EDIT,
    CHOSEN_RANGE,
    DEFAULT_WIDTH,
    AnyChart,
    Width,
    edit_menu,
    error_tip,
    inline,
    line_legend,
    number_tip,
    range_menu,
    require,
    with_interval,
    zero_rule,
)
from wherefrom.report.selection import metrics_of, pick
from wherefrom.report.terms import COMPONENT_COLOURS, label

_SERIES = {"attention_leak": "#0072B2", "shape_leak": COMPONENT_COLOURS["shape_leak"]}


def leak_by_offset(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int = 240) -> AnyChart:
    """Attention leak and shape leak at each offset, averaged over layers and heads, with 95 % bands.

    Raises:
        BadInput: no leak rows per offset.
    """
    leak = require(pick(rows, "leak", _SERIES, offset="each"), "leak per offset")
    data = with_interval(leak.select("offset", "edit", "query_range", "metric", "value", "stderr")).with_columns(
        series=pl.col("metric").replace({name: label(name) for name in _SERIES})
    )
    present = metrics_of(leak, _SERIES)
    scale = alt.Scale(domain=[label(name) for name in present], range=[_SERIES[name] for name in present])
    colour = alt.Color("series:N").scale(scale).legend(**line_legend())
    offsets = sorted(leak["offset"].unique().to_list())
    # Offsets are log-spaced by default; symlog also has room for an offset of 0.
    axis = (
        alt.X("offset:Q")
        .title("offset i − j (tokens)")
        .scale(type="symlog" if offsets[0] < 1 else "log", domain=[offsets[0], offsets[-1]], nice=False)
        .axis(values=offsets, labelOverlap="greedy", format="d", grid=False)
    )
    base = alt.Chart(inline(data)).transform_filter(CHOSEN_RANGE).transform_filter(CHOSEN_EDIT)
    band = base.mark_area(opacity=0.2).encode(axis, alt.Y("low:Q").title("leak (nats²)"), alt.Y2("high:Q"), colour)
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=30)).encode(
        axis,
        alt.Y("value:Q"),
        colour,
        tooltip=["offset:Q", "series:N", number_tip("value", "nats²"), error_tip()],
    )
    chart = alt.layer(band, zero_rule(base), line).properties(width=width, height=height)
    return chart.add_params(range_menu(leak), edit_menu(leak))

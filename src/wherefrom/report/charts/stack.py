"""Stacked signed components with the total and its interval: the one picture that several charts are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from wherefrom.report.charts.common import AnyChart, error_tip, number_tip, top_legend, with_interval, zero_rule
from wherefrom.report.selection import metrics_of
from wherefrom.report.terms import COMPONENT_COLOURS, COMPONENTS, label

TOTAL = "attention leak (total)"


def stack_data(leak: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Component rows (with `component` in words and `place` in the stack) and total rows (with `low` and `high`)."""
    names = list(COMPONENTS)
    parts = leak.filter(pl.col("metric").is_in(names)).select(
        *keys,
        "value",
        "stderr",
        component=pl.col("metric").replace_strict({name: label(name) for name in names}, return_dtype=pl.String),
        place=pl.col("metric").replace_strict({name: i for i, name in enumerate(names)}, return_dtype=pl.Int64),
    )
    totals = with_interval(leak.filter(pl.col("metric") == "attention_leak").select(*keys, "value", "stderr"))
    return pl.concat([parts, totals], how="diagonal")


def component_colour(leak: pl.DataFrame) -> alt.Color:
    """The fixed colour of each component that occurs."""
    present = metrics_of(leak, COMPONENTS)
    scale = alt.Scale(domain=[label(name) for name in present], range=[COMPONENT_COLOURS[name] for name in present])
    return alt.Color("component:N").scale(scale).legend(**top_legend())


def stacked(
    base: alt.Chart, along: alt.X | alt.Y, value_title: str, colour: alt.Color, tips: Sequence[str | alt.Tooltip]
) -> AnyChart:
    """Bars along `along` (X: upright bars, Y: lying bars), a line at zero, and totals with whiskers.

    Everything comes from the data of `base`, made by `stack_data`, so that the result can be faceted.
    """
    lying = isinstance(along, alt.Y)
    value: Any = (alt.X if lying else alt.Y)("value:Q").title(value_title)
    value = value.axis(tickCount=6, labelOverlap="parity", labelSeparation=8)
    ends = [alt.X("low:Q"), alt.X2("high:Q")] if lying else [alt.Y("low:Q"), alt.Y2("high:Q")]
    numbers = [number_tip("value", "nats²"), error_tip()]
    bars = (
        base.transform_filter("isValid(datum.component)")
        .mark_bar()
        .encode(along, value.stack("zero"), colour, alt.Order("place:Q"), tooltip=[*tips, "component:N", *numbers])
    )
    total = base.transform_filter("!isValid(datum.component)")
    whisker = total.mark_rule(strokeWidth=1.5).encode(along, *ends)
    dot = total.mark_point(filled=True, size=26, opacity=1).encode(
        along, value, tooltip=[*tips, number_tip("value", TOTAL), error_tip()]
    )
    return alt.layer(bars, zero_rule(base, vertical=lying), whisker, dot)

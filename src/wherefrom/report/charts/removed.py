"""What each edit removed."""

from __future__ import annotations

import altair as alt
import polars as pl

from wherefrom.report.charts.common import (
    DEFAULT_WIDTH,
    error_tip,
    inline,
    named_rows,
    number_tip,
    panels,
    placed,
    require,
    top_legend,
    with_interval,
    zero_rule,
)
from wherefrom.report.selection import edits_of, metrics_of, pick, ranges_of
from wherefrom.report.terms import COMPONENT_COLOURS, label

SHOWN: dict[str, tuple[str, str]] = {
    "attention_leak": ("#56606c", "diamond"),
    "residual": (COMPONENT_COLOURS["shape_leak"], "circle"),
    "mask": (COMPONENT_COLOURS["mask"], "square"),
}
"""Metrics drawn, with colour and shape; the table beside the chart has all of them."""


def removed_fractions(rows: pl.DataFrame, *, width: int = DEFAULT_WIDTH) -> alt.FacetChart:
    """Removed fraction 1 − V_edit / V_base with its 95 % interval, per edit, query range and metric.

    Each edit has its own axis, because an edit that multiplies the leak would hide what the others remove.

    Raises:
        BadInput: no removed fractions averaged over layers.
    """
    found = require(pick(rows, "removed", SHOWN), "removed fractions")
    data = _cut(with_interval(found.select("edit", "query_range", "metric", "value", "stderr"))).with_columns(
        series=pl.col("metric").replace({name: label(name) for name in SHOWN})
    )
    data = placed(data, "edit", edits_of(found))
    present = metrics_of(found, SHOWN)
    series = [label(name) for name in present]
    colours = [SHOWN[name][0] for name in present]
    shapes = [SHOWN[name][1] for name in present]
    base = alt.Chart(inline(data))
    queries = named_rows("query_range:N", ranges_of(found)).title("queries").axis(grid=True)
    within = alt.YOffset("series:N", sort=series).scale(paddingOuter=0.6)
    colour = alt.Color("series:N").scale(domain=series, range=colours).legend(**top_legend())
    fraction = alt.Axis(format="%", tickCount=7, labelOverlap="parity", labelSeparation=8)
    whisker = base.mark_rule(strokeWidth=2).encode(
        alt.X("low:Q").title("removed fraction").axis(fraction), queries, within, colour, alt.X2("high:Q")
    )
    dot = base.mark_point(filled=True, size=55, opacity=1).encode(
        alt.X("value:Q").axis(fraction),
        queries,
        within,
        colour,
        alt.Shape("series:N").scale(domain=series, range=shapes).legend(**top_legend()),
        tooltip=[
            "edit:N",
            alt.Tooltip("query_range:N").title("queries"),
            alt.Tooltip("series:N").title("metric"),
            number_tip("value", "removed fraction"),
            error_tip(),
        ],
    )
    zero = zero_rule(base, vertical=True)
    return (
        alt.layer(zero, whisker, dot)
        .properties(width=width, height=alt.Step(11, **{"for": "offset"}))
        .facet(row=panels("edit:N"))
        .resolve_scale(x="independent")
    )


def _cut(data: pl.DataFrame) -> pl.DataFrame:
    """Cut whiskers where they would stretch the axis so far that no estimate could be read.

    Where the unedited part is about 0, the interval of the fraction has no useful bounds.
    """
    low, high = pl.col("value").min().clip(None, 0).over("edit"), pl.col("value").max().clip(1, None).over("edit")
    margin = 0.5 * (high - low)
    return data.with_columns(low=pl.max_horizontal("low", low - margin), high=pl.min_horizontal("high", high + margin))

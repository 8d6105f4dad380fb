"""What every chart shares: inline data, menus, error bars, axes.

A chart function takes the tidy rows of one run (a polars frame) and returns an Altair chart without configuration, so
that charts can be combined; the report and `save_png` add the look of `style.CONFIG`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import altair as alt
import polars as pl

from wherefrom.errors import BadInput
from wherefrom.report.formatting import NORMAL_INTERVAL
from wherefrom.report.selection import edit_label, edits_of, ranges_of
from wherefrom.report.terms import INK, SERIES_COLOURS, label

AnyChart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart
Width: TypeAlias = int | Literal["container"]
"""Pixels, or `container` to fill the surrounding HTML element."""

EDIT, RANGE, METRIC = "chosen_edit", "chosen_range", "chosen_metric"
"""Names of the parameters behind the menus. The report links menus of the same name over all of its charts."""
DARK = "dark"
"""Parameter that the report sets on a dark screen."""

DEFAULT_WIDTH = 640


def inline(frame: pl.DataFrame) -> alt.InlineData:
    """The frame as chart data.

    As JSON text: Altair limits data frames to 5,000 rows, and copies and validates lists of records for seconds.
    """
    return alt.InlineData(values=frame.write_json(), format=alt.JsonDataFormat(type="json"))


def require(frame: pl.DataFrame, what: str) -> pl.DataFrame:
    """The frame itself, or BadInput where it is empty."""
    if frame.is_empty():
        raise BadInput(f"These rows hold no {what}, so there is nothing to draw; was that analysis run?")
    return frame


def menu(name: str, title: str, options: Sequence[str], labels: Sequence[str] | None = None) -> alt.Parameter:
    """A parameter with a drop-down list; one option alone needs no list."""
    if len(options) == 1:
        return alt.param(name=name, value=options[0])
    shown = list(labels) if labels is not None else list(options)
    return alt.param(name=name, value=options[0], bind=alt.binding_select(options=options, labels=shown, name=title))


def edit_menu(rows: pl.DataFrame) -> alt.Parameter:
    """Choose an edit."""
    edits = edits_of(rows)
    return menu(EDIT, "Edit", edits, [edit_label(edit) for edit in edits])


def range_menu(rows: pl.DataFrame) -> alt.Parameter:
    """Choose a query range."""
    return menu(RANGE, "Queries", ranges_of(rows))


def metric_menu(metrics: Sequence[str]) -> alt.Parameter:
    """Choose a metric."""
    return menu(METRIC, "Metric", metrics, [label(metric) for metric in metrics])


CHOSEN_EDIT = f"datum.edit === {EDIT}"
CHOSEN_RANGE = f"datum.query_range === {RANGE}"
CHOSEN_METRIC = f"datum.metric === {METRIC}"


def dark_parameter() -> alt.Parameter:
    """Off by default; the report switches it with the screen."""
    return alt.param(name=DARK, value=False)


def by_screen(colours: dict[str, Any]) -> list[Any]:
    """A colour range that follows `dark`: one pair of light and dark colours per entry."""
    pairs = zip(colours["light"], colours["dark"], strict=True)
    return [alt.ExprRef(f"{DARK} ? '{dark}' : '{light}'") for light, dark in pairs]


def with_interval(frame: pl.DataFrame) -> pl.DataFrame:
    """Add `low` and `high`, the 95 % interval; both equal the value where no error is known."""
    half = pl.col("stderr").fill_null(0.0) * NORMAL_INTERVAL
    return frame.with_columns(low=pl.col("value") - half, high=pl.col("value") + half)


def edit_colour(edits: Sequence[str]) -> alt.Color:
    """One colour per edit, ink for the unedited run."""
    labels = [edit_label(edit) for edit in edits]
    ink = alt.ExprRef(f"{DARK} ? '{INK['dark']}' : '{INK['light']}'")
    coloured = [SERIES_COLOURS[i % len(SERIES_COLOURS)] for i in range(len(edits))]
    colours: list[Any] = [ink, *coloured][: len(edits)] if labels and labels[0] == "unedited" else coloured
    return alt.Color("edit_label:N").scale(domain=labels, range=colours).legend(**line_legend())


def edit_dash(edits: Sequence[str]) -> alt.StrokeDash:
    """Dashes tell edits apart where colours cannot (in grey print, or where the colours have come round again)."""
    labels = [edit_label(edit) for edit in edits]
    dashes = [[1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 1], [1, 3], [10, 3]]
    chosen = [dashes[i % len(dashes)] for i in range(len(labels))]
    return alt.StrokeDash("edit_label:N").scale(domain=labels, range=chosen).legend(**line_legend())


def labelled_edits(frame: pl.DataFrame) -> pl.DataFrame:
    """Add `edit_label`."""
    return frame.with_columns(edit_label=pl.col("edit").map_elements(edit_label, return_dtype=pl.String))


def top_legend(title: str | None = None) -> dict[str, Any]:
    """A legend above the plot."""
    return {"orient": "top", "title": title, "labelLimit": 220}


def line_legend() -> dict[str, Any]:
    """A legend of lines; the same words for colour and dash, so that Vega-Lite draws one legend for both."""
    return top_legend() | {"symbolType": "stroke", "symbolStrokeWidth": 2.5, "symbolSize": 300, "symbolOpacity": 1}


# Lists of names in `sort` would become part of expressions that Vega parses, and some names break the parser: the
# order is given as a scale's domain, or for panels as a column of numbers.
def named_rows(field: str, order: Sequence[str]) -> alt.Y:
    """A vertical axis of names in the given order."""
    return alt.Y(field, sort=None).scale(domain=list(order))


def placed(frame: pl.DataFrame, column: str, order: Sequence[str]) -> pl.DataFrame:
    """Add `panel`, the place of `column` in `order`."""
    place = {name: index for index, name in enumerate(order)}
    return frame.with_columns(panel=pl.col(column).replace_strict(place, return_dtype=pl.Int64))


def panels(column: str) -> alt.Row:
    """One panel under the other for each value of `column`, in the order of `panel`; heads above, from the left."""
    by_place = alt.EncodingSortField(field="panel", op="min", order="ascending")
    return alt.Row(column, sort=by_place).title(None).header(**row_header())


def row_header() -> dict[str, Any]:
    """Heads of stacked panels: above each panel, from the left."""
    return {"labelAngle": 0, "labelAlign": "left", "labelOrient": "top", "labelAnchor": "start", "labelPadding": 0}


def layer_axis(title: str = "layer") -> alt.X:
    """Layers from left to right, labels thinned where they would touch."""
    return (
        alt.X("layer:O")
        .title(title)
        .axis(labelAngle=0, labelOverlap="parity", labelSeparation=5, ticks=False, grid=False)
    )


def number_tip(field: str, title: str) -> alt.Tooltip:
    """A number on hover, three significant digits."""
    return alt.Tooltip(field=field, type="quantitative", title=title, format=".3~g")


def error_tip() -> alt.Tooltip:
    """The standard error on hover."""
    return number_tip("stderr", "standard error")


def zero_rule(base: alt.Chart, *, vertical: bool = False) -> alt.Chart:
    """One line at zero, from the data of `base`, so that it can be faceted with it."""
    rule = base.transform_aggregate(rows="count()").mark_rule(strokeWidth=1, opacity=0.75)
    return rule.encode(x=alt.datum(0)) if vertical else rule.encode(y=alt.datum(0))


def log_ticks(low: float, high: float) -> list[float]:
    """1 and 3 times the powers of ten in between; powers alone where that would be many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 3) if len(decades) <= 4 else (1,)
    return [step * 10.0**decade for decade in decades for step in steps]

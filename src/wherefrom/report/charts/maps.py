"""Heat maps: layer by head, and layer by offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from wherefrom.report.charts.common import (
    CHOSEN_EDIT,
    CHOSEN_RANGE,
    DEFAULT_WIDTH,
    EDIT,
    METRIC,
    RANGE,
    Width,
    by_screen,
    dark_parameter,
    edit_menu,
    inline,
    layer_axis,
    metric_menu,
    number_tip,
    range_menu,
    require,
)
from wherefrom.report.selection import metrics_of, pick
from wherefrom.report.terms import SIGNED_COLOURS, label

HEAD_METRICS: tuple[str, ...] = (
    "attention_leak",
    "residual",
    "mask",
    "shape_leak",
    "first_token",
    "rest",
    "learned_sink",
    "level_leak",
    "raw_logit_leak",
    "raw_denominator_leak",
    "raw_interaction",
)
OFFSET_METRICS: tuple[str, ...] = ("attention_leak", "shape_leak")

MAX_NUMBERS = 400_000
"""Numbers one map may embed, so that the file of a large model stays a few megabytes."""

_COMPRESSION = 30.0
"""How strongly colour is compressed: a thirtieth of the limit is where it turns from linear to logarithmic."""


def head_map(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int | None = None) -> alt.Chart:
    """Layer by head, one colour per value; menus choose metric, query range and edit.

    Raises:
        BadInput: no leak rows per head.
    """
    leak = require(pick(rows, "leak", HEAD_METRICS, layer="each", head="each"), "leak per head")
    return _signed_map(leak, "head", "head", metrics_of(leak, HEAD_METRICS), width, height)


def offset_map(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int | None = None) -> alt.Chart:
    """Layer by offset, averaged over heads; menus choose metric, query range and edit."""
    leak = require(pick(rows, "leak", OFFSET_METRICS, layer="each", offset="each"), "leak per layer and offset")
    return _signed_map(leak, "offset", "offset (tokens)", metrics_of(leak, OFFSET_METRICS), width, height)


def head_map_metrics(rows: pl.DataFrame) -> list[str]:
    """The metrics the head map offers: all that occur, or for a large model the first few."""
    leak = pick(rows, "leak", HEAD_METRICS, layer="each", head="each")
    present = metrics_of(leak, HEAD_METRICS)
    return present[: max(1, MAX_NUMBERS // max(1, _cells(leak, "head")))]


def _cells(frame: pl.DataFrame, across: str) -> int:
    return frame.select("layer", across, "edit", "query_range").n_unique()


def _signed_map(
    frame: pl.DataFrame, across: str, title: str, metrics: Sequence[str], width: Width, height: int | None
) -> alt.Chart:
    """A map with one column per metric in its data, so that the menu of metrics costs no second copy of the keys."""
    cells = _cells(frame, across)
    metrics = list(metrics)[: max(1, MAX_NUMBERS // max(1, cells))]
    errors = 2 * cells * len(metrics) <= MAX_NUMBERS // 2
    frame = frame.filter(pl.col("metric").is_in(metrics))
    keys = ["layer", across, "edit", "query_range"]
    wide = frame.pivot(on="metric", index=keys, values=["value", "stderr"] if errors else ["value"])
    if not errors:
        wide = wide.rename({metric: f"value_{metric}" for metric in metrics})
    tall = frame[across].n_unique()
    tips: list[Any] = ["layer:O", alt.Tooltip(f"{across}:O"), number_tip("value", "nats²")]
    if errors:
        tips.append(number_tip("stderr", "standard error"))
    tips += [number_tip(f"value_{metric}", label(metric)) for metric in metrics[:7]]
    chart = (
        alt.Chart(inline(wide))
        .transform_filter(CHOSEN_RANGE)
        .transform_filter(CHOSEN_EDIT)
        .transform_calculate(value=f"datum['value_' + {METRIC}]", stderr=f"datum['stderr_' + {METRIC}]")
        .mark_rect()
        .encode(
            layer_axis(),
            alt.Y(f"{across}:O").title(title).axis(labelOverlap="greedy", ticks=False),
            _signed_colour(),
            tooltip=tips,
        )
        .properties(width=width, height=height or min(640, max(150, 20 * tall)))
    )
    return chart.add_params(
        metric_menu(metrics),
        range_menu(frame),
        edit_menu(frame),
        alt.param(name="limits", value=_limits(frame)),
        alt.param(name="limit", expr=f"limits[{METRIC}][{RANGE}]"),
        dark_parameter(),
    )


def _limits(frame: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Where colour saturates: the 99.5th percentile of the size, shared by all edits so that edits can be compared."""
    table = frame.group_by("metric", "query_range").agg(pl.col("value").abs().quantile(0.995))
    limits: dict[str, dict[str, float]] = {}
    for metric in frame["metric"].unique():
        limits[metric] = dict.fromkeys(frame["query_range"].drop_nulls().unique(), 1e-12)
    for metric, query_range, limit in table.iter_rows():
        if query_range is not None:
            limits[metric][query_range] = max(limit, 1e-12)
    return limits


def _signed_colour() -> alt.Color:
    """Diverging and centred on zero, in symmetric-logarithmic steps: most heads leak little and a few leak much."""
    halfway = ((_COMPRESSION + 1) ** 0.5 - 1) / _COMPRESSION
    domain = [alt.ExprRef(f"{part} * limit") for part in (-1, -halfway, 0, halfway, 1)]
    scale = alt.Scale(
        type="symlog",
        constant=alt.ExprRef(f"limit / {_COMPRESSION}"),
        domain=domain,
        range=by_screen(SIGNED_COLOURS),
        interpolate="lab",
        clamp=True,
    )
    ticks = alt.ExprRef(f"[-limit, -{halfway} * limit, 0, {halfway} * limit, limit]")
    legend = alt.Legend(
        orient="top", title="nats²", gradientLength=280, values=ticks, format=".2~g", titleOrient="left"
    )
    return alt.Color("value:Q", scale=scale, legend=legend)


__all__ = ["EDIT", "head_map", "head_map_metrics", "offset_map"]

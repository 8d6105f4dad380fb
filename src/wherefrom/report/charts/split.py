"""Charts of a logit split: shares by depth, maps of heads and bands, profiles by offset, and metrics by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from wherefrom.report.charts.common import (
    CHOSEN_EDIT,
    DEFAULT_WIDTH,
    METRIC,
    AnyChart,
    Width,
    by_screen,
    dark_parameter,
    edit_colour,
    edit_dash,
    edit_menu,
    error_tip,
    inline,
    labelled_edits,
    layer_axis,
    line_legend,
    metric_menu,
    number_tip,
    require,
    top_legend,
    with_interval,
)
from wherefrom.report.selection import edits_of, metrics_of, pick
from wherefrom.report.terms import SERIES_COLOURS, SHARE_COLOURS, label

SOURCES = {"toeplitz_share": "#0072B2", "absolute_share": "#D55E00", "content_share": "#009E73"}
"""What the offset explains, what positions explain beyond it, what differs between inputs."""
TERMS = {
    "position_position_share": "#D55E00",
    "position_content_share": "#E69F00",
    "content_position_share": "#CC79A7",
    "content_content_share": "#009E73",
}
"""The Gram terms, position of query and key first."""
HEAD_METRICS = ("positional_share", "toeplitz_share", "absolute_share", "first_key_share", "content_share")
BAND_METRICS = ("band_position_share", "band_turned_mean_share", "band_content_share", "band_share")
PROFILES = 6
"""Heads whose profiles are drawn."""
MAX_NUMBERS = 400_000
"""Numbers a map may embed."""


def shares_by_depth(
    rows: pl.DataFrame, colours: Mapping[str, str], *, width: Width = DEFAULT_WIDTH, height: int = 230
) -> AnyChart:
    """Shares of the row-centred logit variance by layer, stacked; a menu chooses the edit."""
    found = require(pick(rows, "split", colours, layer="each"), "shares by layer")
    names = [name for name in colours if name in set(found["metric"])]
    data = found.select(
        "layer",
        "edit",
        "value",
        "stderr",
        part=pl.col("metric").replace_strict({name: label(name) for name in names}, return_dtype=pl.String),
        place=pl.col("metric").replace_strict({name: i for i, name in enumerate(names)}, return_dtype=pl.Int64),
    )
    scale = alt.Scale(domain=[label(name) for name in names], range=[colours[name] for name in names])
    bars = (
        alt.Chart(inline(data))
        .transform_filter(CHOSEN_EDIT)
        .mark_bar()
        .encode(
            layer_axis(),
            alt.Y("value:Q").title("share of logit variance").stack("zero").axis(format=".0%"),
            alt.Color("part:N").scale(scale).legend(**top_legend()),
            alt.Order("place:Q"),
            tooltip=["layer:O", "part:N", number_tip("value", "share"), error_tip()],
        )
        .properties(width=width, height=height)
    )
    return bars.add_params(edit_menu(found))


def head_shares(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int | None = None) -> AnyChart:
    """Layer by head, one share as colour; menus choose the share and the edit. The tooltip has the head's class."""
    found = require(pick(rows, "split", HEAD_METRICS, layer="each", head="each"), "shares per head")
    names = metrics_of(found, HEAD_METRICS)
    keys = ["layer", "head", "edit"]
    kinds = pick(rows, "split", layer="each", head="each").filter(pl.col("metric").str.starts_with("class_"))
    kinds = kinds.select(*keys, kind=pl.col("metric").str.strip_prefix("class_"))
    wide = found.pivot(on="metric", index=keys, values="value").join(kinds, on=keys, how="left")
    cells = (
        alt.Chart(inline(wide))
        .transform_filter(CHOSEN_EDIT)
        .transform_calculate(value=f"datum[{METRIC}]")
        .mark_rect()
        .encode(
            layer_axis(),
            alt.Y("head:O").title("head").axis(labelOverlap="greedy", ticks=False),
            _share_colour(),
            tooltip=["layer:O", "head:O", "kind:N", *(number_tip(name, label(name)) for name in names)],
        )
        .properties(width=width, height=height or min(640, max(150, 20 * found["head"].n_unique())))
    )
    return cells.add_params(metric_menu(names), edit_menu(found), dark_parameter())


def band_map(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int | None = None) -> AnyChart:
    """Rotary band by head, heads layer by layer, a share as colour; menus choose which and the edit.

    A model with more heads than a map may hold is averaged over the heads of a layer.
    """
    bands = rows.filter((pl.col("analysis") == "bands") & pl.col("metric").is_in(BAND_METRICS))
    found = require(bands.filter(pl.col("band").is_not_null()), "rotary bands")
    frequency = rows.filter((pl.col("metric") == "band_frequency") & pl.col("value").is_not_null())
    frequency = frequency.select("layer", "band", "edit", frequency="value").unique(["layer", "band", "edit"])
    each = found.filter(pl.col("head").is_not_null())
    chosen = each if 0 < each.height <= MAX_NUMBERS else found.filter(pl.col("head").is_null())
    names = metrics_of(chosen, BAND_METRICS)
    wide = chosen.pivot(on="metric", index=["layer", "head", "band", "edit"], values="value")
    wide = wide.join(frequency, on=["layer", "band", "edit"], how="left")
    wide = wide.with_columns(
        wavelength=2 * pl.lit(3.141592653589793) / pl.col("frequency"),
        column=pl.concat_str(pl.col("layer"), pl.col("head").cast(pl.String).fill_null("mean"), separator="."),
        place=pl.col("layer") * 100_000 + pl.col("head").fill_null(0),
    )
    order = alt.EncodingSortField(field="place", op="min", order="ascending")
    limit = wide.select(pl.max_horizontal(pl.col(name).quantile(0.995) for name in names).max()).item()
    cells = (
        alt.Chart(inline(wide.drop("frequency")))
        .transform_filter(CHOSEN_EDIT)
        .transform_calculate(value=f"datum[{METRIC}]")
        .mark_rect()
        .encode(
            alt.X("column:N", sort=order)
            .title("head (layer.head)")
            .axis(labelOverlap="greedy", labelSeparation=12, ticks=False, labelAngle=0),
            alt.Y("band:O").title("band, fastest first").axis(labelOverlap="greedy", ticks=False),
            _share_colour(max(1e-3, limit or 0.0)),
            tooltip=[
                "layer:O",
                "head:O",
                "band:O",
                number_tip("wavelength", "wavelength (tokens)"),
                *(number_tip(name, label(name)) for name in names),
            ],
        )
        .properties(width=width, height=height or min(420, max(140, 11 * found["band"].n_unique())))
    )
    return cells.add_params(metric_menu(names), edit_menu(found), dark_parameter())


def offset_profiles(
    rows: pl.DataFrame, heads: Sequence[tuple[int, int]], *, width: Width = DEFAULT_WIDTH, height: int = 260
) -> AnyChart:
    """Mean logit by offset of some (layer, head), with 95 % bands; a menu chooses the edit."""
    found = pick(rows, "split", ["toeplitz_profile"], layer="each", head="each", offset="each")
    found = found.with_columns(name=pl.concat_str("layer", "head", separator="."))
    names = [f"{layer}.{head}" for layer, head in heads[:PROFILES]]
    found = require(found.filter(pl.col("name").is_in(names)), "logit profiles")
    data = with_interval(found).select("name", "offset", "value", "stderr", "low", "high", "edit")
    colour = alt.Color("name:N").scale(domain=names, range=list(SERIES_COLOURS[: len(names)])).legend(
        **line_legend() | {"title": "layer.head"}
    )  # fmt: skip
    axis = alt.X("offset:Q").title("offset (tokens)").scale(type="symlog", nice=False)
    base = alt.Chart(inline(data)).transform_filter(CHOSEN_EDIT)
    band = base.mark_area(opacity=0.15).encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), colour)
    tips = ["name:N", "offset:Q", number_tip("value", "nats"), error_tip()]
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=24)).encode(
        axis, alt.Y("value:Q").title("mean logit, row-centred (nats)"), colour, tooltip=tips
    )
    return alt.layer(band, line).properties(width=width, height=height).add_params(edit_menu(found))


def by_layer(
    rows: pl.DataFrame,
    analysis: str,
    metric: str,
    title: str,
    *,
    reference: float | None = None,
    axis_title: str = "layer",
    form: str = "",
    width: Width = DEFAULT_WIDTH,
    height: int = 200,
) -> AnyChart:
    """One metric by layer with 95 % intervals, one line per edit, and a dashed line at `reference`."""
    found = require(pick(rows, analysis, [metric], layer="each"), f"{label(metric)} by layer")
    edits = edits_of(found)
    data = labelled_edits(with_interval(found)).select("layer", "edit_label", "value", "stderr", "low", "high")
    value = alt.Y("value:Q").title(title).scale(zero=False)
    value = value.axis(format=form) if form else value
    axis = layer_axis(axis_title)
    base = alt.Chart(inline(data))
    spans = base.mark_rule(strokeWidth=1).encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), edit_colour(edits))
    tips = ["edit_label:N", "layer:O", number_tip("value", title), error_tip()]
    line = base.mark_line(strokeWidth=1.5, point=alt.OverlayMarkDef(size=20)).encode(
        axis, value, edit_colour(edits), edit_dash(edits), tooltip=tips
    )
    parts = [spans, line]
    if reference is not None:
        parts.append(base.transform_aggregate(n="count()").mark_rule(strokeDash=[4, 3]).encode(y=alt.datum(reference)))
    return alt.layer(*parts).properties(width=width, height=height).add_params(dark_parameter())


def _share_colour(limit: float = 1.0) -> alt.Color:
    scale = alt.Scale(domain=[0, limit / 2, limit], range=by_screen(SHARE_COLOURS), interpolate="lab", clamp=True)
    legend = alt.Legend(orient="top", title="share", titleOrient="left", gradientLength=220, format=".0%")
    return alt.Color("value:Q", scale=scale, legend=legend)

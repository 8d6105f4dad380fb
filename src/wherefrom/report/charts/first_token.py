"""The first token's trajectory, the heads that read it, and which tokens would become sinks."""

from __future__ import annotations

import altair as alt
import polars as pl

from wherefrom.report.charts.common import (
    CHOSEN_EDIT,
    DEFAULT_WIDTH,
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
    log_ticks,
    number_tip,
    require,
)
from wherefrom.report.selection import edits_of, metrics_of, pick
from wherefrom.report.terms import SHARE_COLOURS, SINK_THRESHOLD, label

NORMS: tuple[str, ...] = ("norm_ratio", "norm")
SIMILARITIES: tuple[str, ...] = ("similarity", "similarity_varying")
HOVER: tuple[str, ...] = ("sink_attention", "value_norm_ratio", "sink_constancy", "learned_sink_share")
BINS = 60


def first_token_norm(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int = 230) -> AnyChart:
    """Norm of the residual stream at position 0 by depth, one line per edit, on a logarithmic axis."""
    found = require(labelled_edits(pick(rows, "first_token", NORMS, layer="each")), "first-token norms")
    metric = metrics_of(found, NORMS)[0]
    # A norm of 0 has no place on a logarithmic axis; it happens where the first embedding was set to zero.
    found = require(found.filter((pl.col("value") > 0) & (pl.col("metric") == metric)), "first-token norms above 0")
    values = found["value"].to_list()
    axis = alt.Axis(values=log_ticks(min(values), max(values)), format="~s", labelOverlap="greedy")
    title = "norm ÷ mean norm of later positions" if metric == "norm_ratio" else "norm"
    return _trajectory(
        found,
        alt.Y("value:Q")
        .scale(type="log", nice=False, domain=[min(values) / 1.3, max(values) * 1.3])
        .title(title)
        .axis(axis),
        width,
        height,
    )


def first_token_similarity(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int = 230) -> AnyChart:
    """Cosine between inputs of the residual stream at position 0, by depth: a line per edit, one for random tokens."""
    found = require(pick(rows, "first_token", SIMILARITIES, layer="each"), "first-token similarities")
    varying = pl.col("metric") == "similarity_varying"
    found = found.with_columns(edit=pl.when(varying).then(pl.lit("random first tokens")).otherwise(pl.col("edit")))
    found = labelled_edits(found)
    return _trajectory(found, alt.Y("value:Q").scale(zero=False).title("cosine across inputs"), width, height)


def _trajectory(found: pl.DataFrame, value: alt.Y, width: Width, height: int) -> AnyChart:
    data = found.select("layer", "edit_label", "value", "stderr")
    edits = edits_of(found)
    base = alt.Chart(inline(data))
    axis = layer_axis("stream entering layer (last: leaving the model)")
    tips = [alt.Tooltip("edit_label:N").title("edit"), "layer:O", number_tip("value", "value"), error_tip()]
    line = base.mark_line(strokeWidth=2).encode(axis, value, edit_colour(edits), edit_dash(edits), tooltip=tips)
    dots = base.mark_point(filled=True, size=22, opacity=1).encode(axis, value, edit_colour(edits), tooltip=tips)
    return alt.layer(line, dots).properties(width=width, height=height).add_params(dark_parameter())


def sink_map(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int | None = None) -> AnyChart:
    """Mean attention to key 0 per layer and head; a ring marks sink-reading heads. A menu chooses the edit."""
    found = require(pick(rows, "sinks", HOVER, layer="each", head="each"), "sinks per head")
    wide = found.pivot(on="metric", index=["layer", "head", "edit"], values="value")
    present = metrics_of(found, HOVER)
    require(wide.filter(pl.lit("sink_attention" in present)), "attention to key 0 per head")
    tall = found["head"].n_unique()
    base = alt.Chart(inline(wide)).transform_filter(CHOSEN_EDIT)
    head = alt.Y("head:O").title("head").axis(labelOverlap="greedy", ticks=False)
    tips = ["layer:O", "head:O", *[number_tip(metric, label(metric)) for metric in present]]
    scale = alt.Scale(domain=[0, 0.5, 1], range=by_screen(SHARE_COLOURS), interpolate="lab", clamp=True)
    legend = alt.Legend(
        orient="top",
        title="attention to key 0",
        titleOrient="left",
        gradientLength=280,
        format=".0%",
        values=[0, 0.25, 0.5, 0.75, 1],
    )
    cells = base.mark_rect().encode(
        layer_axis(), head, alt.Color("sink_attention:Q", scale=scale, legend=legend), tooltip=tips
    )
    rings = (
        base.transform_filter(f"datum.sink_attention >= {SINK_THRESHOLD}")
        .mark_point(filled=False, shape="circle", size=36, strokeWidth=2, opacity=1, color="#E69F00")
        .encode(layer_axis(), head, tooltip=tips)
    )
    chart = alt.layer(cells, rings).properties(width=width, height=height or min(640, max(150, 20 * tall)))
    return chart.add_params(edit_menu(found), dark_parameter())


def sink_scores(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int = 220) -> AnyChart:
    """How the sink score is distributed over the vocabulary, with a logarithmic count and a line at 0.3."""
    scores = require(pick(rows, "atlas", ["sink_score"], token="each"), "sink scores per token")["value"]
    high = max(1.0, float(scores.max()))  # type: ignore[arg-type]
    low = min(0.0, float(scores.min()))  # type: ignore[arg-type]
    step = (high - low) / BINS
    bins = (
        pl.DataFrame({"bin": ((scores - low) / step).floor().clip(0, BINS - 1).cast(pl.Int64)})
        .group_by("bin")
        .len("tokens")
        .sort("bin")
        .with_columns(start=low + pl.col("bin") * step, stop=low + (pl.col("bin") + 1) * step, base=pl.lit(0.5))
    )
    most = int(bins["tokens"].max())  # type: ignore[arg-type]
    counts = alt.Axis(values=log_ticks(1, most), format="~s", labelOverlap="greedy")
    bars = (
        alt.Chart(inline(bins.drop("bin")))
        .mark_bar(color="#0072B2", binSpacing=1)
        .encode(
            alt.X("start:Q")
            .bin("binned")
            .scale(domain=[low, high])
            .title("predicted attention to the token at position 0"),
            alt.X2("stop:Q"),
            alt.Y("tokens:Q").scale(type="log", domainMin=0.5, nice=False).title("tokens").axis(counts),
            alt.Y2("base:Q"),
            tooltip=[number_tip("start", "from"), number_tip("stop", "to"), alt.Tooltip("tokens:Q", format=",d")],
        )
    )
    threshold = (
        alt.Chart(inline(pl.DataFrame({"threshold": [SINK_THRESHOLD]})))
        .mark_rule(strokeDash=[5, 3], strokeWidth=1.5)
        .encode(alt.X("threshold:Q"))
    )
    return alt.layer(bars, threshold).properties(width=width, height=height)

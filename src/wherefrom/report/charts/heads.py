"""The map of a head ablation: layer by head."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from wherefrom.report.charts.common import (
    DEFAULT_WIDTH,
    Width,
    by_screen,
    dark_parameter,
    error_tip,
    inline,
    layer_axis,
    menu,
    number_tip,
    require,
)
from wherefrom.report.terms import SIGNED_COLOURS

HOW = "chosen_ablation"
LEAST = 1e-3
"""Smallest value at which colours may saturate."""


def ablation_map(
    rows: pl.DataFrame,
    metric: str,
    title: str,
    hows: Sequence[str],
    *,
    width: Width = DEFAULT_WIDTH,
    height: int | None = None,
) -> alt.Chart:
    """What is lost without each head, one cell per head; a menu chooses the kind of ablation.

    Raises:
        BadInput: no such rows.
    """
    found = rows.filter((pl.col("analysis") == "heads") & (pl.col("metric") == metric) & pl.col("head").is_not_null())
    found = require(found, f"{title} per head")
    limit = max(LEAST, float(found["value"].abs().max()))  # type: ignore[arg-type]
    domain = [-limit, -limit / 4, 0, limit / 4, limit]
    scale = alt.Scale(domain=domain, range=by_screen(SIGNED_COLOURS), interpolate="lab", clamp=True)
    legend = alt.Legend(orient="top", title=title, titleOrient="left", gradientLength=220)
    tall = found["head"].n_unique()
    chart = (
        alt.Chart(inline(found.select("layer", "head", "value", "stderr", "edit")))
        .transform_filter(f"datum.edit === {HOW}")
        .mark_rect()
        .encode(
            layer_axis(),
            alt.Y("head:O").title("head").axis(labelOverlap="greedy", ticks=False),
            alt.Color("value:Q", scale=scale, legend=legend),
            tooltip=["layer:O", "head:O", number_tip("value", title), error_tip()],
        )
        .properties(width=width, height=height or min(640, max(150, 20 * tall)))
    )
    return chart.add_params(menu(HOW, "Ablation", list(hows)), dark_parameter())

"""Charts of gradient seeds through training. Rows are those of a sweep with a column `arm`, as in `charts.lab`."""

from __future__ import annotations

import altair as alt
import polars as pl

from wherefrom.report.charts.common import AnyChart, inline, line_legend, menu, number_tip, require
from wherefrom.report.charts.lab import STEPS_TITLE, arms_of
from wherefrom.report.terms import SERIES_COLOURS

QUANTITIES = {
    "signal_share": "part of the signal that examples agree on",
    "cancellation": "cancellation ratio",
    "norm": "norm of the mean signal",
    "margin": "margin of the leading head",
}
"""What a menu chooses from: metric without its kind, and what it is called. All but `margin` are means over heads."""
KINDS = ("multiplicative", "additive")


def seed_signals(rows: pl.DataFrame, *, width: int = 220, height: int = 180) -> AnyChart:
    """Gradient signals by step: a panel per arm, a colour per kind, a dash per layer; shaded over seeds.

    Raises:
        BadInput: no gradient seeds were measured.
    """
    found = require(rows.filter(pl.col("analysis") == "seeds"), "gradient seeds")
    split = pl.col("metric").str.split_exact("_", 1, inclusive=False)
    found = found.with_columns(kind=split.struct.field("field_0"))
    found = found.with_columns(quantity=pl.struct("metric", "kind").map_elements(_quantity, return_dtype=pl.String))
    found = found.filter(pl.col("quantity").is_in(list(QUANTITIES)))
    keys = ["arm", "step", "layer", "kind", "quantity"]
    per_seed = found.group_by([*keys, "seed"], maintain_order=True).agg(pl.col("value").mean())
    data = per_seed.group_by(keys, maintain_order=True).agg(
        pl.col("value").mean(), low=pl.col("value").min(), high=pl.col("value").max()
    )
    data = data.with_columns(pl.col("quantity").replace(QUANTITIES))
    colour = alt.Color("kind:N").scale(domain=list(KINDS), range=list(SERIES_COLOURS[:2])).legend(**line_legend())
    dash = alt.StrokeDash("layer:O").title("layer").legend(**line_legend())
    base = alt.Chart(inline(data)).transform_filter("datum.quantity === chosen_quantity")
    axis = alt.X("step:Q").title(STEPS_TITLE)
    band = base.mark_area(opacity=0.12).encode(
        axis, alt.Y("low:Q"), alt.Y2("high:Q"), colour, detail=[alt.Detail("layer:O")]
    )
    line = base.mark_line(strokeWidth=2).encode(
        axis,
        alt.Y("value:Q").title(None),
        colour,
        dash,
        tooltip=[
            "arm:N",
            "kind:N",
            "layer:O",
            "step:Q",
            number_tip("value", "mean over seeds"),
            number_tip("low", "lowest seed"),
            number_tip("high", "highest seed"),
        ],
    )
    panels = alt.layer(band, line).properties(width=width, height=height)
    chart = panels.facet(facet=alt.Facet("arm:N", sort=arms_of(found)).title(None), columns=3)
    return chart.add_params(menu("chosen_quantity", "Quantity", list(QUANTITIES.values())))


def _quantity(row: dict[str, str]) -> str:
    return row["metric"].removeprefix(f"{row['kind']}_")

"""Charts of trainings and sweeps: learning curves, head drops, deposits and leaks through training.

Each takes the rows of a sweep with a column `arm` (what is compared, in words) and a column `seed`.
"""

from __future__ import annotations

import altair as alt
import polars as pl

from wherefrom.report.charts.common import (
    DARK,
    DEFAULT_WIDTH,
    AnyChart,
    Width,
    by_screen,
    dark_parameter,
    inline,
    layer_axis,
    line_legend,
    menu,
    number_tip,
    require,
    top_legend,
    with_interval,
)
from wherefrom.report.terms import COMPONENT_COLOURS, COMPONENTS, INK, SERIES_COLOURS, SIGNED_COLOURS, label

ARM, HOW = "chosen_arm", "chosen_ablation"
DASHES = [[1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 1], [1, 3], [10, 3]]
STEPS_TITLE = "training step"


def arms_of(rows: pl.DataFrame) -> list[str]:
    """The arms in the order of the recipe."""
    return rows["arm"].unique(maintain_order=True).to_list()


def _arm_colour(names: list[str]) -> alt.Color:
    colours = [SERIES_COLOURS[i % len(SERIES_COLOURS)] for i in range(len(names))]
    return alt.Color("arm:N").scale(domain=names, range=colours).legend(**line_legend())


def _arm_dash(names: list[str]) -> alt.StrokeDash:
    # Dashes change where colours have come round, and tell neighbours apart in grey print.
    dashes = [DASHES[(i + i // len(SERIES_COLOURS)) % len(DASHES)] for i in range(len(names))]
    return alt.StrokeDash("arm:N").scale(domain=names, range=dashes).legend(**line_legend())


def _over_seeds(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    grouped = rows.group_by(keys, maintain_order=True)
    return grouped.agg(
        pl.col("value").mean(), low=pl.col("value").min(), high=pl.col("value").max(), seeds=pl.col("seed").n_unique()
    )


def learning_curves(
    rows: pl.DataFrame, metric: str = "test_accuracy", *, width: Width = DEFAULT_WIDTH, height: int = 260
) -> AnyChart:
    """Held-out accuracy through training: the mean over seeds of each arm, shaded from the worst seed to the best.

    Raises:
        BadInput: no such rows.
    """
    chosen = rows.filter((pl.col("analysis") == "training") & (pl.col("metric") == metric))
    found = require(chosen.filter(pl.col("offset").is_null() & pl.col("length").is_null()), f"{label(metric)} by step")
    data = _over_seeds(found, ["arm", "step"])
    names = arms_of(found)
    axis = alt.X("step:Q").title(STEPS_TITLE).scale(nice=False)
    value = alt.Y("value:Q").title(label(metric))
    if metric.endswith("accuracy"):
        value = value.scale(domain=[0, 1]).axis(format=".0%")
    base = alt.Chart(inline(data))
    band = base.mark_area(opacity=0.15).encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), _arm_colour(names))
    tips = ["arm:N", "step:Q", number_tip("value", "mean over seeds"), number_tip("low", "worst seed"),
            number_tip("high", "best seed"), "seeds:Q"]  # fmt: skip
    line = base.mark_line(strokeWidth=2).encode(axis, value, _arm_colour(names), _arm_dash(names), tooltip=tips)
    return alt.layer(band, line).properties(width=width, height=height)


def accuracy_by(
    rows: pl.DataFrame, metric: str, column: str, title: str, *, width: Width = DEFAULT_WIDTH, height: int = 220
) -> AnyChart:
    """Held-out accuracy by `column` (`offset` or `length`) of one model, test and longer inputs, with 95 % intervals.

    Raises:
        BadInput: no such rows.
    """
    names = {f"test_{metric}": "test", f"long_{metric}": "long"}
    found = require(rows.filter(pl.col("metric").is_in(list(names)) & pl.col(column).is_not_null()), title)
    data = with_interval(found).select("value", "low", "high", "n", column, split=pl.col("metric").replace(names))
    shown = [name for name in names.values() if name in set(data["split"])]
    colour = alt.Color("split:N").scale(domain=shown, range=list(SERIES_COLOURS[: len(shown)])).legend(**line_legend())
    base = alt.Chart(inline(data))
    axis = alt.X(f"{column}:Q").title(title).scale(nice=False).axis(tickMinStep=1, format="d")
    spans = base.mark_rule(strokeWidth=1).encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), colour)
    value = alt.Y("value:Q").title("accuracy").axis(format=".0%").scale(domain=[0, 1], clamp=True)
    tips = ["split:N", f"{column}:Q", number_tip("value", "accuracy"), "n:Q"]
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=24)).encode(axis, value, colour, tooltip=tips)
    return alt.layer(spans, line).properties(width=width, height=height)


def head_drops(rows: pl.DataFrame, *, width: int = 110, height: int | None = None) -> AnyChart:
    """Accuracy lost without each head, one panel per seed; menus choose the arm and the kind of ablation."""
    found = rows.filter((pl.col("analysis") == "heads") & (pl.col("metric") == "drop") & pl.col("head").is_not_null())
    found = require(found, "head drops")
    found = found.filter(pl.col("step") == pl.col("step").max().over("arm", "seed"))
    data = found.select("arm", "seed", "layer", "head", "value", "stderr", "edit")
    names = arms_of(found)
    tall = found["head"].n_unique()
    limit = max(0.05, float(found["value"].abs().max()))  # type: ignore[arg-type]
    halfway = [-limit, -limit / 4, 0, limit / 4, limit]
    scale = alt.Scale(domain=halfway, range=by_screen(SIGNED_COLOURS), interpolate="lab", clamp=True)
    legend = alt.Legend(orient="top", title="accuracy lost", titleOrient="left", gradientLength=220, format=".0%")
    cells = (
        alt.Chart(inline(data))
        .transform_filter(f"datum.arm === {ARM}")
        .transform_filter(f"datum.edit === {HOW}")
        .mark_rect()
        .encode(
            layer_axis(),
            alt.Y("head:O").title("head").axis(labelOverlap="greedy", ticks=False),
            alt.Color("value:Q", scale=scale, legend=legend),
            tooltip=[
                "arm:N",
                "seed:O",
                "layer:O",
                "head:O",
                number_tip("value", "accuracy lost"),
                number_tip("stderr", "standard error"),
            ],  # fmt: skip
        )
        .properties(width=width, height=height or min(360, max(110, 16 * tall)))
    )
    panels = cells.facet(column=alt.Column("seed:O").title("seed").header(labelOrient="bottom", titleOrient="bottom"))
    kinds = found["edit"].unique(maintain_order=True).to_list()
    return panels.add_params(menu(ARM, "Arm", names), menu(HOW, "Ablation", kinds), dark_parameter())


def deposit_by_arm(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int | None = None) -> AnyChart:
    """Largest against second head drop of the first layer: a line from one to the other for each seed."""
    chosen = rows.filter(
        (pl.col("analysis") == "deposit") & (pl.col("edit") == "zero") & (pl.col("layer") == 0)
        & pl.col("metric").is_in(["largest_drop", "second_drop", "single_head_deposit"])
    )  # fmt: skip
    chosen = require(chosen, "deposits of the first layer")
    chosen = chosen.filter(pl.col("step") == pl.col("step").max().over("arm", "seed"))
    wide = chosen.pivot(on="metric", index=["arm", "seed"], values="value", aggregate_function="first")
    wide = wide.with_columns(
        verdict=pl.when(pl.col("single_head_deposit") > 0)
        .then(pl.lit("single-head deposit"))
        .otherwise(pl.lit("no deposit"))
    )
    names = arms_of(chosen)
    seeds = sorted(wide["seed"].unique().to_list())
    axis = alt.Y("arm:N").scale(domain=names).title(None).axis(labelLimit=220)
    shift = alt.YOffset("seed:O").scale(domain=seeds)
    ink = alt.ExprRef(f"{DARK} ? '{INK['dark']}' : '{INK['light']}'")
    colour = alt.Color("verdict:N").scale(
        domain=["single-head deposit", "no deposit"], range=["#D55E00", "#0072B2"]
    ).legend(**top_legend())  # fmt: skip
    tips = ["arm:N", "seed:O", "verdict:N", number_tip("largest_drop", "largest drop"),
            number_tip("second_drop", "second drop")]  # fmt: skip
    base = alt.Chart(inline(wide))
    spans = base.mark_rule(strokeWidth=1).encode(
        alt.X("second_drop:Q").title("accuracy lost: second head (tick) to leading head (dot), first layer"),
        alt.X2("largest_drop:Q"), axis, shift, color=alt.value(ink), tooltip=tips,
    )  # fmt: skip
    ticks = base.mark_tick(thickness=1.5, size=8).encode(
        alt.X("second_drop:Q"), axis, shift, color=alt.value(ink), tooltip=tips
    )
    dots = base.mark_circle(size=46, opacity=1).encode(alt.X("largest_drop:Q"), axis, shift, colour, tooltip=tips)
    tall = height or max(120, len(names) * max(22, 8 * len(seeds)))
    return alt.layer(spans, ticks, dots).properties(width=width, height=tall).add_params(dark_parameter())


def deposit_through_training(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int = 240) -> AnyChart:
    """Leading and second head drop of each layer by step, one line per seed; a menu chooses the arm."""
    chosen = rows.filter(
        (pl.col("analysis") == "deposit") & (pl.col("edit") == "zero")
        & pl.col("metric").is_in(["largest_drop", "second_drop"])
    )  # fmt: skip
    chosen = require(chosen.filter(pl.col("step").n_unique().over("arm", "seed") > 1), "deposits through training")
    data = chosen.select("arm", "seed", "step", "layer", "value", drop=pl.col("metric").replace(
        {"largest_drop": "leading head", "second_drop": "second head"}
    ))  # fmt: skip
    colour = alt.Color("layer:O").scale(range=list(SERIES_COLOURS)).legend(**line_legend())
    dash = alt.StrokeDash("drop:N").scale(domain=["leading head", "second head"], range=[[1, 0], [3, 3]])
    line = (
        alt.Chart(inline(data))
        .transform_filter(f"datum.arm === {ARM}")
        .mark_line(strokeWidth=1.5, opacity=0.8)
        .encode(
            alt.X("step:Q").title(STEPS_TITLE).scale(nice=False),
            alt.Y("value:Q").title("accuracy lost").axis(format=".0%"),
            colour,
            dash.legend(**line_legend()),
            alt.Detail("seed:O"),
            tooltip=["seed:O", "layer:O", "drop:N", "step:Q", number_tip("value", "accuracy lost")],
        )
    )
    return line.properties(width=width, height=height).add_params(menu(ARM, "Arm", arms_of(chosen)))


def leak_through_training(rows: pl.DataFrame, *, width: int = 260, height: int = 200) -> AnyChart:
    """Parts of the attention leak by training step, averaged over seeds, layers, heads and offsets; a panel per arm."""
    whole = pl.col("layer").is_null() & pl.col("offset").is_null() & pl.col("head").is_null()
    found = require(
        rows.filter((pl.col("analysis") == "leak") & whole & pl.col("metric").is_in([*COMPONENTS, "attention_leak"])),
        "leaks through training",
    )
    ranges = found["query_range"].drop_nulls().unique(maintain_order=True).to_list()
    data = _over_seeds(found, ["arm", "step", "query_range", "metric"])
    present = [name for name in (*COMPONENTS, "attention_leak") if name in set(found["metric"])]
    colours = [COMPONENT_COLOURS.get(name, "#777777") for name in present]
    data = data.with_columns(part=pl.col("metric").replace({name: label(name) for name in present}))
    colour = alt.Color("part:N").scale(domain=[label(name) for name in present], range=colours).legend(**line_legend())
    line = (
        alt.Chart(inline(data))
        .transform_filter("datum.query_range === chosen_range")
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=24))
        .encode(
            alt.X("step:Q").title(STEPS_TITLE),
            alt.Y("value:Q").title("leak (nats²)"),
            colour,
            tooltip=[
                "arm:N",
                "step:Q",
                "part:N",
                number_tip("value", "mean over seeds"),
                number_tip("low", "lowest seed"),
                number_tip("high", "highest seed"),
            ],  # fmt: skip
        )
        .properties(width=width, height=height)
    )
    chart = line.facet(facet=alt.Facet("arm:N", sort=arms_of(found)).title(None), columns=3)
    return chart.add_params(menu("chosen_range", "Queries", ranges))


def position_by_depth(rows: pl.DataFrame, *, width: Width = DEFAULT_WIDTH, height: int = 240) -> AnyChart:
    """Share of the residual stream that absolute position explains, by depth, after the last step; mean over seeds."""
    found = rows.filter((pl.col("analysis") == "readout") & (pl.col("metric") == "position_share"))
    found = require(found, "position readouts")
    found = found.filter(pl.col("step") == pl.col("step").max().over("arm", "seed"))
    data = _over_seeds(found, ["arm", "layer"])
    names = arms_of(found)
    axis = layer_axis("stream entering layer (last: leaving the model)")
    base = alt.Chart(inline(data))
    bars = base.mark_rule(strokeWidth=1).encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), _arm_colour(names))
    line = base.mark_line(strokeWidth=2, point=True).encode(
        axis,
        alt.Y("value:Q").title("share of variance").axis(format=".0%"),
        _arm_colour(names),
        _arm_dash(names),
        tooltip=[
            "arm:N",
            "layer:O",
            number_tip("value", "mean over seeds"),
            number_tip("low", "lowest seed"),
            number_tip("high", "highest seed"),
        ],  # fmt: skip
    )
    return alt.layer(bars, line).properties(width=width, height=height)

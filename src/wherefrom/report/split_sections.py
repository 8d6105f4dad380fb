"""The sections of a logit split's report, in the order in which a reader asks."""

from __future__ import annotations

from functools import partial

import polars as pl
from markupsafe import Markup

from wherefrom.report.blocks import Block, Cell, Column, Section, Table, Text, drawn, measured
from wherefrom.report.charts import split as charts
from wherefrom.report.provenance import reproduce_section, trust_section, what_section
from wherefrom.report.selection import edit_label, edits_of, metrics_of, pick
from wherefrom.report.source import Run
from wherefrom.report.split_words import ranked_heads, value_of
from wherefrom.report.terms import label, meaning

LISTED = 6
"""Heads listed at either end."""
SHARES = (
    "toeplitz_share", "absolute_share", "first_key_share", "content_share", "content_content_share",
    "content_position_share", "position_content_share", "position_position_share", "turned_mean_share",
)  # fmt: skip
SPECTRA = (
    "gram_norm", "product_norm", "contraction_ratio", "gram_condition", "product_condition", "condition_ratio",
    "gram_effective_rank", "product_effective_rank", "rank_ratio", "kernel_norm", "kernel_effective_rank",
)  # fmt: skip


def split_sections(run: Run) -> list[Section]:
    """All sections that have something to show."""
    made = [
        what_section([run]),
        trust_section([run]),
        _shares(run),
        _heads(run),
        _bands(run),
        _profiles(run),
        _spectra(run),
        _readout(run),
        reproduce_section([run]),
    ]
    return [section for section in made if section.blocks]


def _shares(run: Run) -> Section:
    rows = run.rows
    blocks = drawn(
        partial(charts.shares_by_depth, rows, charts.SOURCES, width="container"),
        "shares-by-source",
        "What logits follow, by depth",
        "Mean over heads. Offset: what i − j alone explains; absolute: what query and key positions explain beyond it; "
        "content: what differs between inputs. They sum to 100 %.",
    )
    blocks += drawn(
        partial(charts.shares_by_depth, rows, charts.TERMS, width="container"),
        "shares-by-term",
        "The four Gram terms, by depth",
        "Query and key before rotation, each split into its position part (the mean at that index) and its content. A "
        "term below zero works against the others.",
    )
    averages = pick(rows, "split")
    names = metrics_of(averages, SHARES)
    if names:
        body = [
            [Cell(edit_label(edit)), *(measured(value_of(averages, name, edit), share=True) for name in names)]
            for edit in edits_of(averages)
        ]
        columns = [Column("edit", numeric=False), *(Column(label(name), meaning(name)) for name in names)]
        blocks.append(
            Table("shares", "Shares of the row-centred logit variance, mean over heads and layers", columns, body)
        )
    intro = Markup(
        "Shares of the variance of logits <em>within a row</em>: softmax cannot see what is added to a whole row, so "
        "no number here depends on it."
    )
    return Section("shares", "Content or position", blocks, intro)


def _heads(run: Run) -> Section:
    rows = run.rows
    blocks = drawn(
        partial(charts.head_shares, rows, width="container"),
        "head-shares",
        "Which heads follow position",
        "One cell per head; point at it for all of its shares and its class.",
    )
    ranked = ranked_heads(rows)
    count = min(LISTED, len(ranked) // 2)
    if count:
        blocks.append(_head_table(rows, [*ranked[:count], *ranked[-count:]]))
    rule = run.get("class_rule")
    if rule:
        blocks.append(Text(Markup("Classes: {}.").format(str(rule).rstrip("."))))
    return Section("heads", "Which heads", blocks)


def _head_table(rows: pl.DataFrame, heads: list[tuple[int, int]]) -> Table:
    each = pick(rows, "split", layer="each", head="each").filter(pl.col("edit") == "none")
    names = metrics_of(each, ("positional_share", *SHARES))
    table = []
    for layer, head in heads:
        here = each.filter((pl.col("layer") == layer) & (pl.col("head") == head))
        found = {row["metric"]: (row["value"], row["stderr"]) for row in here.iter_rows(named=True)}
        kind = next((name.removeprefix("class_") for name in found if name.startswith("class_")), "–")
        table.append([Cell(f"{layer}.{head}"), Cell(kind), *(measured(found.get(name), share=True) for name in names)])
    columns = [
        Column("layer.head", numeric=False),
        Column("class", numeric=False),
        *(Column(label(name), meaning(name)) for name in names),
    ]
    return Table("head-table", "The most positional and the least positional heads", columns, table)


def _bands(run: Run) -> Section:
    rows = run.rows
    blocks = drawn(
        partial(charts.band_map, rows, width="container"),
        "band-map",
        "Which rotary bands carry what",
        "One column per head, layer by layer; one row per rotary band, fast bands on top. Colour: the band's share of "
        "the head's logit variance through position (beyond the turned mean), through the mean query and key turned "
        "by the rotation, or through content.",
    )
    best = rows.filter(pl.col("metric").is_in(["content_band", "position_band"]) & (pl.col("edit") == "none"))
    if blocks and len(best):
        parts = []
        for metric, words in (("position_band", "position"), ("content_band", "content")):
            values = best.filter(pl.col("metric") == metric)["value"]
            if len(values):
                low, middle, high = (values.quantile(q, "linear") for q in (0.25, 0.5, 0.75))
                parts.append(f"most {words} sits in band {middle:.0f} (half of the heads: {low:.0f} to {high:.0f})")
        blocks.append(Text(f"For the median head {', '.join(parts)}; band 0 is the fastest."))
    return Section("bands", "Rotary bands", blocks)


def _profiles(run: Run) -> Section:
    heads = ranked_heads(run.rows)
    blocks: list[Block] = drawn(
        partial(charts.offset_profiles, run.rows, heads, width="container"),
        "offset-profiles",
        "Logit by offset of the most positional heads",
        "Mean over inputs and queries at each offset, rows centred, with 95 % bands; the axis of offsets is "
        "logarithmic beyond 1.",
    )
    return Section("profiles", "At which offsets", blocks)


def _spectra(run: Run) -> Section:
    rows = run.rows
    blocks = drawn(
        partial(charts.by_layer, rows, "spectra", "contraction_ratio", "norm ratio", reference=1.0, width="container"),
        "contraction",
        "Does the kernel contract the spectrum?",
        "Spectral norm of the Hadamard product over that of the content Gram matrix, geometric mean over heads and "
        "inputs, with 95 % intervals. Below the dashed line the kernel contracts.",
    )
    if not blocks:
        return Section("spectra", "Spectra", [])
    if run.get("spectra_verdict"):
        blocks.append(Text(str(run.get("spectra_verdict"))))
    found = pick(rows, "spectra", layer="each").filter(pl.col("edit") == "none")
    names = metrics_of(found, SPECTRA)
    layers = sorted(found["layer"].unique().to_list())
    places = {(row["layer"], row["metric"]): (row["value"], row["stderr"]) for row in found.iter_rows(named=True)}
    body = [[Cell(str(layer)), *(measured(places.get((layer, name))) for name in names)] for layer in layers]
    columns = [Column("layer"), *(Column(label(name), meaning(name)) for name in names)]
    blocks.append(Table("spectra-table", "Spectra by layer: geometric means over heads and inputs", columns, body))
    return Section("spectra", "Spectra", blocks)


def _readout(run: Run) -> Section:
    rows = run.rows
    axis = "stream entering layer (last: leaving the model)"
    blocks = drawn(
        partial(
            charts.by_layer, rows, "readout", "position_share", "share of variance", axis_title=axis, form=".0%",
            width="container",
        ),
        "position-share",
        "How much of the residual stream is position",
        "Share of its variance that absolute position explains, unbiased, with 95 % intervals.",
    )  # fmt: skip
    chance = rows.filter((pl.col("metric") == "probe_chance") & (pl.col("edit") == "none"))["value"]
    blocks += drawn(
        partial(
            charts.by_layer, rows, "readout", "probe_error", "error (tokens)", axis_title=axis,
            reference=float(chance[0]) if len(chance) else None, width="container",
        ),
        "probe-error",
        "How well a linear probe reads position",
        "Held-out mean absolute error of a ridge probe, in tokens; dashed: what knowing nothing gives.",
    )  # fmt: skip
    return Section("readout", "Position in the residual stream", blocks)

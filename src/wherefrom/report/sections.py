"""The sections of a single run's report, in the order in which a reader asks. A section without rows is left out."""

from __future__ import annotations

import polars as pl
from markupsafe import Markup

from wherefrom.report import charts
from wherefrom.report.blocks import Block, Figure, Section
from wherefrom.report.charts.common import DEFAULT_WIDTH
from wherefrom.report.charts.depth import COMPARED
from wherefrom.report.charts.first_token import NORMS
from wherefrom.report.charts.maps import HEAD_METRICS, head_map_metrics
from wherefrom.report.charts.removed import SHOWN
from wherefrom.report.headline import has_absolute_part
from wherefrom.report.heads_sections import heads_sections
from wherefrom.report.lab_sections import lab_sections
from wherefrom.report.provenance import reproduce_section, trust_section, what_section
from wherefrom.report.selection import edits_of, metrics_of, pick
from wherefrom.report.source import Run
from wherefrom.report.split_sections import split_sections
from wherefrom.report.tables import components_table, meanings_table, removed_table, sinks_table, token_tables
from wherefrom.report.terms import SINK_THRESHOLD, UNEDITED, label
from wherefrom.report.training_sections import training_sections

WIDE = DEFAULT_WIDTH
"""First width of faceted charts; the page's script fits them to the screen."""


def run_sections(run: Run) -> list[Section]:
    """All sections that have something to show."""
    if run.kind == "sweep":
        return [*lab_sections(run), reproduce_section([run])]
    if run.kind == "split":
        return split_sections(run)
    if run.kind == "training":
        return [*training_sections(run), reproduce_section([run])]
    if run.kind == "heads":
        return [*heads_sections(run), reproduce_section([run])]
    made = [
        what_section([run]),
        trust_section([run]),
        depth_section(run),
        heads_section(run),
        offsets_section(run),
        first_token_section(run),
        removed_section(run),
        meanings_section(run),
        reproduce_section([run]),
    ]
    return [section for section in made if section is not None and section.blocks]


def _has(rows: pl.DataFrame, *metrics: str) -> bool:
    return bool(metrics_of(rows, metrics))


def depth_section(run: Run) -> Section:
    """How much position leaks, and where from."""
    blocks: list[Block] = []
    layers = pick(run.rows, "leak", layer="each")
    if _has(layers, "attention_leak"):
        read = Markup(
            "Each bar is one layer, averaged over heads and offsets. Blue comes from the causal mask, other colours "
            "from the residual stream; parts below zero work against the rest. The dot is their sum, <i>V</i>(<i>s − "
            "z</i>) in nats², with its 95 % interval."
        )
        blocks.append(Figure("leak-by-depth", "Leak by depth", charts.leak_by_depth(run.rows, width="container"), read))
    averages = pick(run.rows, "leak")
    if _has(averages, "attention_leak"):
        read = Markup(
            "The same parts averaged over layers and heads: one block per range of queries, one bar per edit. The dot "
            "is the sum, with its 95 % interval."
        )
        blocks.append(Figure("leak-by-range", "Leak by query range", charts.leak_by_range(run.rows, width=WIDE), read))
        blocks.append(components_table(run.rows))
    intro = Markup(
        "The <em>leak</em> is how much log-attention at a fixed offset changes with absolute position: the variance "
        "over query positions of its mean over inputs, in nats². The estimate is unbiased, so a part that is zero may "
        "come out slightly negative. Menus are linked: a choice holds for every chart on the page that offers it."
    )
    if has_absolute_part(run):
        intro += " This model's encoding has an absolute part, so shape holds the encoding's own contribution too."
    return Section("depth", "How much position leaks, and where from", blocks, intro)


def heads_section(run: Run) -> Section:
    """Layer by head."""
    leak = pick(run.rows, "leak", HEAD_METRICS, layer="each", head="each")
    if leak.is_empty():
        return Section("heads", "")
    read = Markup(
        "One cell per head, averaged over offsets; point at a cell for all of its numbers. Orange is positive, blue "
        "negative. Colour is logarithmic away from zero, and its scale is the same for all edits; the strongest "
        "colour stands for the 99.5th percentile and beyond."
    )
    offered = head_map_metrics(run.rows)
    left_out = [label(metric) for metric in metrics_of(leak, HEAD_METRICS) if metric not in offered]
    if left_out:
        read += f" To keep this file small the map leaves out {', '.join(left_out)}; rows.parquet has them."
    return Section(
        "heads", "Which heads", [Figure("heads-map", "Heads", charts.head_map(run.rows, width="container"), read)]
    )


def offsets_section(run: Run) -> Section:
    """By offset."""
    blocks: list[Block] = []
    if _has(pick(run.rows, "leak", offset="each"), "attention_leak", "shape_leak"):
        read = Markup(
            "Leak at each offset δ = <i>i − j</i>, averaged over layers and heads, with 95 % bands; the axis of "
            "offsets is logarithmic."
        )
        blocks.append(
            Figure("leak-by-offset", "Leak by offset", charts.leak_by_offset(run.rows, width="container"), read)
        )
    if _has(pick(run.rows, "leak", layer="each", offset="each"), "attention_leak", "shape_leak"):
        read = Markup("The same by layer, averaged over heads, in nats²; colours as in the map of heads.")
        blocks.append(Figure("offset-map", "Layer by offset", charts.offset_map(run.rows, width="container"), read))
    return Section("offsets", "At which offsets", blocks)


def first_token_section(run: Run) -> Section:
    """The first token, the heads that read it, and the atlas."""
    rows, blocks = run.rows, list[Block]()
    trajectory = pick(rows, "first_token", layer="each")
    if not trajectory.filter((pl.col("value") > 0) & pl.col("metric").is_in(NORMS)).is_empty():
        read = Markup(
            "Norm of the residual stream at position 0 against the mean norm of later positions, on a logarithmic axis."
        )
        chart = charts.first_token_norm(rows, width="container")
        blocks.append(Figure("first-token-norm", "Norm of the first token's trajectory", chart, read, half=True))
    if _has(trajectory, "similarity"):
        read = Markup(
            "Cosine between inputs of the stream at position 0; at 1 every input starts the same trajectory. "
            "The line of random first tokens shows how alike trajectories become when the token itself varies."
        )
        chart = charts.first_token_similarity(rows, width="container")
        blocks.append(Figure("first-token-similarity", "How alike the trajectories are", chart, read, half=True))
    sinks = pick(rows, "sinks", layer="each", head="each")
    if _has(sinks, "sink_attention"):
        read = Markup(
            "Mean attention to key 0 over queries from 32 on. A ring marks sink-reading heads (at least {}). Point at "
            "a cell for its value-norm ratio and for how constant its contribution from key 0 is over inputs (cosine)."
        ).format(SINK_THRESHOLD)
        blocks.append(Figure("sink-map", "Sinks by layer and head", charts.sink_map(rows, width="container"), read))
    averages = pick(rows, "sinks")
    if _has(averages, "sink_heads"):
        blocks.append(sinks_table(rows, edits_of(averages)))
    if _has(pick(rows, "atlas", token="each"), "sink_score"):
        read = Markup(
            "Every token of the vocabulary was put at position 0. The score is the attention that the model's "
            "sink-reading heads are predicted to pay to it; counts are on a logarithmic axis, and the dashed line is "
            "at {}."
        ).format(SINK_THRESHOLD)
        chart = charts.sink_scores(rows, width="container")
        blocks.append(Figure("sink-scores", "Which tokens would become sinks", chart, read, half=True))
        blocks += token_tables(run)
    return Section("first-token", "The first token and the sinks", blocks)


def removed_section(run: Run) -> Section:
    """What each edit removed."""
    rows, blocks = run.rows, list[Block]()
    removed = pick(rows, "removed")
    if _has(removed, *SHOWN):
        read = (
            "1 − V(edit) ÷ V(unedited), with 95 % intervals, paired on the same inputs: 100 % means that the edit "
            "removed all of it, below 0 that it added. Every edit has its own axis; whiskers that would run far "
            "beyond the estimates are cut."
        )
        blocks.append(Figure("removed-chart", "Removed fraction", charts.removed_fractions(rows, width=WIDE), read))
    if not removed.is_empty():
        blocks.append(removed_table(rows))
    layers = pick(rows, "leak", COMPARED, layer="each")
    if layers.filter(pl.col("edit") != UNEDITED).height:
        read = "Leak per layer in nats², averaged over heads and offsets, with 95 % bands; one line per edit."
        blocks.append(Figure("edits-by-depth", "Depth by edit", charts.edits_by_depth(rows, width="container"), read))
    return Section("removed", "What each edit removed", blocks)


def meanings_section(run: Run) -> Section:
    """The measures, in words."""
    leak = run.rows.filter(pl.col("analysis") == "leak")
    intro = Markup(
        "<i>s</i>: logit of query <i>i</i> and key <i>j</i>; <i>z</i>: log-denominator of query <i>i</i>; δ = <i>i − "
        "j</i>. With <i>r</i> the mean of a row's logits over the chosen offsets, <i>s′ = s − r</i> and <i>z′ = z − "
        "r</i>. <i>V</i> and <i>C</i> are the unbiased variance and covariance, over the queries of a range, of means "
        "over inputs."
    )
    return Section("meanings", "What the measures mean", [] if leak.is_empty() else [meanings_table(run.rows)], intro)

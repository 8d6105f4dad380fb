"""Several runs side by side."""

from __future__ import annotations

from markupsafe import Markup

from wherefrom.report import charts
from wherefrom.report.blocks import Block, Cell, Column, Figure, Section, Table, Text, measured
from wherefrom.report.charts.common import DEFAULT_WIDTH
from wherefrom.report.provenance import reproduce_section, trust_section, what_section
from wherefrom.report.selection import edit_label, edits_of, metrics_of, one, pick, range_order, ranges_of
from wherefrom.report.source import Run
from wherefrom.report.terms import COMPONENTS, UNEDITED, label, meaning


def comparison_sections(runs: list[Run]) -> list[Section]:
    """The sections of a comparison; per-head maps stay in each run's own report."""
    made = [
        Section(
            "compare", "Side by side", [table for table in (leak_across(runs), removed_across(runs)) if table.rows]
        ),
        depth_across(runs),
        what_section(runs),
        trust_section(runs),
        reproduce_section(runs),
    ]
    return [section for section in made if section.blocks]


def _all_ranges(runs: list[Run], analysis: str) -> list[str]:
    names = {name for run in runs for name in ranges_of(pick(run.rows, analysis))}
    return sorted(names, key=range_order)


def leak_across(runs: list[Run]) -> Table:
    """Total, residual share, components and sinks of the unedited runs."""
    metrics = ["attention_leak", "residual_share", *COMPONENTS]
    present = [metric for metric in metrics if any(metrics_of(pick(run.rows, "leak"), [metric]) for run in runs)]
    body = []
    for query_range in _all_ranges(runs, "leak"):
        for run in runs:
            leak = pick(run.rows, "leak")
            found = {metric: one(leak, metric, UNEDITED, query_range) for metric in present}
            if any(value is not None for value in found.values()):
                cells = [measured(value, share=metric == "residual_share") for metric, value in found.items()]
                sinks = measured(one(pick(run.rows, "sinks"), "sink_heads", UNEDITED, None))
                body.append([Cell(query_range), Cell(run.name), *cells, sinks])
    columns = [
        Column("queries", numeric=False),
        Column("run", numeric=False),
        *(Column(label(metric), meaning(metric)) for metric in present),
        Column("sink-reading heads"),
    ]
    caption = "Unedited runs: leak averaged over layers, heads and offsets, in nats² (value ± standard error)"
    return Table("across", caption, columns, body, heads=2)


def removed_across(runs: list[Run]) -> Table:
    """What each edit removed of the residual-stream component, one column per run."""
    edits = list(dict.fromkeys(edit for run in runs for edit in edits_of(pick(run.rows, "removed"))))
    body = []
    for edit in edits:
        for query_range in _all_ranges(runs, "removed"):
            found = [one(pick(run.rows, "removed"), "residual", edit, query_range) for run in runs]
            if any(value is not None for value in found):
                cells = [measured(value, share=True) for value in found]
                body.append([Cell(edit_label(edit)), Cell(query_range), *cells])
    columns = [Column("edit", numeric=False), Column("queries", numeric=False), *(Column(run.name) for run in runs)]
    caption = "Removed fraction of the residual-stream component (value ± standard error)"
    return Table("removed-across", caption, columns, body, heads=2)


def depth_across(runs: list[Run]) -> Section:
    """Depth charts under one another, on shared axes."""
    drawable = {
        run.name: run.rows for run in runs if metrics_of(pick(run.rows, "leak", layer="each"), ["attention_leak"])
    }
    blocks: list[Block] = []
    if drawable:
        read = Markup(
            "Each bar is one layer, averaged over heads and offsets. Blue comes from the causal mask, other colours "
            "from the residual stream; the dot is their sum in nats² with its 95 % interval. All runs share both axes."
        )
        chart = charts.leak_by_depth_of_runs(drawable, width=DEFAULT_WIDTH)
        blocks.append(Figure("depth-of-runs", "Leak by depth", chart, read))
        blocks.append(Text("Heads, offsets, sinks and the first token are in the report of each run."))
    return Section("depth", "How much position leaks, and where from", blocks)

"""The sections of a head ablation's report: the score, the map, the costliest heads, the deposit index."""

from __future__ import annotations

from wherefrom.report.blocks import Block, Cell, Column, Facts, Figure, Section, Table, Text, measured
from wherefrom.report.charts.heads import ablation_map
from wherefrom.report.formatting import MISSING, number
from wherefrom.report.heads_text import VERDICT_RULE, by_effect, index_by_layer, scored, whole
from wherefrom.report.source import Run

LISTED = 12
"""Heads in the table of the costliest."""


def heads_sections(run: Run) -> list[Section]:
    """All sections that have something to show."""
    return [_what(run), _map(run), _costliest(run), _index(run)]


def hows_of(run: Run) -> list[str]:
    """Kinds of ablation, in the order in which they were asked for."""
    return [str(how) for how in run.get("hows", default=[])]


def _what(run: Run) -> Section:
    model = run.get("model", default={})
    entries = [
        ("Model", f"{model.get('name')} (from {model.get('source')})"),
        ("Shape", f"{model.get('layers')} layers × {model.get('heads')} heads"),
        ("Encoding", str(model.get("encoding", MISSING))),
        ("Scored on", _inputs(run)),
        ("With all heads", whole(run.rows)),
        ("Time", f"{number(run.get('seconds'))} s on {run.get('threads')} threads, {run.get('device')}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in run.get("versions", default={}).items())),
    ]
    blocks: list[Block] = [Facts(entries)]
    blocks += [Text(f"Note: {warning}") for warning in run.get("warnings", default=[])]
    return Section("what", "What was ablated", blocks)


def _inputs(run: Run) -> str:
    task = run.get("training", "task")
    if task:
        return f"{run.get('examples')} held-out examples of {task}"
    return f"{run.get('examples')} inputs × {run.get('length')} tokens, {run.get('origin')}"


def _map(run: Run) -> Section:
    kind = scored(run.manifest)
    read = (
        f"One cell per head: {kind.lost} when that head alone hands on something else before the output projection "
        "(zero: nothing; mean: its mean output; resample: its output on another example). Point at a cell for its "
        "standard error."
    )
    chart = ablation_map(run.rows, kind.metric, kind.lost, hows_of(run), width="container")
    return Section("map", "Which heads", [Figure("ablation-map", "Ablation map", chart, read)])


def _costliest(run: Run) -> Section:
    kind, hows = scored(run.manifest), hows_of(run)
    ranked = {how: by_effect(run.rows, kind.metric, how) for how in hows}
    order = ranked[hows[0]].head(LISTED).select("layer", "head").iter_rows()
    places = {
        how: {(row["layer"], row["head"]): (row["value"], row["stderr"]) for row in found.iter_rows(named=True)}
        for how, found in ranked.items()
    }
    rows = [
        [Cell(f"layer {layer}, head {head}"), *(measured(places[how].get((layer, head))) for how in hows)]
        for layer, head in order
    ]
    columns = [Column("head", numeric=False), *(Column(how, kind.lost) for how in hows)]
    table = Table("costliest", f"Costliest heads: {kind.lost}", columns, rows)
    return Section("costliest", "The costliest heads", [table])


def _index(run: Run) -> Section:
    kind = scored(run.manifest)
    judged = kind.metric == "drop"
    columns = [
        Column("ablation", numeric=False),
        Column("layer"),
        Column("leading head", numeric=False),
        Column("largest", kind.lost),
        Column("second", kind.lost),
        Column("share", "the leading head's share of all positive losses of its layer"),
        Column("effective heads", "1 / Σp²: 1 when one head carries all"),
        *([Column("verdict", VERDICT_RULE, numeric=False)] if judged else []),
    ]
    rows = []
    for how in hows_of(run):
        for entry in index_by_layer(run.rows, how):
            cells = [Cell(how), Cell(str(entry["layer"])), Cell(number(entry["leading_head"][0]))]
            cells += [measured(entry.get(name)) for name in (*kind.index, "largest_share", "effective_heads")]
            if judged:
                cells.append(Cell("single-head deposit" if entry["single_head_deposit"][0] > 0 else "no"))
            rows.append(cells)
    table = Table("deposit-index", "Deposit index by layer", columns, rows, heads=2)
    intro = f"{VERDICT_RULE[0].upper()}{VERDICT_RULE[1:]}." if judged else ""
    return Section("deposit", "Does one head carry its layer?", [table], intro)

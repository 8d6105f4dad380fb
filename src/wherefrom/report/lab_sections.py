"""The sections of a sweep's report: what was trained, the table against the paper, heads, deposits, leaks."""

from __future__ import annotations

import polars as pl
from markupsafe import Markup

from wherefrom.report.blocks import Block, Cell, Column, Facts, Section, Table, Text, drawn
from wherefrom.report.charts import lab, seeds
from wherefrom.report.formatting import MISSING, number
from wherefrom.report.source import Run
from wherefrom.report.sweep_table import Arm, arms, shown
from wherefrom.report.sweep_text import DEPOSITS, comparisons, spelled, verdicts


def lab_sections(run: Run) -> list[Section]:
    """All sections that have something to show."""
    rows = with_arms(run)
    found = arms(run.table, run.manifest)
    made = [_what(run), _table(run, found), _curves(rows), _heads(rows), _seeds(rows), _leaks(rows), _position(rows)]
    return [section for section in made if section.blocks]


def with_arms(run: Run) -> pl.DataFrame:
    """The rows with a column `arm` that says in words what is compared; the task only where there are several."""
    rows = run.table
    names = [name for name in run.get("labels", default=[]) if name in rows.columns]
    if "task" in names and len(names) > 1 and rows["task"].n_unique() == 1:
        names.remove("task")
    return rows.with_columns(arm=pl.concat_str([pl.col(name).fill_null("") for name in names], separator=", "))


def _what(run: Run) -> Section:
    cells = run.get("cells", default=[])
    entries = [
        ("Recipe", str(run.get("recipe"))),
        ("Trainings", f"{len(cells)}, seeds {', '.join(sorted({str(cell['config']['seed']) for cell in cells}))}"),
        ("Tasks", "; ".join(sorted({cell["config"]["task"] for cell in cells}))),
        ("Time", f"{number(run.get('seconds'))} s on {run.get('workers')} workers"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in run.get("versions", default={}).items())),
    ]
    blocks: list[Block] = [Facts(entries)]
    failed = run.get("failed", default={})
    blocks += [Text(Markup("<strong>Failed:</strong> {}: {}").format(cell, why)) for cell, why in failed.items()]
    return Section("what", "What was trained", blocks)


def _table(run: Run, found: list[Arm]) -> Section:
    labels = list(run.get("labels", default=[]))
    quantities, judged = shown(found), any(arm.judged for arm in found)
    against = any(arm.paper for arm in found)
    columns = [Column(name, numeric=False) for name in labels]
    for quantity in quantities:
        columns.append(Column(quantity.title, f"{quantity.meaning}; mean over seeds ± half of the 95 % interval"))
        if quantity.name == "accuracy" and against:
            columns.append(Column("paper, %", "arXiv 2505.13027"))
    if judged:
        columns.append(Column("deposits", DEPOSITS))
    rows = []
    for arm in found:
        cells = [Cell(arm.labels.get(name, "")) for name in labels]
        for quantity in quantities:
            estimate = arm.found.get(quantity.name)
            text = MISSING if estimate is None else spelled(quantity, estimate)
            plain = (None, None) if estimate is None else (estimate.mean, estimate.half_width)
            cells.append(Cell(text, *plain))
            if quantity.name == "accuracy" and against:
                cells.append(Cell(arm.paper or MISSING))
        rows.append([*cells, *([Cell(verdicts(arm))] if judged else [])])
    table = Table("arms", "Results by arm", columns, rows, heads=len(labels))
    sentences: list[Block] = [Text(sentence) for sentence in comparisons(found)]
    return Section("arms", "What each arm shows", [*sentences, table] if rows else [])


def _curves(rows: pl.DataFrame) -> Section:
    read = "Mean over seeds, shaded from the worst seed to the best. The same held-out examples for every seed."
    blocks = drawn(lambda: lab.learning_curves(rows, width="container"), "learning-curves", "Held-out accuracy", read)
    return Section("curves", "Learning", blocks)


def _heads(rows: pl.DataFrame) -> Section:
    blocks = drawn(
        lambda: lab.deposit_by_arm(rows, width="container"),
        "deposit-by-arm",
        "Does a single first-layer head carry it?",
        "One line per seed, from the second head's drop to the leading one's. A single-head deposit needs a drop of at "
        "least 0.3 that is twice the second, both beyond noise.",
    )
    blocks += drawn(
        lambda: lab.head_drops(rows),
        "head-drops",
        "Accuracy lost without each head",
        "One panel per seed, layers from left to right; head numbers mean nothing across seeds.",
    )
    blocks += drawn(
        lambda: lab.deposit_through_training(rows, width="container"),
        "deposit-through-training",
        "The deposit through training",
        "Drop of the leading head (solid) and of the second (dashed) in each layer; one line per seed.",
    )
    return Section("heads", "Which heads carry it", blocks)


def _seeds(rows: pl.DataFrame) -> Section:
    blocks = drawn(
        lambda: seeds.seed_signals(rows),
        "gradient-seeds",
        "What the loss asks of position",
        "Gradient of the loss with respect to a Toeplitz bias (additive) and a Toeplitz kernel on the content Gram "
        "(multiplicative), mean over heads and seeds, shaded from the lowest seed to the highest. A share of 0 says "
        "that the examples' signals cancel.",
    )
    return Section("seeds", "Gradient seeds", blocks)


def _leaks(rows: pl.DataFrame) -> Section:
    blocks = drawn(
        lambda: lab.leak_through_training(rows),
        "leak-through-training",
        "Where absolute position comes from, through training",
        "Parts of the attention leak, averaged over seeds, layers, heads and offsets.",
    )
    return Section("leak", "Absolute position", blocks)


def _position(rows: pl.DataFrame) -> Section:
    blocks = drawn(
        lambda: lab.position_by_depth(rows, width="container"),
        "position-by-depth",
        "Position in the residual stream",
        "Share of the stream's variance that absolute position explains, unbiased; bars from the lowest seed to the "
        "highest.",
    )
    return Section("position", "Position in the residual stream", blocks)

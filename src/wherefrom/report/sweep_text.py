"""The summaries a terminal shows at the end of a training and of a sweep."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wherefrom.report.sweep_table import Arm, Estimate, Quantity, arms, shown, touching

DEPOSITS = (
    "seeds whose first layer has a single-head deposit (largest drop at least 0.3 and twice the second, both beyond "
    "noise), of all seeds; in brackets, seeds with one in any layer"
)


def print_training(summary: dict[str, Any], console: Console | None = None) -> None:
    """Print the final scores of one training."""
    console = console or Console()
    console.print(
        f"\n[bold]{escape(summary['encoding'])}[/bold] on {escape(summary['task'])}, seed {summary['seed']}, "
        f"{summary['steps']} steps, {summary['seconds']:.0f} s",
        highlight=False,
    )
    for metric, words in (
        ("test_accuracy", "held-out accuracy"),
        ("long_accuracy", "accuracy on longer inputs"),
        ("test_loss", "held-out loss, nats"),
    ):
        if metric in summary:
            found = summary[metric]
            error = "" if found["stderr"] is None else f" ± {found['stderr']:.3f}"
            console.print(f"  {words:28} {found['value']:.3f}{error}", highlight=False)
    console.print(f"  {'accuracy by chance':28} {summary['chance']:.3f}", highlight=False)


def print_sweep(rows: pl.DataFrame, manifest: dict[str, Any], console: Console | None = None) -> None:
    """Print one line per arm: accuracy over seeds beside the paper's, head drops, deposit verdicts."""
    console = console or Console()
    console.print(
        f"\n[bold]{escape(manifest['recipe'])}[/bold]: {len(manifest['cells'])} trainings, {manifest['seconds']:.0f} s",
        highlight=False,
    )
    for cell, sentence in manifest["failed"].items():
        console.print(f"failed: {cell}: {sentence}", style="yellow", highlight=False, markup=False)
    found = arms(rows, manifest)
    if not found:
        return
    quantities, judged = shown(found), any(arm.judged for arm in found)
    console.print(_table(found, manifest["labels"], quantities, judged))
    console.print("Means over seeds ± half of the 95 % interval.", highlight=False)
    for quantity in quantities:
        if quantity.name != "accuracy":
            console.print(f"  {quantity.title}: {quantity.meaning}", highlight=False)
    if judged:
        console.print(f"  deposits: {DEPOSITS}", highlight=False)
    for sentence in comparisons(found):
        console.print(sentence, highlight=False)


def _table(found: list[Arm], labels: list[str], quantities: list[Quantity], judged: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    against = any(arm.paper for arm in found)
    for name in labels:
        table.add_column(name, overflow="fold")
    for quantity in quantities:
        table.add_column(quantity.title, justify="right", overflow="fold")
        if quantity.name == "accuracy" and against:
            table.add_column("paper, %", justify="right", overflow="fold")
    if judged:
        table.add_column("deposits", justify="right", overflow="fold")
    for arm in found:
        cells = [escape(arm.labels.get(name, "")) for name in labels]
        for quantity in quantities:
            cells.append(spelled(quantity, arm.found.get(quantity.name)))
            if quantity.name == "accuracy" and against:
                cells.append(arm.paper or "–")
        table.add_row(*cells, *([verdicts(arm)] if judged else []))
    return table


def verdicts(arm: Arm) -> str:
    """`2 of 5 (3)`: seeds with a single-head deposit in the first layer, of all, and in any layer."""
    return f"{arm.deposits} of {arm.judged} ({arm.deepest})" if arm.judged else "–"


def spelled(quantity: Quantity, estimate: Estimate | None) -> str:
    """An estimate with half of its 95 % interval, in the quantity's unit."""
    if quantity.percent or estimate is None:
        return percent(estimate)
    digits = 2 if abs(estimate.mean) >= 0.1 or quantity.name in ("largest_drop", "second_drop") else 4
    error = "" if estimate.half_width is None else f"±{estimate.half_width:.{digits}f}"
    return f"{estimate.mean:.{digits}f}{error}"


def percent(estimate: Estimate | None) -> str:
    """`92.6±1.3`, in per cent."""
    if estimate is None:
        return "–"
    error = "" if estimate.half_width is None else f"±{100 * estimate.half_width:.1f}"
    return f"{100 * estimate.mean:.1f}{error}"


def comparisons(found: list[Arm]) -> list[str]:
    """RoPE against each other encoding on each task, by whether the intervals touch."""
    sentences = []
    for task in dict.fromkeys(arm.labels.get("task", "") for arm in found):
        here = [arm for arm in found if arm.labels.get("task", "") == task and "encoding" in arm.labels]
        rope = next((arm.accuracy for arm in here if arm.labels["encoding"] == "rope"), None)
        if rope is None or rope.half_width is None:
            continue
        sides: dict[str, list[str]] = {"above": [], "below": [], "not told apart from": []}
        for arm in here:
            if arm.accuracy is None or arm.labels["encoding"] == "rope":
                continue
            side = "above" if rope.mean > arm.accuracy.mean else "below"
            sides["not told apart from" if touching(rope, arm.accuracy) else side].append(arm.labels["encoding"])
        parts = [f"{side} {', '.join(names)}" for side, names in sides.items() if names]
        if parts:
            sentences.append(f"On {task}, by 95 % intervals over seeds, rope is {'; '.join(parts)}.")
    return sentences

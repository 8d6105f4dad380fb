"""What head ablations found, in words and tables: for a terminal, and for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wherefrom.report.formatting import number, with_error

LISTED = 8
"""Heads listed."""
VERDICT_RULE = (
    "single-head deposit: the largest drop of a layer is at least 0.3 and at least twice the second, both in 97.5 % of "
    "bootstrap draws over examples"
)


@dataclass(frozen=True)
class Scored:
    """How the heads of a run were scored."""

    metric: str
    """`drop` or `loss_rise`."""
    lost: str
    """What is lost without a head, in words with its unit."""
    index: tuple[str, str]
    """Largest and second, as the deposit index names them."""


def scored(manifest: dict[str, Any]) -> Scored:
    """By accuracy, where the task has one, else by loss."""
    if manifest.get("score") == "accuracy":
        return Scored("drop", "accuracy lost", ("largest_drop", "second_drop"))
    return Scored("loss_rise", "loss gained, nats", ("largest_rise", "second_rise"))


def by_effect(rows: pl.DataFrame, metric: str, how: str) -> pl.DataFrame:
    """Heads of one kind of ablation, the costliest first."""
    chosen = rows.filter((pl.col("analysis") == "heads") & (pl.col("metric") == metric) & (pl.col("edit") == how))
    return chosen.filter(pl.col("head").is_not_null()).sort("value", descending=True)


def index_by_layer(rows: pl.DataFrame, how: str) -> list[dict[str, Any]]:
    """One object per layer: its deposit index, metric -> (value, stderr)."""
    chosen = rows.filter((pl.col("analysis") == "deposit") & (pl.col("edit") == how)).sort("layer")
    found: dict[int, dict[str, Any]] = {}
    for row in chosen.iter_rows(named=True):
        found.setdefault(row["layer"], {"layer": row["layer"]})[row["metric"]] = (row["value"], row["stderr"])
    return list(found.values())


def sentence(rows: pl.DataFrame, manifest: dict[str, Any], how: str) -> str:
    """The finding in one sentence: the costliest head, and whether it is a single-head deposit."""
    kind = scored(manifest)
    ranked = by_effect(rows, kind.metric, how)
    if ranked.is_empty():
        return f"No head was ablated by {how}."
    top = ranked.row(0, named=True)
    text = (
        f"Ablated ({how}), head {top['head']} of layer {top['layer']} costs most: {kind.lost} "
        f"{with_error(top['value'], top['stderr'])}"
    )
    if len(ranked) > 1:
        second = ranked.row(1, named=True)
        text += (
            f"; then head {second['head']} of layer {second['layer']}: {with_error(second['value'], second['stderr'])}"
        )
    if kind.metric != "drop":
        return text + "."
    layers = [
        str(entry["layer"]) for entry in index_by_layer(rows, how) if entry.get("single_head_deposit", (0,))[0] > 0
    ]
    verdict = f"a single-head deposit in layer {', '.join(layers)}" if layers else "no layer has a single-head deposit"
    return f"{text}; {verdict}."


def whole(rows: pl.DataFrame) -> str:
    """Scores of the whole model."""
    base = rows.filter((pl.col("analysis") == "heads") & pl.col("layer").is_null())
    words = {"accuracy": "accuracy", "loss": "loss (nats)"}
    return ", ".join(
        f"{words.get(row['metric'], row['metric'])} {with_error(row['value'], row['stderr'])}"
        for row in base.iter_rows(named=True)
    )


def print_heads(rows: pl.DataFrame, manifest: dict[str, Any], console: Console | None = None) -> None:
    """Print the whole model's score, the costliest heads and the deposit index of each layer."""
    console = console or Console()
    model, kind = manifest["model"], scored(manifest)
    console.print(
        f"\n[bold]{escape(str(model['name']))}[/bold] ({escape(str(model['source']))}): {model['layers']} layers, "
        f"{model['heads']} heads; {manifest['examples']} examples, {manifest['seconds']:.0f} s\n"
        f"with all heads: {whole(rows)}",
        highlight=False,
    )
    for warning in manifest["warnings"]:
        console.print(f"note: {warning}", style="yellow", highlight=False, markup=False)
    for how in manifest["hows"]:
        console.print(f"\n[bold]{sentence(rows, manifest, how)}[/bold]", highlight=False)
        table = _table("layer.head", kind.lost)
        for row in by_effect(rows, kind.metric, how).head(LISTED).iter_rows(named=True):
            table.add_row(f"{row['layer']}.{row['head']}", with_error(row["value"], row["stderr"]))
        console.print(table)
        console.print(_index_table(rows, how, kind))
    if kind.metric == "drop":
        console.print(f"{VERDICT_RULE}.", highlight=False)
    console.print("± is one standard error, over examples.", highlight=False)


def _index_table(rows: pl.DataFrame, how: str, kind: Scored) -> Table:
    judged = kind.metric == "drop"
    table = _table("layer", "largest", "second", "leading head", "its share", "effective heads")
    if judged:
        table.add_column("verdict")
    for entry in index_by_layer(rows, how):
        names = (*kind.index, "leading_head", "largest_share", "effective_heads")
        cells = [
            number(entry[name][0]) if name == "leading_head" else with_error(*entry[name]) if name in entry else "–"
            for name in names
        ]
        verdict = ["single-head deposit" if entry["single_head_deposit"][0] > 0 else "no"] if judged else []
        table.add_row(str(entry["layer"]), *cells, *verdict)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right")
    return table

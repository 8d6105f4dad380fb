"""The summary a terminal shows at the end of a trace."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

COLUMNS = {
    "attention_leak": "attention",
    "shape_leak": "shape",
    "level_leak": "level",
    "mask": "mask",
    "first_token": "first",
    "learned_sink": "sink",
    "rest": "rest",
    "residual_share": "residual",
}
REMOVED = {"attention_leak": "attention", "residual": "residual stream", "mask": "causal mask"}


def print_summary(rows: pl.DataFrame, manifest: dict[str, Any], console: Console | None = None) -> None:
    """Print what leaked, through which door, and what each edit removed."""
    console = console or Console()
    model = manifest["model"]
    console.print(
        f"\n[bold]{escape(model['name'])}[/bold]: {model['layers']} layers, {model['heads']} heads; "
        f"{manifest['inputs']} inputs of {manifest['length']} tokens\n"
        f"{escape(manifest['origin'])}, {manifest['seconds']:.0f} s; "
        f"parity with the stock model {manifest['parity'].get('max_abs', float('nan')):.1e}, "
        f"closure {manifest['closure_max_abs']:.1e} nats²",
        highlight=False,
    )
    for warning in manifest["warnings"]:
        console.print(f"note: {warning}", style="yellow", highlight=False, markup=False)
    overall = rows.filter(pl.col("layer").is_null() & pl.col("head").is_null() & pl.col("offset").is_null())
    leak = overall.filter(pl.col("analysis") == "leak")
    present = {metric: name for metric, name in COLUMNS.items() if metric in set(leak["metric"])}
    console.print(
        "\n[bold]How attention depends on absolute position[/bold], 0.001 nats² (± standard error), by queries"
    )
    _print_table(leak, present, ["none", *manifest["edits"]], manifest["query_ranges"], console)
    console.print(
        "attention = shape + level; level = mask + first (token) + rest.\n"
        "residual: the share that came through the residual stream, not the causal mask.",
        highlight=False,
    )
    removed = overall.filter(pl.col("analysis") == "removed")
    if len(removed):
        console.print(
            "\n[bold]Removed by each edit[/bold], 1 - edited / unedited (± standard error, paired), by queries"
        )
        _print_table(removed, REMOVED, manifest["edits"], manifest["query_ranges"], console)
    _print_sinks(rows, console)


def _print_table(
    rows: pl.DataFrame, columns: dict[str, str], edits: list[str], query_ranges: list[str], console: Console
) -> None:
    for query_range in query_ranges:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        table.add_column(query_range, no_wrap=True)
        for name in columns.values():
            table.add_column(name, justify="right", no_wrap=True)
        for edit in edits:
            table.add_row(escape(edit), *[_cell(rows, metric, query_range, edit) for metric in columns])
        console.print(table)
        console.print()


def _print_sinks(rows: pl.DataFrame, console: Console) -> None:
    base = rows.filter((pl.col("edit") == "none") & (pl.col("analysis") == "sinks"))
    heads = base.filter(pl.col("metric") == "sink_heads")
    if len(heads):
        total = len(base.filter((pl.col("metric") == "sink_attention") & pl.col("head").is_not_null()))
        console.print(
            f"{heads['value'][0]:.0f} of {total} heads give position 0 at least 0.3 of their attention.",
            highlight=False,
        )


def _cell(rows: pl.DataFrame, metric: str, query_range: str, edit: str) -> str:
    found = rows.filter(
        (pl.col("metric") == metric) & (pl.col("query_range") == query_range) & (pl.col("edit") == edit)
    )
    if not len(found):
        return "–"
    value, error, unit = found["value"][0], found["stderr"][0], found["unit"][0]
    if unit == "share":
        return f"{value:.0%}" + ("" if error is None else f"±{error:.0%}")
    digits = 0 if abs(value) >= 0.01 or (error or 0) >= 0.002 else 1
    return f"{value * 1000:.{digits}f}" + ("" if error is None else f"±{error * 1000:.{digits}f}")

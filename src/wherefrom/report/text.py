"""The summary a terminal shows at the end of a trace."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

COLUMNS = {
    "attention_leak": "attention",
    "shape_leak": "shape",
    "level_leak": "level",
    "mask": "mask",
    "first_token": "first token",
    "learned_sink": "learned sink",
    "rest": "rest",
    "residual_share": "residual share",
}
REMOVED = {"attention_leak": "attention", "residual": "residual stream", "mask": "causal mask"}


def print_summary(rows: pl.DataFrame, manifest: dict[str, Any], console: Console | None = None) -> None:
    """Print what leaked, through which door, and what each edit removed."""
    console = console or Console()
    model = manifest["model"]
    console.print(
        f"\n[bold]{model['name']}[/bold]: {model['layers']} layers, {model['heads']} heads; "
        f"{manifest['inputs']} inputs of {manifest['length']} tokens ({manifest['origin']}); "
        f"{manifest['seconds']:.0f} s",
        highlight=False,
    )
    console.print(
        f"parity with the stock model {manifest['parity'].get('max_abs', float('nan')):.1e}, "
        f"closure {manifest['closure_max_abs']:.1e} nats²",
        highlight=False,
    )
    for warning in manifest["warnings"]:
        console.print(f"note: {warning}", style="yellow", highlight=False, markup=False)
    overall = rows.filter(pl.col("layer").is_null() & pl.col("head").is_null() & pl.col("offset").is_null())
    leak = overall.filter(pl.col("analysis") == "leak")
    present = [metric for metric in COLUMNS if metric in set(leak["metric"])]
    table = Table(title="Where attention's dependence on absolute position comes from (nats², ± standard error)")
    table.add_column("queries")
    table.add_column("edit")
    for metric in present:
        table.add_column(COLUMNS[metric], justify="right")
    for query_range in manifest["query_ranges"]:
        for edit in ["none", *manifest["edits"]]:
            cells = [_cell(leak, metric, query_range, edit) for metric in present]
            table.add_row(query_range, edit, *cells)
        table.add_section()
    console.print(table)
    removed = overall.filter(pl.col("analysis") == "removed")
    if len(removed):
        table = Table(title="Removed by each edit (1 − edited / unedited)")
        table.add_column("queries")
        table.add_column("edit")
        for name in REMOVED.values():
            table.add_column(name, justify="right")
        for query_range in manifest["query_ranges"]:
            for edit in manifest["edits"]:
                table.add_row(query_range, edit, *[_cell(removed, metric, query_range, edit) for metric in REMOVED])
            table.add_section()
        console.print(table)
    _print_sinks(rows, console)


def _print_sinks(rows: pl.DataFrame, console: Console) -> None:
    base = rows.filter((pl.col("edit") == "none") & (pl.col("analysis") == "sinks"))
    heads = base.filter(pl.col("metric") == "sink_heads")
    if len(heads):
        total = len(base.filter((pl.col("metric") == "sink_attention") & pl.col("head").is_not_null()))
        console.print(
            f"{heads['value'][0]:.0f} of {total} heads give position 0 at least 0.3 of their attention "
            "(queries from 32 on).",
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
        return f"{value:.0%}" + ("" if error is None else f" ± {error:.0%}")
    return f"{value:.4f}" + ("" if error is None else f" ± {error:.4f}")

"""The summary a terminal shows at the end of a logit split."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table

LISTED = 6
"""Heads listed at either end."""
SHOWN_LAYERS = 12
"""Depths shown at most, evenly spaced; the rows hold all."""
COLUMNS = {
    "toeplitz_share": "offset",
    "absolute_share": "absol",
    "first_key_share": "(key0)",
    "content_share": "content",
    "content_content_share": "c·c",
    "turned_mean_share": "(mean)",
    "content_position_share": "c·p",
    "position_content_share": "p·c",
    "position_position_share": "p·p",
}


def print_split(rows: pl.DataFrame, manifest: dict[str, Any], console: Console | None = None) -> None:
    """Print shares by depth, the most positional and the most content heads, and where the position sits."""
    console = console or Console()
    model = manifest["model"]
    rows_text = "every query" if manifest["query_rows_exact"] else f"{len(manifest['query_rows'])} sampled queries"
    console.print(
        f"\n[bold]{model['name']}[/bold]: {model['layers']} layers, {model['heads']} heads; "
        f"{manifest['inputs']} inputs of {manifest['length']} tokens, {rows_text}\n"
        f"{manifest['origin']}, {manifest['seconds']:.0f} s; closure {manifest['closure_max_abs']:.1e} nats, "
        f"rotation as read {manifest['rotation_max_relative']:.1e}",
        highlight=False,
    )
    for warning in manifest["warnings"]:
        console.print(f"note: {warning}", style="yellow", highlight=False, markup=False)
    for edit in ["none", *manifest["edits"]]:
        _print_run(rows.filter(pl.col("edit") == edit), edit, manifest, console)
    console.print(f"[bold]Kernel[/bold]: {manifest['spectra_verdict']}", highlight=False)
    _print_readout(rows.filter(pl.col("analysis") == "readout"), console)


def _print_run(rows: pl.DataFrame, edit: str, manifest: dict[str, Any], console: Console) -> None:
    split = rows.filter((pl.col("analysis") == "split") & pl.col("offset").is_null())
    name = "" if edit == "none" else f", {edit}"
    console.print(f"\n[bold]Shares of the logit variance that softmax sees[/bold]{name}, % (± standard error)")
    layers = sorted(split["layer"].drop_nulls().unique().to_list())
    step = -(-len(layers) // SHOWN_LAYERS)
    table = _table("layer")
    average = split.filter(pl.col("head").is_null())
    for layer in layers[::step]:
        _add(table, str(layer), average.filter(pl.col("layer") == layer))
    table.add_section()
    _add(table, "all", average.filter(pl.col("layer").is_null()), errors=True)
    console.print(table)
    console.print(
        "offset + absolute + content = 100: what the offset explains, what positions\n"
        "explain beyond it (in brackets: at key 0), what differs between inputs.\n"
        "c·c + c·p + p·c + p·p = 100: content and position parts of query and key\n"
        "before rotation (in brackets: the mean query and the mean key, rotated).",
        highlight=False,
    )
    heads = split.filter(pl.col("head").is_not_null())
    ranked = heads.filter(pl.col("metric") == "positional_share").sort("value", descending=True)
    counts = {
        kind: int(average.filter(pl.col("metric") == f"{kind}_heads")["value"].sum())
        for kind in ("positional", "content", "mixed")
    }
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    console.print(f"\n[bold]Heads[/bold]: {counted}", highlight=False)
    console.print(manifest["class_rule"].replace("; ", "\n"), highlight=False, markup=False)
    bands = rows.filter((pl.col("analysis") == "bands") & pl.col("head").is_not_null())
    table = _table("head", bands=bool(len(bands)))
    count = min(LISTED, len(ranked) // 2)
    for part in (ranked.head(count), ranked.tail(count)):
        for row in part.iter_rows(named=True):
            here = (pl.col("layer") == row["layer"]) & (pl.col("head") == row["head"])
            _add(table, f"{row['layer']}.{row['head']}", heads.filter(here), bands.filter(here) if len(bands) else None)
        table.add_section()
    console.print(table)


def _print_readout(rows: pl.DataFrame, console: Console) -> None:
    """Where along the depth the residual stream holds most position, and where a probe reads it best."""
    base = rows.filter(pl.col("edit") == "none")
    share = base.filter(pl.col("metric") == "position_share").sort("value", descending=True)
    probe = base.filter(pl.col("metric") == "probe_error").sort("value")
    chance = base.filter(pl.col("metric") == "probe_chance")
    if len(share) and len(probe):
        console.print(
            f"[bold]Residual stream[/bold]: absolute position is at most {share['value'][0]:.1%} of its variance "
            f"(entering block {share['layer'][0]}); a probe reads it best entering block {probe['layer'][0]}, to "
            f"{probe['value'][0]:.1f} tokens (chance: {chance['value'][0]:.1f}).",
            highlight=False,
        )


def _table(first: str, bands: bool = False) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in [*COLUMNS.values(), *(["p band", "c band"] if bands else [])]:
        table.add_column(name, justify="right")
    return table


def _add(table: Table, name: str, rows: pl.DataFrame, bands: pl.DataFrame | None = None, errors: bool = False) -> None:
    cells = [_percent(rows, metric, errors) for metric in COLUMNS]
    if bands is not None:
        for metric in ("position_band", "content_band"):
            found = bands.filter(pl.col("metric") == metric)["value"]
            cells.append(f"{found[0]:.0f}" if len(found) else "–")
    table.add_row(name, *cells)


def _percent(rows: pl.DataFrame, metric: str, errors: bool) -> str:
    found = rows.filter(pl.col("metric") == metric)
    if not len(found):
        return "–"
    value, error = found["value"][0], found["stderr"][0]
    return f"{100 * value:.0f}±{100 * error:.0f}" if errors and error is not None else f"{100 * value:.0f}"

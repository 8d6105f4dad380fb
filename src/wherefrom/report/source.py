"""Reading a run folder: its rows, its manifest, and a clear sentence when either cannot be used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from wherefrom.errors import BadInput
from wherefrom.results.table import SCHEMA, with_later_columns
from wherefrom.rows import ROW_COLUMNS


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    folder: Path
    rows: pl.DataFrame
    """Finite rows with the columns of `wherefrom.rows.Row`."""
    manifest: dict[str, Any]
    name: str
    """What the report calls the run; unique among the runs of one report."""
    not_finite: int
    """Rows dropped because their value is NaN or infinite."""
    table: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Of a sweep: the rows with the columns that say which cell, too."""

    @property
    def kind(self) -> str:
        """`trace`, `split`, `heads`, `training` or `sweep`."""
        analysis = self.manifest.get("analysis")  # the name that splits go by
        return str(self.manifest.get("kind", analysis if analysis == "split" else "trace"))

    def get(self, *path: str, default: Any = None) -> Any:
        """The manifest's entry at `path`, or `default` where any step is missing or null."""
        entry: Any = self.manifest
        for step in path:
            entry = entry.get(step) if isinstance(entry, dict) else None
        return default if entry is None else entry


def load_runs(folders: Path | str | Sequence[Path | str]) -> list[Run]:
    """Read one or several run folders.

    Raises:
        BadInput: a folder is missing, empty, incomplete or damaged; or no folder was given.
    """
    several = [folders] if isinstance(folders, str | Path) else list(folders)
    if not several:
        raise BadInput("No run folder was given; name at least one folder that holds rows.parquet and manifest.json.")
    runs = [load_run(Path(folder)) for folder in several]
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return runs
    unique = _unique_names([f"{run.name} ({run.folder.resolve().name})" for run in runs])
    return [replace(run, name=name) for run, name in zip(runs, unique, strict=True)]


def _unique_names(names: list[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} #{names[:i].count(name) + 1}" for i, name in enumerate(names)]


def load_run(folder: Path) -> Run:
    """Read one run folder.

    Raises:
        BadInput: the folder, its rows or its manifest cannot be used.
    """
    if not folder.is_dir():
        raise BadInput(f"There is no run folder at {folder}; give the folder that `wherefrom trace --out` wrote.")
    table, manifest_file = folder / "rows.parquet", folder / "manifest.json"
    for file in (table, manifest_file):
        if not file.is_file():
            raise BadInput(f"{folder} is not a complete run folder: {file.name} is missing; run the trace again.")
    rows, not_finite, every = _read_rows(table)
    manifest = _read_manifest(manifest_file)
    rows = _in_order_of_edits(rows, manifest.get("edits"))
    model = manifest.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    return Run(folder, rows, manifest, str(name) if name else folder.resolve().name, not_finite, every)


def _in_order_of_edits(rows: pl.DataFrame, edits: Any) -> pl.DataFrame:
    """Rows in the order in which the user asked for the edits, whatever the order in the file."""
    if not isinstance(edits, list):
        return rows
    place = {edit: index for index, edit in enumerate(edits) if isinstance(edit, str)}
    order = pl.col("edit").replace_strict(place, default=len(place), return_dtype=pl.Int64)
    return rows.sort(order, maintain_order=True)


def _read_rows(file: Path) -> tuple[pl.DataFrame, int, pl.DataFrame]:
    try:
        rows = pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadInput(
            f"{file} cannot be read as a Parquet table ({_first_line(error)}); run the trace again."
        ) from error
    every = rows = with_later_columns(rows)
    missing = [column for column in ROW_COLUMNS if column not in rows.columns]
    if missing:
        raise BadInput(f"{file} has no column {', '.join(missing)}; it was not written by this version of wherefrom.")
    try:
        rows = rows.select(pl.col(column).cast(SCHEMA[column]) for column in ROW_COLUMNS)
    except pl.exceptions.PolarsError as error:
        raise BadInput(f"{file} has a column of the wrong type ({_first_line(error)}); run the trace again.") from error
    finite = rows.filter(pl.col("value").is_finite()).with_columns(
        pl.col("edit").fill_null("none"),
        # An error bar that is not a number is an unknown error bar.
        pl.when(pl.col("stderr").is_finite()).then(pl.col("stderr")).alias("stderr"),
    )
    if finite.is_empty():
        state = "no rows" if rows.is_empty() else "only rows that are not finite numbers"
        raise BadInput(f"{file} holds {state}; run the trace again.")
    return finite, rows.height - finite.height, every


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file} cannot be read as JSON ({_first_line(error)}); run the trace again.") from error
    if not isinstance(manifest, dict):
        raise BadInput(f"{file} must hold a JSON object, not a {type(manifest).__name__}; run the trace again.")
    return manifest


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__

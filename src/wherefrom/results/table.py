"""Rows as a tidy table: polars in memory, Parquet on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path

import polars as pl

from wherefrom.errors import BadInput
from wherefrom.rows import ROW_COLUMNS, Row

SCHEMA: dict[str, type[pl.DataType]] = {
    "analysis": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
    "n": pl.Int64,
    "stderr": pl.Float64,
    "edit": pl.String,
    "layer": pl.Int64,
    "head": pl.Int64,
    "offset": pl.Int64,
    "query_range": pl.String,
    "token": pl.Int64,
    "band": pl.Int64,
    "step": pl.Int64,
    "length": pl.Int64,
}
LATER = ("band", "step", "length")
"""Columns that older runs do not have."""
assert tuple(SCHEMA) == ROW_COLUMNS
_VALUES = attrgetter(*ROW_COLUMNS)


def to_table(rows: Iterable[Row]) -> pl.DataFrame:
    """One tidy row per measurement; None is null."""
    return pl.DataFrame([_VALUES(row) for row in rows], schema=SCHEMA, orient="row")


def with_later_columns(table: pl.DataFrame) -> pl.DataFrame:
    """A table of a run made before some columns existed, with those columns empty."""
    return table.with_columns(pl.lit(None, pl.Int64).alias(name) for name in LATER if name not in table.columns)


def write_atomically(path: Path, data: bytes, durable: bool = True) -> None:
    """Write beside the target and rename, so that a reader or a killed process never sees half a file.

    `durable` also waits for the disk: worth it for results, not for sums that are written after every input.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_rows(folder: Path) -> pl.DataFrame:
    """The rows of a run folder. Raises BadInput where there are none or they cannot be read."""
    path = Path(folder) / "rows.parquet"
    if not path.is_file():
        raise BadInput(f"'{folder}' holds no rows.parquet, so it is not a finished run.")
    try:
        table = pl.read_parquet(path)
    except Exception as error:
        raise BadInput(f"'{path}' is damaged and cannot be read; delete that file and run the trace again.") from error
    table = with_later_columns(table)
    missing = [name for name in SCHEMA if name not in table.columns]
    if missing:
        raise BadInput(f"'{path}' lacks the column '{missing[0]}'; it was not written by this version of wherefrom.")
    return table

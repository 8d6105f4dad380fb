"""Run folders that cannot be used: one sentence that names the file, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from synthetic_run import small_run

from wherefrom.errors import BadInput
from wherefrom.report import build_report


def check(folder: Path, words: str) -> None:
    before = set(folder.iterdir()) if folder.is_dir() else set()
    with pytest.raises(BadInput, match=words) as caught:
        build_report(folder)
    assert "\n" not in str(caught.value)
    assert (set(folder.iterdir()) if folder.is_dir() else set()) == before


def test_no_folder(tmp_path: Path) -> None:
    check(tmp_path / "nowhere", "There is no run folder at .*nowhere")


def test_no_runs() -> None:
    with pytest.raises(BadInput, match="No run folder"):
        build_report([])


def test_empty_folder(tmp_path: Path) -> None:
    check(tmp_path, "not a complete run folder: rows.parquet is missing")


def test_no_manifest(tmp_path: Path) -> None:
    (small_run(tmp_path) / "manifest.json").unlink()
    check(tmp_path, "manifest.json is missing")


def test_damaged_table(tmp_path: Path) -> None:
    table = small_run(tmp_path) / "rows.parquet"
    table.write_bytes(table.read_bytes()[:2000])
    check(tmp_path, "cannot be read as a Parquet table")


def test_no_rows(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    pl.read_parquet(folder / "rows.parquet").head(0).write_parquet(folder / "rows.parquet")
    check(tmp_path, "holds no rows")


def test_missing_column(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    pl.read_parquet(folder / "rows.parquet").drop("stderr").write_parquet(folder / "rows.parquet")
    check(tmp_path, "has no column stderr")


def test_wrong_type(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    words = pl.read_parquet(folder / "rows.parquet").with_columns(value=pl.lit("many"))
    words.write_parquet(folder / "rows.parquet")
    check(tmp_path, "column of the wrong type")


@pytest.mark.parametrize("text", ["{", "[1]", '"\udcff"'])
def test_damaged_manifest(tmp_path: Path, text: str) -> None:
    (small_run(tmp_path) / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    check(tmp_path, "manifest.json")


def test_unwritable_output(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    with pytest.raises(BadInput, match="cannot be written"):
        build_report(folder, tmp_path / "no" / "such" / "folder.html")

"""Reports of trainings: the page says what the rows hold, and nothing where they hold nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import wherefrom as wf
from wherefrom.report import build_report
from wherefrom.report.source import load_run
from wherefrom.report.training_sections import training_sections
from wherefrom.report.training_text import sentence

SMALL = {"steps": 4, "batch": 8, "layers": 1, "heads": 2, "d_model": 16, "test_examples": 30}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "run"
    wf.train(out=folder, task="distance:max_between=4,side=2", **SMALL)
    return folder


def test_a_training_has_a_page_with_its_curves(trained: Path) -> None:
    page = build_report(trained).read_text()
    for words in (
        "Held-out accuracy",
        "Training loss",
        "Accuracy by distance",
        "Accuracy by length",
        "What was trained",
    ):
        assert words in page
    assert "held-out examples" in page


def test_the_headline_is_made_from_the_rows(trained: Path) -> None:
    run = load_run(trained)
    rows = pl.read_parquet(trained / "rows.parquet")
    last = rows.filter((pl.col("metric") == "test_accuracy") & (pl.col("step") == 4))["value"][0]
    assert f"{100 * last:.0f}" in sentence(run).replace("\N{NO-BREAK SPACE}", " ")
    assert sentence(run) != sentence(replace(run, rows=run.rows.filter(pl.col("step") < 4)))


def test_a_task_without_distances_has_no_chart_of_them(tmp_path: Path) -> None:
    wf.train(out=tmp_path / "run", task="parity", **SMALL)
    sections = training_sections(load_run(tmp_path / "run"))
    ids = [block.id for section in sections for block in section.blocks if hasattr(block, "id")]
    assert "accuracy-by-length" in ids
    assert "accuracy-by-distance" not in ids

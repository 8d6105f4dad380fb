"""The report of a logit split: what it says comes from the rows, and a model without rotation has no bands."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from tiny import tiny

import wherefrom as wf
from wherefrom.cli import run
from wherefrom.errors import BadInput
from wherefrom.report import build_report
from wherefrom.report.source import Run, load_run
from wherefrom.report.split_sections import split_sections
from wherefrom.report.split_words import ranked_heads, sentences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("split")
    tiny("llama", dtype=torch.float32).save_pretrained(home / "model")
    command = ["split", str(home / "model"), "--length", "24", "--inputs", "6", "--edit", "rope=ntk:4"]
    assert run([*command, "--out", str(home / "out"), "--json"]) == 0
    return home / "out"


def ids(found: Run) -> list[str]:
    return [block.id for section in split_sections(found) for block in section.blocks if hasattr(block, "id")]


def test_the_command_ends_with_a_page(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    for words in ("Content or position", "Rotary bands", "At which offsets", "Spectra", "Position in the residual"):
        assert words in page
    assert "<code>rope=ntk:4</code>" in page
    assert "http" not in re.sub(r"<script.*?</script>", "", page, flags=re.S).replace("http-equiv", "")


def test_every_chart_and_table_is_there(folder: Path) -> None:
    assert ids(load_run(folder)) == [
        "shares-by-source", "shares-by-term", "shares", "head-shares", "head-table", "band-map", "offset-profiles",
        "contraction", "spectra-table", "position-share", "probe-error", "command-0",
    ]  # fmt: skip


def test_the_headline_has_the_numbers_of_the_rows(folder: Path) -> None:
    found = load_run(folder)
    rows = found.rows.filter(pl.col("layer").is_null() & pl.col("head").is_null() & (pl.col("edit") == "none"))
    said = str(sentences(found)[0])
    for metric in ("toeplitz_share", "absolute_share", "content_share"):
        assert f"{100 * rows.filter(pl.col('metric') == metric)['value'][0]:.0f}" in said
    doubled = found.rows.with_columns(value=pl.when(pl.col("unit") == "share").then(0.123).otherwise("value"))
    assert "12.3 %" in str(sentences(replace(found, rows=doubled))[0]).replace("\N{NO-BREAK SPACE}", " ")


def test_heads_are_ranked_by_their_positional_share(folder: Path) -> None:
    found = load_run(folder)
    shares = {(r["layer"], r["head"]): r["value"] for r in found.rows.filter(
        (pl.col("metric") == "positional_share") & (pl.col("edit") == "none") & pl.col("head").is_not_null()
    ).iter_rows(named=True)}  # fmt: skip
    ranked = ranked_heads(found.rows)
    assert [shares[place] for place in ranked] == sorted(shares.values(), reverse=True)


def test_a_model_without_rotation_has_no_bands(tmp_path: Path) -> None:
    wf.split(tiny("gpt2"), wf.random_tokens(6, 20), out=tmp_path / "out")
    found = load_run(tmp_path / "out")
    assert "band-map" not in ids(found)
    assert "shares-by-source" in ids(found)
    assert "Rotary bands" not in build_report(tmp_path / "out").read_text()


def test_names_are_escaped(folder: Path, tmp_path: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["model"]["name"] = "<img src=x onerror=alert(1)>"
    manifest["class_rule"] = manifest["spectra_verdict"] = "<script>alert(2)</script>"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "rows.parquet").write_bytes((folder / "rows.parquet").read_bytes())
    page = build_report(tmp_path).read_text()
    assert "<img src=x" not in page
    assert "<script>alert(2)" not in page


def test_formulas_of_the_docs_are_functions() -> None:
    """A reader of paper [G] finds each formula under its own name, with the function that computes it."""
    text = (Path(__file__).parents[2] / "docs" / "split.md").read_text()
    table = text[text.index("## Paper [G]'s formulas") : text.index("## Shares")]
    named = re.findall(r"`((?:encodings|analyses)\.[a-z_]+)\.([a-z_]+)`", table)
    assert len(named) >= 9
    for module, function in named:
        found = getattr(importlib.import_module(f"wherefrom.{module}"), function)
        assert callable(found)
        assert found.__doc__


def test_a_split_is_not_compared_with_a_trace(folder: Path) -> None:
    with pytest.raises(BadInput, match="A comparison takes traces, and .* holds a split"):
        build_report([folder, folder])

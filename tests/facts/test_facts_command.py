"""`wherefrom facts`: one JSON object and nothing else, or a sheet on which layers that are alike share a block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rotary_families import model_of

import wherefrom as wf
from wherefrom.cli import run
from wherefrom.report.facts_text import print_facts


def shown(model: Any) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - the record is what is read
    print_facts(wf.facts(model).to_dict(), console)
    return console.export_text()


def test_json_is_one_object_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_of("gemma3_text", dtype=torch.float32).save_pretrained(tmp_path)
    capsys.readouterr()
    assert run(["facts", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["family"] == "gemma3_text"
    assert len(found["layers"]) == 6


def test_a_sheet_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_of("llama", dtype=torch.float32).save_pretrained(tmp_path)
    assert run(["facts", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "layers 0-1" in out
    assert "base 10000" in out


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["facts", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no config.json" in err


def test_layers_that_are_alike_share_a_block() -> None:
    text = shown(model_of("gemma3_text"))
    assert "layers 0-4" in text
    assert "layer 5" in text
    assert "the latest 4096, its own included" in text
    assert "base 1e+06" in text


def test_what_does_not_show_in_a_config_shows_on_the_sheet() -> None:
    text = shown(model_of("gpt_oss"))
    assert "learned sink logit" in text
    assert "from the rotation" in text
    assert "turning backwards" in shown(model_of("nanochat"))
    assert "12 of them still" in shown(model_of("gemma4_text"))

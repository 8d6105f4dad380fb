"""`wherefrom heads` from the command line and from Python: training runs and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import wherefrom as wf
from tests.tiny import tiny
from wherefrom.cli import run

TRAIN = {"task": "distance:max_between=6,side=2,same_length=true", "steps": 3, "batch": 8, "layers": 2, "heads": 4,
         "d_model": 32, "test_examples": 40}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "run"
    wf.train(out=folder, **TRAIN)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    tiny("llama").save_pretrained(folder)
    return folder


def test_a_training_run_is_scored_by_accuracy(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "heads"
    assert run(["heads", str(trained), "--examples", "50", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["score"] == "accuracy"
    assert found["examples"] == 50
    drops = [entry for entry in found["heads"] if entry["metric"] == "drop"]
    assert {entry["edit"] for entry in drops} == {"zero", "mean", "resample"}
    assert len(drops) == 3 * 2 * 4
    assert {entry["metric"] for entry in found["deposit"]} >= {"largest_drop", "single_head_deposit"}
    page = (out / "report.html").read_text()
    assert "Ablation map" in page
    assert "single-head deposit" in page
    table = wf.heads(trained, how=["zero"], examples=50).table()
    same = [entry["value"] for entry in drops if entry["edit"] == "zero"]
    assert table.filter(table["metric"] == "drop")["value"].to_list() == same


def test_a_checkpoint_is_scored_by_its_loss(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "heads"
    command = ["heads", str(checkpoint), "--layers", "1", "--inputs", "3", "--length", "10", "--out", str(out)]
    assert run(command) == 0
    printed = capsys.readouterr().out
    assert "loss gained" in printed
    assert "Report:" in printed
    assert run([*command, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "already holds this run" in captured.err
    assert {(entry["layer"], entry["metric"]) for entry in found["heads"]} == {(1, "loss_rise")}
    assert "Does one head carry its layer?" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--how", "none"], "no ablation 'none'"),
        (["--how", "zero", "--how", "zero"], "given twice"),
        (["--layers", "0"], "for checkpoints"),
        (["--layers", "a-b"], "numbers and ranges"),
        (["--examples", "1"], "at least 2"),
        (["--text", "nowhere.txt"], "no text file"),
    ],
)
def test_bad_input_is_one_sentence(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["heads", str(trained), "--out", str(tmp_path / "x"), *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (tmp_path / "x").exists()


def test_a_layer_that_is_not_there_leaves_no_folder(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["heads", str(checkpoint), "--layers", "9", "--out", str(tmp_path / "x")]) == 2
    assert "no attention layer 9" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()

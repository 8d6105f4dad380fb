"""The command line: bad input is one sentence and exit code 2, `--json` is JSON alone, help shows examples."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from checkpoints import saved
from tiny import tiny

import wherefrom
from wherefrom.cli import run

QUICK = ["--inputs", "4", "--length", "24"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("checkpoints") / "tiny"))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in an empty folder of its own."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The one sentence of a command that must fail: nothing on standard output, nothing written."""
    before = sorted(Path.cwd().rglob("*"))
    capsys.readouterr()
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(Path.cwd().rglob("*")) == before, "nothing half-written"
    assert "Traceback" not in err
    lines = err.splitlines()
    assert lines[-1].startswith("wherefrom: ")
    assert all(line.startswith(("Loading ", "Continuing")) for line in lines[:-1])
    assert lines[-1][-1] in ".?"
    return lines[-1]


# Bad input


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], None),
        (["trace"], "MODEL"),
        (["trace", "x", "y"], "'y' is one argument too many"),
        (["trce", "x"], 'Did you mean "trace"?'),
        (["trace", "x", "--lenth", "5"], "Did you mean --length?"),
        (["trace", "x", "--length", "many"], '"many"'),
        (["trace", "x", "--length", "3"], "--length 3"),
        (["trace", "x", "--inputs", "1"], "--inputs 1"),
        (["trace", "x", "--inputs", "0"], "--inputs 0"),
        (["trace", "x", "--batch", "0"], "--batch 0"),
        (["trace", "x", "--seed", "-1"], "The seed -1"),
        (["trace", "x", "--seed", str(1 << 70)], "The seed"),
        (["trace", "x", "--dtype", "int8"], "'int8'"),
        (["trace", "x", "--bos", "maybe"], "'maybe'"),
        (["trace", "x", "--text", "absent.txt"], "absent.txt"),
        (["trace", "x", "--edit", "bos=maen"], "did you mean bos=mean?"),
        (["trace", "x", "--edit", "widow=3"], "did you mean window?"),
        (["trace", "x", "--edit", "window=8,mask=off"], "exclude each other"),
        (["trace", "x", "--edit"], "--edit"),
        (["trace", "x", "--offsets", "-1"], "'-1'"),
        (["trace", "x", "--offsets", "1,,2"], "'1,,2'"),
        (["trace", "x", "--offsets", "²"], "'²'"),
        (["trace", "x", "--query-ranges", "8"], "'8'"),
        (["trace", "x", "--query-ranges", "8:²"], "'8:²'"),
    ],
)
def test_mistakes_that_need_no_model(
    arguments: list[str], expected: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found before one is loaded."""

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded first")

    monkeypatch.setattr("wherefrom.api.load", load)
    if expected is None:
        assert run(arguments) == 0
        assert "Usage" in capsys.readouterr().out
    else:
        assert expected in refused(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--offsets", "24"], "of 24 tokens"),
        (["--offsets", "1,23"], "offset 23"),
        (["--query-ranges", "8:25"], "8:25"),
        (["--query-ranges", "9:8"], "9:8"),
        (["--query-ranges", "8:9"], "one position"),
        (["--query-ranges", "1:9", "--offsets", "4"], "1:9"),
        (["--edit", "window=24"], "hides nothing"),
        (["--edit", "window=500"], "hides nothing"),
        (["--edit", "hide-first:2"], "last layer (1)"),
        (["--edit", "freeze-first"], "--bos off"),
        (["--edit", "bos=token:97"], "0 to 96"),
        (["--edit", "bos=token:the"], "without a tokenizer"),
        (["--edit", "bos=mean", "--edit", "bos=mean"], "given twice"),
        (["--device", "toaster"], "'toaster'"),
        (["--text", "book.txt"], "without a tokenizer"),
        (["--out", "book.txt"], "holds no run"),
        (["--out", "."], "holds no run"),
        (["--out", "/proc/run"], "/proc/run"),
    ],
)
def test_mistakes_that_the_model_shows(
    arguments: list[str], expected: str, checkpoint: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "book.txt").write_text("a book")
    assert expected in refused(["trace", checkpoint, *QUICK, *arguments], capsys)


def test_models_that_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = saved(tmp_path / "damaged") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (tmp_path / "file.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    for model in ("damaged", "file.gguf", "absent.gguf", "absent/absent/absent"):
        assert model in refused(["trace", str(tmp_path / model)], capsys)


def test_logits_that_are_not_finite_name_layer_and_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the weights, and only in one token's embedding, which the self-check's prompt need not hold."""
    model = tiny(dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[16 + 2, 3] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    assert "layer 1, head 2" in refused(["trace", str(tmp_path / "nan"), *QUICK], capsys)
    model = tiny(dtype=torch.float32)
    with torch.no_grad():
        prompt = torch.randint(0, 97, (1, 48), generator=torch.Generator().manual_seed(0))
        unseen = sorted(set(range(3, 97)) - set(prompt[0].tolist()))
        model.model.embed_tokens.weight[unseen] = float("inf")
    model.save_pretrained(tmp_path / "inf")
    assert "layer 0, head 0" in refused(["trace", str(tmp_path / "inf"), *QUICK, "--out", "run"], capsys)


@pytest.mark.usefixtures("report_calls")
def test_the_folder_of_another_run_is_refused(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", checkpoint, *QUICK, "--out", "run"]) == 0
    capsys.readouterr()
    assert "holds another run" in refused(["trace", checkpoint, *QUICK, "--seed", "1", "--out", "run"], capsys)


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "trace", "x", "--bos", "maybe"], ["trace", "x", "--bos", "maybe", "--debug"]):
        assert run(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("wherefrom: --bos takes")


def test_a_fault_of_ours_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("wherefrom.api.load", load)
    with pytest.raises(KeyError, match="ours"):
        run(["trace", "x"])


OUT_OF_MEMORY = (
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    torch.OutOfMemoryError("CUDA out of memory."),
)


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_too_little_memory_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("wherefrom.api.load", load)
    assert "smaller --batch" in refused(["trace", "x"], capsys)


def test_a_failed_check_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from wherefrom.errors import CheckFailed

    def load(*_: Any, **__: Any) -> None:
        raise CheckFailed("Parts do not sum to the whole.")

    monkeypatch.setattr("wherefrom.api.load", load)
    assert "do not sum" in refused(["trace", "x"], capsys, code=1)


# Good input


METRICS = (
    "attention_leak", "shape_leak", "level_leak", "mask", "first_token", "rest", "raw_logit_leak",
    "raw_denominator_leak", "raw_interaction",
)  # fmt: skip


def test_json_is_one_object_and_nothing_else(
    checkpoint: str, report_calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["trace", checkpoint, *QUICK, "--edit", "bos=mean", "--edit", "window=6", "--json", "--out", "run"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert out.count("\n") == 1
    assert "Loading" in err
    assert set(found) == {"model", "parity_max_abs", "closure_max_abs", "seconds", "leak", "removed"}
    assert found["model"] == checkpoint
    assert found["closure_max_abs"] < 1e-4
    places = {(entry["edit"], entry["query_range"], entry["layer"]) for entry in found["leak"]}
    ranges = {entry["query_range"] for entry in found["leak"]}
    assert places == {(e, r, x) for e in ("none", "bos=mean", "window=6") for r in ranges for x in ("all", 0, 1)}
    for entry in found["leak"]:
        for metric in METRICS:
            assert set(entry[metric]) == {"value", "stderr"}
            assert all(math.isfinite(number) for number in entry[metric].values())
    assert {entry["edit"] for entry in found["removed"]} == {"bos=mean", "window=6"}
    assert all(set(e) == {"edit", "query_range", "metric", "value", "stderr"} for e in found["removed"])
    assert report_calls == [(Path("run"), None)]
    assert run(arguments) == 0, "again: shown from the folder"
    out, err = capsys.readouterr()
    assert json.loads(out) == found
    assert "already holds this run" in err


def test_what_is_no_number_is_null(
    checkpoint: str, report_calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON has no NaN: a share of nothing, or an error bar that two inputs cannot give."""
    assert run(["trace", checkpoint, "--inputs", "2", "--length", "24", "--edit", "mask=off", "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert report_calls


def test_the_summary_is_on_standard_output_and_the_run_in_a_folder(
    checkpoint: str, place: Path, report_calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["trace", checkpoint, *QUICK, "--edit", "bos=mean,window=6", "--seed", "7"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    (folder,) = (place / "wherefrom-runs").iterdir()
    assert folder.name.startswith("tiny-")
    assert f"wherefrom-runs/{folder.name}/rows.parquet" in out.replace("\n", "")
    assert "Removed by each edit" in out
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["command"] == f"wherefrom trace {checkpoint} {' '.join(arguments[2:])}"
    assert (manifest["seed"], manifest["edits"], manifest["inputs"]) == (7, ["bos=mean,window=6"], 4)
    assert pl.read_parquet(folder / "rows.parquet")["edit"].unique().sort().to_list() == ["bos=mean,window=6", "none"]
    assert len(report_calls) == 1


def test_an_interrupt_keeps_what_is_finished(
    checkpoint: str, report_calls: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = importlib.import_module("wherefrom.workflows.trace")
    arguments = ["trace", checkpoint, *QUICK, "--batch", "1", "--out", "run", "--json"]
    take, taken = workflow._take, []

    def interrupted(*rest: Any) -> None:
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(rest)
        take(*rest)

    monkeypatch.setattr(workflow, "_take", interrupted)
    assert run(arguments) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\nInterrupted. Finished inputs are kept; the same command continues.\n")
    assert report_calls == []
    monkeypatch.setattr(workflow, "_take", take)
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert "Continuing: 2 of 4 inputs were finished before." in err
    assert run([*arguments[:-3], "--out", "whole", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    continued = json.loads(out)
    assert [{**found, "seconds": 0} for found in (whole, continued)] == [{**whole, "seconds": 0}] * 2


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["trace", "--help"], ["report", "--help"]):
        assert run(arguments) == 0
        out, err = capsys.readouterr()
        assert "Example" in out
        assert "wherefrom " in out
        assert err == ""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == wherefrom.__version__


def test_the_list_of_edits_is_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    from wherefrom.capture.edits import EDITS

    assert run(["list", "edits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EDITS)
    for line, (_, usage, what) in zip(lines, EDITS.values(), strict=True):
        assert line.startswith(usage)
        assert line.endswith(what)


def test_the_report_command_hands_on_its_folders(report_calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "one", "two", "--out", "page.html"]) == 0
    assert report_calls == [([Path("one"), Path("two")], Path("page.html"))]
    assert capsys.readouterr().out == "page.html\n"


# A real process


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "wherefrom", *arguments], capture_output=True, text=True, **options)


def test_a_mistake_in_a_real_process(place: Path) -> None:
    done = process("trace", "./absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[1:] == [
        "wherefrom: There is no file or folder './absent', and it is not a hub id either; check the path."
    ]
    assert list(place.iterdir()) == []
    shown = process("trace", "x", "--bos", "maybe", "--debug")
    assert shown.returncode == 2
    assert "Traceback" in shown.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As in `wherefrom list edits | head -0`."""
    done = subprocess.run(
        f"{sys.executable} -m wherefrom list edits | true; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")

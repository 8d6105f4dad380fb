"""`wherefrom split`: folders, JSON, exit codes, continuing, edits."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import torch
from rich.console import Console
from tiny import tiny

import wherefrom as wf
from wherefrom.capture.split_pass import SplitPass
from wherefrom.cli import run
from wherefrom.errors import BadInput
from wherefrom.report.split_text import print_split
from wherefrom.results.table import SCHEMA, read_rows


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny("llama", dtype=torch.float32).save_pretrained(folder)
    return folder


def test_a_run_leaves_rows_and_a_manifest_and_prints_a_summary(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["split", str(checkpoint), "--length", "24", "--inputs", "6", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for words in ("Shares of the logit variance", "Heads", "positional_share >= 0.67", "Kernel", "rows.parquet"):
        assert words in printed
    rows = read_rows(out)
    assert set(rows["analysis"]) == {"split", "bands", "spectra", "readout"}
    assert dict(rows.schema) == SCHEMA
    assert rows["value"].is_finite().all()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["query_rows"] == list(range(1, 24))
    assert manifest["query_rows_exact"]
    assert manifest["closure_max_abs"] < manifest["closure_allowed"] < 1e-2
    assert manifest["class_rule"].startswith("positional: positional_share >= 0.67")
    assert not (out / "state").exists()


def test_json_is_all_there_is_on_standard_output(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["split", str(checkpoint), "--length", "24", "--inputs", "6", "--edit", "window=6", "--json"]
    assert run([*arguments, "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"model", "parity_max_abs", "closure_max_abs", "seconds", "split", "heads", "readout"} <= set(found)
    everywhere = [entry for entry in found["split"] if entry["layer"] == "all"]
    assert [entry["edit"] for entry in everywhere] == ["none", "window=6"]
    shares = [everywhere[0][f"{term}_share"]["value"] for term in ("toeplitz", "absolute", "content")]
    assert sum(shares) == pytest.approx(1)
    assert len(found["heads"]) == 16
    assert {entry["class"] for entry in found["heads"]} <= {"positional", "content", "mixed"}


BAD = {
    "two inputs": (["--inputs", "2"], "at least 3"),
    "short": (["--length", "3"], "at least 4"),
    "one row": (["--rows", "1"], "at least 2"),
    "no batch": (["--batch", "0"], "at least 1"),
    "dtype": (["--dtype", "float8"], "dtype 'float8' is not known"),
    "edit": (["--edit", "bos=meen"], "did you mean bos=mean"),
    "same edit twice": (["--edit", "window=4", "--edit", "window=4"], "given twice"),
    "text": (["--text", "/nonexistent/book.txt"], "no text file"),
    "option": (["--offsets", "1"], "offsets"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(
    name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    arguments, words = BAD[name]
    out = tmp_path / "out"
    usual = {"--length": "24", "--inputs": "6"}
    rest = [word for name, value in usual.items() if name not in arguments for word in (name, value)]
    code = run(["split", str(checkpoint), *rest, "--out", str(out), *arguments])
    captured = capsys.readouterr()
    assert code == 2
    last = captured.err.strip().splitlines()[-1]
    assert re.search(words, last)
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (out / "rows.parquet").exists()


def test_an_unknown_model_and_the_folder_of_a_trace_are_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["split", str(tmp_path / "nowhere")]) == 2
    out = tmp_path / "out"
    model = wf.load(tiny("llama"))
    wf.trace(model, wf.random_tokens(4, 24), out=out)
    assert run(["split", str(checkpoint), "--length", "24", "--inputs", "6", "--out", str(out)]) == 2
    assert "holds another run" in capsys.readouterr().err


def test_weights_that_are_no_numbers_are_refused() -> None:
    model = wf.load(tiny("llama"))
    with torch.no_grad():
        model.model.model.layers[1].self_attn.q_proj.weight[3, 3] = float("nan")
    with pytest.raises(BadInput, match="NaN or infinite in layer 1"):
        wf.split(model, wf.random_tokens(4, 24))


def test_an_interrupted_run_continues_with_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = wf.load(tiny("llama")), wf.random_tokens(8, 24)
    whole = wf.split(model, inputs, groups=8, batch=1)
    taken: list[int] = []
    original = SplitPass.take

    def counting(self: SplitPass, batch, sums, positions=None):  # type: ignore[no-untyped-def]
        if positions is not None:
            if len(taken) == 5:
                raise KeyboardInterrupt
            taken.append(batch.indices[0])
        return original(self, batch, sums, positions)

    monkeypatch.setattr(SplitPass, "take", counting)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        wf.split(model, inputs, groups=8, batch=1, out=out)
    assert not (out / "rows.parquet").exists()
    first, taken[:] = list(taken), []
    rest = wf.split(model, inputs, groups=8, batch=1, out=out)
    assert first == [0, 1, 2, 3, 4]
    assert taken == [5, 6, 7], "finished inputs are not summed again"
    assert rest.table().drop("value", "stderr").equals(whole.table().drop("value", "stderr"))
    assert (rest.table()["value"] - whole.table()["value"]).abs().max() < 1e-10
    again = wf.split(model, inputs, groups=8, batch=1, out=out)
    assert again.table().equals(rest.table())


def test_a_damaged_state_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, out = wf.load(tiny("llama")), wf.random_tokens(8, 24), tmp_path / "out"
    original, calls = SplitPass.take, [0]

    def stopping(self: SplitPass, *arguments):  # type: ignore[no-untyped-def]
        calls[0] += 1
        if calls[0] > 3:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(SplitPass, "take", stopping)
    with pytest.raises(KeyboardInterrupt):
        wf.split(model, inputs, groups=8, batch=1, out=out)
    monkeypatch.undo()
    (out / "state" / "group-sums-0.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BadInput, match=r"group-sums-0\.safetensors' is damaged"):
        wf.split(model, inputs, groups=8, batch=1, out=out)


def test_the_model_is_left_as_it_was() -> None:
    model = tiny("llama")
    before = {name: tensor.clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    ids = torch.randint(3, 97, (1, 20))
    with torch.no_grad():
        expected = model(ids).logits
    wf.split(wf.load(model), wf.random_tokens(4, 24), ["rope=ntk:2"])
    assert all(torch.equal(before[n], t) for n, t in [*model.named_parameters(), *model.named_buffers()])
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == hooks
    with torch.no_grad():
        assert torch.equal(model(ids).logits, expected)


def test_shares_add_up_in_every_row_of_the_table() -> None:
    found = wf.split(wf.load(tiny("gpt_neox")), wf.random_tokens(8, 24), ["bos=mean"])
    rows = found.table().filter(pl.col("layer").is_not_null() & pl.col("head").is_not_null())
    wide = rows.filter((pl.col("analysis") == "split") & pl.col("offset").is_null()).pivot(
        "metric", index=["edit", "layer", "head"], values="value"
    )
    terms = [f"{a}_{b}_share" for a in ("content", "position") for b in ("content", "position")]
    for columns in (terms, ["toeplitz_share", "absolute_share", "content_share"]):
        assert (wide.select(pl.sum_horizontal(columns)).to_series() - 1).abs().max() < 1e-12
    bands = rows.filter(pl.col("metric") == "band_share").group_by("edit", "layer", "head").agg(pl.col("value").sum())
    rest = rows.filter(pl.col("metric").str.starts_with("unturned_")).group_by("edit", "layer", "head")
    both = bands.join(rest.agg(pl.col("value").sum().alias("rest")), on=["edit", "layer", "head"])
    assert len(both) == 16
    assert (both["value"] + both["rest"] - 1).abs().max() < 1e-12


def test_a_narrow_terminal_is_enough() -> None:
    found = wf.split(wf.load(tiny("llama")), wf.random_tokens(6, 24))
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_split(found.rows, found.manifest, console)
    text = console.export_text()
    assert "…" not in text, "no column is cut"
    assert max(map(len, text.splitlines())) <= 80

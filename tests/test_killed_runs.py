"""A killed process leaves a folder that the same command continues to the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from checkpoints import saved

from wherefrom.cli import run

KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
import wherefrom.report
if not hasattr(wherefrom.report, "build_report"):
    wherefrom.report.build_report = lambda folders, out=None: folders / "report.html"
from wherefrom.workflows import trace as workflow
from wherefrom.results import table
how, count = sys.argv[1], int(sys.argv[2])
def hit(*_):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGINT if how == "interrupt" else signal.SIGKILL)
if how == "write":
    replace = os.replace
    os.replace = lambda *names: (hit(), replace(*names))
else:
    take = workflow._take
    workflow._take = lambda *rest: (take(*rest), hit())
from wherefrom.cli import run
sys.exit(run(sys.argv[3:]))
"""


def command(checkpoint: Path, out: Path) -> list[str]:
    return [
        "trace", str(checkpoint), "--inputs", "6", "--length", "24", "--batch", "1", "--edit", "bos=mean",
        "--out", str(out),
    ]  # fmt: skip


def spawn(how: str, count: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, how, str(count), *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.usefixtures("report_calls")
@pytest.mark.parametrize(("how", "count"), [("kill", 4), ("write", 1), ("write", 8), ("interrupt", 4)])
def test_a_killed_process_continues_to_the_same_bits(
    how: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL between inputs and in the middle of a write (the first, a group's, and the rows'), and Ctrl-C."""
    checkpoint, out = saved(tmp_path / "tiny"), tmp_path / "run"
    killed = spawn(how, count, command(checkpoint, out))
    assert killed.returncode == (130 if how == "interrupt" else -signal.SIGKILL)
    assert killed.stdout == ""
    assert "Traceback" not in killed.stderr
    if how == "interrupt":
        assert killed.stderr.endswith("\nInterrupted. Finished inputs are kept; the same command continues.\n")
    assert not (out / "manifest.json").exists()
    if how == "write":
        assert list(out.rglob(".*.part")), "the kill did hit a write"
    assert run(command(checkpoint, out)) == 0
    assert ("Continuing" in capsys.readouterr().err) == (count > 1)
    assert run(command(checkpoint, tmp_path / "whole")) == 0
    rows = [pl.read_parquet(folder / "rows.parquet") for folder in (out, tmp_path / "whole")]
    assert rows[0].equals(rows[1])
    assert sorted(entry.name for entry in out.iterdir()) == ["manifest.json", "rows.parquet"], "no piece is left behind"

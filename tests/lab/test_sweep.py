"""Sweeps: the same numbers as each cell alone, whatever dies in between."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from wherefrom.errors import BadInput
from wherefrom.recipes import RECIPES, Cell, find_recipe, list_recipes
from wherefrom.training import TrainConfig
from wherefrom.workflows.cell import run_cell
from wherefrom.workflows.sweep import sweep

TASK = "distance:vocabulary=20,max_between=4,side=2,same_length=true,shift=2"
CONFIG = TrainConfig(
    task=TASK, steps=20, batch=8, test_examples=32, evaluations=2, d_model=16, heads=2, layers=1, d_ff=16
)


def cells(count: int = 4, **settings: object) -> list[Cell]:
    return [
        Cell({"encoding": encoding}, dataclasses.replace(CONFIG, encoding=encoding, seed=seed, **settings), ())  # type: ignore[arg-type]
        for seed in range(count // 2)
        for encoding in ("rope", "alibi")
    ]


def of_cell(rows: pl.DataFrame, cell: Cell) -> pl.DataFrame:
    return rows.filter(pl.col("cell") == cell.slug).drop("cell", "encoding", "seed")


def test_a_cell_is_the_same_alone_and_among_others(tmp_path: Path) -> None:
    """T2."""
    chosen = cells(8)
    together = sweep(chosen, tmp_path / "two", workers=2).rows
    backwards = sweep(chosen[::-1], tmp_path / "one", workers=1).rows
    for cell in chosen:
        alone = run_cell(cell, None).rows
        assert of_cell(together, cell).equals(alone)
        assert of_cell(backwards, cell).equals(alone)
    assert not of_cell(together, chosen[0]).equals(of_cell(together, chosen[1])), "control"


def test_measures_leave_the_training_as_it_was(tmp_path: Path) -> None:
    cell = cells(2)[0]
    plain = run_cell(cell, None).rows
    measured = run_cell(dataclasses.replace(cell, measures=("leak",), along=("position",)), None).rows
    assert measured.filter(pl.col("analysis") == "training").equals(plain)
    assert set(measured["analysis"]) >= {"training", "leak", "readout"}
    steps = measured.filter(pl.col("analysis") == "readout")["step"].unique().sort().to_list()
    assert steps == [0, 10]
    assert measured.filter(pl.col("analysis") == "leak")["step"].unique().to_list() == [20]


def test_a_killed_driver_repeats_no_finished_cell(tmp_path: Path) -> None:
    """T1: kill in the middle and start again."""
    chosen = cells(12, steps=60)
    listed = tmp_path / "cells.json"
    listed.write_text(json.dumps([cell.to_dict() for cell in chosen]))
    code = (
        "import json, sys; from wherefrom.recipes import Cell; from wherefrom.workflows.sweep import sweep\n"
        "if __name__ == '__main__':\n"
        "    sweep([Cell.from_dict(v) for v in json.load(open(sys.argv[1]))], sys.argv[2], workers=1)"
    )
    script = tmp_path / "driver.py"
    script.write_text(code)
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, str(script), str(listed), str(out)], env={**os.environ})
    deadline = time.monotonic() + 120
    while len(list(out.glob("cells/*/manifest.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/manifest.json")}
    assert 3 <= len(before) < 12
    found = sweep(chosen, out, workers=1)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert found.rows["cell"].n_unique() == 12
    assert of_cell(found.rows, chosen[5]).equals(run_cell(chosen[5], None).rows)


def test_a_worker_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second cell kills its process once; its neighbours and its own second try are unharmed."""
    plugin = tmp_path / "sitecustomize.py"
    plugin.write_text(
        "import os, threading, time\n"
        f"flag = {str(tmp_path / 'died')!r}\n"
        f"cells = {str(tmp_path / 'out' / 'cells')!r}\n"
        "def watch():\n"
        "    while not os.path.exists(flag):\n"
        "        if os.path.isdir(cells) and len(os.listdir(cells)) >= 2:\n"
        "            open(flag, 'x').close(); os._exit(9)\n"
        "        time.sleep(0.005)\n"
        "import multiprocessing\n"
        "if '--multiprocessing-fork' in __import__('sys').argv: threading.Thread(target=watch, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    chosen = cells(6, steps=40)
    found = sweep(chosen, tmp_path / "out", workers=2)
    assert (tmp_path / "died").exists(), "control: a worker did die"
    assert not found.manifest["failed"]
    assert found.rows["cell"].n_unique() == 6


def test_two_drivers_on_one_folder(tmp_path: Path) -> None:
    from wherefrom.results.folder import RunFolder
    from wherefrom.workflows import sweep as module

    chosen = cells(2)
    original = module._run_all

    def inside(*arguments: object) -> dict[str, str]:
        with pytest.raises(BadInput, match="Another process"):
            sweep(chosen, tmp_path / "out", workers=1)
        return original(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_run_all", inside)
        sweep(chosen, tmp_path / "out", workers=1)
    assert RunFolder(tmp_path / "out").finished
    with pytest.raises(BadInput, match="another run"):
        sweep(cells(4), tmp_path / "out", workers=1)


def test_a_damaged_cell_is_run_again(tmp_path: Path) -> None:
    chosen = cells(2)
    first = sweep(chosen, tmp_path / "out", workers=1)
    (tmp_path / "out" / "manifest.json").unlink()
    (tmp_path / "out" / "rows.parquet").unlink()
    damaged = tmp_path / "out" / "cells" / chosen[0].slug
    for name in ("rows.parquet", "manifest.json"):
        (damaged / name).write_bytes(b"nonsense")
    (tmp_path / "out" / "state").mkdir()
    (tmp_path / "out" / "state" / "run.json").write_text(json.dumps({"fingerprint": first.manifest["fingerprint"]}))
    assert sweep(chosen, tmp_path / "out", workers=1).rows.equals(first.rows)


def test_a_cell_that_cannot_be_trained_does_not_stop_the_others(tmp_path: Path) -> None:
    chosen = [*cells(2), Cell({"encoding": "mad"}, dataclasses.replace(CONFIG, learning_rate=1e30, clip=0.0), ())]
    found = sweep(chosen, tmp_path / "out", workers=1)
    assert list(found.manifest["failed"]) == [chosen[2].slug]
    assert "lower the learning rate" in found.manifest["failed"][chosen[2].slug]
    assert found.rows["cell"].n_unique() == 2


def test_impossible_sweeps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no cells"):
        sweep([], tmp_path / "a")
    with pytest.raises(BadInput, match="give each one once"):
        sweep([cells(2)[0]] * 2, tmp_path / "b")
    with pytest.raises(BadInput, match="at least 1"):
        sweep(cells(2), tmp_path / "c", workers=0)


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("scale", ["quick", "laptop", "published"])
def test_every_recipe_has_cells_that_can_be_told_apart(name: str, scale: str) -> None:
    recipe = find_recipe(name)
    found = recipe.seeded(scale, 2)  # type: ignore[arg-type]
    assert len({cell.slug for cell in found}) == len(found) == 2 * len(recipe.cells(scale))  # type: ignore[arg-type]
    assert len({tuple(cell.labels.items()) for cell in found}) == len(found) // 2
    for cell in found:
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell


def test_recipes_are_listed_and_found() -> None:
    assert {entry["name"] for entry in list_recipes()} == set(RECIPES)
    with pytest.raises(BadInput, match="did you mean laptop"):
        find_recipe("labtop")


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so_and_does_not_hang(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from wherefrom.recipes import find_recipe\n"
        "from wherefrom.workflows.sweep import sweep\n"
        f"sweep(find_recipe('baselines').seeded('quick', 1), {str(tmp_path / 'out')!r}, workers=2)\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert ended.returncode != 0
    assert "under `if __name__" in ended.stderr.splitlines()[-1]


def test_a_model_without_training_is_measured(tmp_path: Path) -> None:
    untrained = dataclasses.replace(CONFIG, steps=0, evaluations=1, d_ff=0, weights="identity", causal=True)
    rows = run_cell(Cell({"stack": "x"}, untrained, ("leak",)), None).rows
    assert set(rows["step"].drop_nulls()) == {0}
    assert len(rows.filter(pl.col("analysis") == "leak"))
    with pytest.raises(BadInput, match="weights=identity"):
        dataclasses.replace(untrained, d_ff=16)

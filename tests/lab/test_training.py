"""Training: a pure function of its settings, resumable at any step, scored on held-out data."""

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
import torch

from wherefrom.errors import BadInput
from wherefrom.models.loading import load
from wherefrom.models.toy_store import load_toy
from wherefrom.training import TrainConfig, train
from wherefrom.training import loop as loop_module
from wherefrom.training.loop import learning_rate_factor
from wherefrom.training.scores import held_out, score

SMALL = TrainConfig(
    task="distance:vocabulary=20,max_between=4,side=2,same_length=true,shift=2",
    encoding="rope", steps=12, batch=8, test_examples=64, evaluations=3, d_model=16, heads=2, layers=1, d_ff=16,
)  # fmt: skip


def changed(**settings: object) -> TrainConfig:
    return dataclasses.replace(SMALL, **settings)  # type: ignore[arg-type]


def curve(rows: pl.DataFrame) -> list[float]:
    return rows.filter(pl.col("metric") == "train_loss")["value"].to_list()


class Stopped(Exception):
    """Stands in for a kill."""


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.1, "head_dropout": 0.2}, {"examples": 24}])
@pytest.mark.parametrize("stop_at", [1, 7])
def test_a_stopped_run_resumes_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], stop_at: int
) -> None:
    """T2: loss curve, scores and weights are those of an uninterrupted run."""
    config = changed(**settings)
    whole = train(config)
    monkeypatch.setattr(loop_module, "SAVE_EVERY", 0.0)
    inner = loop_module.Run.step

    def failing(self: object, step: int) -> float:
        if step == stop_at:
            raise Stopped
        return inner(self, step)  # type: ignore[arg-type]

    monkeypatch.setattr(loop_module.Run, "step", failing)
    with pytest.raises(Stopped):
        train(config, tmp_path / "run")
    seen: list[int] = []

    def counting(self: object, step: int) -> float:
        seen.append(step)
        return inner(self, step)  # type: ignore[arg-type]

    monkeypatch.setattr(loop_module.Run, "step", counting)
    resumed = train(config, tmp_path / "run")
    assert seen == list(range(stop_at, 12)), "finished steps are not run again"
    assert resumed.rows.equals(whole.rows)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_a_damaged_checkpoint_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "SAVE_EVERY", 0.0)
    inner = loop_module.Run.step
    monkeypatch.setattr(
        loop_module.Run, "step", lambda self, step: inner(self, step) if step < 5 else (_ for _ in ()).throw(Stopped)
    )
    with pytest.raises(Stopped):
        train(SMALL, tmp_path / "run")
    monkeypatch.setattr(loop_module.Run, "step", inner)
    for file in (tmp_path / "run" / "state").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    assert train(SMALL, tmp_path / "run").rows.equals(train(SMALL).rows)


def test_a_killed_process_resumes(tmp_path: Path) -> None:
    config = changed(steps=1500, evaluations=2)
    code = (
        "import json, sys; from wherefrom.training import TrainConfig, train, loop; loop.SAVE_EVERY = 0.05\n"
        "train(TrainConfig.from_dict(json.loads(sys.argv[1])), sys.argv[2])"
    )
    arguments = [sys.executable, "-c", code, json.dumps(config.to_dict()), str(tmp_path / "run")]
    process = subprocess.Popen(arguments, env={**os.environ, "OMP_NUM_THREADS": "1"})
    state = tmp_path / "run" / "state"
    deadline = time.monotonic() + 60
    while not list(state.glob("*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(state.glob("*.safetensors"))
    assert not (tmp_path / "run" / "rows.parquet").exists()
    assert train(config, tmp_path / "run").rows.equals(train(config).rows)


def test_the_same_settings_give_the_same_numbers_in_any_order() -> None:
    other = changed(encoding="alibi", seed=3)
    first, _, second = train(SMALL), train(other), train(SMALL)
    assert first.rows.equals(second.rows)
    assert curve(train(changed(seed=1)).rows) != curve(first.rows), "control: another seed gives other numbers"


def test_global_randomness_is_untouched() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(changed(dropout=0.1))
    assert torch.equal(torch.rand(3), expected)


def test_it_learns() -> None:
    found = train(changed(steps=300, batch=64, d_model=32, d_ff=64, learning_rate=5e-3))
    assert found.summary()["test_accuracy"]["value"] > found.manifest["chance"] + 0.4
    blind = train(changed(steps=300, batch=64, d_model=32, d_ff=64, learning_rate=5e-3, encoding="none"))
    assert blind.summary()["test_accuracy"]["value"] < blind.manifest["chance"] + 0.2, "control: order cannot be seen"


def test_scores_are_held_out_and_the_same_for_every_seed() -> None:
    one, other = train(SMALL), train(changed(seed=1))
    data = held_out(SMALL.build_task(), 64)
    for run in (one, other):
        rows = run.rows.filter((pl.col("metric") == "test_accuracy") & (pl.col("step") == 12))
        assert float(rows["value"][0]) == float(score(run.model, data).correct.double().mean())
    seen = {tuple(row) for step in range(12) for row in batch_rows(step)}
    held = [tuple(row) for row in data.token_ids.tolist()]
    assert sum(row in seen for row in held) <= 2


def batch_rows(step: int) -> list[list[int]]:
    from wherefrom.tasks import examples

    return examples(SMALL.build_task(), 8, SMALL.seed, "train", step).token_ids.tolist()


def test_accuracy_by_distance_adds_up() -> None:
    rows = train(SMALL).rows.filter(pl.col("step") == 12)
    total = rows.filter(pl.col("metric") == "test_accuracy")
    parts = rows.filter(pl.col("metric") == "test_accuracy_by_distance")
    assert parts["offset"].to_list() == [0, 1, 2, 3, 4]
    assert int(parts["n"].sum()) == int(total["n"][0]) == 64
    assert float((parts["value"] * parts["n"]).sum() / 64) == pytest.approx(float(total["value"][0]))


def test_the_model_is_stored_and_loads_as_a_model(tmp_path: Path) -> None:
    found = train(SMALL, tmp_path / "run")
    again = load_toy(tmp_path / "run")
    for name, value in found.model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    decoder = load(tmp_path / "run")
    assert decoder.encoding == "rope"
    assert not decoder.causal
    (tmp_path / "run" / "toy.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(BadInput, match="does not hold the weights"):
        load(tmp_path / "run")


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    train(SMALL, tmp_path / "run")
    with pytest.raises(BadInput, match="holds another run"):
        train(changed(seed=1), tmp_path / "run")


def test_a_loss_that_explodes_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="lower the learning rate"):
        train(changed(learning_rate=1e30, clip=0.0))


def test_the_learning_rate_rises_and_falls() -> None:
    config = changed(steps=100, warmup=0.1)
    factors = [learning_rate_factor(config, step) for step in range(100)]
    assert max(factors) <= 1.0
    assert factors.index(max(factors)) in (10, 11)
    assert factors[0] < 0.2
    assert factors[-1] < 0.01
    assert learning_rate_factor(changed(schedule="constant"), 11) == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": -1}, "at least 0"),
        ({"examples": 4}, "has no batch of 8"),
        ({"task": "distence"}, "did you mean `distance`"),
        ({"encoding": "ropee"}, "did you mean `rope`"),
        ({"seed": -1}, "negative"),
        ({"precision": "float8"}, "precision"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        changed(**settings)


@pytest.mark.parametrize("task", ["distance:max_between=9,side=2", "copy:longest=8,shortest=2"])
def test_pieces_of_a_batch_give_the_gradient_of_the_whole(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(task=task, precision="float64", batch=32)
    losses, gradients = [], []
    for pieces in (1, 8):
        monkeypatch.setattr(loop_module, "PIECES", pieces)
        run = loop_module.Run(config, torch.device("cpu"), None, {})
        cut = [len(piece) for piece, _ in run._pieces(run._batch(0))]
        assert len(cut) == pieces
        losses.append(run.step(0))
        gradients.append(torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-12)


def test_padding_that_takes_part_is_not_cut_away() -> None:
    run = loop_module.Run(
        changed(task="distance:max_between=9,side=2", published_padding=True), torch.device("cpu"), None, {}
    )
    assert [share for _, share in run._pieces(run._batch(0))] == [1.0]

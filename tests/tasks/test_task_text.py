"""The text task: windows of a file, the next byte asked, held-out parts apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wherefrom.errors import BadInput
from wherefrom.tasks import build_task, examples


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(4000)))
    return path


def read(ids: torch.Tensor) -> bytes:
    return bytes((ids - 2).tolist())


@pytest.mark.parametrize("split", ["train", "test", "long"])
def test_windows_are_of_the_file_and_labels_are_the_next_byte(file: Path, split: str) -> None:
    task = build_task(f"text:length=16,file={file},long_length=24")
    batch = examples(task, 50, seed=1, split=split)  # type: ignore[arg-type]
    length = 24 if split == "long" else 16
    assert batch.token_ids.shape == batch.labels.shape == (50, length)
    assert torch.equal(batch.token_ids[:, 1:], batch.labels[:, :-1])
    assert bool((batch.token_ids[:, 0] == task.bos).all())
    text = file.read_bytes()
    inside = sum(read(row) in text for row in batch.labels)
    assert inside >= 45, "but for windows across two blocks"
    assert read(batch.labels[0].flip(0)) not in text, "control"


def test_the_held_out_part_is_never_trained_on(file: Path) -> None:
    task = build_task(f"text:length=16,file={file}")
    train, test = (bytes(task.parts[part].tolist()) for part in ("train", "test"))  # type: ignore[attr-defined]
    assert len(train) + len(test) == len(file.read_bytes())
    lines = test.split(b"\n")[1:-1]
    whole = [line for line in lines if len(line) == 6]
    assert len(whole) > 100
    assert not any(b"\n" + line + b"\n" in train for line in whole[1:-1])


def test_the_standard_library_is_there_by_default() -> None:
    task = build_task("text")
    assert len(task.parts["train"]) > 1_000_000  # type: ignore[attr-defined]
    assert 0.02 < task.chance() < 0.5


@pytest.mark.parametrize(
    ("setting", "words"),
    [("text:file=/nowhere", "no text file"), ("text:length=2", "at least 4"), ("text:long_length=9", "at least 129")],
)
def test_impossible_texts_are_refused(setting: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        build_task(setting)


def test_too_short_a_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("short")
    with pytest.raises(BadInput, match="holds too little"):
        build_task(f"text:file={path}")

"""Lengths of the splits, and that what is held out is not seen in training."""

from __future__ import annotations

import pytest
import torch
from task_oracles import DEFAULTS, VARIANTS, rows

from wherefrom.tasks import build_task, examples


def lengths(task, split):
    return torch.cat([examples(task, 1000, seed=5, split=split, index=index).lengths for index in range(3)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_long_is_longer_than_anything_in_training(variant):
    task = build_task(variant)
    train, test, longer = (lengths(task, split) for split in ("train", "test", "long"))
    assert int(longer.min()) > task.trained_length
    assert int(train.max()) <= task.trained_length
    assert int(test.max()) <= task.trained_length
    assert int(longer.max()) <= task.max_length


@pytest.mark.parametrize("variant", VARIANTS)
def test_declared_lengths_are_reached(variant):
    """The longest sequence declared is one that occurs, so that no model is built larger than it must be."""
    task = build_task(variant)
    batches = {split: lengths(task, split) for split in ("train", "test", "long")}
    # Where the largest shift and the largest distance must meet, and with 71 distances, 3000 draws suffice by far.
    assert int(batches["train"].max()) == int(batches["test"].max()) == task.trained_length
    assert int(batches["long"].max()) == task.max_length


@pytest.mark.parametrize("variant", VARIANTS)
def test_train_and_test_have_the_same_lengths(variant):
    task = build_task(variant)
    assert set(lengths(task, "train").tolist()) == set(lengths(task, "test").tolist())


def seen_in_training(task, split, batches=8):
    train = {tuple(row) for index in range(batches) for row in rows(examples(task, 500, seed=0, index=index))}
    held_out = [tuple(row) for row in rows(examples(task, 1000, seed=0, split=split))]
    return sum(row in train for row in held_out)


@pytest.mark.parametrize("split", ["test", "long"])
@pytest.mark.parametrize("variant", [*(v for v in DEFAULTS if v != "parity"), "parity:shortest=40,longest=50"])
def test_held_out_examples_are_not_seen_in_training(variant, split):
    assert seen_in_training(build_task(variant), split) == 0


def test_short_parity_is_seen_in_training_as_its_docstring_says():
    """Also the control of the test above."""
    assert seen_in_training(build_task("parity"), "test") > 100
    assert seen_in_training(build_task("parity"), "long") == 0


@pytest.mark.parametrize("variant", DEFAULTS)
def test_taking_some_examples_keeps_them_whole(variant):
    batch = examples(build_task(variant), 40, seed=0)
    parts = list(batch.batches(16))
    assert [len(part) for part in parts] == [16, 16, 8]
    assert [row for part in parts for row in rows(part)] == rows(batch)
    assert all(part.token_ids.shape[1] == int(part.lengths.max()) for part in parts)

"""Labels are what a plain loop finds in the token ids, and nothing is ambiguous."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from task_oracles import DEFAULTS, VARIANTS, Ambiguous, answers, asked, rows

from wherefrom.tasks import IGNORED, PAD, build_task, examples

SPLITS = ["train", "test", "long"]


def check_labels(task, batch):
    assert batch.labels.tolist() == answers(batch, rows(batch), task.config)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_labels_follow_from_the_token_ids(variant, split):
    task = build_task(variant)
    for index in (0, 1, 0):
        check_labels(task, examples(task, 150, seed=3, split=split, index=index))


@pytest.mark.parametrize("variant", DEFAULTS)
def test_labels_of_other_examples_are_noticed(variant):
    """Control: the loops do tell right labels from wrong ones."""
    task = build_task(variant)
    batch = examples(task, 150, seed=3)
    wrong = torch.where(batch.labels == IGNORED, IGNORED, (batch.labels + 1) % task.classes)
    with pytest.raises(AssertionError):
        check_labels(task, dataclasses.replace(batch, labels=wrong))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_types_and_ranges(variant, split):
    task = build_task(variant)
    batch = examples(task, 200, seed=0, split=split)
    assert len(batch) == 200
    assert batch.lengths.shape == (200,)
    assert batch.token_ids.shape == (200, int(batch.lengths.max()))
    assert batch.labels.shape == (batch.token_ids.shape if task.readout == "tokens" else (200,))
    inside = torch.arange(batch.token_ids.shape[1])[None] < batch.lengths[:, None]
    assert torch.equal(batch.token_ids != PAD, inside)
    assert int(batch.token_ids.max()) < task.vocabulary
    assert int(batch.token_ids.min()) >= 0
    assert 0 <= int(asked(batch).min()) <= int(asked(batch).max()) < task.classes
    for values in (batch.token_ids, batch.lengths, batch.labels, *batch.facts.values()):
        assert values.dtype == torch.int64
    for fact in batch.facts.values():
        assert fact.shape == (200,)
    assert torch.equal(batch.facts["length"], batch.lengths)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_token_id_occurs(variant):
    """No id is kept for nothing: the whole vocabulary is seen in training, whatever is seen in the longer split."""
    task = build_task(variant)
    seen = set()
    for index in range(12):
        seen |= set(examples(task, 500, seed=0, index=index).token_ids.flatten().tolist())
    assert seen | {PAD} == set(range(task.vocabulary))


COLLIDING = "distance:vocabulary=20,max_between=6,side=3,published_collisions=true"


def test_published_collisions_make_answers_ambiguous():
    task = build_task(COLLIDING)
    with pytest.raises(Ambiguous):
        check_labels(task, examples(task, 150, seed=0))
    clean = build_task(COLLIDING.replace("true", "false"))
    check_labels(clean, examples(clean, 150, seed=0))


def test_the_published_vocabulary_collides_in_some_samples_only():
    task = build_task("distance:published_collisions=true")
    batch = examples(task, 400, seed=0)
    doubled = sum(row.count(1) > 1 or row.count(2) > 1 for row in rows(batch))
    # 25 to 120 random tokens, each one of 2 triggers among 573 ids: some 25 in 100.
    assert 0.1 < doubled / 400 < 0.45


def test_facts_are_what_they_are_called():
    for name in ("distance", "count"):
        batch = examples(build_task(name), 50, seed=0)
        assert torch.equal(batch.facts[name], batch.labels)
    task = build_task("index")
    batch = examples(task, 50, seed=0)
    assert torch.equal(batch.facts["index"], batch.token_ids[:, 0] - 1 - task.config.symbols)
    batch = examples(build_task("copy"), 50, seed=0)
    assert torch.equal(batch.facts["copied"], (batch.labels != IGNORED).sum(dim=1))

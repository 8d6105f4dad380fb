"""What shuffling the tokens does to the answer, and which shortcuts the docstrings own up to."""

from __future__ import annotations

import random

import pytest
import torch
from task_oracles import DEFAULTS, VARIANTS, answers, rows

from wherefrom.tasks import build_task, examples


def changed_by_shuffling(task, split="train"):
    """Share of the examples whose answer another order of the same tokens changes."""
    batch = examples(task, 300, seed=2, split=split)
    shuffler = random.Random(0)
    shuffled = [shuffler.sample(row, len(row)) for row in rows(batch)]
    if batch.labels.ndim == 1:
        before, after = batch.labels.tolist(), answers(batch, shuffled, task.config)
    else:  # blanks move as well; what is written on them, in order, is the answer
        before, after = (answers(batch, some, task.config) for some in (rows(batch), shuffled))
        before, after = ([[label for label in row if label >= 0] for row in some] for some in (before, after))
    return sum(a != b for a, b in zip(before, after, strict=True)) / len(batch)


def check_declared(positional, changed):
    # Not all of them: a copy of one symbol, or of two equal ones, has one order only.
    assert changed > 0.2 if positional else changed == 0


@pytest.mark.parametrize("split", ["train", "long"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tasks_depend_on_order_as_they_declare(variant, split):
    task = build_task(variant)
    check_declared(task.positional, changed_by_shuffling(task, split))


@pytest.mark.parametrize("variant", DEFAULTS)
def test_a_wrong_declaration_is_noticed(variant):
    """Control."""
    task = build_task(variant)
    with pytest.raises(AssertionError):
        check_declared(not task.positional, changed_by_shuffling(task))


def known_from(clue, labels):
    """Share of the examples whose label is the commonest one among those with the same clue."""
    groups: dict[int, list[int]] = {}
    for value, label in zip(clue.tolist(), labels.tolist(), strict=True):
        groups.setdefault(value, []).append(label)
    return sum(max(group.count(label) for label in set(group)) for group in groups.values()) / len(labels)


def clues(setting):
    batch = examples(build_task(setting), 3000, seed=0)
    second_trigger = (batch.token_ids == 2).int().argmax(dim=1)
    return known_from(batch.lengths, batch.labels), known_from(second_trigger, batch.labels)


def test_shortcuts_of_the_published_distance_task():
    """As published, the length alone tells the distance, and so does the place of the second trigger alone."""
    small = "distance:max_between=9,side=4"
    assert clues(small) == (1.0, 1.0)
    length, place = clues(f"{small},shift=9")
    assert max(length, place) < 0.5
    length, place = clues(f"{small},shift=9,same_length=true")
    assert length < 0.15
    assert place < 0.5


def test_same_length_holds_in_every_split():
    task = build_task("distance:max_between=9,side=4,shift=3,same_length=true")
    for split in ("train", "test", "long"):
        assert len(examples(task, 300, seed=0, split=split).lengths.unique()) == 1


@pytest.mark.parametrize("setting", ["index", "index:copies=3,symbols=4,pointer=last"])
def test_a_bag_of_tokens_is_at_chance_on_index(setting):
    """The symbols are the same in every example, and the named place alone tells nothing of the answer."""
    task = build_task(setting)
    batch = examples(task, 4000, seed=0)
    bags = {tuple(sorted(t for t in row if t <= task.config.symbols)) for row in rows(batch)}
    assert len(bags) == 1
    assert known_from(batch.facts["index"], batch.labels) < 2 * task.chance()
    # Control: the symbols of `copy` differ from example to example.
    copies = examples(build_task("copy:shortest=16"), 100, seed=0)
    assert len({tuple(sorted(row)) for row in rows(copies)}) == 100


def test_the_question_of_recall_is_answered_once():
    task = build_task("recall")
    for split in ("train", "long"):
        batch = examples(task, 300, seed=0, split=split)
        keys = (batch.token_ids[:, :-1] - 1) // task.config.values
        question = batch.token_ids[:, -1:] - 1 - task.config.keys * task.config.values
        assert torch.equal((keys == question).sum(dim=1), torch.ones(300, dtype=torch.int64))

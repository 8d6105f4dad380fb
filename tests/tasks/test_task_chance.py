"""Every answer occurs, and `chance()` is what the best constant answer scores."""

from __future__ import annotations

import math

import pytest
import torch
from task_oracles import DEFAULTS, VARIANTS, asked

from wherefrom.tasks import build_task, examples

DRAWS = 12000


def labels_of(task, split, index):
    return asked(examples(task, DRAWS, seed=1, split=split, index=index))


def check_chance(task, claimed, split):
    """Choose the best constant answer on one half of the draws, score it on the other."""
    chosen = torch.bincount(labels_of(task, split, 0)).argmax()
    score = (labels_of(task, split, 1) == chosen).double()
    # Answers within one example of `copy` are independent of each other, so each counts.
    error = math.sqrt(claimed * (1 - claimed) / len(score))
    assert abs(float(score.mean()) - claimed) < 4.5 * error


@pytest.mark.parametrize("split", ["train", "test", "long"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_chance_is_the_score_of_the_best_constant_answer(variant, split):
    task = build_task(variant)
    check_chance(task, task.chance(), split)


@pytest.mark.parametrize("variant", DEFAULTS)
@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_another_chance_is_noticed(variant, factor):
    """Control."""
    task = build_task(variant)
    with pytest.raises(AssertionError):
        check_chance(task, task.chance() * factor, "train")


@pytest.mark.parametrize("split", ["train", "test", "long"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_answer_occurs_and_all_are_equally_likely(variant, split):
    task = build_task(variant)
    found = torch.bincount(labels_of(task, split, 2), minlength=task.classes).double()
    assert len(found) == task.classes
    assert float(found.min()) > 0
    expected = found.sum() / task.classes
    surplus = float(((found - expected) ** 2 / expected).sum()) - (task.classes - 1)
    assert surplus < 5 * math.sqrt(2 * task.classes)


def test_counts_of_tokens_drawn_alike_would_not_be_uniform():
    """Control: had `count` drawn each token alike, the test above would have found out."""
    drawn = torch.randint(1, 574, (DRAWS, 120), generator=torch.Generator().manual_seed(0))
    found = torch.bincount((drawn <= 30).sum(dim=1), minlength=31).double()
    expected = found.sum() / 31
    assert float(((found - expected) ** 2 / expected).sum()) - 30 > 5 * math.sqrt(2 * 31)
    assert float(found.max() / found.sum()) > 3 * build_task("count").chance()

"""Held-out scores of a model on a task: loss and accuracy, in total and by what the task reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wherefrom.models.toy import ToyTransformer
from wherefrom.rows import Row
from wherefrom.tasks import Task, examples
from wherefrom.tasks.base import IGNORED, Examples, Split

BATCH = 256
FACTS: dict[str, str] = {"distance": "offset", "length": "length"}
"""Fact of a task: the column of a row that holds it."""


@dataclass(frozen=True)
class Scores:
    """One number per held-out example."""

    loss: Tensor
    """(example,) mean cross-entropy of its answers, nats."""
    correct: Tensor
    """(example,) share of its answers that are right: 0 or 1 for a task with one answer."""
    facts: dict[str, Tensor]
    """(example,) what accuracy is reported by."""

    def rows(self, split: str, step: int | None) -> Iterator[Row]:
        """Loss and accuracy with standard errors over examples; accuracy also by each fact."""
        for metric, values, unit in (("loss", self.loss, "nats"), ("accuracy", self.correct, "share")):
            value, stderr = mean_and_error(values)
            yield Row("training", f"{split}_{metric}", value, unit, len(values), stderr, step=step)
        for fact, column in FACTS.items():
            for at in self.facts.get(fact, torch.empty(0)).unique().tolist():
                chosen = self.correct[self.facts[fact] == at]
                value, stderr = mean_and_error(chosen)
                row = Row("training", f"{split}_accuracy_by_{fact}", value, "share", len(chosen), stderr, step=step)
                where: dict[str, Any] = {column: int(at)}
                yield dataclasses.replace(row, **where)


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """Mean and its standard error over examples; None for one example."""
    wide = values.double()
    error = float(wide.std() / len(wide) ** 0.5) if len(wide) > 1 else None
    return float(wide.mean()), error


def per_example(output_logits: Tensor, batch: Examples) -> tuple[Tensor, Tensor]:
    """Loss (nats) and share of right answers of each example: (batch,) twice."""
    labels = batch.labels
    wide = output_logits if output_logits.dtype == torch.float64 else output_logits.float()
    losses = F.cross_entropy(wide.flatten(0, -2), labels.flatten(), reduction="none")
    right = (output_logits.argmax(-1) == labels).to(losses.dtype)
    if labels.ndim == 1:
        return losses, right
    asked = (labels != IGNORED).to(losses.dtype)
    count = asked.sum(1)
    return (losses.view_as(labels) * asked).sum(1) / count, (right * asked).sum(1) / count


def held_out(task: Task, count: int, split: Split = "test", seed: int = 0) -> Examples:
    """The examples a score is taken on. The same for every training seed, so that models can be compared in pairs."""
    return examples(task, count, seed, split)


@torch.no_grad()
def score(model: ToyTransformer, data: Examples) -> Scores:
    """Loss and accuracy of each example, in evaluation mode; the model's mode is put back."""
    device = next(model.parameters()).device
    losses, right = [], []
    was_training = model.training
    model.eval()
    try:
        for batch in data.batches(BATCH):
            on_device = batch.to(device)
            found = per_example(model(on_device.token_ids, on_device.lengths).logits, on_device)
            losses.append(found[0].cpu())
            right.append(found[1].cpu())
    finally:
        model.train(was_training)
    return Scores(torch.cat(losses), torch.cat(right), data.facts)

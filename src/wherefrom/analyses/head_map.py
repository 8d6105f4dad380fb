"""The result of an ablation map: one number per head and example, so that every error bar can be paired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.rows import Row


@dataclass(frozen=True)
class PerExample:
    """Scores of one evaluation, one number per held-out example."""

    loss: Tensor
    """(example,) nats: mean cross-entropy of the example's answers, or of its next tokens."""
    correct: Tensor | None = None
    """(example,) share of its answers that are right; None for a checkpoint, which is scored by its loss."""


@dataclass(frozen=True)
class HeadMap:
    """Every head of every layer ablated alone, on the same examples."""

    how: str
    """`zero`, `mean` or `resample`."""
    base: PerExample
    """The model with all its heads."""
    loss: Mapping[int, Tensor]
    """layer -> (head example), nats, without the head."""
    correct: Mapping[int, Tensor] | None = None
    """layer -> (head example), share of right answers without the head; None for a checkpoint."""

    @property
    def examples(self) -> int:
        """Number of examples."""
        return len(self.base.loss)

    @property
    def metric(self) -> str:
        """What the map is read by: `drop` (accuracy lost), or `loss_rise` where there is no accuracy."""
        return "loss_rise" if self.correct is None else "drop"

    def loss_rise(self) -> dict[int, Tensor]:
        """Loss gained without each head, layer -> (head example), nats, float64."""
        return {layer: values.double() - self.base.loss.double() for layer, values in self.loss.items()}

    def drop(self) -> dict[int, Tensor]:
        """Accuracy lost without each head, layer -> (head example), float64; empty for a checkpoint."""
        if self.correct is None or self.base.correct is None:
            return {}
        whole = self.base.correct.double()
        return {layer: whole - values.double() for layer, values in self.correct.items()}

    def effect(self) -> dict[int, Tensor]:
        """`drop`, or `loss_rise` for a checkpoint: layer -> (head example), float64."""
        return self.loss_rise() if self.correct is None else self.drop()

    def rows(self) -> list[Row]:
        """Rows of analysis `heads`: `drop` (share) and `loss_rise` (nats) by layer and head, `edit` = how.

        Standard errors are those of the mean of paired differences over examples.
        """
        rows = []
        for metric, unit, layers in (("drop", "share", self.drop()), ("loss_rise", "nats", self.loss_rise())):
            for layer, values in layers.items():
                for head, (value, error) in enumerate(zip(*mean_and_error(values), strict=True)):
                    rows.append(Row("heads", metric, value, unit, self.examples, error, self.how, layer, head))
        return rows

    def base_rows(self) -> list[Row]:
        """Rows of analysis `heads` about the whole model: `accuracy` and `loss`, `edit` = none."""
        rows = []
        for metric, unit, values in (("accuracy", "share", self.base.correct), ("loss", "nats", self.base.loss)):
            if values is not None:
                (value,), (error,) = mean_and_error(values.double()[None])
                rows.append(Row("heads", metric, value, unit, self.examples, error))
        return rows


def mean_and_error(values: Tensor) -> tuple[list[float], list[float | None]]:
    """Mean over examples and its standard error of (head example); no error for one example."""
    n = values.shape[1]
    errors: list[float | None] = [None] * len(values)
    if n > 1:
        errors = list((values.std(1) / n**0.5).tolist())
    return values.mean(1).tolist(), errors


def stacked(parts: list[Tensor], order: Tensor) -> Tensor:
    """Parts along the last axis, put back from the order in which the examples were taken."""
    joined = torch.cat(parts, -1)
    found = torch.empty_like(joined)
    found[..., order] = joined
    return found

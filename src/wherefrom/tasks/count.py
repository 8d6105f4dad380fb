"""How many trigger tokens a sequence holds: task 2 of paper [G]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from wherefrom.errors import BadInput
from wherefrom.settings import check_count
from wherefrom.tasks.base import Examples, Split, Task, TaskConfig
from wherefrom.tasks.draws import integers, orders


@dataclass(frozen=True, slots=True)
class CountConfig(TaskConfig):
    """Settings of the counting task."""

    name: ClassVar[str] = "count"

    vocabulary: int = 574
    """Number of token ids, PAD and the triggers included."""
    length: int = 120
    """Tokens in a sequence."""
    triggers: int = 30
    """Number of different trigger tokens: ids 1 to `triggers`."""
    max_count: int = 30
    """Most triggers in one sequence."""
    long_length: int | None = None
    """Tokens in a sequence of the `long` split; None: twice `length`."""

    def __post_init__(self) -> None:
        check_count(self.name, "length", self.length)
        check_count(self.name, "triggers", self.triggers)
        check_count(self.name, "max_count", self.max_count)
        check_count(self.name, "vocabulary", self.vocabulary)
        if self.vocabulary < self.triggers + 2:
            raise BadInput(
                f"`vocabulary` of `count` is {self.vocabulary}, which leaves nothing but PAD and {self.triggers} "
                f"triggers; use at least {self.triggers + 2}."
            )
        if self.max_count > self.length:
            raise BadInput(
                f"`max_count` of `count` is {self.max_count}, more than the {self.length} tokens of a sequence; "
                f"use at most {self.length}."
            )
        if self.long_length is not None:
            check_count(self.name, "long_length", self.long_length, least=self.length + 1)

    def length_in(self, split: Split) -> int:
        """Tokens in a sequence of one split."""
        if split != "long":
            return self.length
        return 2 * self.length if self.long_length is None else self.long_length


class Count(Task):
    """How many trigger tokens a sequence holds.

    Input: `length` random tokens, of which 0 to max_count, at random places, are drawn from the `triggers` trigger ids
    and all others from the remaining ids.

    Answer: the number of trigger tokens, repeats included: 0 to max_count, all equally likely.

    Source: paper [G], Gu et al., arXiv 2505.13027, task 2 (120 tokens, 30 trigger words); that all counts
    are equally likely is our choice

    Were every token drawn alike, 30 of 573 ids would put most counts near 6 and a constant answer far above 1/classes.
    The default max_count of 30 fits either reading of "30 trigger words": a set of 30, or at most 30 of them. The
    `long` split asks for the same counts in longer sequences, where a model that reads the triggers' share in a mean is
    wrong.
    """

    positional = False
    config: CountConfig

    def __init__(self, config: CountConfig) -> None:
        super().__init__(config)
        self.vocabulary = config.vocabulary
        self.classes = config.max_count + 1
        self.trained_length = config.length_in("train")
        self.max_length = config.length_in("long")

    def draw(self, count: int, generator: torch.Generator, split: Split = "train") -> Examples:
        """`count` examples with facts `count` (the answer) and `length`."""
        config = self.config
        shape = (count, config.length_in(split))
        labels = integers(0, config.max_count, (count,), generator)
        is_trigger = orders(*shape, generator) < labels[:, None]
        triggers = integers(1, config.triggers, shape, generator)
        others = integers(config.triggers + 1, config.vocabulary - 1, shape, generator)
        lengths = torch.full_like(labels, shape[1])
        facts = {"count": labels, "length": lengths}
        return Examples(torch.where(is_trigger, triggers, others), lengths, labels, facts)

    def chance(self) -> float:
        """One over the number of counts: all are equally likely."""
        return 1 / self.classes

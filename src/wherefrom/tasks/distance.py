"""How many tokens lie between two triggers: task 1 of paper [G]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from wherefrom.errors import BadInput
from wherefrom.settings import check_count
from wherefrom.tasks.base import Examples, Split, Task, TaskConfig
from wherefrom.tasks.draws import integers, pad

FIRST, SECOND, FIRST_WORD = 1, 2, 3


@dataclass(frozen=True, slots=True)
class DistanceConfig(TaskConfig):
    """Settings of the distance task."""

    name: ClassVar[str] = "distance"

    vocabulary: int = 574
    """Number of token ids, PAD and the two triggers included."""
    max_between: int = 70
    """Most tokens between the triggers."""
    side: int = 25
    """Tokens before the first trigger and after the second."""
    shift: int = 0
    """Most tokens by which the left side is longer than `side`, drawn anew for each example."""
    same_length: bool = False
    """Whether the right side is longer where the rest is shorter, so that the length of the sequence tells nothing."""
    published_collisions: bool = False
    """Whether triggers also appear as random tokens, as in the published code, which makes some answers ambiguous."""
    long_side: int | None = None
    """Side in the `long` split; None: the shortest that makes all of it longer than anything in training."""

    def __post_init__(self) -> None:
        check_count(self.name, "vocabulary", self.vocabulary, least=FIRST_WORD + 1)
        check_count(self.name, "max_between", self.max_between)
        check_count(self.name, "side", self.side, least=0)
        check_count(self.name, "shift", self.shift, least=0)
        if self.long_side is not None:
            check_count(self.name, "long_side", self.long_side, least=0)
            if self.long_side < self.shortest_long_side():
                raise BadInput(
                    f"`long_side` of `distance` is {self.long_side}, so that some of the `long` split would be no "
                    f"longer than training; use at least {self.shortest_long_side()}."
                )

    def shortest_long_side(self) -> int:
        """The side at which even a `long` example with nothing between is longer than any in training."""
        return self.side + (self.shift + self.max_between) // 2 + 1

    def side_in(self, split: Split) -> int:
        """Tokens on a side in one split, before any shift."""
        if split != "long":
            return self.side
        return self.shortest_long_side() if self.long_side is None else self.long_side

    def longest_in(self, split: Split) -> int:
        """Longest sequence of one split, in tokens."""
        return 2 * self.side_in(split) + self.shift + self.max_between + 2


class Distance(Task):
    """How many tokens lie between two triggers.

    Input: random tokens with a first trigger (id 1), then 0 to max_between tokens, then a second trigger (id 2); `side`
    tokens stand before the first and after the second. Neither trigger occurs elsewhere.

    Answer: the number of tokens between the triggers, 0 to max_between, all equally likely.

    Source: paper [G], Gu et al., arXiv 2505.13027, task 1 (574 ids, at most 70 tokens between, 25 on each side)

    As published, distance is not the only way to the answer. The left side is fixed, so an absolute encoding can read
    the answer off the place of the second trigger alone: with `shift` above 0 that place leaves several answers open.
    And the sequence is as long as the distance plus a constant, so a model that can count its tokens, or sees the
    triggers' share in a mean, needs no order at all: `same_length` takes that away.
    """

    config: DistanceConfig

    def __init__(self, config: DistanceConfig) -> None:
        super().__init__(config)
        self.vocabulary = config.vocabulary
        self.classes = config.max_between + 1
        self.trained_length = config.longest_in("train")
        self.max_length = config.longest_in("long")

    def draw(self, count: int, generator: torch.Generator, split: Split = "train") -> Examples:
        """`count` examples with facts `distance` (tokens between) and `length`."""
        config = self.config
        side = config.side_in(split)
        left = integers(side, side + config.shift, (count,), generator)
        between = integers(0, config.max_between, (count,), generator)
        lengths = left + between + 2 + side
        if config.same_length:
            lengths = torch.full_like(lengths, config.longest_in(split))
        lowest = FIRST if config.published_collisions else FIRST_WORD
        token_ids = integers(lowest, config.vocabulary - 1, (count, int(lengths.max())), generator)
        token_ids.scatter_(1, left[:, None], FIRST)
        token_ids.scatter_(1, (left + between + 1)[:, None], SECOND)
        return Examples(pad(token_ids, lengths), lengths, between, {"distance": between, "length": lengths})

    def chance(self) -> float:
        """One over the number of distances: all are equally likely."""
        return 1 / self.classes

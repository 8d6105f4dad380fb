"""Whether the number of ones is odd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from wherefrom.errors import BadInput
from wherefrom.settings import check_count
from wherefrom.tasks.base import Examples, Split, Task, TaskConfig
from wherefrom.tasks.draws import integers, pad

ZERO, ONE = 1, 2


@dataclass(frozen=True, slots=True)
class ParityConfig(TaskConfig):
    """Settings of the parity task."""

    name: ClassVar[str] = "parity"

    shortest: int = 8
    """Fewest bits."""
    longest: int = 16
    """Most bits in training."""
    long_longest: int | None = None
    """Most bits in the `long` split, whose fewest are longest + 1; None: twice `longest`."""

    def __post_init__(self) -> None:
        check_count(self.name, "shortest", self.shortest)
        check_count(self.name, "longest", self.longest)
        if self.longest < self.shortest:
            raise BadInput(
                f"`longest` of `parity` is {self.longest}, less than `shortest`, {self.shortest}; exchange or raise it."
            )
        if self.long_longest is not None:
            check_count(self.name, "long_longest", self.long_longest, least=self.longest + 1)

    def sizes_in(self, split: Split) -> tuple[int, int]:
        """Fewest and most bits in one split."""
        if split != "long":
            return self.shortest, self.longest
        return self.longest + 1, 2 * self.longest if self.long_longest is None else self.long_longest


class Parity(Task):
    """Whether the number of ones is odd.

    Input: n random bits (ids 1 for zero and 2 for one), n from `shortest` to `longest`, all equally likely.

    Answer: 1 where the number of ones is odd, 0 where it is even, both equally likely.

    Source: Hahn, arXiv 1906.06755, where it shows limits of self-attention

    There are only 2^n sequences of n bits, so many of the `test` split occur in training too. Raise `shortest` to 30 or
    more where held out must mean unseen; the `long` split is unseen always.
    """

    positional = False
    classes = 2
    vocabulary = ONE + 1
    config: ParityConfig

    def __init__(self, config: ParityConfig) -> None:
        super().__init__(config)
        self.trained_length = config.sizes_in("train")[1]
        self.max_length = config.sizes_in("long")[1]

    def draw(self, count: int, generator: torch.Generator, split: Split = "train") -> Examples:
        """`count` examples with the fact `length`."""
        fewest, most = self.config.sizes_in(split)
        lengths = integers(fewest, most, (count,), generator)
        token_ids = pad(integers(ZERO, ONE, (count, most), generator), lengths)
        labels = (token_ids == ONE).sum(dim=1) % 2
        return Examples(token_ids, lengths, labels, {"length": lengths})

    def chance(self) -> float:
        """One half: of all sequences of n bits, half are odd."""
        return 1 / self.classes

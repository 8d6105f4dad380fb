"""Looking up a value by its key, wherever it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from wherefrom.errors import BadInput
from wherefrom.settings import check_count
from wherefrom.tasks.base import Examples, Split, Task, TaskConfig
from wherefrom.tasks.draws import integers, orders


@dataclass(frozen=True, slots=True)
class RecallConfig(TaskConfig):
    """Settings of the recall task."""

    name: ClassVar[str] = "recall"

    keys: int = 16
    """Number of keys."""
    values: int = 8
    """Number of values, which are the answers."""
    pairs: int = 8
    """Pairs in a sequence, each with another key."""
    long_pairs: int | None = None
    """Pairs in a sequence of the `long` split; None: twice `pairs`."""

    def __post_init__(self) -> None:
        check_count(self.name, "keys", self.keys)
        check_count(self.name, "values", self.values, least=2)
        check_count(self.name, "pairs", self.pairs)
        if self.long_pairs is not None:
            check_count(self.name, "long_pairs", self.long_pairs, least=self.pairs + 1)
        if self.keys < self.pairs_in("long"):
            raise BadInput(
                f"`keys` of `recall` is {self.keys}, too few for the {self.pairs_in('long')} pairs with different keys "
                f"in a sequence of the `long` split; use at least {self.pairs_in('long')}, or set `long_pairs`."
            )

    def pairs_in(self, split: Split) -> int:
        """Pairs in a sequence of one split."""
        if split != "long":
            return self.pairs
        return 2 * self.pairs if self.long_pairs is None else self.long_pairs


class Recall(Task):
    """Which value belongs to the key that the last token asks for.

    Input: `pairs` tokens, each a key and a value in one (id 1 + key · values + value), no key twice; then a token that
    asks for one of their keys (id 1 + keys · values + key).

    Answer: the value of the token with that key, all equally likely.

    Source: ours, after associative recall as in Arora et al., arXiv 2312.04927, where key and value are two tokens,
    which needs order to tell what belongs together

    The question has ids of its own, so it can be found at any place, and order is not needed at all.
    """

    positional = False
    config: RecallConfig

    def __init__(self, config: RecallConfig) -> None:
        super().__init__(config)
        self.vocabulary = 1 + config.keys * config.values + config.keys
        self.classes = config.values
        self.trained_length = config.pairs_in("train") + 1
        self.max_length = config.pairs_in("long") + 1

    def draw(self, count: int, generator: torch.Generator, split: Split = "train") -> Examples:
        """`count` examples with the fact `length`."""
        config = self.config
        pairs = config.pairs_in(split)
        keys = orders(count, config.keys, generator)[:, :pairs]
        values = integers(0, config.values - 1, (count, pairs), generator)
        asked = integers(0, pairs - 1, (count, 1), generator)
        questions = 1 + config.keys * config.values + keys.gather(1, asked)
        token_ids = torch.cat((1 + keys * config.values + values, questions), dim=1)
        lengths = torch.full((count,), pairs + 1, dtype=torch.int64)
        return Examples(token_ids, lengths, values.gather(1, asked)[:, 0], {"length": lengths})

    def chance(self) -> float:
        """One over the number of values: all are equally likely."""
        return 1 / self.classes

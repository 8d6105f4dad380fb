"""Which token stands at a named place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch

from wherefrom.settings import check_choice, check_count
from wherefrom.tasks.base import Examples, Split, Task, TaskConfig
from wherefrom.tasks.draws import integers, orders

End = Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class IndexConfig(TaskConfig):
    """Settings of the index task."""

    name: ClassVar[str] = "index"

    symbols: int = 16
    """Number of symbols, which are the answers."""
    copies: int = 1
    """How often each symbol occurs in a sequence."""
    pointer: End = "first"
    """Where the token stands that names the place: `first` or `last`."""
    long_copies: int | None = None
    """How often each symbol occurs in a sequence of the `long` split; None: twice `copies`."""

    def __post_init__(self) -> None:
        check_count(self.name, "symbols", self.symbols, least=2)
        check_count(self.name, "copies", self.copies)
        check_choice(self.name, "pointer", self.pointer, get_args(End))
        if self.long_copies is not None:
            check_count(self.name, "long_copies", self.long_copies, least=self.copies + 1)

    def copies_in(self, split: Split) -> int:
        """How often each symbol occurs in a sequence of one split."""
        if split != "long":
            return self.copies
        return 2 * self.copies if self.long_copies is None else self.long_copies


class Index(Task):
    """Which symbol stands at the place that one token names.

    Input: every symbol `copies` times, in random order (ids 1 to symbols), and before or behind them a token that
    names a place k among them, counted from 0 (id 1 + symbols + k), all places of training equally likely.

    Answer: the symbol at place k, less 1, all equally likely.

    Source: ours; every symbol occurs equally often, so that which symbols there are tells nothing, and a bag of tokens
    is at chance

    The `long` split has more symbols and names the same places. With the token in front, the place named lies k+1
    tokens behind it in every split; with the token at the end its offset changes from split to split, its absolute
    place does not.
    """

    config: IndexConfig

    def __init__(self, config: IndexConfig) -> None:
        super().__init__(config)
        self.places = config.symbols * config.copies
        self.vocabulary = 1 + config.symbols + self.places
        self.classes = config.symbols
        self.trained_length = self.places + 1
        self.max_length = config.symbols * config.copies_in("long") + 1

    def draw(self, count: int, generator: torch.Generator, split: Split = "train") -> Examples:
        """`count` examples with facts `index` (the place k) and `length`."""
        config = self.config
        size = config.symbols * config.copies_in(split)
        symbols = orders(count, size, generator) % config.symbols
        place = integers(0, self.places - 1, (count, 1), generator)
        pointer, content = 1 + config.symbols + place, 1 + symbols
        parts = (pointer, content) if config.pointer == "first" else (content, pointer)
        lengths = torch.full((count,), size + 1, dtype=torch.int64)
        facts = {"index": place[:, 0], "length": lengths}
        return Examples(torch.cat(parts, dim=1), lengths, symbols.gather(1, place)[:, 0], facts)

    def chance(self) -> float:
        """One over the number of symbols: all are equally likely."""
        return 1 / self.classes

"""Writing a sequence down again, forwards or backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from wherefrom.errors import BadInput
from wherefrom.settings import check_count
from wherefrom.tasks.base import IGNORED, Examples, Readout, Split, Task, TaskConfig
from wherefrom.tasks.draws import integers, pad, places

SEPARATOR, BLANK, FIRST_SYMBOL = 1, 2, 3


@dataclass(frozen=True, slots=True)
class CopyConfig(TaskConfig):
    """Settings of the copying task."""

    name: ClassVar[str] = "copy"

    symbols: int = 16
    """Number of symbols, which are the answers."""
    shortest: int = 8
    """Fewest symbols to copy."""
    longest: int = 16
    """Most symbols to copy, in training."""
    reverse: bool = False
    """Whether the last symbol is asked first."""
    long_longest: int | None = None
    """Most symbols to copy in the `long` split, whose fewest are longest + 1; None: twice `longest`."""

    def __post_init__(self) -> None:
        check_count(self.name, "symbols", self.symbols, least=2)
        check_count(self.name, "shortest", self.shortest)
        check_count(self.name, "longest", self.longest)
        if self.longest < self.shortest:
            raise BadInput(
                f"`longest` of `copy` is {self.longest}, less than `shortest`, {self.shortest}; exchange or raise it."
            )
        if self.long_longest is not None:
            check_count(self.name, "long_longest", self.long_longest, least=self.longest + 1)

    def sizes_in(self, split: Split) -> tuple[int, int]:
        """Fewest and most symbols to copy in one split."""
        if split != "long":
            return self.shortest, self.longest
        return self.longest + 1, 2 * self.longest if self.long_longest is None else self.long_longest


class Copy(Task):
    """Which symbol belongs on each blank when a sequence is written down again.

    Input: n random symbols (ids from 3), a separator (id 1), n blanks (id 2); n from `shortest` to `longest`, all
    equally likely.

    Answer: at blank t symbol t, or with `reverse` symbol n+1−t, as its id less 3. All blanks are asked at once;
    none sees an earlier answer.

    Source: ours, after the copying task of Graves et al., arXiv 1410.5401, section 4.1

    Forwards every blank looks n+1 tokens back; backwards blank t looks 2t tokens back. A model that knows which symbols
    occur but not where can only name the most frequent of them, which is more than `chance()`, the best fixed answer.
    """

    readout: Readout = "tokens"
    config: CopyConfig

    def __init__(self, config: CopyConfig) -> None:
        super().__init__(config)
        self.vocabulary = FIRST_SYMBOL + config.symbols
        self.classes = config.symbols
        self.trained_length = 2 * config.sizes_in("train")[1] + 1
        self.max_length = 2 * config.sizes_in("long")[1] + 1

    def draw(self, count: int, generator: torch.Generator, split: Split = "train") -> Examples:
        """`count` examples with facts `copied` (the number n of symbols) and `length`."""
        fewest, most = self.config.sizes_in(split)
        sizes = integers(fewest, most, (count, 1), generator)
        symbols = integers(0, self.config.symbols - 1, (count, most), generator)
        lengths = 2 * sizes[:, 0] + 1
        place = places(lengths)
        blank = (place > sizes) & (place < lengths[:, None])
        # At a blank: the place of its symbol. Elsewhere: the place itself, which for the symbols is where they stand.
        back = 2 * sizes - place if self.config.reverse else place - sizes - 1
        source = torch.where(blank, back, place).clamp(0, most - 1)
        picked = symbols.gather(1, source)
        token_ids = torch.where(place < sizes, FIRST_SYMBOL + picked, BLANK).masked_fill(place == sizes, SEPARATOR)
        labels = picked.masked_fill(~blank, IGNORED)
        return Examples(pad(token_ids, lengths), lengths, labels, {"copied": sizes[:, 0], "length": lengths})

    def chance(self) -> float:
        """One over the number of symbols: all are equally likely."""
        return 1 / self.classes

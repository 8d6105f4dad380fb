"""The next byte of real text: Python's own standard library, or a given file."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.errors import BadInput
from wherefrom.settings import check_count
from wherefrom.tasks.base import Examples, Split, Task, TaskConfig

BOS, FIRST_BYTE = 1, 2
TEST_EVERY = 10
"""One block in so many is held out."""
BLOCK = 1 << 14
"""Bytes of a block: train and test take turns in blocks, so that both hold every kind of text there is."""


@dataclass(frozen=True, slots=True)
class TextConfig(TaskConfig):
    """Settings of the text task."""

    name: ClassVar[str] = "text"

    length: int = 128
    """Tokens in an input, the first one (BOS) included."""
    file: str | None = None
    """Text to learn from; None: the top-level modules of this Python's standard library."""
    long_length: int | None = None
    """Tokens in an input of the `long` split; None: twice `length`."""

    def __post_init__(self) -> None:
        check_count(self.name, "length", self.length, least=4)
        if self.long_length is not None:
            check_count(self.name, "long_length", self.long_length, least=self.length + 1)
        if self.file is not None and not Path(self.file).is_file():
            raise BadInput(f"There is no text file '{self.file}'; check `file` of `text`.")


class Text(Task):
    """The next byte of real text.

    Input: a BOS token, then consecutive bytes of the text from a random place, each as id 2 + byte.

    Answer: at every token the one that follows it; all ids are possible answers.

    Source: ours, for a comparison of architectures in the manner of Ruscio et al., arXiv 2606.06160
    """

    readout = "tokens"
    bos = BOS
    vocabulary = FIRST_BYTE + 256
    classes = FIRST_BYTE + 256
    config: TextConfig

    def __init__(self, config: TextConfig) -> None:
        super().__init__(config)
        self.trained_length = config.length
        self.max_length = config.long_length or 2 * config.length
        self.parts = _parts(config.file)
        shortest = min(len(part) for part in self.parts.values())
        if shortest < self.max_length + 1:
            raise BadInput(
                f"The text holds too little for inputs of {self.max_length} tokens: its held-out part has {shortest} "
                "bytes; use a longer text or a shorter `length`."
            )

    def draw(self, count: int, generator: torch.Generator, split: Split = "train") -> Examples:
        """`count` windows; `long` ones are held out too."""
        part = self.parts["train" if split == "train" else "test"]
        length = self.max_length if split == "long" else self.config.length
        start = torch.randint(0, len(part) - length, (count, 1), generator=generator)
        window = part[start + torch.arange(length)].long() + FIRST_BYTE
        token_ids = torch.cat((torch.full((count, 1), BOS), window[:, :-1]), 1)
        lengths = torch.full((count,), length)
        return Examples(token_ids, lengths, window, {"length": lengths})

    def chance(self) -> float:
        """Share of the commonest byte in the held-out text."""
        counts = torch.bincount(self.parts["test"].long(), minlength=256)
        return float(counts.max() / counts.sum())


@lru_cache(maxsize=4)
def _parts(file: str | None) -> dict[str, Tensor]:
    """The bytes of both parts, (byte,) uint8."""
    try:
        if file is not None:
            data = Path(file).read_bytes()
        else:
            folder = Path(sysconfig.get_paths()["stdlib"])
            data = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    except OSError as error:
        raise BadInput(f"The text cannot be read ({error.strerror}); give another `file` to `text`.") from error
    size = max(1, min(BLOCK, len(data) // (2 * TEST_EVERY)))
    blocks = torch.frombuffer(bytearray(data), dtype=torch.uint8).split(size) if data else ()
    held = [block for number, block in enumerate(blocks) if number % TEST_EVERY == TEST_EVERY - 1]
    kept = [block for number, block in enumerate(blocks) if number % TEST_EVERY != TEST_EVERY - 1]
    empty = torch.empty(0, dtype=torch.uint8)
    return {"train": torch.cat(kept) if kept else empty, "test": torch.cat(held) if held else empty}

"""What a synthetic task is: a pure function from (settings, seed) to token ids, labels and facts about each example.

Token ids are made directly, so a distance in tokens is a distance for the model (published-code.md, rows 11 and 12).
Which examples a seed gives depends on nothing else: not on the device, the process, or what was drawn before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from wherefrom.errors import BadInput
from wherefrom.settings import Settings

PAD = 0
"""Token that fills up shorter sequences, on the right. No task uses it for anything else."""
IGNORED = -100
"""Label of a token about which nothing is asked."""
Split = Literal["train", "test", "long"]
"""`train`; `test`, held out and drawn alike; `long`, held out and longer than anything in training."""
Readout = Literal["sequence", "tokens"]
"""One answer per sequence, or one for each asked token."""


@dataclass(frozen=True, slots=True)
class TaskConfig(Settings):
    """Base of the configurations of tasks."""


@dataclass(frozen=True)
class Examples:
    """A number of examples of one task."""

    token_ids: Tensor
    """(batch length), int64, padded on the right with PAD."""
    lengths: Tensor
    """(batch,): tokens before the padding."""
    labels: Tensor
    """(batch,) for a `sequence` task; (batch length), IGNORED where nothing is asked, for a `tokens` task."""
    facts: dict[str, Tensor] = field(default_factory=dict)
    """What accuracy is reported by, e.g. `distance`, `length`: whole numbers, (batch,)."""

    def __len__(self) -> int:
        return self.token_ids.shape[0]

    def take(self, index: Tensor | slice) -> Examples:
        """Some of the examples, cut to the longest among them."""
        lengths = self.lengths[index]
        longest = int(lengths.max()) if len(lengths) else 0
        labels = self.labels[index]
        return Examples(
            self.token_ids[index][:, :longest],
            lengths,
            labels if labels.ndim == 1 else labels[:, :longest],
            {name: values[index] for name, values in self.facts.items()},
        )

    def batches(self, size: int) -> Iterator[Examples]:
        """All examples in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def to(self, device: torch.device | str) -> Examples:
        """The same examples on another device."""
        moved = {name: values.to(device) for name, values in self.facts.items()}
        return Examples(self.token_ids.to(device), self.lengths.to(device), self.labels.to(device), moved)


class Task:
    """A synthetic task. Subclasses set the sizes and draw examples.

    The class docstring of a subclass has paragraphs that begin with `Input:`, `Answer:` and `Source:`; the list of
    tasks prints them.
    """

    readout: Readout = "sequence"
    """Whether there is one answer per sequence or one per asked token."""
    positional: bool = True
    """Whether the answer depends on the order of the tokens before the padding."""
    bos: int | None = None
    """Token that starts each input of a language task; None: there is none."""
    vocabulary: int
    """Number of token ids, PAD included."""
    classes: int
    """Number of answers."""
    max_length: int
    """Longest sequence in tokens over all splits."""
    trained_length: int
    """Longest sequence in tokens in `train` and `test`."""

    def __init__(self, config: TaskConfig) -> None:
        self.config = config

    def draw(self, count: int, generator: torch.Generator, split: Split = "train") -> Examples:
        """`count` examples from `generator` (on the CPU). `train` and `test` follow one distribution."""
        raise NotImplementedError

    def chance(self) -> float:
        """Accuracy of the best constant answer."""
        raise NotImplementedError


def generator_of(*parts: object, held_out: bool = False) -> torch.Generator:
    """A generator on the CPU whose state is a function of the arguments alone.

    torch keeps 32 bits of a seed, so that two of many batches may be equal by accident (one pair expected in about
    100,000). One bit is kept for `held_out`: no held-out batch starts from the seed of a training batch.
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    seed = int.from_bytes(digest[:4], "little") >> 1
    return torch.Generator("cpu").manual_seed(seed | held_out << 31)


def examples(task: Task, count: int, seed: int, split: Split = "train", index: int = 0) -> Examples:
    """Batch number `index` of a stream of examples: a pure function of the task's settings and these arguments.

    Raises BadInput for an unknown split or a count below 1.
    """
    if split not in get_args(Split):
        raise BadInput(f"There is no split '{split}'; use one of {', '.join(get_args(Split))}.")
    if count < 1:
        raise BadInput(f"{count} examples cannot be drawn; ask for at least 1.")
    generator = generator_of(task.config.spelling(), int(seed), split, int(index), held_out=split != "train")
    with torch.device("cpu"):  # a default device of the caller's changes nothing
        return task.draw(count, generator, split)


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of different length as one table: token ids (batch length) and lengths (batch,)."""
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD), lengths

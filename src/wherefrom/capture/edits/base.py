"""What an edit is: a value handed to one run, never a change to the model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from wherefrom.encodings.masks import MaskRule
from wherefrom.models.hf import Decoder


@dataclass(frozen=True)
class RunInputs:
    """One batch of a trace: token ids of equal length, and which inputs of the whole they are."""

    token_ids: Tensor
    """(batch length)."""
    indices: tuple[int, ...]
    """Index of each row among all inputs; randomness is seeded by it, so batches cannot change a result."""
    first_tokens: Tensor
    """(inputs,): the token at position 0 of every input of the trace, for edits that swap them."""
    seed: int = 0
    """Seed of the trace."""


@dataclass(frozen=True)
class Edit:
    """Base of all edits; does nothing."""

    text: str
    """The edit as written on the command line, e.g. `bos=mean`."""

    def check(self, decoder: Decoder, length: int, first_tokens: Tensor) -> None:
        """Raise BadInput if this model or these inputs cannot take the edit."""

    def rule(self, layer: int, rule: MaskRule) -> MaskRule:
        """The mask rule of `layer` under the edit."""
        return rule

    def installed(self, decoder: Decoder, inputs: RunInputs) -> AbstractContextManager[dict[str, Any] | None]:
        """Context in which the edit is in force; yields extra keyword arguments for the model's forward."""
        return nullcontext()

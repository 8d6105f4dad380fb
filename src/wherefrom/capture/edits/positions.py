"""Edit of the position ids: `positions=+<k>`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wherefrom.capture.edits.base import Edit, RunInputs
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder

MAX_SHIFT = 1 << 23
"""Whole numbers up to twice this are exact in float32, the type rotary angles are formed in."""


@dataclass(frozen=True)
class ShiftPositions(Edit):
    """Position ids start at `shift` instead of 0; tokens and mask stay."""

    shift: int = 0

    def check(self, decoder: Decoder, length: int, first_tokens: Tensor) -> None:
        """The model must take position ids and have room for them."""
        if "position_ids" not in inspect.signature(decoder.body.forward).parameters:
            raise BadInput(f"'{self.text}': the family '{decoder.family}' takes no position ids.")
        limit = decoder.max_length
        if limit is not None and length + self.shift > limit:
            raise BadInput(
                f"'{self.text}': positions up to {length + self.shift - 1} do not fit the model's table of {limit}; "
                "use a smaller shift or --length."
            )

    @contextmanager
    def installed(self, decoder: Decoder, inputs: RunInputs) -> Iterator[dict[str, Any]]:
        """Hand shifted position ids to the forward pass."""
        length = inputs.token_ids.shape[1]
        position = torch.arange(length, device=decoder.device) + self.shift
        yield {"position_ids": position[None].expand(len(inputs.indices), -1)}


def positions(text: str, value: str) -> ShiftPositions:
    """`positions=+<k>`."""
    if not value.removeprefix("+").isdecimal():
        raise BadInput(f"'{text}' needs a shift of 0 or more, e.g. positions=+100.")
    shift = int(value.removeprefix("+"))
    if shift > MAX_SHIFT:
        raise BadInput(f"'{text}' shifts further than {MAX_SHIFT}, where float32 no longer tells positions apart.")
    return ShiftPositions(text, shift)

"""Run the upper part of a decoder again from a recorded stream: what lies below the first changed layer is not redone.

The model's own forward does the work (masks, rotary tables, final norm, output head), so nothing of a family is
re-derived here. A block below the start hands on what it gave in the recorded pass; for the readout the whole stack
does. Both are instance attributes that exist within the context only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.head_projection import HeadProjection, replaced_apart
from wherefrom.errors import CheckFailed
from wherefrom.models.hf import Decoder


@dataclass(frozen=True)
class Recorded:
    """One pass over one input: what each block gave, and what the stack gave."""

    token_ids: Tensor
    """(1 length)."""
    given: list[Any]
    """What each block returned: the stream (1 length dim), or a tuple that starts with it."""
    outcome: Any
    """What the stack returned."""
    hidden: Tensor
    """(1 length dim): what the output head reads."""


@contextmanager
def evaluation(decoder: Decoder) -> Iterator[None]:
    """Evaluation mode without gradients; the model's modes are put back, whatever happens."""
    training = [module for module in decoder.model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def record(decoder: Decoder, token_ids: Tensor) -> Recorded:
    """One plain pass over (1 length) token ids, kept block by block."""
    given: list[Any] = []
    with ExitStack() as stack:
        for block in decoder.blocks:
            stack.callback(block.register_forward_hook(lambda _, __, output: given.append(output)).remove)
        outcome = decoder.body(token_ids.to(decoder.device), use_cache=False)
    if len(given) != len(decoder.blocks):
        raise CheckFailed(f"{len(given)} of {len(decoder.blocks)} blocks ran, so a pass cannot be replayed.")
    return Recorded(token_ids, given, outcome, outcome.last_hidden_state)


def replay(
    decoder: Decoder,
    base: Recorded,
    start: int,
    projection: HeadProjection,
    heads: Sequence[int],
    instead: Tensor | float,
) -> Tensor:
    """The stack's output from block `start` on, one copy of the input per head, each without that head.

    `instead` as in `capture.head_projection.replaced_apart`. Returns (head length dim).
    """
    times = len(heads)
    ids = base.token_ids.to(decoder.device).expand(times, -1)
    with ExitStack() as stack:
        for block, output in zip(decoder.blocks[:start], base.given[:start], strict=True):
            stack.enter_context(_answering(block, _copies(output, times)))
        stack.enter_context(replaced_apart(projection, heads, instead))
        found: Tensor = decoder.body(ids, use_cache=False).last_hidden_state
    return found


def output_logits(decoder: Decoder, base: Recorded, hidden: Tensor) -> Tensor:
    """Vocabulary logits of (row dim) outputs of the stack, by the model's own head: (row vocabulary)."""
    outcome = base.outcome
    kept = outcome.last_hidden_state
    with _answering(decoder.body, outcome):
        try:
            outcome.last_hidden_state = hidden[None]
            ids = base.token_ids.new_zeros(1, len(hidden)).to(decoder.device)
            found: Tensor = decoder.model(ids, use_cache=False).logits
        finally:
            outcome.last_hidden_state = kept
    return found[0]


def _copies(output: Any, times: int) -> Any:
    if isinstance(output, tuple):
        return (_copies(output[0], times), *output[1:])
    return output.expand(times, *output.shape[1:])


@contextmanager
def _answering(module: nn.Module, output: Any) -> Iterator[None]:
    """Within the context the module does not run: it gives `output`."""

    def forward(*_: Any, **__: Any) -> Any:
        return output

    set_before: Callable[..., Any] | None = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if set_before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = set_before

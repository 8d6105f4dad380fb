"""Does the split close, and is the rotation that it undoes really the model's? One input, all layers.

Closure: the four Gram terms of the vectors that entered the dot product, each part turned on its own, against the
logits. Rotation: the vectors that the model makes when its rotary modules are told not to turn, turned by the rotation
as read, against the vectors that it makes in earnest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits.base import RunInputs
from wherefrom.capture.kernels import widen
from wherefrom.capture.rotary_probe import RotaryWatch, Table, watched_rotation
from wherefrom.capture.rotation import Rotation
from wherefrom.capture.session import run
from wherefrom.capture.split_pass import SplitPass
from wherefrom.capture.split_sums import SplitSums
from wherefrom.encodings.kernels import gram_terms
from wherefrom.errors import CheckFailed

LONGEST = 1024
"""Tokens of the checking pass at most: it keeps every layer's hidden states."""
ROUNDINGS = 1000
"""Roundings of the model's precision, at the size of the largest term, that a closing split may be off by."""


@dataclass
class ClosureCheck:
    """What the check found."""

    closure: float = 0.0
    """Largest |sum of the four terms - logit| over layers, heads and checked entries, in nats."""
    allowed: float = 0.0
    """What rounding explains, in nats."""
    rotation: float = 0.0
    """Largest difference between vectors turned by us and by the model, relative to the largest entry."""
    rotation_layer: int = -1
    """The layer it was found in."""


def split_call(
    call: AttentionCall, rows: range, query_mean: Tensor, key_mean: Tensor, turns: tuple[Rotation, Rotation]
) -> tuple[dict[str, Tensor], Tensor]:
    """The four terms of one captured call's first input, and the logits they must add up to: (head row key), in nats.

    `query_mean` (head row dim) and `key_mean` (head key dim): position parts before the turn. Terms are named as in
    `kernels.gram_terms`.
    """
    index = torch.tensor(list(rows), device=call.query.device)
    x = widen(call.query[0])[:, index] * call.scale
    y = widen(call.key[0]).repeat_interleave(call.group, 0)
    query, key = turns[0].undo(x, index), turns[1].undo(y)
    position = (query_mean.to(x) * call.scale, key_mean.to(y))
    parts = [turns[0].apply(part, index) for part in (query - position[0], position[0])]
    parts += [turns[1].apply(part) for part in (key - position[1], position[1])]
    return gram_terms(*parts), x @ y.transpose(-1, -2)


def check_closure(the_pass: SplitPass, sums: SplitSums, inputs: RunInputs) -> ClosureCheck:
    """Run one input and check closure and rotation in every layer.

    `sums` give the position parts; the split must close whatever they are. Raises CheckFailed where it does not.
    """
    length = min(max(LONGEST, the_pass.plan.first + 1), inputs.token_ids.shape[1])
    one = RunInputs(inputs.token_ids[:1, :length], inputs.indices[:1], inputs.first_tokens, inputs.seed)
    rows = range(*the_pass.plan.slice().indices(length))
    found = ClosureCheck()
    earnest: dict[int, tuple[Tensor, Tensor]] = {}
    turns: dict[int, tuple[Rotation, Rotation]] = {}
    hidden: dict[int, Any] = {}

    def observe(call: AttentionCall) -> None:
        turns[call.layer] = the_pass.reading.rotations(call.layer, watch.tables, call)
        means = _position_parts(sums, call, rows, turns[call.layer])
        terms, logits = split_call(call, rows, *means, turns[call.layer])
        gap = float((torch.stack(list(terms.values())).sum(0) - logits).abs().max())
        size = max(float(term.abs().max()) for term in terms.values())
        found.closure = max(found.closure, gap)
        found.allowed = max(found.allowed, ROUNDINGS * torch.finfo(logits.dtype).eps * max(1.0, size))
        if not gap <= ROUNDINGS * torch.finfo(logits.dtype).eps * max(1.0, size):
            raise CheckFailed(f"The logit split of layer {call.layer} does not close: it is off by {gap:.2g} nats.")
        earnest[call.layer] = (widen(call.query[0]), widen(call.key[0]))

    with ExitStack() as stack:
        watch = stack.enter_context(watched_rotation(the_pass.decoder, RotaryWatch()))
        stack.enter_context(_inputs_of_attention(the_pass.decoder.attention, hidden, replace=False))
        run(the_pass.decoder, one, observe, the_pass.edits)
    if set(the_pass.decoder.attention) - set(the_pass.reading.unread) and watch.tables:
        _check_rotation(the_pass, one, earnest, turns, hidden, found)
    return found


def _position_parts(
    sums: SplitSums, call: AttentionCall, rows: range, turns: tuple[Rotation, Rotation]
) -> tuple[Tensor, Tensor]:
    """Position before the turn, unscaled: (head row dim) and (head key dim)."""
    layer, n = sums.layers[call.layer], sums.inputs
    index = torch.tensor(list(rows), device=call.query.device)
    query = turns[0].undo(layer["query"][:, : len(rows)].double(), index) - layer["query_mean"].unsqueeze(1)
    key = turns[1].undo(layer["key"][:, : call.length].double()) - layer["key_mean"].unsqueeze(1)
    return query / (n * call.scale), key.repeat_interleave(call.group, 0) / n


def _check_rotation(
    the_pass: SplitPass,
    inputs: RunInputs,
    earnest: dict[int, tuple[Tensor, Tensor]],
    turns: dict[int, tuple[Rotation, Rotation]],
    hidden: dict[int, Any],
    found: ClosureCheck,
) -> None:
    def still(_: int, table: Table) -> Table:
        return torch.ones_like(table[0]), torch.zeros_like(table[1])

    def observe(call: AttentionCall) -> None:
        if call.layer in the_pass.reading.unread:
            return
        for turn, raw, true in zip(turns[call.layer], (call.query, call.key), earnest[call.layer], strict=True):
            error = float((turn.apply(widen(raw[0])) - true).abs().max() / true.abs().max().clamp(min=1e-30))
            if not math.isfinite(error) or error > found.rotation:
                found.rotation, found.rotation_layer = error, call.layer

    with ExitStack() as stack:
        stack.enter_context(watched_rotation(the_pass.decoder, RotaryWatch(substitute=still)))
        stack.enter_context(_inputs_of_attention(the_pass.decoder.attention, hidden, replace=True))
        run(the_pass.decoder, inputs, observe, the_pass.edits)
    # Tables and products are rounded to the model's dtype; some models turn in float32 whatever theirs is.
    allowed = 30 * max(torch.finfo(the_pass.decoder.dtype).eps, torch.finfo(torch.float32).eps)
    if not found.rotation <= allowed:
        raise CheckFailed(
            f"The rotation read for layer {found.rotation_layer} is not the model's: turned vectors differ by "
            f"{found.rotation:.2g} of their size (allowed: {allowed:.2g}); content and position cannot be told apart."
        )


@contextmanager
def _inputs_of_attention(modules: dict[int, nn.Module], kept: dict[int, Any], replace: bool) -> Iterator[None]:
    """Keep the hidden states that enter each attention module, or hand the kept ones in again."""

    def watching(layer: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not replace:
                kept[layer] = args[0] if args else kwargs["hidden_states"]
                return None
            return ((kept[layer], *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": kept[layer]})

        return hook

    handles = [m.register_forward_pre_hook(watching(i), with_kwargs=True) for i, m in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

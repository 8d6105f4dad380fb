"""One run of ours, with everything an observer can see, for tests of capture and edits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import RunInputs, parse_edit
from wherefrom.capture.session import run
from wherefrom.models.hf import Decoder


def token_ids(inputs: int = 3, length: int = 24, seed: int = 3, bos: int | None = 1) -> Tensor:
    """Random ordinary tokens of the tiny vocabulary, behind the BOS unless `bos` is None."""
    ids = torch.randint(3, 97, (inputs, length), generator=torch.Generator().manual_seed(seed))
    if bos is not None:
        ids[:, 0] = bos
    return ids


@dataclass
class Observed:
    """What came out of a run."""

    calls: dict[int, AttentionCall] = field(default_factory=dict)
    stream: dict[int, Tensor] = field(default_factory=dict)
    output_logits: Tensor = field(default_factory=lambda: torch.empty(0))

    def logits(self, layer: int) -> Tensor:
        """(batch head query key), visible or not."""
        call = self.calls[layer]
        return torch.stack([call.logit_rows(b, slice(None), call.length) for b in range(len(call.query))])

    def attention(self, layer: int) -> Tensor:
        """(batch head query key) from logits, log-denominator and rule: what the trace believes attention was."""
        call = self.calls[layer]
        position = torch.arange(call.length)
        weights = torch.exp(self.logits(layer) - call.log_denominator.unsqueeze(-1))
        return weights.masked_fill(~call.rule.visible(position[:, None], position[None]), 0.0)


def observe(
    decoder: Decoder, ids: Tensor, edits: str = "", seed: int = 0, on_call: Callable[[AttentionCall], Any] | None = None
) -> Observed:
    """Run `ids` under `edits` (one run, joined by commas)."""
    found = Observed()

    def attention(call: AttentionCall) -> None:
        found.calls[call.layer] = call
        if on_call is not None:
            on_call(call)

    def residual(depth: int, hidden: Tensor) -> None:
        found.stream[depth] = hidden.clone()

    inputs = RunInputs(ids, tuple(range(len(ids))), ids[:, 0], seed)
    chosen = parse_edit(edits) if edits else ()
    for edit in chosen:
        edit.check(decoder, ids.shape[1], ids[:, 0])
    outcome = run(decoder, inputs, attention, chosen, residual, output_logits=True)
    assert outcome.output_logits is not None
    found.output_logits = outcome.output_logits
    return found

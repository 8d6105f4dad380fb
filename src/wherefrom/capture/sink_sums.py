"""Sums behind the sink analysis: attention to key 0, what the head reads there, and the mean query that reads it."""

from __future__ import annotations

import torch
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.kernels import widen

FIRST_QUERY = 32
"""Attention to key 0 is averaged over queries from here on (a quarter of the input where that is shorter)."""


class SinkSums:
    """Sums over inputs, per layer; `head` is the first axis."""

    def __init__(self) -> None:
        self.layers: dict[int, dict[str, Tensor]] = {}
        self.inputs = 0

    def observe(self, call: AttentionCall) -> None:
        """Take one attention call of a batch of inputs."""
        start = min(FIRST_QUERY, call.length // 4)
        z = widen(call.log_denominator[..., start:])
        logit = call.logits_to_first[..., start:]
        position = torch.arange(start, call.length, device=z.device)
        visible = call.rule.visible(position, torch.zeros_like(position))
        weight = torch.exp(logit - z).masked_fill(~visible, 0.0)
        attention = weight.mean(-1)
        first_value = widen(call.value[:, :, 0]).repeat_interleave(call.group, 1)
        contribution = attention.unsqueeze(-1) * first_value
        norms = torch.linalg.vector_norm(widen(call.value), dim=-1).repeat_interleave(call.group, 1)
        # log of the sum over the other keys, for "how much would another first token draw?"
        others = z + torch.log1p(-weight.clamp(max=1 - 1e-6))
        sums = {
            "attention": attention.sum(0),
            "square_attention": attention.square().sum(0),
            "contribution": contribution.sum(0),
            "square_contribution": contribution.square().sum((0, -1)),
            "value_ratio": (norms[..., 0] / norms[..., 1:].mean(-1)).sum(0),
            "query": widen(call.query[:, :, start:]).mean(2).sum(0) * call.scale,
            "others": others.mean(-1).sum(0),
        }
        if call.sink is not None:
            sums["learned_sink"] = torch.exp(call.sink.to(z).view(1, -1, 1) - z).mean(-1).sum(0)
        layer = self.layers.setdefault(call.layer, {})
        for name, value_sum in sums.items():
            layer[name] = layer[name] + value_sum if name in layer else value_sum

    def count(self, batch: int) -> None:
        """Count the inputs of a finished batch."""
        self.inputs += batch

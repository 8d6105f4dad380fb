"""What the logit split keeps of each attention call: sums over inputs, rows x keys at most, nothing per input.

For one layer, with x(i) the scaled query of a chosen row, y(j) any key (both as they enter the dot product), s = x·y
the logit before a soft-cap, s~ the logit minus its row's mean, and w the weight of an entry (`query_rows`). Every term
of the split is a product of sums of x, y, s~ and of the two contractions below, so content and position need no second
look at the inputs, and sums of different inputs, processes or machines merge by addition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.kernels import widen
from wherefrom.capture.query_rows import OffsetFit, RowPlan
from wherefrom.capture.rotation import Rotation
from wherefrom.encodings.masks import MaskRule

WIDE = ("query", "key", "rows", "by_key", "by_query")
"""Sums as large as the vectors or the rows themselves, in the model's precision; all others are float64."""


@dataclass
class SplitSums:
    """Sums of one run over some inputs, per layer. `head` (key/value head for keys) is the first axis.

    `query` (head row dim), `key` (kv_head key dim): x and y, turned. `rows` (head row key): w s~.
    `by_key` (head key dim): over rows, w s~ x. `by_query` (head row dim): over keys, w s~ y.
    `by_dim` (head dim): over rows, x times that, whose sum over dim is the squared norm of s~.
    `offsets` (head offset): w s~ summed along offsets. `offset_square`, `first_square` (head,): squared norm of what a
    function of the offset explains of each input, and of what it leaves of key 0.
    `query_mean`, `key_mean` (head dim): means over all positions, turned back; `mean_real`, `mean_imaginary` (head
    band): products of the two within one input; `query_norm`, `key_norm` (head band): mean norm per band.
    """

    plan: RowPlan
    layers: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    rules: dict[int, MaskRule] = field(default_factory=dict)
    inputs: int = 0

    def observe(self, call: AttentionCall, fit: OffsetFit, query_turn: Rotation, key_turn: Rotation) -> None:
        """Take one attention call of a batch of inputs."""
        self.rules[call.layer] = call.rule
        sums = self.layers.setdefault(call.layer, {})
        for item in range(call.query.shape[0]):
            query, key = widen(call.query[item]) * call.scale, widen(call.key[item])
            for name, value in _one_input(query, key, call.group, fit, query_turn, key_turn):
                value = value if name in WIDE else value.double()
                if name in sums:
                    sums[name] += value
                else:
                    sums[name] = value.clone()

    def count(self, batch: int) -> None:
        """Count the inputs of a finished batch."""
        self.inputs += batch

    def add(self, other: SplitSums) -> None:
        """Merge the sums of other inputs into these."""
        self.inputs += other.inputs
        self.rules |= other.rules
        for layer, sums in other.layers.items():
            mine = self.layers.setdefault(layer, {})
            for name, value in sums.items():
                mine[name] = mine[name] + value if name in mine else value.clone()

    def without(self, layer: int, other: SplitSums | None) -> dict[str, Tensor]:
        """One layer's sums without the inputs of `other`; its `inputs` as a number under that name."""
        out = 0 if other is None else other.inputs
        sums = self.layers[layer]
        left = dict(sums) if other is None else {name: sums[name] - other.layers[layer][name] for name in sums}
        left["inputs"] = torch.tensor(float(self.inputs - out), dtype=torch.float64)
        return left

    def size(self) -> int:
        """Bytes held."""
        return sum(t.numel() * t.element_size() for sums in self.layers.values() for t in sums.values())

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Flat tensors and a JSON-able header, for safetensors."""
        flat = {f"{i}/{name}": value for i, sums in self.layers.items() for name, value in sums.items()}
        rules = {str(i): [rule.causal, rule.window, rule.hide_first] for i, rule in self.rules.items()}
        return flat, {"inputs": self.inputs, "rules": rules}

    @classmethod
    def from_tensors(cls, plan: RowPlan, flat: dict[str, Tensor], header: dict[str, Any]) -> SplitSums:
        """The inverse of `tensors`."""
        found = cls(plan, inputs=header["inputs"])
        found.rules = {int(i): MaskRule(*rule) for i, rule in header["rules"].items()}
        for key, value in flat.items():
            layer, _, name = key.partition("/")
            found.layers.setdefault(int(layer), {})[name] = value
        return found


def _one_input(
    query: Tensor, key: Tensor, group: int, fit: OffsetFit, query_turn: Rotation, key_turn: Rotation
) -> Iterator[tuple[str, Tensor]]:
    """The contributions of one input: query (head query dim), scaled, and key (kv_head key dim)."""
    heads, length, dim = query.shape
    x = query[:, fit.plan.slice()]
    grouped = x.unflatten(0, (-1, group))
    centred = fit.centred((grouped @ key.unsqueeze(1).transpose(-1, -2)).flatten(0, 1))
    weighted = fit.weighted(centred)
    by_query = (weighted.unflatten(0, (-1, group)) @ key.unsqueeze(1)).flatten(0, 1)
    yield "query", x
    yield "key", key
    yield "rows", weighted
    yield "by_key", weighted.transpose(-1, -2) @ x
    yield "by_query", by_query
    yield "by_dim", (x.double() * by_query.double()).sum(1)

    offsets = fit.offset_sums(weighted).double()
    profile = fit.profile(offsets)
    left = centred[..., 0].double() - fit.at_first_key(profile)
    yield "offsets", offsets
    yield "offset_square", (profile * offsets).sum(-1)
    yield "first_square", (left.square() * fit.weight * fit.visible[:, 0]).sum(-1)

    query_mean, key_mean = (turn.undo(v).mean(1).double() for turn, v in ((query_turn, query), (key_turn, key)))
    wide = key_mean.repeat_interleave(group, 0)
    product = band_products(query_turn, query_mean, wide)
    yield "query_mean", query_mean
    yield "key_mean", key_mean
    yield "mean_real", product.real
    yield "mean_imaginary", product.imag
    yield "query_norm", query_turn.norms(query).mean(1)
    yield "key_norm", key_turn.norms(key).mean(1)


def band_products(turn: Rotation, query: Tensor, key: Tensor) -> Tensor:
    """Query times conjugate key of each rotating pair read as a complex number: (... dim) twice to (... band)."""
    real, imaginary = turn.pairs[:, 0], turn.pairs[:, 1]
    return torch.complex(query[..., real], query[..., imaginary]) * torch.complex(key[..., real], -key[..., imaginary])

"""One attention call as analyses see it: q, k, v, mask rule and log-denominator, never an L x L matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wherefrom.capture.kernels import cap, widen
from wherefrom.encodings.masks import MaskRule


@dataclass(frozen=True)
class AttentionCall:
    """What one layer's softmax saw, after rotation and any q/k normalisation."""

    layer: int
    """Layer index from 0."""
    query: Tensor
    """(batch head query dim)."""
    key: Tensor
    """(batch kv_head key dim); query head h reads key/value head h // group."""
    value: Tensor
    """(batch kv_head key dim)."""
    scale: float
    """Factor on the dot product, usually dim ** -0.5."""
    rule: MaskRule
    """Who sees whom."""
    log_denominator: Tensor
    """z (batch head query), nats: log of the sum over visible keys of exp(logit), learned sink included."""
    softcap: float | None = None
    """Soft-cap on logits, in nats, or None."""
    sink: Tensor | None = None
    """Learned sink logit per head, nats, or None."""
    bias: Tensor | None = None
    """Bias added to logits before the softmax, (1|batch head|1 query key), nats. Only models of the lab have one: it is
    as large as the logits themselves."""

    @property
    def length(self) -> int:
        """Number of queries."""
        return self.query.shape[2]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[1]

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def _grouped_query(self) -> Tensor:
        batch, heads, length, dim = self.query.shape
        return widen(self.query).view(batch, heads // self.group, self.group, length, dim)

    @cached_property
    def _wide_key(self) -> Tensor:
        return widen(self.key).unsqueeze(2)

    def logits_at_offset(self, offset: int, start: int, stop: int) -> Tensor:
        """Logits of queries `start:stop` and the keys `offset` tokens before them: (batch head query), nats."""
        query = self._grouped_query[..., start:stop, :]
        key = self._wide_key[..., start - offset : stop - offset, :]
        product = torch.linalg.vecdot(query, key.expand_as(query))
        logits = product.flatten(1, 2) * self.scale
        if self.bias is not None:
            logits = logits + self.bias.diagonal(-offset, -2, -1)[..., start - offset : stop - offset]
        return cap(logits, self.softcap)

    @cached_property
    def logits_to_first(self) -> Tensor:
        """Logits of every query and the key at position 0: (batch head query), nats."""
        first = self._wide_key[..., 0, :]
        product = torch.einsum("bkgqd,bkgd->bkgq", self._grouped_query, first.expand(-1, -1, self.group, -1))
        logits = product.flatten(1, 2) * self.scale
        return cap(logits if self.bias is None else logits + self.bias[..., 0], self.softcap)

    def logit_rows(self, item: int, queries: slice, keys: int) -> Tensor:
        """Logits of some queries and the keys `0:keys` of one batch item, visible or not: (head query key), nats."""
        query = self._grouped_query[item, :, :, queries]
        product = query @ self._wide_key[item, :, :, :keys].transpose(-1, -2)
        logits = product.flatten(0, 1) * self.scale
        if self.bias is not None:
            logits = logits + self.bias[min(item, len(self.bias) - 1), :, queries, :keys]
        return cap(logits, self.softcap)

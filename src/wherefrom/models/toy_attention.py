"""Attention of the small Transformer: q, k, v, the encoding's touch points, and the fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from wherefrom.encodings import Encoding
from wherefrom.encodings.base import repeat_heads
from wherefrom.encodings.masks import MaskRule
from wherefrom.models.toy_config import ToyConfig

if TYPE_CHECKING:
    from wherefrom.models.toy import Pass


class Cache:
    """Keys and values of the tokens so far, as they were before the encoding, by layer."""

    def __init__(self) -> None:
        self.length = 0
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extended(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys and values (batch kv_head key dim) of a layer; returns all."""
        if layer in self.layers:
            old_key, old_value = self.layers[layer]
            key, value = torch.cat((old_key, key), 2), torch.cat((old_value, value), 2)
        self.layers[layer] = key, value
        return key, value


class Visibility:
    """Who sees whom in one pass: the mask rule, and how many tokens of each input are real."""

    def __init__(
        self, rule: MaskRule, queries: int, keys: int, lengths: Tensor | None, device: torch.device | str
    ) -> None:
        self.rule, self.queries, self.keys, self.lengths, self.device = rule, queries, keys, lengths, device
        self.visible: Tensor | None = None
        """(1 or batch, 1, query or 1, key), boolean; None: everything is visible."""
        plain = not rule.causal and rule.window is None
        if not plain:
            position = torch.arange(keys, device=device)
            self.visible = rule.visible(position[keys - queries :, None], position[None])[None, None]
        if lengths is not None and int(lengths.min()) < keys:
            real = (torch.arange(keys, device=device) < lengths[:, None])[:, None, None]
            self.visible = real if self.visible is None else self.visible & real

    def repeated(self, times: int) -> Visibility:
        """The same for a batch that holds this one `times` over."""
        lengths = None if self.lengths is None else self.lengths.repeat(times)
        return Visibility(self.rule, self.queries, self.keys, lengths, self.device)

    def hides(self, logits_or_bias: Tensor) -> Tensor:
        """The tensor with -inf where a key is invisible."""
        if self.visible is None:
            return logits_or_bias
        return logits_or_bias.masked_fill(~self.visible, float("-inf"))


class ToyAttention(nn.Module):
    """Multi-head attention, or multi-head latent attention without its rotary part, which is the encoding `mla`."""

    def __init__(self, config: ToyConfig, layer: int, encoding: Encoding, running: Any) -> None:
        super().__init__()
        self.layer_idx, self.settings, self.config = layer, config, running
        # The encoding belongs to the body; a module may be registered once only, or its weights would be saved twice.
        self._encoding = (encoding,)
        width, narrow = config.d_model, config.key_heads * config.head_dim
        self.query = nn.Linear(width, width)
        if config.attention == "mla":
            latent = config.latent_dim or max(1, width // 4)
            self.compress: nn.Module | None = nn.Sequential(nn.Linear(width, latent, bias=False), nn.LayerNorm(latent))
            source = latent
        else:
            self.compress, source = None, width
        self.key = nn.Linear(source, narrow)
        self.value = nn.Linear(source, narrow)
        self.output = nn.Linear(width, width)

    @property
    def encoding(self) -> Encoding:
        """The positional encoding, shared by all layers."""
        return self._encoding[0]

    def become_identity(self) -> None:
        """Every projection hands on what it gets, so that queries, keys and values are the stream itself."""
        for projection in (self.query, self.key, self.value, self.output):
            nn.init.eye_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(self, x: Tensor, shared: Pass) -> Tensor:
        """(batch query d_model) to the same; `x` is normalised, the memory is not."""
        mixed = self.head_outputs(x, shared)
        out: Tensor = self.output(mixed)
        return out

    def head_outputs(self, x: Tensor, shared: Pass) -> Tensor:
        """What enters the output projection: (batch query head*dim)."""
        query = self.query(x).unflatten(-1, (self.settings.heads, -1)).transpose(1, 2)
        source = x if shared.memory is None else shared.memory
        source = source if self.compress is None else self.compress(source)
        key, value = (
            projection(source).unflatten(-1, (self.settings.key_heads, -1)).transpose(1, 2)
            for projection in (self.key, self.value)
        )
        if shared.cache is not None:
            key, value = shared.cache.extended(self.layer_idx, key, value)
        mixed = self._attend(query, key, value, shared).flatten(2)
        if self.training and self.settings.head_dropout:
            keep = mixed.new_ones(mixed.shape[0], 1, self.settings.heads)
            keep = F.dropout(keep, self.settings.head_dropout).repeat_interleave(self.settings.head_dim, -1)
            mixed = mixed * keep
        return mixed

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, shared: Pass) -> Tensor:
        scale = query.shape[-1] ** -0.5
        key_positions = torch.arange(key.shape[2], device=key.device)
        bias = self.encoding.bias(query, key, shared.positions, key_positions)
        query, key = self.encoding.transform(query, key, shared.positions, key_positions)
        implementation = self.config._attn_implementation_internal
        if implementation != "fused":
            function = ALL_ATTENTION_FUNCTIONS[implementation]
            out: Tensor = function(self, query, key, value, shared.visibility.rule, scaling=scale, attention_bias=bias)[
                0
            ]
            return out
        if shared.watch is not None:
            return explicit(query, key, value, scale, bias, shared.visibility, self.layer_idx, shared.watch)
        return fused(query, key, value, scale, bias, shared.visibility)


def fused(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, visibility: Visibility
) -> Tensor:
    """PyTorch's fused attention; (batch query head dim)."""
    mask = visibility.visible if bias is None else visibility.hides(bias.to(query.dtype))
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    square = visibility.queries == visibility.keys
    if bias is None and visibility.lengths is None and visibility.rule == MaskRule() and square:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale).transpose(1, 2)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale).transpose(1, 2)


def explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None,
    visibility: Visibility,
    layer: int,
    watch: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """The same from logits that `watch` sees, and may replace, before the mask; (batch query head dim)."""
    logits = query @ repeat_heads(key, query.shape[1]).transpose(-1, -2) * scale
    logits = watch(layer, logits if bias is None else logits + bias)
    weights = torch.softmax(visibility.hides(logits), -1)
    return (weights @ repeat_heads(value, query.shape[1])).transpose(1, 2)

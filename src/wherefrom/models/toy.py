"""The small Transformer of the lab, readable top to bottom, with any positional encoding.

Pre-norm blocks; the encoding has three touch points (`embed`, `transform`, `bias`) and there is no `if` about which one
it is. Analyses observe it as they do a checkpoint: its attention dispatches through transformers' interface.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wherefrom.encodings import Encoding, build
from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput
from wherefrom.models.toy_attention import Cache, ToyAttention, Visibility
from wherefrom.models.toy_config import ToyConfig


class RunningConfig:
    """What transformers' models carry as `config`: the settings, and which attention function is in use."""

    model_type = "wherefrom-toy"

    def __init__(self, settings: ToyConfig) -> None:
        self.settings = settings
        self.bos_token_id = settings.bos
        self._attn_implementation_internal = "fused"

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {"model_type": self.model_type, **dataclasses.asdict(self.settings)}


@dataclass(frozen=True)
class Pass:
    """What all blocks of one forward pass share."""

    positions: Tensor
    """Positions of the queries, (length,), in tokens."""
    visibility: Visibility
    """Who sees whom."""
    memory: Tensor | None = None
    """Input embeddings, where keys and values of every layer come from them."""
    cache: Cache | None = None
    """Keys and values of earlier tokens."""
    watch: Callable[[int, Tensor], Tensor] | None = None
    """Given (layer, logits (batch head query key)) before the softmax; what it returns is used."""

    def repeated(self, times: int) -> Pass:
        """The same pass for a batch that holds this one `times` over."""
        memory = None if self.memory is None else self.memory.repeat(times, 1, 1)
        return dataclasses.replace(self, visibility=self.visibility.repeated(times), memory=memory)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, config: ToyConfig, layer: int, encoding: Encoding, running: RunningConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = ToyAttention(config, layer, encoding, running)
        self.dropout = nn.Dropout(config.dropout)
        self.feed_forward_norm = nn.LayerNorm(config.d_model) if config.d_ff else None
        self.feed_forward = (
            nn.Sequential(nn.Linear(config.d_model, config.d_ff), nn.GELU(), nn.Linear(config.d_ff, config.d_model))
            if config.d_ff
            else None
        )

    def forward(self, x: Tensor, shared: Pass) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), shared))
        return self.after_attention(x)

    def after_attention(self, x: Tensor) -> Tensor:
        """The second half of the block."""
        if self.feed_forward is None or self.feed_forward_norm is None:
            return x
        added: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x + added


class ToyBody(nn.Module):
    """Token ids to normalised residual stream."""

    def __init__(self, config: ToyConfig, running: RunningConfig) -> None:
        super().__init__()
        self.settings, self.config = config, running
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.encoding = build(
            config.encoding,
            d_model=config.d_model,
            heads=config.heads,
            head_dim=config.head_dim,
            max_length=config.max_length,
            causal=config.causal,
        )
        self.blocks = nn.ModuleList(Block(config, layer, self.encoding, running) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model)

    @property
    def max_length(self) -> int:
        """Longest input in tokens."""
        return self.settings.max_length

    def start(
        self,
        token_ids: Tensor,
        lengths: Tensor | None = None,
        cache: Cache | None = None,
        watch: Callable[[int, Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Pass]:
        """What enters block 0, (batch length d_model), and what all blocks share."""
        past = 0 if cache is None else cache.length
        total = past + token_ids.shape[1]
        positions = torch.arange(past, total, device=token_ids.device)
        x = self.encoding.embed(self.embedding(token_ids), positions)
        rule = MaskRule(causal=self.settings.causal, window=self.settings.window)
        padded = None if self.settings.published_padding else lengths
        visibility = Visibility(rule, token_ids.shape[1], total, padded, token_ids.device)
        return x, Pass(positions, visibility, x if self.settings.memory_keys else None, cache, watch)

    def forward(
        self,
        token_ids: Tensor,
        lengths: Tensor | None = None,
        cache: Cache | None = None,
        watch: Callable[[int, Tensor], Tensor] | None = None,
        use_cache: bool = False,
    ) -> Tensor:
        x, shared = self.start(token_ids, lengths, cache, watch)
        for block in self.blocks:
            x = block(x, shared)
        if cache is not None:
            cache.length += token_ids.shape[1]
        out: Tensor = self.norm(x)
        return out


class ToyTransformer(nn.Module):
    """A small Transformer with a readout: classes from the mean over tokens, the last token, or each token.

    `model(token_ids, lengths)` returns an object with `logits`: (batch classes), or (batch length classes) where each
    token is read. token_ids: (batch length), int64, padded on the right; lengths: (batch,) or None for no padding.
    """

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.settings = config
        self.config = RunningConfig(config)
        self.body = ToyBody(config, self.config)
        self.head = nn.Linear(config.d_model, config.classes)
        if config.weights == "identity":
            for block in self.body.blocks:
                attention: ToyAttention = block.attention  # type: ignore[assignment]
                attention.become_identity()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding, by the name that transformers gives it."""
        return self.body.embedding

    def get_decoder(self) -> nn.Module:
        """The stack without the readout, by the name that transformers gives it."""
        return self.body

    def forward(
        self,
        token_ids: Tensor,
        lengths: Tensor | None = None,
        cache: Cache | None = None,
        watch: Callable[[int, Tensor], Tensor] | None = None,
        use_cache: bool = False,
    ) -> SimpleNamespace:
        if token_ids.shape[1] > self.settings.max_length:
            raise BadInput(
                f"An input of {token_ids.shape[1]} tokens is longer than this model's `max_length` of "
                f"{self.settings.max_length}; shorten it."
            )
        return SimpleNamespace(logits=self.read(self.body(token_ids, lengths, cache, watch), lengths))

    @property
    def cuttable(self) -> bool:
        """Whether the padding of a batch, and who else is in it, cannot change a result."""
        return not (self.settings.published_padding or self.body.encoding.depends_on_length)

    def read(self, hidden: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Output logits from the normalised stream (batch length d_model)."""
        if self.settings.readout != "tokens":
            hidden = self._pooled(hidden, lengths)
        out: Tensor = self.head(hidden)
        return out

    def _pooled(self, hidden: Tensor, lengths: Tensor | None) -> Tensor:
        if self.settings.readout == "last":
            if lengths is None:
                return hidden[:, -1]
            return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
        if lengths is None or self.settings.published_padding:
            return hidden.mean(1)
        real = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
        return (hidden * real[..., None]).sum(1) / lengths[:, None]


def loss(output_logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats; labels of -100 do not count."""
    return F.cross_entropy(output_logits.flatten(0, -2), labels.flatten())

"""Edits of who sees whom: `window=<n>`, `hide-first[:from-layer]`, `mask=off`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wherefrom.capture.edits.base import Edit
from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder


@dataclass(frozen=True)
class Window(Edit):
    """Every query sees at most `keys` keys, its own included (a model's narrower window stays)."""

    keys: int = 2

    def check(self, decoder: Decoder, length: int, first_tokens: Tensor) -> None:
        """The window must hide something."""
        widest = max(min(length, decoder.windows.get(layer) or length) for layer in decoder.attention)
        if self.keys >= widest:
            why = f"inputs of {length} tokens" if widest == length else f"a model whose own window is {widest}"
            raise BadInput(f"'{self.text}' hides nothing from {why}; use a smaller window.")

    def rule(self, layer: int, rule: MaskRule) -> MaskRule:
        """The layer's rule, narrowed to the window."""
        return rule.narrowed(window=self.keys)


@dataclass(frozen=True)
class HideFirst(Edit):
    """The key at position 0 is invisible to later queries, from `from_layer` on."""

    from_layer: int = 0

    def check(self, decoder: Decoder, length: int, first_tokens: Tensor) -> None:
        """The layer must exist."""
        if self.from_layer >= len(decoder.blocks):
            raise BadInput(f"hide-first:{self.from_layer} starts behind the last layer ({len(decoder.blocks) - 1}).")

    def rule(self, layer: int, rule: MaskRule) -> MaskRule:
        """The layer's rule without key 0."""
        return rule.narrowed(hide_first=True) if layer >= self.from_layer else rule


@dataclass(frozen=True)
class MaskOff(Edit):
    """Bidirectional attention: every query sees every key; windows fall away too."""

    def rule(self, layer: int, rule: MaskRule) -> MaskRule:
        """No mask."""
        return rule.narrowed(causal=False)


def window(text: str, value: str) -> Window:
    """`window=<n>`."""
    if not value.isdecimal() or int(value) < 2:  # a query that sees itself alone has no offset to measure
        raise BadInput(f"'{text}' needs a number of keys of at least 2, the query's own included, e.g. window=64.")
    return Window(text, int(value))


def hide_first(text: str, value: str) -> HideFirst:
    """`hide-first` or `hide-first:<from-layer>`."""
    if value and not value.isdecimal():
        raise BadInput(f"'{text}' takes a layer index, e.g. hide-first:4, or nothing.")
    return HideFirst(text, int(value or 0))


def mask_off(text: str, value: str) -> MaskOff:
    """`mask=off`."""
    if value != "off":
        raise BadInput(f"'{text}' is not known; the only mask edit is mask=off.")
    return MaskOff(text)

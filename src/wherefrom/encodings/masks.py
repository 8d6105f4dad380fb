"""Attention masks as index rules: who sees whom, without an L x L tensor.

A rule answers three questions about any (query i, key j): is j visible from i, how many keys does i see, and which
offsets i - j are those. Fused kernels, analyses and tests all read the same rule, so a window of w means the same
everywhere: exactly w visible keys, the query's own included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.errors import BadInput


@dataclass(frozen=True, slots=True)
class MaskRule:
    """Which keys a query sees. The default is the plain causal mask."""

    causal: bool = True
    """Keys after the query are invisible."""
    window: int | None = None
    """Number of keys a query sees at most, its own included; None: no limit. Needs `causal`."""
    hide_first: bool = False
    """The key at position 0 is invisible to every query but the first."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise BadInput(f"A window of {self.window} keys shows a query nothing; use a window of at least 1.")
        if self.window is not None and not self.causal:
            raise BadInput("A sliding window needs the causal mask; drop `window` or `mask=off`.")

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether `key` is visible from `query`; positions broadcast against each other. Boolean."""
        seen = (key <= query) if self.causal else (key < torch.iinfo(torch.long).max) & (query >= 0)
        if self.window is not None:
            seen = seen & (key > query - self.window)
        if self.hide_first:
            seen = seen & ((key > 0) | (query == 0))
        return seen

    def key_bounds(self, query: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """First and last visible key of each query in a sequence of `length` tokens (visible keys are contiguous)."""
        first = torch.zeros_like(query)
        if self.window is not None:
            first = torch.clamp(query - self.window + 1, min=0)
        if self.hide_first:
            first = torch.where(query > 0, torch.clamp(first, min=1), first)
        last = query if self.causal else torch.full_like(query, length - 1)
        return first, last

    def visible_count(self, query: Tensor, length: int) -> Tensor:
        """Number of keys each query sees in a sequence of `length` tokens."""
        first, last = self.key_bounds(query, length)
        return last - first + 1

    def sees_offset(self, start: int, stop: int, offset: int, length: int) -> bool:
        """Whether every query of `start:stop` sees the key at `offset` (i - j) before it."""
        query = torch.arange(start, stop)
        first, last = self.key_bounds(query, length)
        key = query - offset
        return bool(((key >= first) & (key <= last)).all())

    def at_length(self, length: int) -> MaskRule:
        """The same rule for inputs of `length` tokens: a window they do not reach is no window."""
        if self.window is not None and self.window >= length:
            return MaskRule(self.causal, None, self.hide_first)
        return self

    def narrowed(self, window: int | None = None, hide_first: bool = False, causal: bool | None = None) -> MaskRule:
        """This rule with an edit on top: a window can only become narrower; `causal=False` lifts mask and window."""
        if causal is False:
            return MaskRule(causal=False, window=None, hide_first=self.hide_first or hide_first)
        windows = [w for w in (self.window, window) if w is not None]
        return MaskRule(self.causal, min(windows) if windows else None, self.hide_first or hide_first)


def rule_from_mask(mask: Tensor) -> tuple[MaskRule, Tensor]:
    """Read the rule and the left padding out of a dense mask, however it spells "invisible".

    `mask` is (batch, 1, query, key): boolean (True: visible) or additive (0: visible; -inf, the lowest finite float or
    any other large negative constant: invisible). Returns the rule and the number of left-padded positions per row.
    Raises BadInput for a mask that hides nothing from a causal model or that no rule describes.
    """
    visible = mask if mask.dtype == torch.bool else mask > -1e4
    visible = visible[:, 0]
    batch, length, keys = visible.shape
    if length != keys:
        raise BadInput(f"The attention mask is {length} x {keys}; only whole-sequence (square) masks can be traced.")
    if length > 1 and bool(visible.all()):
        raise BadInput("The attention mask hides nothing, so there is no causal mask to trace; pass the causal mask.")
    padding = (~visible.any(1)).long().cumprod(-1).sum(-1)
    position = torch.arange(length, device=mask.device)
    widest = int(visible.sum(-1).max())
    rule = MaskRule()
    if widest < int((length - padding).max()):
        rule = MaskRule(window=widest)
    real = position[None] >= padding[:, None]
    expected = rule.visible(position[:, None], position[None])[None] & real[:, None, :]
    if not bool(((visible == expected) | ~real[:, :, None]).all()):
        raise BadInput(
            "The attention mask is neither causal nor a sliding window with left padding; it cannot be traced."
        )
    return rule, padding

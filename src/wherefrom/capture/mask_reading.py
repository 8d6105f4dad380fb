"""How many keys a layer's queries see, read from the mask rule the model hands to its attention, at any length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.capture.layer_probe import LayerProbe, MaskIndex
from wherefrom.encodings.masks import MaskRule

FAR = 1 << 18
"""Query position at which a window must show; longer windows than this count as none."""


@dataclass(frozen=True)
class MaskFacts:
    """Who sees whom in one layer."""

    kind: str
    """`causal`, `sliding window`, `bidirectional`, or `other` where no such rule describes the mask."""
    window: int | None = None
    """Keys a query sees at most, its own included; None: no limit."""
    read: bool = True
    """False where the model hands over no rule, and `window` is the attention layer's own setting."""
    note: str = ""
    """What stands in the way, for `other`."""


def read_mask(probe: LayerProbe) -> MaskFacts:
    """The mask of a captured layer: counted on rows far behind, then checked at the edges of the window."""
    stated = probe.seen.settings.get("sliding_window")
    if not isinstance(probe.seen.mask, MaskIndex):
        if probe.seen.mask is not None:
            return MaskFacts("other", read=False, note="the model builds a mask of its own")
        kind = "sliding window" if stated else "causal"
        return MaskFacts(kind, int(stated) if stated else None, read=False)
    function = probe.seen.mask.function
    keys = torch.arange(FAR)
    zero = torch.zeros((), dtype=torch.long)

    def row(query: int, length: int) -> Tensor:
        index = torch.as_tensor(query)
        return torch.as_tensor(function(zero, zero, index, keys[:length])).expand(length)

    try:
        if bool(row(0, 8).all()):
            return MaskFacts("bidirectional")
        seen = int(row(FAR - 1, FAR).sum())
        rule = MaskRule() if seen == FAR else MaskRule(window=seen)
        for query in {0, 1, 2, seen - 1, seen, seen + 1, FAR // 3, FAR - 1}:
            if 0 <= query < FAR and not torch.equal(row(query, FAR), rule.visible(torch.as_tensor(query), keys)):
                return MaskFacts("other", note="neither causal nor a sliding window (chunked, prefix or packed)")
    except (IndexError, RuntimeError, ValueError) as error:
        return MaskFacts("other", note=f"its rule holds for short inputs only ({type(error).__name__})")
    return MaskFacts("causal") if rule.window is None else MaskFacts("sliding window", rule.window)

"""Edits: changes applied to one run, by name. One explicit table."""

from __future__ import annotations

from collections.abc import Callable

from wherefrom.capture.edits.base import Edit, RunInputs
from wherefrom.capture.edits.first import freeze_first, replace_first
from wherefrom.capture.edits.mask import hide_first, mask_off, window
from wherefrom.capture.edits.positions import positions
from wherefrom.capture.edits.rotary import rotary
from wherefrom.errors import BadInput
from wherefrom.suggest import suggestion

EDITS: dict[str, tuple[Callable[[str, str], Edit], str, str]] = {
    "bos": (replace_first, "bos=mean|zero|random|noise|token:<id or text>", "replace the embedding at position 0"),
    "freeze-first": (freeze_first, "freeze-first", "give position 0 another input's trajectory"),
    "hide-first": (hide_first, "hide-first[:from-layer]", "hide the key at position 0 from later queries"),
    "mask": (mask_off, "mask=off", "bidirectional attention"),
    "positions": (positions, "positions=+<k>", "start position ids at k"),
    "rope": (rotary, "rope=ntk:<factor>|linear:<factor>|theta:<base>|off", "other rotary frequencies"),
    "window": (window, "window=<n>", "every query sees at most n keys, its own included"),
}
"""Name: (parser, how it is written, what it does)."""


def parse_edit(text: str) -> tuple[Edit, ...]:
    """The edits of one run, from their text: one, or several joined by commas (`bos=mean,window=64`).

    Raises BadInput for an edit that is not known, with a suggestion.
    """
    parts = [part.strip() for part in text.split(",")]
    if not text.strip() or not all(parts):
        raise BadInput(f"The edit {text!r} is empty; write one such as bos=mean.")
    return tuple(_parse_one(part) for part in parts)


def _parse_one(text: str) -> Edit:
    mark = min((i for i in (text.find("="), text.find(":")) if i >= 0), default=len(text))
    name, value = text[:mark], text[mark + 1 :]
    if name not in EDITS:
        known = ", ".join(usage for _, usage, _ in EDITS.values())
        raise BadInput(f"The edit '{text}' is not known{suggestion(name, EDITS)}; there are {known}.")
    return EDITS[name][0](text, value)


__all__ = ["EDITS", "Edit", "RunInputs", "parse_edit"]

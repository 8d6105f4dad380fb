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


CONFLICTS = (("bos", "freeze-first"), ("mask", "window"))
"""Edits that set the same thing, so that one of them would be lost."""


def parse_edit(text: str) -> tuple[Edit, ...]:
    """The edits of one run, from their text: one, or several joined by commas (`bos=mean,window=64`).

    Raises BadInput for an edit that is not known, with a suggestion, and for edits that exclude each other.
    """
    parts = [part.strip() for part in text.split(",")]
    if not text.strip():
        raise BadInput(f"The edit {text!r} is empty; write one such as bos=mean.")
    if not all(parts):
        raise BadInput(f"The edit {text!r} has nothing between its commas (name a token that is a comma by its id).")
    names = [_name(part) for part in parts]
    edits = tuple(_parse_one(name, part) for name, part in zip(names, parts, strict=True))
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"The edit '{text}' sets {name} more than once; keep one of them.")
    for one, other in CONFLICTS:
        if one in names and other in names:
            raise BadInput(f"The edit '{text}' joins {one} and {other}, which exclude each other; run them apart.")
    return edits


def _name(text: str) -> str:
    return text[: min((i for i in (text.find("="), text.find(":")) if i >= 0), default=len(text))]


def _parse_one(name: str, text: str) -> Edit:
    if name not in EDITS:
        closest = suggestion(name, EDITS) or f"; there are {', '.join(EDITS)}, see `wherefrom list edits`."
        raise BadInput(f"The edit '{text}' is not known{closest}")
    parse, usage, _ = EDITS[name]
    mark, value = text[len(name) : len(name) + 1], text[len(name) + 1 :]
    expected = usage.removeprefix(name).lstrip("[")[:1]
    if mark != expected and (mark or expected == "=") or (mark and not value):
        raise BadInput(f"The edit '{text}' is incomplete or misspelt; write {usage}.")
    return parse(text, value)


__all__ = ["EDITS", "Edit", "RunInputs", "parse_edit"]

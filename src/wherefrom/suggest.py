"""A suggestion for a mistyped word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or an empty string when nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""

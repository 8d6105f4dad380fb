"""The errors a user can cause, as sentences."""

from __future__ import annotations


class WherefromError(Exception):
    """Base of every error this package raises on purpose. Its text is one sentence for the user."""


class BadInput(WherefromError, ValueError):
    """The input cannot be used: the sentence says what is wrong, with the value, and what to do. Exit code 2."""


class Unobservable(BadInput):
    """A causal language model whose attention calls cannot be taken over; the sentence names the reason."""


class CheckFailed(WherefromError, RuntimeError):
    """A check of ours did not hold (parity, closure, finite numbers). Exit code 1 or 2, as the caller decides."""

"""Numbers as a reader expects them: as many digits as the error bar supports, a true minus sign, never clipped."""

from __future__ import annotations

import math

NORMAL_INTERVAL = 1.96
"""Standard errors on either side of an estimate in a 95 % interval."""

MISSING = "–"

_SPACE = "\N{NO-BREAK SPACE}"
PLUS_MINUS = f"{_SPACE}±{_SPACE}"
"""Between a value and its error; the two never part at the end of a line."""


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _unsigned_zero(text: str) -> str:
    return text.lstrip("-") if float(text) == 0 else text


def _decimals(stderr: float) -> int:
    """Digits behind the point that keep one digit of the error, or two where the first is a 1."""
    exponent = math.floor(math.log10(stderr))
    leading = stderr / 10**exponent
    return (1 if leading < 2 else 0) - exponent


def number(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` significant digits; powers of ten only where plain digits would be unreadable."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return _minus(str(value))
    if float(value).is_integer() and abs(value) < 1e6:
        return _minus(f"{value:.0f}")
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return _minus(f"{mantissa}e{int(exponent)}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return _minus(f"{value:.{decimals}f}")


def brief(value: float | None) -> str:
    """At most two significant digits and no trailing zeros, for sizes of errors."""
    if value is None or not math.isfinite(value) or value == 0:
        return number(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    if -4 <= int(exponent) < 4:
        return _minus(f"{float(f'{value:.1e}'):g}")
    return _minus(f"{float(mantissa):g}e{int(exponent)}")


def with_error(value: float | None, stderr: float | None = None) -> str:
    """`0.091 ± 0.006`: value and standard error with the digits the error supports."""
    if value is None or not math.isfinite(value) or stderr is None or not math.isfinite(stderr) or stderr <= 0:
        return number(value)
    decimals = _decimals(stderr)
    if decimals > 5:
        return f"{number(value, 2)}{PLUS_MINUS}{number(stderr, 1)}"
    shown = max(0, decimals)
    text = f"{value:.{shown}f}"
    return _minus(f"{_unsigned_zero(text)}{PLUS_MINUS}{stderr:.{shown}f}")


def percent(value: float | None, stderr: float | None = None) -> str:
    """A share in per cent: `76 % ± 3 %`."""
    if value is None or not math.isfinite(value):
        return number(value)
    if stderr is None or not math.isfinite(stderr) or stderr <= 0:
        return _minus(f"{_unsigned_zero(f'{value * 100:.0f}')}{_SPACE}%")
    shown = min(2, max(0, _decimals(stderr * 100)))
    # A tenth of a per cent is more than a reader can use unless the error is that small.
    shown = 0 if stderr * 100 >= 1 else shown
    text = f"{value * 100:.{shown}f}"
    return _minus(f"{_unsigned_zero(text)}{_SPACE}%{PLUS_MINUS}{stderr * 100:.{shown}f}{_SPACE}%")


def interval(value: float, stderr: float | None) -> tuple[float, float]:
    """The 95 % interval around `value`; a point where the error is not known."""
    half = NORMAL_INTERVAL * stderr if stderr is not None and math.isfinite(stderr) else 0.0
    return value - half, value + half

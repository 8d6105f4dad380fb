"""Which queries, offsets and bins a leak trace looks at: fixed before the first input runs, stated in the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput

MAX_BINS = 64
"""Positions of a range are averaged into at most this many bins; below it the resolution is one token."""
PROFILE_QUERIES = 64
"""Full rows of logits taken per range and input for the mean profile; ranges up to this wide are taken whole."""


@dataclass(frozen=True, slots=True)
class QueryRange:
    """A half-open interval of query positions and the offsets that every query in it sees."""

    start: int
    stop: int
    offsets: tuple[int, ...]

    @property
    def text(self) -> str:
        """`start:stop`."""
        return f"{self.start}:{self.stop}"

    @property
    def bins(self) -> int:
        """Number of position bins."""
        return min(MAX_BINS, self.stop - self.start)

    @property
    def stride(self) -> int:
        """Distance between the queries whose full rows feed the mean profile; the phase goes round with the inputs."""
        return -(-(self.stop - self.start) // PROFILE_QUERIES)


@dataclass(frozen=True, slots=True)
class LeakPlan:
    """Length and query ranges of a leak trace."""

    length: int
    ranges: tuple[QueryRange, ...]
    rules: frozenset[MaskRule]
    """Mask rules the plan was made for; a layer that follows another one is an error."""


def default_offsets(length: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ...: two per octave."""
    powers = [1 << k for k in range(length.bit_length())]
    return sorted({offset for p in powers for offset in (p, p + p // 2) if offset < length})


def default_ranges(length: int) -> list[tuple[int, int]]:
    """Octaves from 32 (or a quarter of a short input) to the end."""
    start = 32 if length >= 64 else max(2, length // 4)
    edges = [start]
    while edges[-1] * 2 < length - 1:  # a range of one position would have no leak
        edges.append(edges[-1] * 2)
    return list(zip(edges, [*edges[1:], length], strict=True))


def parse_ranges(text: str) -> list[tuple[int, int]]:
    """`32:64,64:512` as pairs."""
    pairs = []
    for part in text.split(","):
        start, mark, stop = part.strip().partition(":")
        if not mark or not start.isdecimal() or not stop.isdecimal():
            raise BadInput(f"The query range '{part}' is not start:stop; write e.g. 32:64,64:512.")
        pairs.append((int(start), int(stop)))
    return pairs


def parse_offsets(text: str) -> list[int]:
    """`1,2,4,8` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise BadInput(f"The offsets '{text}' are not whole numbers of 0 or more; write e.g. 1,2,4,8.")
    return [int(part) for part in parts]


def plan_leak(
    length: int,
    rules: Iterable[MaskRule] = (MaskRule(),),
    offsets: Sequence[int] | None = None,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> LeakPlan:
    """The plan for inputs of `length` tokens under all `rules` (every layer, every edit).

    An offset counts in a range only if every query of the range sees it under every rule, so that layers and edits are
    compared on the same offsets. Raises BadInput for an offset or a range that nothing satisfies.
    """
    if length < 4:
        raise BadInput(f"Inputs of {length} tokens are too short to trace; use --length of at least 4.")
    wanted = sorted(set(default_offsets(length) if offsets is None else offsets))
    chosen = default_ranges(length) if ranges is None else list(ranges)
    distinct = {rule.at_length(length) for rule in rules}
    planned = []
    for start, stop in chosen:
        if not 0 <= start < stop <= length:
            raise BadInput(f"The query range {start}:{stop} does not fit inputs of {length} tokens.")
        if stop - start < 2:
            raise BadInput(f"The query range {start}:{stop} has one position; a leak needs at least two.")
        counted = tuple(
            o for o in wanted if o <= start and all(rule.sees_offset(start, stop, o, length) for rule in distinct)
        )
        if not counted and ranges is not None:
            raise BadInput(f"No offset of {wanted} is seen by every query of {start}:{stop}; use smaller offsets.")
        if counted:
            planned.append(QueryRange(start, stop, counted))
    if not planned:
        raise BadInput(f"No query range of inputs of {length} tokens sees any of the offsets {wanted}.")
    unused = set(wanted) - {o for r in planned for o in r.offsets}
    if offsets is not None and unused:
        raise BadInput(f"The offset {min(unused)} is seen by every query of no range; drop it or choose later ranges.")
    return LeakPlan(length, tuple(planned), frozenset(distinct))

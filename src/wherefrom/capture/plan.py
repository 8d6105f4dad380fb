"""Which queries, offsets and bins a leak trace looks at: fixed before the first input runs, stated in the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput

MAX_BINS = 64
"""Positions of a range are averaged into at most this many bins; below it the resolution is one token."""
PROFILE_ROWS = 32
"""Full rows of logits taken per input for the mean profile of a range wider than MAX_BINS; narrower ones are taken
whole. The rows' phase goes round with the inputs, so together they see every query."""


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
        size = self.stop - self.start
        return 1 if size <= MAX_BINS else -(-size // PROFILE_ROWS)


@dataclass(frozen=True, slots=True)
class LeakPlan:
    """Length and query ranges of a leak trace."""

    length: int
    ranges: tuple[QueryRange, ...]
    rules: frozenset[MaskRule]
    """Mask rules the plan was made for; a layer that follows another one is an error."""

    def reach(self) -> dict[int, tuple[int, int]]:
        """Offset: the queries from the first to the last range that counts it."""
        spans: dict[int, tuple[int, int]] = {}
        for span in self.ranges:
            for offset in span.offsets:
                start, stop = spans.get(offset, (span.start, span.stop))
                spans[offset] = (min(start, span.start), max(stop, span.stop))
        return spans


def default_offsets(length: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ...: two per octave."""
    powers = [1 << k for k in range(length.bit_length())]
    return sorted({offset for p in powers for offset in (p, p + p // 2) if offset < length})


def default_ranges(length: int) -> list[tuple[int, int]]:
    """Octaves from 32 (or a quarter of a short input) to the end, the first one beginning right behind an offset.

    Most of an early leak sits in the few keys right behind the first token. A range that starts at 32 never reaches
    them with offsets up to 24; one that starts at 25 reaches key 1.
    """
    octave = 32 if length >= 64 else max(2, length // 4)
    edges = [octave]
    while edges[-1] * 2 < length - 1:  # a range of one position would have no leak
        edges.append(edges[-1] * 2)
    edges[0] = max(offset for offset in default_offsets(length) if offset < octave) + 1
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

    An offset counts in a range only if every query of the range sees an ordinary key there under every rule: layers and
    edits are compared on the same offsets, and key 0, which has a part of its own, is no part of the shape. Raises
    BadInput for an offset or a range that nothing satisfies.
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
            o for o in wanted if o < start and all(rule.sees_offset(start, stop, o, length) for rule in distinct)
        )
        if not counted and ranges is not None:
            raise BadInput(
                f"No offset of {wanted} shows every query of {start}:{stop} a key behind position 0; "
                "use smaller offsets or a later range."
            )
        if counted:
            planned.append(QueryRange(start, stop, counted))
    if not planned:
        raise BadInput(f"No query range of inputs of {length} tokens sees any of the offsets {wanted}.")
    unused = set(wanted) - {o for r in planned for o in r.offsets}
    if offsets is not None and unused:
        raise BadInput(
            f"The offset {min(unused)} reaches a key behind position 0 from every query of no range; drop it or choose "
            "later ranges."
        )
    return LeakPlan(length, tuple(planned), frozenset(distinct))

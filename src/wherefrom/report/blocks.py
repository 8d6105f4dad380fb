"""What a page is made of: sections that hold charts, tables, facts, checks and code. The template draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup

from wherefrom.errors import BadInput
from wherefrom.report.charts.common import AnyChart
from wherefrom.report.formatting import MISSING, PLUS_MINUS, percent, with_error


@dataclass(frozen=True)
class Cell:
    """One cell: what is shown, and for numbers what is copied."""

    text: str
    value: float | None = None
    """Full precision, for copying; None for words."""
    stderr: float | None = None

    @property
    def lines(self) -> tuple[str, str]:
        """The estimate, and the error with its sign or nothing."""
        estimate, sign, error = self.text.partition(PLUS_MINUS)
        return estimate, f"± {error}" if sign and self.value is not None else ""


def measured(found: tuple[float, float | None] | None, *, share: bool = False) -> Cell:
    """A cell from an estimate and its standard error; a dash where there is none."""
    if found is None:
        return Cell(MISSING)
    value, stderr = found
    return Cell(percent(value, stderr) if share else with_error(value, stderr), value, stderr)


@dataclass(frozen=True)
class Column:
    """A table column: head, and the meaning shown on hover."""

    label: str
    meaning: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table with a caption. The first `heads` cells of every row are row headers."""

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    heads: int = 1
    groups: Sequence[tuple[str, int]] = ()
    """Heads over several columns, with the number of columns each spans."""
    read: Markup | str = ""
    half: bool = False
    """Half a row on wide screens."""
    kind: Literal["table"] = "table"

    @property
    def tall(self) -> bool:
        """Whether errors stand under their values because the table is wide."""
        return len(self.columns) > 7


@dataclass(frozen=True)
class Figure:
    """A chart with a title and one sentence that says how to read it."""

    id: str
    title: str
    chart: AnyChart
    read: Markup | str
    half: bool = False
    """Half a row on wide screens."""
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    entries: Sequence[tuple[str, Markup | str]]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True)
class Check:
    """One line of the trust section."""

    state: Literal["good", "note", "bad"]
    title: str
    detail: Markup | str


@dataclass(frozen=True)
class Checks:
    """A list of checks."""

    entries: Sequence[Check]
    kind: Literal["checks"] = "checks"


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    id: str
    title: str
    text: str
    kind: Literal["code"] = "code"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: Markup | str
    kind: Literal["text"] = "text"


Block = Table | Figure | Facts | Checks | Code | Text


@dataclass(frozen=True)
class Section:
    """A numbered part of the page."""

    id: str
    title: str
    blocks: list[Block] = field(default_factory=list)
    intro: Markup | str = ""


def drawn(make: Callable[[], AnyChart], name: str, title: str, read: Markup | str) -> list[Block]:
    """A figure, or nothing where the run holds no rows for it."""
    try:
        return [Figure(name, title, make(), read)]
    except BadInput:
        return []

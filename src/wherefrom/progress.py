"""The one progress reporter: a bar on a terminal, plain lines in a log, silence when asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

LOG_EVERY = 10.0
"""Seconds between lines when the output is not a terminal."""


class Progress:
    """Where long work says what it is doing. Writes to standard error, so that standard output stays clean."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.quiet = quiet

    def say(self, text: str) -> None:
        """One line of information."""
        if not self.quiet:
            print(text, file=self.stream, flush=True)

    @contextmanager
    def task(self, title: str, total: int, done: int = 0) -> Iterator[Task]:
        """A counted piece of work: `task.advance(n)` as pieces finish."""
        if self.quiet or not self.stream.isatty():
            yield Task(self, title, total, done)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        with Bar(*columns, console=Console(file=self.stream), transient=False) as bar:
            row = bar.add_task(title, total=total, completed=done)

            def move(amount: int, note: str) -> None:
                bar.update(row, advance=amount, description=f"{title}: {note}" if note else title)

            yield Task(self, title, total, done, move)


class Task:
    """Progress of one counted piece of work."""

    def __init__(self, owner: Progress, title: str, total: int, done: int, bar: object = None) -> None:
        self.owner, self.title, self.total, self.done = owner, title, total, done
        self.first = done
        self.bar = bar
        self.note = ""
        """What to say beside the count, e.g. the latest loss."""
        self.started = self.spoken = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        """Count finished pieces."""
        self.done += amount
        if callable(self.bar):
            self.bar(amount, self.note)
            return
        now = time.monotonic()
        if now - self.spoken >= LOG_EVERY or self.done >= self.total:
            self.spoken = now
            pace = (now - self.started) / max(1, self.done - self.first)
            note = f"{self.note}, " if self.note else ""
            self.owner.say(
                f"{self.title}: {self.done}/{self.total}, {note}{now - self.started:.0f} s, "
                f"about {pace * (self.total - self.done):.0f} s left"
            )

"""Synthetic tasks, one file each: pure functions of (settings, seed).

`build_task("distance:max_between=30")` gives a `Task`, `examples(task, 128, seed=0)` a batch of it; `list_tasks()` says
what there is. `TASKS` is the one table: a new task is a file here and a line there.
"""

from __future__ import annotations

from typing import NamedTuple

from wherefrom.errors import BadInput
from wherefrom.settings import labelled_paragraphs, split_text, suggestion
from wherefrom.tasks.base import IGNORED, PAD, Examples, Readout, Split, Task, TaskConfig, examples, padded
from wherefrom.tasks.copy import Copy, CopyConfig
from wherefrom.tasks.count import Count, CountConfig
from wherefrom.tasks.distance import Distance, DistanceConfig
from wherefrom.tasks.index import Index, IndexConfig
from wherefrom.tasks.parity import Parity, ParityConfig
from wherefrom.tasks.recall import Recall, RecallConfig
from wherefrom.tasks.text import Text, TextConfig

__all__ = [
    "IGNORED",
    "PAD",
    "TASKS",
    "Entry",
    "Examples",
    "Readout",
    "Split",
    "Task",
    "TaskConfig",
    "build_task",
    "examples",
    "list_tasks",
    "padded",
    "parse_task",
]


class Entry(NamedTuple):
    """One line of the table."""

    config: type[TaskConfig]
    task: type[Task]


TASKS: dict[str, Entry] = {
    "distance": Entry(DistanceConfig, Distance),
    "count": Entry(CountConfig, Count),
    "recall": Entry(RecallConfig, Recall),
    "index": Entry(IndexConfig, Index),
    "copy": Entry(CopyConfig, Copy),
    "parity": Entry(ParityConfig, Parity),
    "text": Entry(TextConfig, Text),
}


def parse_task(text: str) -> TaskConfig:
    """Read a setting string: `name`, or `name:field=value,field=value`.

    Names may be written with `_` for `-`. Raises BadInput for an unknown name or option, with the nearest one there is.
    """
    name, options = split_text(text)
    if name not in TASKS:
        raise BadInput(f"There is no task `{name}`; {suggestion(name, TASKS)}")
    return TASKS[name].config.from_options(options)


def build_task(task: str | TaskConfig) -> Task:
    """Build a task from a setting string or a configuration. Raises BadInput for anything that does not fit."""
    config = parse_task(task) if isinstance(task, str) else task
    entry = TASKS.get(getattr(config, "name", ""))
    if entry is None or not isinstance(config, entry.config):
        raise BadInput(f"{config!r} configures no task of the table; pass a name or one of its configurations.")
    return entry.task(config)


def list_tasks() -> list[dict[str, object]]:
    """Every task as a plain dict: name, readout, positional, summary, input, answer, source, options.

    `options` maps each setting to its default, as text.
    """
    return [
        {
            "name": name,
            "readout": task.readout,
            "positional": task.positional,
            **labelled_paragraphs(task, ("Input", "Answer", "Source")),
            "options": config.defaults(),
        }
        for name, (config, task) in TASKS.items()
    ]

"""The page about tasks says what the code says: its tables and examples are made here and looked for there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wherefrom.tasks import IGNORED, TASKS, build_task, examples, list_tasks

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
SMALL = {
    "distance": "distance:vocabulary=30,max_between=4,side=2",
    "count": "count:vocabulary=30,length=8,triggers=3,max_count=4",
    "recall": "recall:keys=4,values=5,pairs=2",
    "index": "index:symbols=6",
    "copy": "copy:symbols=5,shortest=2,longest=4",
    "parity": "parity:shortest=4,longest=8",
}
"""A setting of each task that makes an example short enough to be read."""


def table_line(row):
    """Line of the table of tasks."""
    depends = "yes" if row["positional"] else "no"
    return f"| `{row['name']}` | {row['summary']} | {row['readout']} | {depends} | {row['source']} |"


def example_line(setting):
    """Line of the table of examples: the first one of seed 0."""
    batch = examples(build_task(setting), 1, seed=0)
    labels = batch.labels[0].tolist()
    answer = str(labels) if isinstance(labels, int) else " ".join("·" if x == IGNORED else str(x) for x in labels)
    return f"| `{setting}` | {' '.join(map(str, batch.token_ids[0].tolist()))} | {answer} |"


@pytest.mark.parametrize("row", list_tasks(), ids=lambda row: row["name"])
def test_the_table_of_tasks_is_current(row):
    assert table_line(row) in PAGE


@pytest.mark.parametrize("name", [name for name in TASKS if name != "text"])
def test_the_examples_are_current(name):
    assert example_line(SMALL[name]) in PAGE


def test_every_setting_and_its_default_is_listed():
    for row in list_tasks():
        section = PAGE.split(f"### `{row['name']}`")[1].split("\n#")[0]
        assert dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, flags=re.MULTILINE)) == row["options"]


def test_every_setting_string_of_the_page_builds():
    for setting in re.findall(rf"`((?:{'|'.join(TASKS)}):[\w=,]+)`", PAGE):
        build_task(setting)


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert blocks
    exec(blocks[0], {})


def test_another_example_is_not_on_the_page():
    """Control."""
    assert example_line("index:symbols=7") not in PAGE

"""The page about encodings says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wherefrom.encodings import build, kernels, list_encodings, list_scalings
from wherefrom.testing import CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "encodings.md").read_text(encoding="utf-8")


def cell(text):
    return str(text).replace("|", "\\|")


@pytest.mark.parametrize("row", list_encodings(), ids=lambda row: row["name"])
def test_the_table_of_encodings_is_current(row):
    learned = "yes" if row["learned"] else "no"
    cells = (f"`{row['name']}`", row["kind"], row["reference"], learned, cell(row["formula"]), cell(row["source"]))
    assert f"| {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("row", list_scalings(), ids=lambda row: row["name"])
def test_the_table_of_schedules_is_current(row):
    assert f"| `{row['name']}` | {cell(row['formula'])} | {cell(row['source'])} |" in PAGE


def test_checks_functions_and_arms_of_the_page_exist():
    for name in CHECKS:
        assert f"| `{name}` |" in PAGE
    for name in re.findall(r"`kernels\.(\w+)`", PAGE):
        assert hasattr(kernels, name)
    arms = PAGE.split("## The published code")[1].split("## ")[0]
    for setting in re.findall(r"^\| [^|]+ \| `([^`]+)`", arms, flags=re.MULTILINE):
        build(setting, d_model=32, heads=4, max_length=16)

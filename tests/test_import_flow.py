"""Data flows one way, from encodings to the report: this test holds the table of who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "wherefrom"
LEAVES = {"errors", "rows", "progress", "suggest", "settings"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "rows": set(),
    "progress": set(),
    "suggest": set(),
    "settings": {"errors"},
    "encodings": LEAVES,
    "tasks": LEAVES,
    "testing": LEAVES | {"encodings"},
    "models": LEAVES | {"encodings"},
    "capture": LEAVES | {"encodings", "models"},
    "analyses": LEAVES | {"encodings", "tasks", "models", "capture", "training"},
    "results": LEAVES | {"wherefrom"},
    "recipes": LEAVES | {"training"},
    "training": LEAVES | {"models", "tasks", "results", "wherefrom"},
    "report": LEAVES | {"results"},
    "workflows": LEAVES
    | {"encodings", "tasks", "models", "capture", "analyses", "training", "recipes", "results", "wherefrom"},
    "api": LEAVES | {"models", "capture", "analyses", "training", "recipes", "workflows", "report"},
    "cli_lab": LEAVES | {"api", "tasks", "models", "training", "recipes", "workflows", "report", "results"},
    "cli": LEAVES | {"cli_lab", "api", "capture", "encodings", "models", "report", "results", "workflows", "wherefrom"},
    "__main__": {"cli"},
    "__init__": set(),
}
"""Unit (package or module of `wherefrom`): units it may import. Nobody imports `cli`."""


def imports(unit: str) -> set[str]:
    """Units of ours that a unit imports, at any depth of its code."""
    path = PACKAGE / unit
    files = list(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.level == 0, f"{file} imports relatively"
                names = [node.module]
            for name in names:
                if name.split(".")[0] == "wherefrom":
                    found.add((name.split(".") + ["wherefrom"])[1] if "." in name else "wherefrom")
    return found - {unit}


def units() -> list[str]:
    return sorted(
        p.stem for p in PACKAGE.iterdir() if (p.is_dir() and (p / "__init__.py").exists()) or p.suffix == ".py"
    )


def test_the_table_names_every_unit() -> None:
    assert set(units()) == set(MAY_IMPORT) - ({"__main__"} - set(units()))


@pytest.mark.parametrize("unit", units())
def test_imports_follow_the_table(unit: str) -> None:
    assert imports(unit) <= MAY_IMPORT[unit]


def test_the_reader_of_imports_sees_something() -> None:
    """Control: were the parser blind, the test above could not fail."""
    assert {"capture", "analyses"} <= imports("workflows")


def test_the_report_and_the_package_itself_need_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, wherefrom, wherefrom.report, wherefrom.results.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

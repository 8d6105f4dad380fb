"""Shared fixtures."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)  # tiny models lose more time to waking threads than they win


@pytest.fixture(autouse=True)
def _quiet_and_repeatable() -> None:
    torch.manual_seed(0)


@pytest.fixture
def report_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Commands run without drawing: what the report was asked for, and a page that says so."""
    calls: list[Any] = []

    def build_report(folders: Any, output: Path | None = None) -> Path:
        calls.append((folders, output))
        return output or Path(folders if isinstance(folders, Path) else folders[0]) / "report.html"

    monkeypatch.setattr(importlib.import_module("wherefrom.report"), "build_report", build_report, raising=False)
    return calls

"""The head of every manifest: which software wrote it, and when."""

from __future__ import annotations

import importlib.metadata
import platform
from datetime import UTC, datetime
from typing import Any

import wherefrom


def versions(*more: str) -> dict[str, Any]:
    """`wherefrom`, `versions` (Python, torch, polars and the packages in `more`) and `created` (UTC, ISO 8601)."""
    packages = {name: importlib.metadata.version(name) for name in ("torch", *more, "polars")}
    return {
        "wherefrom": wherefrom.__version__,
        "versions": {"python": platform.python_version(), **packages},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }

"""wherefrom: where a Transformer's sense of position comes from."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

_PUBLIC = {
    "BadInput": "wherefrom.errors",
    "load": "wherefrom.api",
    "trace": "wherefrom.api",
    "split": "wherefrom.api",
    "facts": "wherefrom.api",
    "train": "wherefrom.api",
    "sweep": "wherefrom.api",
    "heads": "wherefrom.api",
    "random_tokens": "wherefrom.api",
    "text_windows": "wherefrom.api",
    "given_tokens": "wherefrom.api",
    "Trace": "wherefrom.workflows.trace",
    "Split": "wherefrom.workflows.split",
    "Facts": "wherefrom.workflows.facts",
    "Training": "wherefrom.training.loop",
    "Sweep": "wherefrom.workflows.sweep",
    "Heads": "wherefrom.workflows.heads",
}
"""Public name: module. Resolved on first use, so that `import wherefrom` does not import torch."""


def __getattr__(name: str) -> Any:
    if name == "report":  # a package that can be called: wf.report("out")
        return importlib.import_module("wherefrom.report")
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'wherefrom' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, "report"])

"""Saved results to one self-contained HTML report, and charts of saved rows for notebooks.

Reads files only: needs neither torch nor a model.
"""

import sys
from pathlib import Path
from types import ModuleType

from wherefrom.report.build import build_report
from wherefrom.report.charts import (
    edits_by_depth,
    first_token_norm,
    first_token_similarity,
    head_map,
    leak_by_depth,
    leak_by_depth_of_runs,
    leak_by_offset,
    leak_by_range,
    offset_map,
    readme_figure,
    removed_fractions,
    sink_map,
    sink_scores,
)
from wherefrom.report.style import save_png

__all__ = [
    "build_report",
    "edits_by_depth",
    "first_token_norm",
    "first_token_similarity",
    "head_map",
    "leak_by_depth",
    "leak_by_depth_of_runs",
    "leak_by_offset",
    "leak_by_range",
    "offset_map",
    "readme_figure",
    "removed_fractions",
    "save_png",
    "sink_map",
    "sink_scores",
]


class _CallableModule(ModuleType):
    """`wherefrom.report` is this package and, in the public interface, also the verb: `wherefrom.report("out")`."""

    def __call__(self, *run_folders: Path | str, out: Path | str | None = None) -> Path:
        """Write the report of one run folder, or of several side by side, and return its path."""
        return build_report(run_folders, out)


# Importing a submodule binds its name on the package, so a function `report` there would not survive the first call.
sys.modules[__name__].__class__ = _CallableModule

"""Saved results to one self-contained HTML report, and charts of saved rows for notebooks.

Reads files only: needs neither torch nor a model.
"""

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

"""Charts of saved rows, for the report and for notebooks. Each takes a polars frame of tidy rows."""

from wherefrom.report.charts.depth import edits_by_depth, leak_by_depth, leak_by_depth_of_runs, leak_by_range
from wherefrom.report.charts.figure import readme_figure
from wherefrom.report.charts.first_token import first_token_norm, first_token_similarity, sink_map, sink_scores
from wherefrom.report.charts.maps import head_map, offset_map
from wherefrom.report.charts.offsets import leak_by_offset
from wherefrom.report.charts.removed import removed_fractions

__all__ = [
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
    "sink_map",
    "sink_scores",
]

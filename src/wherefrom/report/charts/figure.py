"""One still picture that tells the story: leak by depth, and what the edits left of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from wherefrom.report.charts.depth import leak_by_depth, leak_by_range
from wherefrom.report.headline import headline_range
from wherefrom.report.terms import UNEDITED


def readme_figure(rows: pl.DataFrame, manifest: Mapping[str, Any]) -> alt.VConcatChart:
    """Leak by depth split into its components (above), and the same averages under every edit (below).

    Both panels show the range of queries that the report's headline speaks about.
    """
    query_range = headline_range(rows)
    model = manifest.get("model")
    name = str(model.get("name", "")) if isinstance(model, dict) else ""
    depth = leak_by_depth(rows, width=720, height=240, query_range=query_range, edit=UNEDITED).properties(
        title=alt.Title(
            "How much attention depends on absolute position, layer by layer", subtitle=f"{name}, queries {query_range}"
        )
    )
    edits = leak_by_range(rows, width=600, query_range=query_range).properties(
        title=alt.Title(
            "What is left of it under each edit", subtitle="mean over layers and heads; whiskers are 95 % intervals"
        )
    )
    return alt.vconcat(depth, edits, spacing=28)

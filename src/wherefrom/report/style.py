"""The look of every chart, in one Vega-Lite configuration, and pictures of charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wherefrom.report.charts.common import AnyChart
from wherefrom.report.terms import INK

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_MUTED = "#55606d"
_GRID = "#dfe3e8"

# The report's style sheet overrides these inks on a dark screen; pictures keep them.
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": _FONT,
    "padding": 4,
    "view": {"stroke": None},
    "axis": {
        "labelColor": _MUTED,
        "titleColor": INK["light"],
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "gridColor": _GRID,
        "domainColor": "#aab2bb",
        "tickColor": "#aab2bb",
        "labelLimit": 180,
    },
    "legend": {
        "labelColor": INK["light"],
        "titleColor": INK["light"],
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "gradientThickness": 12,
    },
    "header": {"labelColor": INK["light"], "titleColor": INK["light"], "labelFontSize": 12, "labelFontWeight": 600},
    "title": {"color": INK["light"], "fontSize": 14, "fontWeight": 600, "anchor": "start", "subtitleColor": _MUTED},
    "rule": {"color": INK["light"]},
    "point": {"color": INK["light"]},
    "text": {"color": INK["light"], "fontSize": 11},
    "scale": {"bandPaddingInner": 0.15},
}


def save_png(chart: AnyChart, path: Path | str, scale: float = 2.0) -> Path:
    """Write the chart as a PNG on white, without a browser.

    Menus show their first option. `scale` multiplies the size in pixels.
    """
    import vl_convert

    config = CONFIG | {"background": "white", "font": "Liberation Sans, Arial, Helvetica, sans-serif", "padding": 16}
    picture = vl_convert.vegalite_to_png(chart.to_dict(), scale=scale, config=config)
    target = Path(path)
    target.write_bytes(picture)
    return target

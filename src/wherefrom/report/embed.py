"""Putting data and scripts into a page safely, without a network and without leave to run anything else."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from wherefrom.report.charts.common import AnyChart

DIGITS = {"stderr": 2, "": 3}
"""Significant digits of numbers inside charts, by how the column's name starts; `rows.parquet` keeps them all."""

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def safe_json(value: Any) -> Markup:
    """JSON that can stand inside a `<script>` element whatever strings it holds."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return Markup(text)


def asset(name: str) -> str:
    """The text of a package data file."""
    return files("wherefrom.report").joinpath("assets", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def chart_library() -> str:
    """Vega, Vega-Lite and vega-embed as one script (about 0.9 MB); making it takes seconds, so it is kept."""
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # An inline script ends at the first "</script", wherever it stands, and "<!--" changes how it is read.
    if "</script" in script.lower() or "<!--" in script:
        raise RuntimeError("The chart library cannot be put into a page: it holds an end-of-script mark.")
    return script


def source_hash(text: str) -> str:
    """The hash by which a content security policy allows exactly this inline script or style."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def security_policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Nothing may be loaded, and only these very scripts and styles may run.

    Vega's expressions are interpreted (`ast: true`), so `unsafe-eval` is not needed; it sets no style attributes, so
    `unsafe-inline` is not either. `require-trusted-types-for` makes the browser refuse HTML built from strings.
    """
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(source_hash, scripts))}",
            f"style-src {' '.join(map(source_hash, styles))}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        ]
    )


def packed_spec(chart: AnyChart) -> dict[str, Any]:
    """The chart's specification with its data sets as columns, a quarter of the size of a list of objects."""
    spec: dict[str, Any] = chart.to_dict()
    spec["datasets"] = {name: pack(json.loads(values)) for name, values in spec.get("datasets", {}).items()}
    return spec


def pack(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Columns instead of records; repeated strings become indices into a list of levels."""
    names = list(dict.fromkeys(name for record in values for name in record))
    columns: dict[str, Any] = {}
    for name in names:
        column = [record.get(name) for record in values]
        strings = [entry for entry in column if isinstance(entry, str)]
        if strings and len(strings) + column.count(None) == len(column):
            levels = list(dict.fromkeys(strings))
            place = {level: index for index, level in enumerate(levels)}
            columns[name] = {"levels": levels, "index": [-1 if entry is None else place[entry] for entry in column]}
        else:
            digits = next(digits for start, digits in DIGITS.items() if name.startswith(start))
            columns[name] = _numbers(column, digits)
    return {"length": len(values), "columns": columns}


def _numbers(column: Sequence[Any], digits: int) -> Any:
    """Numbers as one string with a space between, which saves a leading zero each; anything else as a list."""
    if not all(entry is None or isinstance(entry, int | float) and not isinstance(entry, bool) for entry in column):
        return column
    return {"numbers": " ".join(_short(entry, digits) for entry in column)}


def _short(entry: float | None, digits: int) -> str:
    if entry is None or not math.isfinite(entry):
        return "x"
    if isinstance(entry, int):
        return str(entry)
    text = repr(float(f"{entry:.{digits}g}")).removesuffix(".0")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text

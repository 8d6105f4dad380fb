"""Numbers in words, packing of chart data, and charts by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from synthetic_run import Synthetic

from wherefrom import report
from wherefrom.errors import BadInput
from wherefrom.report.embed import pack, packed_spec, safe_json
from wherefrom.report.formatting import brief, number, percent, with_error
from wherefrom.report.provenance import closure_of_rows
from wherefrom.report.selection import ranges_of
from wherefrom.report.tables import shown_token

SPACE = "\N{NO-BREAK SPACE}"


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    return Synthetic(5, 4, vocabulary=80).table()


@pytest.mark.parametrize(
    ("value", "stderr", "shown"),
    [
        (0.0912, 0.0061, "0.091 ± 0.006"),
        (0.2751, 0.0214, "0.28 ± 0.02"),
        (0.03636, 0.0016, "0.0364 ± 0.0016"),
        (-0.0031, 0.0004, "−0.0031 ± 0.0004"),
        (-0.00004, 0.002, "0.000 ± 0.002"),
        (12.0, 3.0, "12 ± 3"),
        (0.5, None, "0.500"),
        (0.5, 0.0, "0.500"),
        (None, 0.1, "–"),
        (float("nan"), 0.1, "nan"),
    ],
)
def test_with_error(value: float | None, stderr: float | None, shown: str) -> None:
    assert with_error(value, stderr).replace(SPACE, " ") == shown


@pytest.mark.parametrize(
    ("value", "stderr", "shown"),
    [
        (0.76, 0.03, "76 % ± 3 %"),
        (1.04, None, "104 %"),
        (-0.001, 0.02, "0 % ± 2 %"),
        (0.7654, 0.0021, "76.5 % ± 0.2 %"),
        (-8.34, 0.44, "−834 % ± 44 %"),
    ],
)
def test_percent(value: float, stderr: float | None, shown: str) -> None:
    assert percent(value, stderr).replace(SPACE, " ") == shown


def test_plain_numbers() -> None:
    assert [number(x) for x in (84.0, 0.0, 1.23456e-7, 0.00012345)] == ["84", "0", "1.23e−7", "0.000123"]
    assert [brief(x) for x in (2.1e-5, 1e-3, 3.4e-9, 0.0)] == ["2.1e−5", "0.001", "3.4e−9", "0"]


def test_packed_data_can_be_unpacked() -> None:
    records = [{"a": 1, "b": 0.123456, "c": "x", "stderr": -0.012345}, {"a": 2, "b": None, "c": "y", "stderr": 3.0}]
    packed = pack(records)
    assert packed["length"] == 2
    assert packed["columns"]["a"] == {"numbers": "1 2"}
    assert packed["columns"]["b"] == {"numbers": ".123 x"}
    assert packed["columns"]["c"] == {"levels": ["x", "y"], "index": [0, 1]}
    assert packed["columns"]["stderr"] == {"numbers": "-.012 3"}


def test_safe_json_reads_back_the_same() -> None:
    value = {"</script>": "<!-- & \u2028 \u2029 ü"}
    text = str(safe_json(value))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_ranges_are_ordered_by_position() -> None:
    frame = pl.DataFrame({"query_range": ["128:256", "8:16", None, "odd", "32:64"]})
    assert ranges_of(frame) == ["8:16", "32:64", "128:256", "odd"]


def test_tokens_show_their_spaces() -> None:
    assert shown_token(" a\n") == "␣a\\n"
    assert len(shown_token("x" * 500)) == 60
    assert shown_token(None) == "(text not stored)"


def test_closure_sees_a_broken_part(rows: pl.DataFrame) -> None:
    gap, size = closure_of_rows(rows)
    assert gap is not None
    assert size is not None
    assert gap < 1e-12 < size
    broken = rows.with_columns(value=pl.when(pl.col("metric") == "rest").then(0.5).otherwise("value"))
    assert (closure_of_rows(broken)[0] or 0) > 0.1


CHARTS = (
    report.leak_by_depth,
    report.leak_by_range,
    report.edits_by_depth,
    report.head_map,
    report.offset_map,
    report.leak_by_offset,
    report.first_token_norm,
    report.first_token_similarity,
    report.sink_map,
    report.sink_scores,
    report.removed_fractions,
)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.__name__)
def test_charts_make_pictures(chart, rows: pl.DataFrame, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    picture = report.save_png(chart(rows), tmp_path / "chart.png", scale=1)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert packed_spec(chart(rows))["datasets"]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.__name__)
def test_charts_say_when_their_rows_are_missing(chart, rows: pl.DataFrame) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput, match="nothing to draw"):
        chart(rows.filter(pl.col("analysis") == "other"))


def test_no_part_is_clipped(rows: pl.DataFrame) -> None:
    negative = rows.filter((pl.col("metric") == "first_token") & (pl.col("value") < 0))
    assert negative.height
    spec = json.dumps(report.leak_by_depth(rows).to_dict())
    assert '"domainMin"' not in spec
    assert '"clamp"' not in spec


def test_readme_figure(rows: pl.DataFrame, tmp_path: Path) -> None:
    figure = report.readme_figure(rows, Synthetic().manifest())
    assert report.save_png(figure, tmp_path / "readme.png").stat().st_size > 20_000
    assert "queries 32:64" in json.dumps(figure.to_dict(), ensure_ascii=False)


def test_readme_figure_without_edits(tmp_path: Path) -> None:
    alone = Synthetic(5, 4, ("none",)).table(("leak",))
    assert report.save_png(report.readme_figure(alone, {}), tmp_path / "readme.png").exists()

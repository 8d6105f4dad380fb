"""The page: what it holds, what it leaves out, and that nothing in it is fetched or run that should not be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from synthetic_run import Synthetic, default_run, small_run, write_run

from wherefrom.report import build_report
from wherefrom.report.embed import source_hash

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&\u2028${x}"


class Page(HTMLParser):
    """Elements, text of scripts and styles, and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.styles: list[str] = []
        self.words: list[str] = []
        self._open: tuple[str, dict[str, str]] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag in ("script", "style"):
            self._open = (tag, attributes)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is None:
            self.words.append(data)
        elif self._open[0] == "script":
            self.scripts.append((self._open[1], data))
        else:
            self.styles.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def sections(self) -> list[str]:
        return [attributes["id"] for tag, attributes in self.elements if tag == "section"]

    @property
    def figures(self) -> list[str]:
        return [attributes["id"] for tag, attributes in self.elements if tag == "figure"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_report(default_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def page(report: Path) -> Page:
    return Page(report.read_text(encoding="utf-8"))


def strings(value: object) -> Iterator[str]:
    """Every string inside parsed JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from strings(key)
            yield from strings(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from strings(entry)


def test_default_place_is_the_run_folder(report: Path) -> None:
    assert report.name == "report.html"
    assert sorted(file.name for file in report.parent.iterdir()) == ["manifest.json", "report.html", "rows.parquet"]


def test_sections_come_in_the_reader_s_order(page: Page) -> None:
    expected = ["what", "trust", "depth", "heads", "offsets", "first-token", "removed", "meanings", "reproduce"]
    assert page.sections == expected
    targets = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert targets == {f"#{name}" for name in expected}


def test_page_is_small(report: Path) -> None:
    assert report.stat().st_size < 2_000_000


def test_large_model_stays_under_the_limit(tmp_path: Path) -> None:
    run = Synthetic(80, 64, offsets=())
    rows = run.table(("leak", "sinks"))
    built = build_report(write_run(tmp_path, rows, run.manifest()))
    assert built.stat().st_size < 6_000_000
    assert "To keep this file small" in Page(built.read_text(encoding="utf-8")).text


def test_nothing_is_fetched(page: Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert name not in ("src", "srcset", "action", "data", "style")
            assert not name.startswith("on")
            if name == "href":
                assert value.startswith("#")
    for style in page.styles:
        assert "url(" not in style
        assert "@import" not in style
    own = page.scripts[-1][1]
    assert not re.search(r"https?:|import\s*\(|fetch\(|eval\(|innerHTML|new Function", own)


def test_policy_allows_exactly_these_scripts_and_styles(page: Page) -> None:
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == "'none'"
    assert "unsafe" not in policy
    assert "http" not in policy
    runnable = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    assert parts["script-src"].split() == [source_hash(text) for text in runnable]
    assert parts["style-src"].split() == [source_hash(text) for text in page.styles]


def test_headline_follows_the_numbers(report: Path, page: Page, tmp_path: Path) -> None:
    rows = pl.read_parquet(report.parent / "rows.parquet")
    share = (
        (pl.col("metric") == "residual_share")
        & (pl.col("edit") == "none")
        & (pl.col("query_range") == "32:64")
        & pl.col("layer").is_null()
    )
    value = rows.filter(share)["value"][0]
    assert f"At queries 32:64, {value * 100:.0f} % ± 2 % of the positional leak" in page.text
    changed = rows.with_columns(value=pl.when(share).then(0.123).otherwise("value"))
    manifest = json.loads((report.parent / "manifest.json").read_text(encoding="utf-8"))
    other = Page(build_report(write_run(tmp_path, changed, manifest)).read_text(encoding="utf-8"))
    assert "At queries 32:64, 12 % ± 2 % of the positional leak" in other.text


def test_leak_within_noise_is_called_noise(tmp_path: Path) -> None:
    run = Synthetic(3, 2, ("none",))
    total = pl.col("metric") == "attention_leak"
    rows = run.table(("leak",)).with_columns(
        value=pl.when(total).then(1e-4).otherwise("value"), stderr=pl.when(total).then(3e-4).otherwise("stderr")
    )
    built = build_report(write_run(tmp_path, rows, run.manifest()))
    assert "no positional leak is seen beyond noise" in Page(built.read_text(encoding="utf-8")).text


def test_a_broken_split_is_shown_as_such(tmp_path: Path) -> None:
    run = Synthetic(3, 2, ("none",))
    mask = pl.col("metric") == "mask"
    rows = run.table(("leak",)).with_columns(value=pl.when(mask).then(pl.col("value") + 0.1).otherwise("value"))
    page = Page(build_report(write_run(tmp_path, rows, run.manifest())).read_text(encoding="utf-8"))
    states = [attributes.get("class") for tag, attributes in page.elements if tag == "li" and "class" in attributes]
    assert "bad" in states


def test_failed_parity_and_warnings_are_shown(tmp_path: Path) -> None:
    run = Synthetic(3, 2, ("none",))
    manifest = run.manifest() | {"parity": {"max_abs": 0.5, "tolerance": 1e-3}, "warnings": ["soft-cap was sampled"]}
    page = Page(build_report(write_run(tmp_path, run.table(("leak",)), manifest)).read_text(encoding="utf-8"))
    states = [attributes.get("class") for tag, attributes in page.elements if tag == "li" and "class" in attributes]
    assert states.count("bad") == 2
    assert "soft-cap was sampled" in page.text


def test_absolute_encodings_are_named(tmp_path: Path) -> None:
    run = Synthetic(3, 2, ("none",))
    manifest = run.manifest()
    manifest["model"]["encoding"] = "learned"
    page = Page(build_report(write_run(tmp_path, run.table(("leak",)), manifest)).read_text(encoding="utf-8"))
    assert "comes through the residual stream, the absolute encoding included; the rest" in page.text
    assert "shape holds the encoding's own contribution too" in page.text


def test_the_package_is_also_the_verb(tmp_path: Path) -> None:
    code = "import sys, wherefrom, wherefrom.report; wherefrom.report(sys.argv[1]); wherefrom.report(sys.argv[1])"
    folder = small_run(tmp_path)
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    assert (folder / "report.html").exists()


def test_missing_analyses_leave_no_holes(tmp_path: Path) -> None:
    page = Page(build_report(small_run(tmp_path / "leak")).read_text(encoding="utf-8"))
    assert "first-token" not in page.sections
    sinks = Page(build_report(small_run(tmp_path / "sinks", ("sinks", "atlas"))).read_text(encoding="utf-8"))
    assert sinks.sections == ["what", "trust", "first-token", "reproduce"]
    assert sinks.figures == ["sink-map", "sink-scores"]


def test_only_averages_still_make_a_page(tmp_path: Path) -> None:
    run = Synthetic(3, 2, ("none",))
    rows = run.table(("leak",)).filter(pl.col("layer").is_null() & pl.col("offset").is_null())
    page = Page(build_report(write_run(tmp_path, rows, run.manifest())).read_text(encoding="utf-8"))
    assert page.figures == ["leak-by-range"]


def test_learned_sink_has_its_own_part(tmp_path: Path) -> None:
    page = Page(build_report(small_run(tmp_path, learned_sink=True)).read_text(encoding="utf-8"))
    assert "learned sink" in page.text


@pytest.mark.parametrize(
    "manifest", [{}, {"model": "x", "parity": 3, "offsets": [1], "edits": "none", "warnings": "w"}]
)
def test_poor_manifests_degrade(tmp_path: Path, manifest: dict[str, object]) -> None:
    run = Synthetic(3, 2, ("none",), vocabulary=40)
    built = build_report(write_run(tmp_path / "my-run", run.table(), manifest))
    page = Page(built.read_text(encoding="utf-8"))
    assert "my-run" in page.text
    assert "depth" in page.sections


def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    run = Synthetic(3, 2, ("none", HOSTILE), vocabulary=40)
    manifest = run.manifest(HOSTILE)
    manifest |= dict.fromkeys(("command", "python", "text", "device", "created"), HOSTILE)
    manifest |= {"warnings": [HOSTILE], "first_token": {"id": 1, "text": HOSTILE}, "versions": {HOSTILE: HOSTILE}}
    manifest["atlas"] = {"tokens": {str(token): HOSTILE for token in range(40)}}
    text = build_report(write_run(tmp_path, run.table(), manifest)).read_text(encoding="utf-8")
    assert "<img src=x" not in text
    page = Page(text)
    assert not any("\u2028" in body for _, body in page.scripts)
    assert not {"img", "svg", "iframe"} & {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    data = [json.loads(body) for attributes, body in page.scripts if attributes.get("type") == "application/json"]
    assert any(HOSTILE in found for spec in data for found in strings(spec))
    # Nothing hostile is ever part of an expression that Vega evaluates.
    for found in (found for spec in data for found in strings(spec)):
        assert found in (HOSTILE,) or "onerror" not in found


def test_several_runs_side_by_side(tmp_path: Path) -> None:
    folders = [small_run(tmp_path / name, ("leak", "sinks"), seed=seed) for seed, name in enumerate("ab")]
    built = build_report(folders)
    assert built == tmp_path.resolve() / "comparison.html"
    page = Page(built.read_text(encoding="utf-8"))
    assert page.sections == ["compare", "depth", "what", "trust", "reproduce"]
    assert page.figures == ["depth-of-runs"]
    # The same model twice: the folders' names tell the runs apart.
    assert "SmolLM2-135M-Instruct (a)" in page.text
    assert "SmolLM2-135M-Instruct (b)" in page.text


def test_number_that_is_not_finite_is_counted(tmp_path: Path) -> None:
    run = Synthetic(3, 2, ("none",))
    rows = run.table(("leak",))
    broken = pl.concat([rows, rows.head(3).with_columns(value=pl.lit(float("nan")))])
    assert (
        "3 rows of the table are not finite"
        in Page(build_report(write_run(tmp_path, broken, run.manifest())).read_text(encoding="utf-8")).text
    )


def test_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from wherefrom.report import build_report; build_report(sys.argv[1]);"
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(small_run(tmp_path))], check=True)

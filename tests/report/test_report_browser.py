"""The page in a real browser: every chart is drawn, nothing is complained about, hostile names stay text."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from synthetic_run import Synthetic, default_run, write_run

from wherefrom.report import build, build_report

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">'&\u2028"

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium to draw the page in")


class Drawn(HTMLParser):
    """Counts marks per chart in the page as the browser left it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.charts = ""
        self.marks: dict[str, int] = {}
        self.descriptions: dict[str, str] = {}
        self.menus: dict[str, int] = {}
        self.tags: set[str] = set()
        self._figure = ""
        self._groups: list[bool] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        if tag == "html":
            self.charts = attributes.get("data-charts", "")
        elif tag == "figure":
            self._figure = attributes["id"]
            self.marks[self._figure] = 0
            self.menus[self._figure] = 0
        elif tag == "select":
            self.menus[self._figure] += 1
        elif attributes.get("role") == "graphics-document":
            self.descriptions[self._figure] = attributes.get("aria-label", "")
        elif tag == "g":
            self._groups.append("role-mark" in attributes.get("class", ""))
        elif tag in ("path", "line", "text") and self._groups and self._groups[-1] and attributes.get("d") != "":
            self.marks[self._figure] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "g" and self._groups:
            self._groups.pop()


def draw(file: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The page after its scripts have run, and what the browser's console said."""
    assert BROWSER is not None
    options = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --enable-logging=stderr --window-size=1280,1000 "
        "--virtual-time-budget=30000 --dump-dom"
    )
    command = [BROWSER, *options.split(), f"--user-data-dir={profile}", *flags, file.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=180, check=True)
    said = [line for line in done.stderr.splitlines() if re.search(r"CONSOLE[:(]", line)]
    return done.stdout, said


def check(file: Path, profile: Path, *flags: str) -> Drawn:
    text, said = draw(file, profile, *flags)
    assert said == []
    drawn = Drawn(text)
    assert drawn.charts == "drawn"
    assert drawn.marks
    assert {name: count for name, count in drawn.marks.items() if count == 0} == {}
    return drawn


def test_every_chart_is_drawn(tmp_path: Path) -> None:
    drawn = check(build_report(default_run(tmp_path / "run")), tmp_path / "profile")
    assert len(drawn.marks) == 11
    assert drawn.marks["heads-map"] == 30 * 9
    # Components and totals of 30 layers, each total with a whisker, and the line at zero.
    assert drawn.marks["leak-by-depth"] == 30 * 4 + 30 * 2 + 1
    assert drawn.menus["heads-map"] == 3
    assert all(len(drawn.descriptions[name]) > 40 for name in drawn.marks)


def test_dark_and_narrow(tmp_path: Path) -> None:
    run = Synthetic(4, 3, vocabulary=50, learned_sink=True)
    built = build_report(write_run(tmp_path / "run", run.table(), run.manifest()))
    check(built, tmp_path / "profile", "--blink-settings=preferredColorScheme=0", "--window-size=400,900")


def test_several_runs(tmp_path: Path) -> None:
    folders = []
    for seed, layers in enumerate((4, 6)):
        run = Synthetic(layers, 3, seed=seed)
        folders.append(write_run(tmp_path / f"run{seed}", run.table(("leak", "sinks")), run.manifest(f"model {seed}")))
    check(build_report(folders), tmp_path / "profile")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    run = Synthetic(3, 2, ("none", HOSTILE), vocabulary=40)
    manifest = run.manifest(HOSTILE)
    manifest["atlas"] = {"tokens": {str(token): HOSTILE for token in range(40)}}
    built = build_report(write_run(tmp_path / "run", run.table(), manifest))
    text, said = draw(built, tmp_path / "profile")
    assert said == []
    assert "img" not in Drawn(text).tags
    assert "<title>owned" not in text


def test_a_broken_page_is_noticed(tmp_path: Path) -> None:
    """The control: a chart that cannot be drawn fails the check."""
    run = Synthetic(3, 2, ("none",))
    built = build_report(write_run(tmp_path / "run", run.table(("leak",)), run.manifest()))
    text = built.read_text(encoding="utf-8").replace('"mark":{"type":"rect"}', '"mark":{"type":"nonsense"}')
    built.write_text(text, encoding="utf-8")
    text, said = draw(built, tmp_path / "profile")
    assert said
    assert Drawn(text).charts == "failed"


PROBE = """
(() => {
  const result = {};
  const paths = () => [...document.querySelectorAll("#leak-by-depth .mark-rect path")];
  const bars = () => paths().map((bar) => bar.getAttribute("d")).join();
  const wait = window.setInterval(() => {
    if (!document.documentElement.dataset.charts) return;
    window.clearInterval(wait);
    const before = bars();
    const edit = [...document.querySelectorAll("#leak-by-depth select")].at(-1);
    edit.selectedIndex = 1;
    edit.dispatchEvent(new Event("input"));
    edit.dispatchEvent(new Event("change"));
    window.setTimeout(() => {
      result.changed = bars() !== before;
      const fills = (plot) => plot.querySelector("svg").width.baseVal.value / plot.clientWidth;
      result.fills = [...document.querySelectorAll(".plot")].map(fills);
      result.linked = [...document.querySelectorAll("#heads-map select")].at(-1).selectedIndex;
      document.execCommand = () => {
        result.copied = document.querySelector("textarea").value;
        return true;
      };
      Object.defineProperty(navigator, "clipboard", { value: undefined });
      document.querySelector("#components button").click();
      window.setTimeout(() => { document.body.dataset.result = JSON.stringify(result); }, 300);
    }, 300);
  }, 50);
})();
"""


@pytest.mark.parametrize("width", [420, 1280])
def test_menus_are_linked_tables_copied_and_charts_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    asset = build.asset
    monkeypatch.setattr(build, "asset", lambda name: asset(name) + (PROBE if name == "page.js" else ""))
    run = Synthetic(3, 2, learned_sink=True, strength=2)
    rows = run.table(("leak",))
    built = build_report(write_run(tmp_path / "run", rows, run.manifest()))
    text, said = draw(built, tmp_path / "profile", f"--window-size={width},900")
    assert said == []
    found = re.search(r'data-result="([^"]*)"', text)
    assert found
    result = json.loads(html.unescape(found[1]))
    assert result["changed"]
    assert all(0.9 < share <= 1 for share in result["fills"])
    assert result["linked"] == 1
    lines = [line.split("\t") for line in result["copied"].splitlines()]
    assert lines[0][:4] == ["queries", "edit", "attention leak", "attention leak standard error"]
    assert len(lines) == 1 + 4 * 4
    wanted = rows.filter(
        (pl.col("metric") == "attention_leak") & pl.col("layer").is_null() & pl.col("offset").is_null()
    ).row(0, named=True)
    assert [float(lines[1][2]), float(lines[1][3])] == [wanted["value"], wanted["stderr"]]

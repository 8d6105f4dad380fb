"""Saved rows to one HTML file that needs nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jinja2

from wherefrom.errors import BadInput
from wherefrom.report.blocks import Figure, Section
from wherefrom.report.compare import comparison_sections
from wherefrom.report.embed import asset, chart_library, packed_spec, safe_json, security_policy
from wherefrom.report.headline import headline
from wherefrom.report.sections import run_sections
from wherefrom.report.source import Run, load_runs
from wherefrom.report.style import CONFIG

JACKKNIFE = (
    "± is one standard error (delete-one-group jackknife over inputs). A share above 100 % or below 0 means that parts "
    "work against each other."
)
EXAMPLES = "± is one standard error over examples; of the deposit index, by bootstrap."
SEEDS = "± is half of the 95 % interval over seeds (Student's t); a single seed has none."
ERRORS = {"sweep": SEEDS, "heads": EXAMPLES, "training": "± is one standard error over held-out examples."}
"""What error bars mean, by kind of run."""


def build_report(run_folders: Path | str | Sequence[Path | str], output: Path | str | None = None) -> Path:
    """Write one self-contained HTML report of a run, or a comparison of several.

    Args:
        run_folders: a folder with `rows.parquet` and `manifest.json`, or several of them to compare.
        output: the file to write. By default `report.html` inside the run folder; for several runs `comparison.html`
            beside the first.

    Returns:
        The file written.

    Raises:
        BadInput: a folder cannot be used, or the file cannot be written.
    """
    runs = load_runs(run_folders)
    other = next((run for run in runs if run.kind != "trace"), None)
    if len(runs) > 1 and other is not None:
        raise BadInput(f"A comparison takes traces, and {other.folder} holds a {other.kind}; report it alone.")
    if output is None:
        folder = runs[0].folder
        target = folder / "report.html" if len(runs) == 1 else folder.resolve().parent / "comparison.html"
    else:
        target = Path(output)
    _write(target, render(runs))
    return target


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    several = len(runs) > 1
    sections = comparison_sections(list(runs)) if several else run_sections(runs[0])
    style, script, library = asset("page.css"), asset("page.js"), chart_library()
    figures = _figures(sections)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(asset("page.html.j2")).render(
        title="Comparison of " + ", ".join(run.name for run in runs) if several else runs[0].name,
        several=several,
        errors=ERRORS.get(runs[0].kind, JACKKNIFE) if len({run.kind for run in runs}) == 1 else JACKKNIFE,
        runs=[(run, headline(run)) for run in runs],
        sections=sections,
        policy=security_policy([library, script] if figures else [script], [style]),
        style=style,
        script=script,
        library=library if figures else "",
        config=safe_json(CONFIG),
        specs={figure.id: safe_json(packed_spec(figure.chart)) for figure in figures},
    )


def _figures(sections: Sequence[Section]) -> list[Figure]:
    return [block for section in sections for block in section.blocks if isinstance(block, Figure)]


def _write(target: Path, text: str) -> None:
    """Write beside the target, then move into place, so that no half-written report is ever left."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".report-", suffix=".html")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        # A temporary file is private to its owner; a report is as readable as any other file the user writes.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise BadInput(
            f"The report cannot be written to {target}: {error.strerror or error}; choose another output file."
        ) from error

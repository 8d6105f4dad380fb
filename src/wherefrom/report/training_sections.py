"""The sections of a single training's report: what was trained, how it learned, where it is right."""

from __future__ import annotations

import polars as pl

from wherefrom.report.blocks import Block, Facts, Section, drawn
from wherefrom.report.charts import lab
from wherefrom.report.formatting import MISSING, number
from wherefrom.report.source import Run


def training_sections(run: Run) -> list[Section]:
    """All sections that have something to show."""
    rows = run.rows.with_columns(arm=pl.lit(str(run.get("training", "encoding", default=""))), seed=pl.lit(0))
    made = [_what(run), _curves(rows), _where(rows)]
    return [section for section in made if section.blocks]


def _what(run: Run) -> Section:
    settings = run.get("training", default={})
    names = ("layers", "heads", "d_model", "steps", "batch", "learning_rate", "seed")
    shown = ", ".join(f"{name} {settings[name]}" for name in names if name in settings)
    entries = [
        ("Task", str(settings.get("task", MISSING))),
        ("Encoding", str(settings.get("encoding", MISSING))),
        ("Settings", shown),
        ("Parameters", number(run.get("model", "parameters"))),
        ("Time", f"{number(run.get('seconds'))} s on {run.get('threads')} threads, {run.get('device')}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in run.get("versions", default={}).items())),
    ]
    return Section("what", "What was trained", [Facts(entries)])


def _curves(rows: pl.DataFrame) -> Section:
    blocks = drawn(
        lambda: lab.learning_curves(rows, width="container"),
        "learning-curve",
        "Held-out accuracy",
        "Share of right answers on the same held-out examples through training.",
    )
    blocks += drawn(
        lambda: lab.learning_curves(rows, "train_loss", width="container"),
        "training-loss",
        "Training loss",
        "Mean cross-entropy in nats over the steps since the point before.",
    )
    return Section("curves", "Learning", blocks)


def _where(rows: pl.DataFrame) -> Section:
    blocks: list[Block] = []
    for fact, column, words in (("distance", "offset", "distance (tokens)"), ("length", "length", "length (tokens)")):
        blocks += drawn(
            lambda fact=fact, column=column, words=words: lab.accuracy_by(  # type: ignore[misc]
                rows, f"accuracy_by_{fact}", column, words, width="container"
            ),
            f"accuracy-by-{fact}",
            f"Accuracy by {fact}",
            "Held-out examples as trained (test) and longer than any trained on (long), with 95 % intervals.",
        )
    return Section("where", "Where it is right", blocks)

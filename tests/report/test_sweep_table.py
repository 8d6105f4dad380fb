"""The table of a sweep: intervals over seeds, verdict counts, comparisons."""

from __future__ import annotations

import math

import polars as pl
import pytest
import torch

from wherefrom.report.sweep_table import arms, over_seeds, shown, touching
from wherefrom.report.sweep_text import comparisons, percent, print_sweep
from wherefrom.results.table import to_table
from wherefrom.rows import Row

STEPS = 10


def table(values: dict[str, list[float]], drops: dict[str, list[tuple[float, float]]] | None = None) -> pl.DataFrame:
    parts = []
    for encoding, scores in values.items():
        for seed, score in enumerate(scores):
            rows = [Row("training", "test_accuracy", score, "share", 100, 0.01, step=STEPS)]
            rows.append(Row("training", "test_accuracy", 0.0, "share", 100, 0.01, step=1))
            rows.append(Row("training", "test_accuracy_by_distance", 0.0, "share", 10, 0.1, step=STEPS, offset=3))
            if drops:
                first, second = drops[encoding][seed]
                verdict = float(first >= 0.3 and first >= 2 * second)
                for metric, value in (
                    ("largest_drop", first), ("second_drop", second), ("single_head_deposit", verdict),
                ):  # fmt: skip
                    rows.append(Row("deposit", metric, value, "share", 100, 0.01, edit="zero", layer=0, step=STEPS))
            labels = [pl.lit(v).alias(k) for k, v in (("cell", "c"), ("task", "distance"), ("encoding", encoding))]
            parts.append(to_table(rows).select(*labels, pl.lit(seed).alias("seed"), pl.all()))
    return pl.concat(parts)


def manifest(values: dict[str, list[float]]) -> dict[str, object]:
    cells = [
        {"cell": "c", "labels": {"task": "distance", "encoding": encoding}, "config": {"steps": STEPS}}
        for encoding in values
    ]
    return {"recipe": "x", "labels": ["task", "encoding"], "cells": cells, "failed": {}, "seconds": 1.0}


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4000, 5, generator=generator, dtype=torch.float64) + 3
    found = [over_seeds(row) for row in draws.tolist()]
    covered = sum(estimate is not None and estimate.low <= 3 <= estimate.high for estimate in found) / 4000
    assert abs(covered - 0.95) < 0.012
    normal = sum(abs(float(row.mean()) - 3) <= 1.96 * float(row.std()) / math.sqrt(5) for row in draws) / 4000
    assert normal < 0.91, "control: normal quantiles would be too narrow for five seeds"


def test_one_seed_has_no_interval_and_touches_everything() -> None:
    one, many = over_seeds([0.9]), over_seeds([0.1, 0.11, 0.12])
    assert one is not None
    assert many is not None
    assert one.half_width is None
    assert touching(one, many)
    assert over_seeds([]) is None
    assert percent(None) == "–"
    assert percent(one) == "90.0"


def test_arms_take_the_last_step_and_the_plain_score() -> None:
    values = {"rope": [0.9, 0.92, 0.94], "none": [0.1, 0.12, 0.11], "t5": [0.5, 0.9, 0.95]}
    drops = {"rope": [(0.7, 0.1), (0.4, 0.3), (0.6, 0.2)], "none": [(0.0, 0.0)] * 3, "t5": [(0.2, 0.05)] * 3}
    found = arms(table(values, drops), manifest(values))
    assert [arm.labels["encoding"] for arm in found] == ["rope", "none", "t5"]
    assert found[0].accuracy is not None
    assert found[0].accuracy.mean == pytest.approx(0.92)
    assert (found[0].deposits, found[0].judged) == (2, 3)
    sentences = comparisons(found)
    assert len(sentences) == 1
    assert "rope is above none; not told apart from t5" in sentences[0]


def test_the_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    values = {"rope": [0.9, 0.92], "[red]x": [0.1, 0.2]}
    print_sweep(table(values), manifest(values), Console(width=160))
    text = capsys.readouterr().out
    assert "92.64" in text
    assert "[red]x" in text


def test_an_untrained_stack_is_shown_by_its_leak_and_not_by_its_accuracy() -> None:
    """The column is the widest query range's mean over layers, not a layer's, nor another range's."""
    rows = [Row("training", "test_accuracy", 0.05, "share", 100, 0.01, step=0)]
    for place, value in (("8:16", 0.9), ("16:32", 0.04), ("32:34", 0.8)):
        rows.append(Row("leak", "attention_leak", value, "nats2", 48, 0.01, query_range=place, step=0))
        rows.append(Row("leak", "attention_leak", 0.7, "nats2", 48, 0.01, query_range=place, step=0, layer=1))
    labelled = to_table(rows).select(
        pl.lit("c").alias("cell"), pl.lit("x").alias("stack"), pl.lit(0).alias("seed"), pl.all()
    )
    cells = [{"cell": "c", "labels": {"stack": "x"}, "config": {"steps": 0}}]
    (arm,) = arms(labelled, {"labels": ["stack"], "cells": cells})
    assert arm.accuracy is None
    assert arm.found["attention_leak"].mean == pytest.approx(0.04)
    assert [quantity.name for quantity in shown([arm])] == ["attention_leak"]


def test_nothing_is_cut_off_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    values = {"rope": [0.9, 0.92], "relative-table": [0.1, 0.2]}
    drops = {name: [(0.5, 0.2)] * 2 for name in values}
    print_sweep(table(values, drops), manifest(values), Console(width=80))
    assert "…" not in capsys.readouterr().out

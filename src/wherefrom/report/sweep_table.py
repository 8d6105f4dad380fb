"""Rows of a sweep to the table a paper prints: means over seeds with intervals, and verdict counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import polars as pl

T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t for 1, 2, … degrees of freedom."""
PAPER = {
    ("distance", "rope"): "92.64",
    ("count", "rope"): "69.43",
    ("distance", "mla"): "88.34",
    ("count", "mla"): "97.41",
    ("distance", "none"): "fails",
    ("count", "none"): "77.69",
    ("distance", "alibi"): "fails",
    ("count", "alibi"): "worst",
    ("distance", "sinusoidal"): "second best",
}
"""Test accuracy in % that arXiv 2505.13027 reports, as (task, encoding); words where it gives no number."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    """Mean over seeds."""
    half_width: float | None
    """Half of the 95 % interval (Student's t over seeds); None for one seed."""
    values: tuple[float, ...]
    """One value per seed."""

    @property
    def low(self) -> float:
        """Lower end of the interval; minus infinity for one seed."""
        return -math.inf if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval; infinity for one seed."""
        return math.inf if self.half_width is None else self.mean + self.half_width


def over_seeds(values: list[float]) -> Estimate | None:
    """Mean and 95 % interval of one value per seed; None without values."""
    if not values:
        return None
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return Estimate(mean, None, tuple(values))
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = T_QUANTILES[min(count - 1, len(T_QUANTILES)) - 1]
    return Estimate(mean, quantile * deviation / math.sqrt(count), tuple(values))


@dataclass(frozen=True)
class Arm:
    """One combination of labels, over its seeds."""

    labels: dict[str, str]
    accuracy: Estimate | None
    """Held-out accuracy after the last step."""
    long_accuracy: Estimate | None
    """The same on longer inputs than any in training."""
    largest_drop: Estimate | None
    """Accuracy lost without the first-layer head that matters most."""
    second_drop: Estimate | None
    """The same for the second head of the first layer."""
    deposits: int
    """Seeds whose first layer has the verdict `single-head deposit`."""
    judged: int
    """Seeds for which there is a verdict."""
    deepest: int
    """Seeds with the verdict in any layer."""


def arms(rows: pl.DataFrame, manifest: dict[str, Any]) -> list[Arm]:
    """Every arm of a sweep, in the order of the recipe."""
    labels = manifest["labels"]
    found = []
    seen: set[tuple[str, ...]] = set()
    for cell in manifest["cells"]:
        key = tuple(cell["labels"].get(name, "") for name in labels)
        if key in seen:
            continue
        seen.add(key)
        chosen = rows.filter(
            pl.all_horizontal(pl.col(name) == value for name, value in cell["labels"].items() if name in rows.columns)
        )
        if len(chosen):
            found.append(_arm(cell["labels"], chosen.filter(pl.col("step") == cell["config"]["steps"])))
    return found


def _arm(labels: dict[str, str], last: pl.DataFrame) -> Arm:
    def scores(metric: str) -> Estimate | None:
        plain = last.filter((pl.col("metric") == metric) & pl.col("offset").is_null() & pl.col("length").is_null())
        return over_seeds(plain.sort("seed")["value"].to_list())

    zero = last.filter((pl.col("analysis") == "deposit") & (pl.col("edit") == "zero"))
    first = zero.filter(pl.col("layer") == 0)
    verdicts = zero.filter(pl.col("metric") == "single_head_deposit")
    by_seed = verdicts.group_by("seed").agg(pl.col("value").max())

    def drops(metric: str) -> Estimate | None:
        return over_seeds(first.filter(pl.col("metric") == metric).sort("seed")["value"].to_list())

    in_first = verdicts.filter(pl.col("layer") == 0)
    return Arm(
        labels,
        scores("test_accuracy"),
        scores("long_accuracy"),
        drops("largest_drop"),
        drops("second_drop"),
        int(in_first["value"].sum()),
        len(in_first),
        int(by_seed["value"].sum()),
    )


def touching(one: Estimate, other: Estimate) -> bool:
    """Whether two 95 % intervals have a point in common."""
    return one.low <= other.high and other.low <= one.high

"""Rows of a sweep to the table a paper prints: means over seeds with intervals, and verdict counts."""

from __future__ import annotations

import math
from collections.abc import Callable
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
class Quantity:
    """A column of the table: one number per seed, taken after the last step."""

    name: str
    """Key in `Arm.found` and in the JSON summary."""
    title: str
    """Head of the column."""
    meaning: str
    """One sentence on what it is."""
    values: Callable[[pl.DataFrame], pl.DataFrame]
    """Last-step rows of an arm to one row per seed."""
    percent: bool = True
    """Shown in per cent."""


def _whole(metric: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    nothing = [pl.col(name).is_null() for name in ("offset", "length", "layer", "head")]
    return lambda last: last.filter(pl.col("metric") == metric, *nothing)


def _first_layer(metric: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    chosen = (pl.col("analysis") == "deposit") & (pl.col("edit") == "zero") & (pl.col("layer") == 0)
    return lambda last: last.filter(chosen, pl.col("metric") == metric)


def _widest_range(metric: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    def values(last: pl.DataFrame) -> pl.DataFrame:
        found = _whole(metric)(last).filter(pl.col("analysis") == "leak")
        ends = found["query_range"].str.split(":")
        width = ends.list.get(1).cast(pl.Int64) - ends.list.get(0).cast(pl.Int64)
        return found.filter(width == width.max()) if len(found) else found

    return values


def _deepest(metric: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    def values(last: pl.DataFrame) -> pl.DataFrame:
        found = last.filter(pl.col("analysis") == "readout", pl.col("metric") == metric)
        return found.filter(pl.col("layer") == pl.col("layer").max())

    return values


def _over_heads(metric: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    chosen = (pl.col("analysis") == "seeds") & (pl.col("metric") == metric) & (pl.col("layer") == 0)
    return lambda last: last.filter(chosen).group_by("seed").agg(pl.col("value").mean())


QUANTITIES = (
    Quantity("accuracy", "accuracy, %", "held-out accuracy", _whole("test_accuracy")),
    Quantity("long_accuracy", "longer, %", "accuracy on inputs longer than any in training", _whole("long_accuracy")),
    Quantity("loss", "loss, nats", "held-out loss", _whole("test_loss"), percent=False),
    Quantity(
        "largest_drop",
        "leading head",
        "accuracy lost without the first-layer head that matters most",
        _first_layer("largest_drop"),
        percent=False,
    ),
    Quantity("second_drop", "second head", "the same for the second head", _first_layer("second_drop"), percent=False),
    Quantity(
        "attention_leak",
        "leak, nats²",
        "attention leak, averaged over layers, heads and offsets, in the widest query range",
        _widest_range("attention_leak"),
        percent=False,
    ),
    Quantity(
        "residual_share", "residual, %", "the residual stream's share of that leak", _widest_range("residual_share")
    ),
    Quantity(
        "position_share",
        "stream, %",
        "share of the residual stream's variance behind the last layer that absolute position explains",
        _deepest("position_share"),
    ),
    Quantity(
        "multiplicative_signal",
        "seed ×, %",
        "part of the multiplicative gradient signal that examples agree on, first layer, mean over heads",
        _over_heads("multiplicative_signal_share"),
    ),
    Quantity(
        "additive_signal",
        "seed +, %",
        "the same for the additive signal",
        _over_heads("additive_signal_share"),
    ),
)
"""What the table of a sweep can show, in its order."""
TRAINED = {"accuracy", "long_accuracy", "loss"}
"""What says nothing about a stack that was never trained."""


@dataclass(frozen=True)
class Arm:
    """One combination of labels, over its seeds."""

    labels: dict[str, str]
    found: dict[str, Estimate]
    """Name of a quantity to its estimate, for those that were measured."""
    deposits: int
    """Seeds whose first layer has the verdict `single-head deposit`."""
    judged: int
    """Seeds for which there is a verdict."""
    deepest: int
    """Seeds with the verdict in any layer."""

    @property
    def accuracy(self) -> Estimate | None:
        """Held-out accuracy after the last step."""
        return self.found.get("accuracy")

    @property
    def paper(self) -> str | None:
        """What arXiv 2505.13027 reports, in % or words."""
        return PAPER.get((self.labels.get("task", "distance"), self.labels.get("encoding", "")))


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
            steps = cell["config"]["steps"]
            found.append(_arm(cell["labels"], chosen.filter(pl.col("step") == steps), steps > 0))
    return found


def shown(found: list[Arm]) -> list[Quantity]:
    """The columns that have something in them. A loss is shown where there is no accuracy over classes to speak of."""
    there = [quantity for quantity in QUANTITIES if any(quantity.name in arm.found for arm in found)]
    read_by_loss = any("attention_leak" in arm.found for arm in found)
    return [quantity for quantity in there if quantity.name != "loss" or read_by_loss]


def _arm(labels: dict[str, str], last: pl.DataFrame, trained: bool) -> Arm:
    estimates = {}
    for quantity in QUANTITIES:
        found = over_seeds(quantity.values(last).sort("seed")["value"].to_list())
        if found is not None and (trained or quantity.name not in TRAINED):
            estimates[quantity.name] = found
    leak = estimates.get("attention_leak")
    if leak is not None and leak.low <= 0:
        estimates.pop("residual_share", None)  # a share of nothing
    zero = last.filter((pl.col("analysis") == "deposit") & (pl.col("edit") == "zero"))
    verdicts = zero.filter(pl.col("metric") == "single_head_deposit")
    by_seed = verdicts.group_by("seed").agg(pl.col("value").max())
    in_first = verdicts.filter(pl.col("layer") == 0)
    return Arm(labels, estimates, int(in_first["value"].sum()), len(in_first), int(by_seed["value"].sum()))


def touching(one: Estimate, other: Estimate) -> bool:
    """Whether two 95 % intervals have a point in common."""
    return one.low <= other.high and other.low <= one.high

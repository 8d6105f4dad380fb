"""The split of the packaged SmolLM2-135M: closes everywhere, and theory explains its most positional head."""

from __future__ import annotations

import polars as pl
import pytest
import torch

import wherefrom as wf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> wf.Split:
    return wf.split(wf.load("smollm2"), wf.random_tokens(inputs=32, length=96, seed=5))


def heads(found: wf.Split, metric: str) -> pl.DataFrame:
    return found.table().filter((pl.col("metric") == metric) & pl.col("head").is_not_null())


def test_it_closes_in_every_layer_and_head(found: wf.Split) -> None:
    manifest = found.manifest
    assert manifest["closure_max_abs"] < manifest["closure_allowed"]
    assert manifest["closure_max_abs"] < 1e-4, "nats, float32"
    assert manifest["rotation_max_relative"] < 1e-6
    assert len(heads(found, "content_share")) == 270
    wide = found.table().filter(
        (pl.col("analysis") == "split") & pl.col("head").is_not_null() & pl.col("offset").is_null()
    )
    wide = wide.pivot("metric", index=["layer", "head"], values="value")
    terms = [f"{a}_{b}_share" for a in ("content", "position") for b in ("content", "position")]
    for columns in (terms, ["toeplitz_share", "absolute_share", "content_share"]):
        assert (wide.select(pl.sum_horizontal(columns)).to_series() - 1).abs().max() < 1e-5


def test_layer_0_is_content_and_what_the_rotation_makes_of_the_mean(found: wf.Split) -> None:
    """Nothing in the embeddings knows position, but for the first token: no position in the queries, Toeplitz from
    the turned mean alone."""
    first = found.table().filter((pl.col("layer") == 0) & (pl.col("analysis") == "split") & pl.col("head").is_null())
    value = dict(zip(first["metric"], first["value"], strict=True))
    error = dict(zip(first["metric"], first["stderr"], strict=True))
    for metric in ("position_content_share", "position_position_share"):
        assert abs(value[metric]) < max(4 * error[metric], 0.01)
    assert value["turned_mean_share"] == pytest.approx(value["toeplitz_share"], abs=0.02)
    assert value["toeplitz_share"] > 0.2


def test_the_offset_profile_of_the_most_positional_head_is_the_rotations_and_one_token_off_is_not(
    found: wf.Split,
) -> None:
    """A head that is a function of the offset is the turned mean query and key: Σ A cos(θ δ + φ) over the bands."""
    ranked = heads(found, "toeplitz_share").sort("value", descending=True)
    layer, head = ranked["layer"][0], ranked["head"][0]
    assert ranked["value"][0] > 0.7
    here = found.table().filter((pl.col("layer") == layer) & ((pl.col("head") == head) | pl.col("head").is_null()))

    def by_band(metric: str) -> torch.Tensor:
        rows = here.filter(pl.col("metric") == metric).sort("band")
        return torch.tensor(rows["value"].to_list(), dtype=torch.float64)

    amplitude, phase, frequency = (by_band(f"band_{name}") for name in ("amplitude", "phase", "frequency"))
    profile = here.filter(pl.col("metric") == "toeplitz_profile").sort("offset")
    profile = profile.filter(pl.col("offset") <= 16)
    offset = torch.tensor(profile["offset"].to_list(), dtype=torch.float64)
    measured = torch.tensor(profile["value"].to_list(), dtype=torch.float64)

    def gap(shift: int) -> float:
        theory = (amplitude * torch.cos(frequency * (offset[:, None] + shift) + phase)).sum(1)
        difference = theory - measured
        return float((difference - difference.mean()).std() / measured.std())

    assert gap(0) < 0.25
    assert gap(1) > 3 * gap(0)
    assert gap(-1) > 3 * gap(0)


def test_most_heads_are_found_more_than_once_over_seeds(found: wf.Split) -> None:
    """Classes are a property of the head, not of the draw."""
    other = wf.split(wf.load("smollm2"), wf.random_tokens(inputs=32, length=96, seed=6))
    one, two = (heads(f, "positional_share").sort("layer", "head")["value"] for f in (found, other))
    assert (one - two).abs().mean() < 0.02

"""The deposit index on maps whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from wherefrom.analyses.deposit import bootstrap_means, deposit_index, deposit_rows
from wherefrom.analyses.head_map import HeadMap, PerExample


def made(drops: list[float], examples: int = 400, seed: int = 0) -> HeadMap:
    """A layer in which head h is wrong on a share `drops[h]` of the examples that the whole model has right."""
    generator = torch.Generator().manual_seed(seed)
    right = torch.ones(examples)
    wrong = [(torch.rand(examples, generator=generator) < drop).float() for drop in drops]
    loss = torch.zeros(len(drops), examples)
    return HeadMap("zero", PerExample(torch.zeros(examples), right), {0: loss}, {0: right - torch.stack(wrong)})


def row(found: HeadMap, metric: str) -> tuple[float, float | None]:
    chosen = [entry for entry in deposit_rows(found) if entry.metric == metric]
    assert len(chosen) == 1
    return chosen[0].value, chosen[0].stderr


def test_the_index_of_known_drops() -> None:
    found = deposit_index(torch.tensor([[0.6, 0.2, -0.1, 0.0]]))
    assert found.largest.item() == pytest.approx(0.6)
    assert found.second.item() == pytest.approx(0.2)
    assert found.share.item() == pytest.approx(0.75)
    assert found.effective.item() == pytest.approx(1 / (0.75**2 + 0.25**2))
    equal = deposit_index(torch.full((1, 8), 0.1))
    assert equal.effective.item() == pytest.approx(8)
    nothing = deposit_index(torch.tensor([[0.0, -0.1]]))
    assert math.isnan(nothing.effective.item())


@pytest.mark.parametrize(
    ("drops", "verdict"),
    [
        ([0.7, 0.1, 0.0, 0.0], 1.0),
        ([0.7, 0.5, 0.0, 0.0], 0.0),  # two heads carry it
        ([0.2, 0.0, 0.0, 0.0], 0.0),  # too little is lost
        ([0.45, 0.22, 0.0, 0.0], 0.0),  # twice the second in the estimate perhaps, but not beyond noise
        ([0.7], 1.0),  # a layer with one head
    ],
)
def test_the_verdict(drops: list[float], verdict: float) -> None:
    assert row(made(drops), "single_head_deposit")[0] == verdict


def test_the_bootstrap_error_is_that_of_a_mean() -> None:
    found = made([0.4, 0.0, 0.0], examples=900)
    value, error = row(found, "largest_drop")
    assert error is not None
    assert error == pytest.approx(math.sqrt(value * (1 - value) / 900), rel=0.1)


def test_draws_are_paired_over_heads() -> None:
    values = torch.rand(1, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = bootstrap_means(torch.cat((values, values + 0.25)), draws=50)
    torch.testing.assert_close(drawn[:, 1] - drawn[:, 0], torch.full((50,), 0.25, dtype=torch.float64))


def test_a_checkpoint_has_rises_and_no_verdict() -> None:
    loss = torch.tensor([[2.0, 2.2, 2.1], [1.1, 1.0, 1.2]])
    found = HeadMap("zero", PerExample(torch.ones(3)), {4: loss})
    names = {entry.metric: entry for entry in deposit_rows(found)}
    assert "single_head_deposit" not in names
    assert names["largest_rise"].value == pytest.approx(1.1)
    assert names["second_rise"].value == pytest.approx(0.1)
    assert (names["largest_rise"].unit, names["largest_rise"].layer) == ("nats", 4)

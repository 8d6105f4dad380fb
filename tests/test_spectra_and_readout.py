"""Spectra against theory, and the position readout against planted streams and a plain ridge regression."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from test_split_planted import turning
from tiny import tiny

import wherefrom as wf
from wherefrom.analyses.readout import FOLDS, RIDGES, position_rank, position_variance, probe_errors, readout_rows
from wherefrom.analyses.spectra import compared, kernel_matrix, random_ratios, spectrum
from wherefrom.capture.position_sums import PROBE_WIDTH, PositionSums, projected
from wherefrom.capture.query_rows import plan_rows
from wherefrom.capture.rotation import Rotation
from wherefrom.encodings.kernels import complex_gram, rotary_kernel

TOKENS = 16


def test_a_spectrum_of_known_singular_values() -> None:
    values = torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    orthogonal = torch.linalg.qr(torch.randn(2, 4, 4, dtype=torch.float64))[0]
    found = spectrum(orthogonal[0] @ torch.diag(values) @ orthogonal[1])
    assert float(found["norm"]) == pytest.approx(4)
    assert float(found["condition"]) == pytest.approx(4)
    share = values / 8
    assert float(found["effective_rank"]) == pytest.approx(float(torch.exp(-(share * share.log()).sum())))
    assert float(spectrum(torch.ones(4, 4))["effective_rank"]) == pytest.approx(1, abs=1e-6)
    assert torch.isinf(spectrum(torch.ones(4, 4))["condition"]), "a rank lost in rounding has no condition number"


def test_one_band_alone_keeps_every_singular_value() -> None:
    """G_e = e e* per frequency: the complex Hadamard product is unitarily the same matrix. Its real part is not."""
    query, key = torch.randn(2, TOKENS, 2, dtype=torch.float64)
    gram = complex_gram(query, key)[0]
    position = torch.arange(TOKENS)
    kernel = rotary_kernel(torch.tensor([0.7], dtype=torch.float64), position, position)[0]
    before, after = torch.linalg.svdvals(gram), torch.linalg.svdvals(gram * kernel)
    assert torch.allclose(before, after, atol=1e-12)
    real = torch.linalg.svdvals((gram * kernel).real), torch.linalg.svdvals(gram.real)
    assert not torch.allclose(*real, atol=1e-3)


def test_the_kernel_of_equal_content_contracts_and_schurs_bound_holds() -> None:
    """kernel_matrix is positive with unit diagonal, so no Hadamard product with it can exceed the norm (Schur)."""
    turn = turning(TOKENS)
    kernel = kernel_matrix(turn.frequencies, TOKENS)
    assert float(torch.linalg.eigvalsh(kernel).min()) > -1e-12
    assert torch.allclose(kernel.diagonal(), torch.ones(TOKENS, dtype=torch.float64))
    gram = torch.randn(20, TOKENS, TOKENS, dtype=torch.float64)
    assert bool((spectrum(gram * kernel)["norm"] <= spectrum(gram)["norm"] + 1e-12).all())
    constant = torch.randn(1, 1, 8, dtype=torch.float64).expand(1, TOKENS, 8)
    found = compared(constant, constant, (turn, turn), 0)
    assert float(found["contraction_ratio"]) < 0.9
    assert float(found["rank_ratio"]) > 1.5


def test_random_matrices_are_neither_contracted_nor_expanded_much_but_means_are() -> None:
    turn = Rotation(*(t.repeat(1, 1) for t in (turning(32, 32).cosine, turning(32, 32).sine)),
                    turning(32, 32).partner, turning(32, 32).ratio)  # fmt: skip
    for kind in ("independent", "shared"):
        logs = random_ratios(kind, (turn, turn))["contraction_ratio"].log()
        assert abs(float(logs.mean())) < 0.1
    with_mean = random_ratios("with_mean", (turn, turn))["contraction_ratio"].log()
    assert float(with_mean.mean()) < -2 * float(with_mean.std() / len(with_mean) ** 0.5)


def test_the_verdict_is_given_either_way() -> None:
    found = wf.split(wf.load(tiny("llama")), wf.random_tokens(8, 24))
    verdict = found.manifest["spectra"]["none"]
    assert verdict["heads"] == 8
    assert verdict["contraction_ratio"]["low"] < verdict["contraction_ratio"]["value"]
    rows = found.table().filter(pl.col("analysis") == "spectra")
    per_head = rows.filter((pl.col("metric") == "contraction_ratio") & pl.col("head").is_not_null())
    assert len(per_head) == 8
    assert int((per_head["value"] < 1).sum()) == verdict["contracting_heads"]
    without = wf.split(wf.load(tiny("gpt2")), wf.random_tokens(8, 24))
    assert "no rotation" in without.manifest["spectra_verdict"]
    assert not len(without.table().filter(pl.col("analysis") == "spectra"))


def streams(
    share: float, directions: int, inputs: int = 48, length: int = 33, dim: int = 40, seed: int = 0
) -> torch.Tensor:
    """Streams of unit content noise with a position part of the given share of variance in some directions."""
    g = torch.Generator().manual_seed(seed)
    angle = torch.arange(length, dtype=torch.float64) / length * torch.pi
    curves = torch.stack([torch.cos((k + 1) * angle) for k in range(directions)], 1)
    curves = curves - curves[1:].mean(0)
    basis = torch.linalg.qr(torch.randn(dim, directions, generator=g, dtype=torch.float64))[0]
    curves = curves / curves[1:].square().mean(0).sqrt()
    position = curves @ basis.T * (share / (1 - share) * dim / directions) ** 0.5
    return torch.randn(inputs, length, dim, generator=g, dtype=torch.float64) + position


def summed(hidden: torch.Tensor, groups: int = 8) -> list[PositionSums]:
    """Groups of sums as a run keeps them: moments merged into the first FOLDS groups."""
    from wherefrom.capture.split_sums import SplitSums
    from wherefrom.workflows.split_state import SplitState

    plan = plan_rows(hidden.shape[1])
    state = SplitState(plan, SplitSums(plan))
    for group in range(groups):
        kept = PositionSums(plan)
        part = hidden[group::groups]
        kept.observe(0, part, range(len(part)))
        kept.count(range(len(part)))
        state.add(SplitSums(plan), kept, FOLDS)
    return state.positions


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_the_planted_share_of_position_is_found(share: float) -> None:
    position, whole = position_variance(summed(streams(share, 3)), 0)
    error = float((position / whole)[1:].std()) * 7 / 8**0.5
    assert float(position[0] / whole[0]) == pytest.approx(share, abs=max(4 * error, 0.003))


@pytest.mark.parametrize("directions", [1, 3, 6])
def test_the_planted_number_of_directions_is_found(directions: int) -> None:
    assert float(position_rank(summed(streams(0.3, directions)), 0)[0]) == pytest.approx(directions, rel=0.12)


def test_the_probe_equals_a_plain_ridge_regression() -> None:
    """Closed form from sums against a least-squares solve on the samples themselves."""
    hidden = streams(0.2, 2)
    found = probe_errors(summed(hidden), 0)
    position = np.arange(1, 33.0)
    folds = [torch.cat([hidden[g::8] for g in range(f, 8, FOLDS)])[:, 1:].flatten(0, 1).numpy() for f in range(FOLDS)]

    def error(train: np.ndarray, test: np.ndarray, ridge: float) -> float:
        mean, scale = train.mean(0), train.std(0)
        x, y = (train - mean) / scale, np.tile(position, len(train) // 32) - position.mean()
        stacked = np.concatenate([x, np.sqrt(ridge * len(x)) * np.eye(x.shape[1])])
        weight = np.linalg.lstsq(stacked, np.concatenate([y, np.zeros(x.shape[1])]), rcond=None)[0]
        target = np.tile(position, len(test) // 32) - position.mean()
        return float(np.sqrt(np.mean(((test - mean) / scale @ weight - target) ** 2)))

    for test in range(FOLDS):
        others = [folds[k] for k in range(FOLDS) if k != test]
        trials = [error(np.concatenate(others[1:]), others[0], ridge) for ridge in RIDGES]
        expected = error(np.concatenate(others), folds[test], RIDGES[int(np.argmin(trials))])
        assert float(found[test]) == pytest.approx(expected, rel=1e-6)


def test_a_stream_without_position_is_read_no_better_than_by_chance() -> None:
    rows = {row.metric: row.value for row in readout_rows(summed(streams(0.0, 1)), "none", "1:33")}
    assert rows["probe_error"] > 0.98 * rows["probe_chance"]
    assert "position_rank" not in rows, "there is nothing to rank"
    strong = {row.metric: row.value for row in readout_rows(summed(streams(0.5, 1)), "none", "1:33")}
    assert strong["probe_error"] < 0.3 * strong["probe_chance"]


def test_wide_streams_are_projected_the_same_way_every_time() -> None:
    wide = torch.randn(3, PROBE_WIDTH + 8, dtype=torch.float64)
    assert projected(wide).shape == (3, PROBE_WIDTH)
    assert torch.equal(projected(wide), projected(wide.clone()))
    narrow = torch.randn(3, PROBE_WIDTH)
    assert projected(narrow) is narrow


def test_gpt2s_stream_holds_its_position_table_from_the_start() -> None:
    found = wf.split(wf.load(tiny("gpt2")), wf.random_tokens(24, 40, bos="off"))
    rows = found.table().filter((pl.col("metric") == "position_share") & (pl.col("layer") == 0))
    assert rows["value"][0] == pytest.approx(0.5, abs=0.06), "token and position tables have equal variance"

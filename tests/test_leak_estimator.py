"""The estimator on synthetic attention calls whose truth is known: unbiased, correct, and honest about its error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wherefrom.analyses.jackknife import standard_error
from wherefrom.analyses.leak import LeakEstimate, estimate_leak
from wherefrom.capture.call import AttentionCall
from wherefrom.capture.kernels import attend
from wherefrom.capture.leak_sums import LeakSums
from wherefrom.capture.plan import plan_leak
from wherefrom.encodings.masks import MaskRule

LENGTH, DIM, OFFSETS = 40, 8, [1, 2, 3, 5]


def planted(
    inputs: int, seed: int, shape: float = 0.0, window: int | None = None, content: float = 1.0
) -> list[AttentionCall]:
    """One call per input: random queries and keys of one head, and a planted signal shape * ramp(i) * [j even].

    The signal sits in two extra dimensions: the query carries the ramp, the key carries the parity of its position, so
    logits know the absolute position and the truth is a plain sum. `content` is the deviation of the other logits.
    """
    generator = torch.Generator().manual_seed(seed)
    position = torch.arange(LENGTH, dtype=torch.float64)
    ramp = (position / LENGTH)[:, None] * shape
    parity = (position % 2)[:, None]
    calls = []
    rule = MaskRule(window=window)
    for _ in range(inputs):
        query = torch.randn(LENGTH, DIM, generator=generator, dtype=torch.float64)
        key = torch.randn(LENGTH, DIM, generator=generator, dtype=torch.float64)
        query = torch.cat([query * content * DIM**-0.5, ramp], 1)[None, None]
        key = torch.cat([key, parity], 1)[None, None]
        value = torch.zeros_like(key)
        _, z = attend(query, key, value, 1.0, rule)
        calls.append(AttentionCall(0, query, key, value, 1.0, rule, z))
    return calls


def estimate(calls: list[AttentionCall], groups: int, start: int = 8, stop: int = LENGTH) -> LeakEstimate:
    plan = plan_leak(LENGTH, [calls[0].rule], OFFSETS, [(start, stop)])
    kept = []
    for part in np.array_split(np.arange(len(calls)), groups):
        sums = LeakSums(plan)
        for index in part.tolist():
            sums.observe(calls[index], (index,))
            sums.count(1)
        kept.append(sums)
    return estimate_leak(kept)


def value_and_error(found: LeakEstimate, metric: str) -> tuple[float, float]:
    replicates = found.over_layers(0, metric)
    return float(replicates[0]), float(standard_error(replicates[1:]))


def true_shape_leak(shape: float, start: int = 8, stop: int = LENGTH) -> float:
    """Variance over position of the input-mean of s' for the planted signal, averaged over offsets."""
    query = np.arange(start, stop)
    signal = np.stack([shape * query / LENGTH * ((query - offset) % 2) for offset in OFFSETS])
    profile = signal - signal.mean(0)
    return float(profile.var(1).mean())


@pytest.fixture(scope="module")
def null_draws() -> list[tuple[float, float]]:
    return [value_and_error(estimate(planted(8, seed), 8), "shape_leak") for seed in range(150)]


def test_unbiased_where_the_truth_is_zero(null_draws: list[tuple[float, float]]) -> None:
    values = np.array([value for value, _ in null_draws])
    assert (values < 0).mean() > 0.25, "negative estimates must not be clipped"
    assert abs(values.mean()) < 3 * values.std() / len(values) ** 0.5


def test_a_plain_variance_of_means_would_be_biased() -> None:
    """Control: without subtracting same-input products the null estimate is far from 0."""
    values = []
    for seed in range(20):
        calls = planted(8, seed)
        s = torch.stack([torch.stack([c.logits_at_offset(o, 8, LENGTH)[0, 0] for o in OFFSETS]) for c in calls])
        values.append(float((s - s.mean(1, keepdim=True)).mean(0).var(-1, correction=0).mean()))
    assert np.mean(values) > 10 * np.std(values) / len(values) ** 0.5


@pytest.mark.parametrize("shape", [0.5, 2.0])
def test_finds_a_planted_signal_with_its_size(shape: float) -> None:
    values = np.array([value_and_error(estimate(planted(8, s, shape), 8), "shape_leak")[0] for s in range(100)])
    assert values.mean() == pytest.approx(true_shape_leak(shape), abs=3 * values.std() / len(values) ** 0.5)


def test_jackknife_intervals_cover_at_their_rate() -> None:
    """95 % intervals contain the truth in about 95 % of draws (t distribution with groups - 1 degrees of freedom)."""
    truth, groups, t95 = true_shape_leak(1.0), 12, 2.20
    hits = []
    for seed in range(150):
        value, error = value_and_error(estimate(planted(24, seed, 1.0), groups), "shape_leak")
        hits.append(abs(value - truth) <= t95 * error)
    assert 0.89 <= np.mean(hits) <= 0.99


def test_position_free_logits_leak_through_the_mask_alone() -> None:
    """With logits that do not know position the level leak is the mask's, and nothing is left over.

    Content logits are kept small (0.3 nats): z_M is the logarithm of a sum of typical keys, and with strongly varying
    ones the mean of the logarithm of the real sum bends away from it at few keys, which counts as `rest`.
    """
    draws = [estimate(planted(12, seed, content=0.3), 6) for seed in range(60)]
    for metric in ("shape_leak", "first_token", "rest"):
        values = np.array([value_and_error(found, metric)[0] for found in draws])
        assert abs(values.mean()) < 3.5 * values.std() / len(values) ** 0.5 + 5e-4, metric
    share = [value_and_error(f, "mask")[0] / value_and_error(f, "level_leak")[0] for f in draws]
    assert np.mean(share) == pytest.approx(1.0, abs=0.02)


def test_an_ordinary_first_key_is_not_credited_to_the_first_token() -> None:
    """Also with strongly varying logits a key 0 like any other leaves the first-token part at 0; a sink does not."""
    values = np.array([value_and_error(estimate(planted(12, s), 6), "first_token")[0] for s in range(60)])
    assert abs(values.mean()) < 3.5 * values.std() / len(values) ** 0.5
    strong = planted(48, 0)
    for index, call in enumerate(strong):
        sink = torch.zeros_like(call.key[..., :1])
        sink[..., 0, :] = 4.0
        query, key = torch.cat([call.query, torch.ones_like(sink)], -1), torch.cat([call.key, sink], -1)
        _, z = attend(query, key, torch.zeros_like(key), 1.0, call.rule)
        strong[index] = AttentionCall(0, query, key, call.value, 1.0, call.rule, z)
    value, error = value_and_error(estimate(strong, 12), "first_token")
    assert abs(value) > 3 * error


def test_behind_a_sliding_window_the_mask_part_is_exactly_zero() -> None:
    found = estimate(planted(6, 0, 1.0, window=8), 3, start=8)
    assert value_and_error(found, "mask")[0] == 0.0
    assert value_and_error(found, "first_token")[0] == 0.0
    assert value_and_error(found, "rest")[0] == value_and_error(found, "level_leak")[0]


def test_any_function_of_input_and_query_in_the_logits_changes_only_the_raw_split() -> None:
    """Softmax cannot see a constant added to a row; the raw split can, which is the control."""
    plain = planted(6, 1, 1.0)
    generator = torch.Generator().manual_seed(9)
    moved = []
    for call in plain:
        drift = 3 * torch.randn(LENGTH, 1, generator=generator, dtype=torch.float64) + torch.arange(LENGTH)[:, None] / 5
        query = torch.cat([call.query[0, 0], drift], 1)[None, None]
        key = torch.cat([call.key[0, 0], torch.ones(LENGTH, 1, dtype=torch.float64)], 1)[None, None]
        z = call.log_denominator + drift[:, 0]
        moved.append(AttentionCall(0, query, key, call.value, 1.0, call.rule, z))
    before, after = estimate(plain, 3), estimate(moved, 3)
    for metric in ("attention_leak", "shape_leak", "level_leak", "mask", "first_token", "rest", "residual"):
        assert value_and_error(after, metric)[0] == pytest.approx(value_and_error(before, metric)[0], abs=1e-10), metric
    for metric in ("raw_logit_leak", "raw_denominator_leak"):
        assert abs(value_and_error(after, metric)[0] - value_and_error(before, metric)[0]) > 1.0


def test_the_split_closes() -> None:
    found = estimate(planted(6, 2, 1.5), 3)
    assert found.closure < 1e-12
    parts = sum(value_and_error(found, name)[0] for name in ("mask", "first_token", "rest"))
    assert parts == pytest.approx(value_and_error(found, "level_leak")[0], abs=1e-14)
    raw = sum(value_and_error(found, n)[0] for n in ("raw_logit_leak", "raw_denominator_leak", "raw_interaction"))
    assert raw == pytest.approx(value_and_error(found, "attention_leak")[0], abs=1e-12)

"""The streamed trace equals the formulas with full matrices, for several architectures, at float64."""

from __future__ import annotations

import naive
import numpy as np
import polars as pl
import pytest
import torch
from tiny import FAMILIES, tiny

import wherefrom as wf

LENGTH = 40


def tokens(inputs: int = 5, length: int = LENGTH, seed: int = 3) -> torch.Tensor:
    ids = torch.randint(3, 97, (inputs, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = 1
    return ids


def per_head(trace: wf.Trace, metric: str, layer: int, head: int, query_range: str, edit: str = "none") -> float:
    found = trace.table().filter(
        (pl.col("analysis") == "leak") & (pl.col("metric") == metric) & (pl.col("layer") == layer)
        & (pl.col("head") == head) & pl.col("offset").is_null() & (pl.col("query_range") == query_range)
        & (pl.col("edit") == edit)
    )  # fmt: skip
    assert len(found) == 1
    return float(found["value"][0])


def compare(
    trace: wf.Trace, logits: list[np.ndarray], offsets: list[int], edit: str = "none", **options: bool
) -> float:
    """Largest difference between the trace's rows and the naive metrics, over layers, heads, ranges and metrics."""
    worst = 0.0
    for query_range in trace.manifest["query_ranges"]:
        start, stop = (int(x) for x in query_range.split(":"))
        for layer, full in enumerate(logits):
            for head in range(full.shape[1]):
                expected = naive.leak(full[:, head], offsets, start, stop, **options)
                for metric, value in expected.items():
                    worst = max(worst, abs(per_head(trace, metric, layer, head, query_range, edit) - value))
    return worst


@pytest.mark.parametrize("family", FAMILIES)
def test_every_metric_equals_the_full_matrices(family: str) -> None:
    model, ids, offsets = tiny(family), tokens(), [1, 2, 3, 5, 7]
    ranges = [(8, 20), (20, 40)]
    trace = wf.trace(wf.load(model), wf.given_tokens(ids), offsets=offsets, query_ranges=ranges, groups=1)
    logits = naive.eager_logits(model, ids)
    assert compare(trace, logits, offsets, sink=family == "gpt_oss") < 1e-10
    assert trace.manifest["closure_max_abs"] < 1e-12
    assert trace.manifest["log_denominator_max_abs"] < 1e-12


def test_a_wrong_head_would_be_noticed() -> None:
    """Control: comparing with the key/value heads swapped must fail."""
    model, ids = tiny("llama"), tokens()
    trace = wf.trace(wf.load(model), wf.given_tokens(ids), offsets=[1, 2, 3], query_ranges=[(7, 20)], groups=1)
    swapped = [full[:, [2, 3, 0, 1]] for full in naive.eager_logits(model, ids)]
    assert compare(trace, swapped, [1, 2, 3]) > 1e-3


@pytest.mark.parametrize("heads", [(6, 2), (6, 1), (4, 4)])
def test_grouped_queries_read_the_right_key_head(heads: tuple[int, int]) -> None:
    """H2: head size is not hidden / heads, and the key heads differ in norm so that a wrong index cannot pass."""
    query_heads, kv_heads = heads
    model = tiny("llama", hidden_size=96, num_attention_heads=query_heads, num_key_value_heads=kv_heads, head_dim=24)
    with torch.no_grad():
        for layer in model.model.layers:
            rows = layer.self_attn.k_proj.weight.view(kv_heads, 24, -1)
            rows *= torch.linspace(0.5, 2.0, kv_heads).view(-1, 1, 1)
    ids = tokens()
    trace = wf.trace(wf.load(model), wf.given_tokens(ids), offsets=[1, 2, 4], query_ranges=[(8, 40)], groups=1)
    assert compare(trace, naive.eager_logits(model, ids), [1, 2, 4]) < 1e-10


def test_bins_and_sampled_rows_stay_within_noise_of_all_rows() -> None:
    """A range wider than 64 is averaged into bins, its profile comes from sampled rows: mask within 5 % of all rows."""
    model = tiny("llama")
    ids = tokens(inputs=48, length=200, seed=5)
    trace = wf.trace(wf.load(model), wf.given_tokens(ids), offsets=[1, 2, 4], query_ranges=[(72, 200)], groups=1)
    logits = naive.eager_logits(model, ids)
    expected = np.mean([naive.leak(full[:, h], [1, 2, 4], 72, 200)["mask"] for full in logits for h in range(4)])
    got = trace.summary()["leak"]
    mask = next(e["mask"]["value"] for e in got if e["layer"] == "all")
    assert mask == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batches_and_groups_do_not_change_the_sums(batch: int) -> None:
    model, ids = wf.load(tiny("llama")), tokens(inputs=10)
    options = {"offsets": [1, 2, 3], "query_ranges": [(8, 40)]}
    one = wf.trace(model, wf.given_tokens(ids), groups=5, batch=1, **options).table()
    other = wf.trace(model, wf.given_tokens(ids), groups=5, batch=batch, **options).table()
    assert one.drop("value", "stderr").equals(other.drop("value", "stderr"))
    assert np.allclose(one["value"], other["value"], atol=1e-12)


def test_sums_merge_by_addition() -> None:
    """The estimate does not depend on how inputs are split into groups."""
    model, ids = wf.load(tiny("gpt_oss")), tokens(inputs=10)
    options = {"offsets": [1, 2, 3], "query_ranges": [(8, 40)]}
    whole = wf.trace(model, wf.given_tokens(ids), groups=1, **options).table()
    parts = wf.trace(model, wf.given_tokens(ids), groups=5, **options).table()
    assert whole.drop("value", "stderr").equals(parts.drop("value", "stderr"))
    assert np.allclose(whole["value"], parts["value"], atol=1e-12)

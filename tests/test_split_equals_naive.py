"""The streamed split equals its definition with full matrices, for several architectures, at float64."""

from __future__ import annotations

import naive_split
import polars as pl
import pytest
import torch
from tiny import FAMILIES, tiny

import wherefrom as wf
from wherefrom.workflows import split as workflow

LENGTH = 20


def tokens(inputs: int = 5, length: int = LENGTH, seed: int = 3) -> torch.Tensor:
    ids = torch.randint(3, 97, (inputs, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = 1
    return ids


def per_head(found: wf.Split, layer: int, head: int) -> dict[str, float]:
    rows = found.table().filter(
        (pl.col("analysis") == "split") & (pl.col("layer") == layer) & (pl.col("head") == head)
        & pl.col("offset").is_null()
    )  # fmt: skip
    return dict(zip(rows["metric"], rows["value"], strict=True))


def worst(found: wf.Split, layers: list[naive_split.Layer], rows: list[int] | None = None) -> float:
    """Largest difference from the naive metrics over layers, heads and metrics."""
    result = 0.0
    for number, layer in enumerate(layers):
        expected, closure = naive_split.split(layer, rows)
        assert closure < 1e-10
        for head, metrics in enumerate(expected):
            got = per_head(found, number, head)
            result = max(result, *(abs(got[name] - value) for name, value in metrics.items()))
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_every_share_equals_the_full_matrices(family: str) -> None:
    model, ids = tiny(family), tokens()
    found = wf.split(wf.load(model), wf.given_tokens(ids), groups=1)
    assert worst(found, naive_split.capture(model, ids)) < 1e-10
    assert found.manifest["closure_max_abs"] < 1e-10
    assert found.manifest["rotation_max_relative"] < 1e-12
    assert found.manifest["query_rows_exact"]


def test_sampled_rows_equal_the_same_rows_of_the_full_matrices() -> None:
    model, ids = tiny("mistral"), tokens(length=40)
    found = wf.split(wf.load(model), wf.given_tokens(ids), rows=7, groups=1)
    assert not found.manifest["query_rows_exact"]
    assert len(found.manifest["query_rows"]) == 7
    assert worst(found, naive_split.capture(model, ids), found.manifest["query_rows"]) < 1e-10


def test_a_wrong_head_or_row_would_be_noticed() -> None:
    """Controls: key heads swapped, or other rows, must not pass."""
    model, ids = tiny("llama"), tokens()
    found = wf.split(wf.load(model), wf.given_tokens(ids), groups=1)
    layers = naive_split.capture(model, ids)
    for layer in layers:
        layer.query, layer.logits = layer.query[:, [2, 3, 0, 1]], layer.logits[:, [2, 3, 0, 1]]
        layer.key = layer.key[:, [2, 3, 0, 1]]
    assert worst(found, layers) > 1e-3
    assert worst(found, naive_split.capture(model, ids), list(range(2, LENGTH))) > 1e-3


@pytest.mark.parametrize("heads", [(6, 2), (6, 1)])
def test_grouped_queries_read_the_right_key_head(heads: tuple[int, int]) -> None:
    """H2: head size is not hidden / heads, and the key heads differ in norm so that a wrong index cannot pass."""
    query_heads, kv_heads = heads
    model = tiny("llama", hidden_size=96, num_attention_heads=query_heads, num_key_value_heads=kv_heads, head_dim=24)
    with torch.no_grad():
        for layer in model.model.layers:
            rows = layer.self_attn.k_proj.weight.view(kv_heads, 24, -1)
            rows *= torch.linspace(0.5, 2.0, kv_heads).view(-1, 1, 1)
    ids = tokens()
    found = wf.split(wf.load(model), wf.given_tokens(ids), groups=1)
    assert worst(found, naive_split.capture(model, ids)) < 1e-10


def test_batches_groups_and_a_second_pass_do_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = wf.load(tiny("gpt_oss")), tokens(inputs=10)
    one = wf.split(model, wf.given_tokens(ids), groups=5, batch=1)
    whole = wf.split(model, wf.given_tokens(ids), groups=1)
    monkeypatch.setattr(workflow, "KEEP", 0)
    other = wf.split(model, wf.given_tokens(ids), groups=5, batch=3)
    assert (one.manifest["passes"], other.manifest["passes"]) == ({"none": 1}, {"none": 2})
    tables = [found.table().filter(pl.col("analysis").is_in(["split", "bands"])) for found in (one, other, whole)]
    for table in tables[1:]:
        assert tables[0].drop("value", "stderr").equals(table.drop("value", "stderr"))
        assert (tables[0]["value"] - table["value"]).abs().max() < 1e-10
    assert (tables[0]["stderr"] - tables[1]["stderr"]).abs().max() < 1e-10


def test_replicates_leave_their_group_out_of_the_position_means_too() -> None:
    """The jackknife's standard error is that of estimates on the inputs without each group."""
    model, ids = wf.load(tiny("llama")), tokens(inputs=8)
    whole = wf.split(model, wf.given_tokens(ids), groups=4)
    parts = []
    for group in range(4):
        kept = [i for i in range(8) if i // 2 != group]
        parts.append(per_head(wf.split(model, wf.given_tokens(ids[kept]), groups=1), 1, 2))
    rows = whole.table().filter(
        (pl.col("analysis") == "split") & (pl.col("layer") == 1) & (pl.col("head") == 2) & pl.col("offset").is_null()
    )
    for metric in ("content_position_share", "position_position_share", "toeplitz_share", "content_share"):
        replicates = torch.tensor([part[metric] for part in parts], dtype=torch.float64)
        expected = (3 / 4 * (replicates - replicates.mean()).square().sum()).sqrt()
        assert rows.filter(pl.col("metric") == metric)["stderr"][0] == pytest.approx(float(expected), rel=1e-9)


PAIRS = {"llama": [(m, m + 8) for m in range(8)], "gpt_neox": [(0, 2), (1, 3)]}


@pytest.mark.parametrize("family", PAIRS)
def test_every_band_equals_the_logits_of_its_two_dimensions_alone(family: str) -> None:
    """All other dimensions set to 0 before the model's own rotation, term by term."""
    model, ids = tiny(family), tokens()
    found = wf.split(wf.load(model), wf.given_tokens(ids), groups=1).table()
    rows = list(range(1, LENGTH))
    for number, layer in enumerate(naive_split.capture(model, ids)):
        inputs = range(len(ids))
        whole = [naive_split.centred(layer.logits[b], layer.visible, rows) for b in inputs]
        groups = [*PAIRS[family], tuple(d for d in range(16) if all(d not in pair for pair in PAIRS[family]))]
        for band, dims in enumerate(groups):
            if not dims:
                continue
            parts = {"content": 0.0, "turned_mean": 0.0, "position": 0.0}
            grand = [v.mean((0, 2))[:, None].expand(-1, LENGTH, -1) for v in (layer.query, layer.key)]
            keep = torch.zeros(16, dtype=torch.float64)
            keep[list(dims)] = 1.0
            mean = layer.turn(*(v[None] * keep for v in grand))
            constant = (mean[0] @ mean[1].transpose(-1, -2) * layer.scale)[0].numpy()
            masked = naive_split.Layer(
                layer.query * keep, layer.key * keep, layer.turn, layer.logits, layer.visible, layer.scale
            )
            variance = 0.0
            for b in inputs:
                positions = [naive_split.position_parts(v, b) * keep for v in (layer.query, layer.key)]
                terms = naive_split.terms(masked, *positions, b)
                content = terms.pop("content_content") - constant
                for name, term in (
                    ("content", content),
                    ("turned_mean", constant),
                    ("position", sum(terms.values())),
                ):
                    centred = naive_split.centred(term[2], layer.visible, rows)
                    parts[name] += naive_split.inner(centred, whole[b][2], layer.visible, rows)
                variance += naive_split.inner(whole[b][2], whole[b][2], layer.visible, rows)
            here = found.filter((pl.col("layer") == number) & (pl.col("head") == 2))
            for name, value in parts.items():
                if band < len(PAIRS[family]):
                    row = here.filter((pl.col("metric") == f"band_{name}_share") & (pl.col("band") == band))
                else:
                    row = here.filter(pl.col("metric") == f"unturned_{name}_share")
                assert row["value"][0] == pytest.approx(value / variance, abs=1e-10)

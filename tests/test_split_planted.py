"""Heads whose true split is known, by construction or by theory."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from tiny import tiny

import wherefrom as wf
from wherefrom.analyses.split import LayerSplit, estimate_layer
from wherefrom.capture.call import AttentionCall
from wherefrom.capture.query_rows import plan_rows
from wherefrom.capture.rotation import Rotation
from wherefrom.capture.split_pass import OffsetFit
from wherefrom.capture.split_sums import SplitSums
from wherefrom.encodings.masks import MaskRule

INPUTS, LENGTH, DIM = 64, 24, 8


def parts(seed: int = 0, dim: int = DIM) -> dict[str, torch.Tensor]:
    """Unit-variance constants (dim), position curves (index dim) and contents (input index dim) of queries and keys."""
    g = torch.Generator().manual_seed(seed)
    sizes = {"constant": (1, 1, dim), "position": (1, LENGTH, dim), "content": (INPUTS, LENGTH, dim)}
    return {
        f"{side}_{name}": torch.randn(size, generator=g, dtype=torch.float64)
        for side in ("query", "key")
        for name, size in sizes.items()
    }


def turning(length: int = LENGTH, dim: int = DIM) -> Rotation:
    """A half-split rotation with frequencies 1, 0.3, 0.09, ..."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    angle = (position * 0.3 ** torch.arange(dim // 2, dtype=torch.float64)).repeat(1, 2)
    index = torch.arange(dim)
    sign = torch.where(index < dim // 2, -1.0, 1.0).double()
    return Rotation(angle.cos(), angle.sin(), (index + dim // 2) % dim, sign)


def estimated(query: torch.Tensor, key: torch.Tensor, turn: Rotation | None = None) -> LayerSplit:
    """The estimate for one head with these vectors before the turn, (input index dim), at scale 1."""
    turn = turn or Rotation.identity(LENGTH, query.shape[-1])
    x, y = (turn.apply(v.expand(INPUTS, -1, -1))[:, None].contiguous() for v in (query, key))
    rule, plan = MaskRule(), plan_rows(LENGTH)
    fit, sums = OffsetFit(plan, rule), SplitSums(plan)
    z = torch.zeros(INPUTS, 1, LENGTH, dtype=torch.float64)
    sums.observe(AttentionCall(0, x, y, y, 1.0, rule, z), fit, turn, turn)
    sums.count(INPUTS)
    return estimate_layer(sums.without(0, None), fit, (turn, turn))


def share(found: LayerSplit, name: str) -> float:
    return float(found.heads[f"{name}_share"][0, 0])


def test_a_head_with_only_position_is_all_position() -> None:
    p = parts()
    curves = [p[f"{side}_position"] - p[f"{side}_position"].mean(1, keepdim=True) for side in ("query", "key")]
    found = estimated(*curves)
    assert share(found, "position_position") == pytest.approx(1, abs=1e-10)
    assert share(found, "positional") == pytest.approx(1, abs=1e-10)
    assert share(found, "content") == pytest.approx(0, abs=1e-10)
    assert found.classes() == ["positional"]


def test_a_head_with_only_content_is_all_content() -> None:
    p = parts()
    found = estimated(p["query_content"], p["key_content"])
    for name in ("content_position", "position_content", "position_position", "toeplitz", "absolute"):
        assert abs(share(found, name)) < 0.01, "unbiased: noise of the means is no position"
    assert share(found, "content_content") == pytest.approx(1, abs=0.02)
    assert found.classes() == ["content"]


def test_equal_parts_of_everything_split_evenly() -> None:
    p = parts(dim=128)
    curves = [p[f"{side}_position"] - p[f"{side}_position"].mean(1, keepdim=True) for side in ("query", "key")]
    found = estimated(curves[0] + p["query_content"], curves[1] + p["key_content"])
    for name in ("content_content", "content_position", "position_content", "position_position"):
        assert share(found, name) == pytest.approx(0.25, abs=0.06)


def test_a_turned_constant_is_a_function_of_the_offset() -> None:
    """RoPE makes position out of a constant: all Toeplitz, all of it the turned mean, none of it position vectors."""
    p = parts()
    turn = turning()
    found = estimated(p["query_constant"].expand(1, LENGTH, -1), p["key_constant"].expand(1, LENGTH, -1), turn)
    for name in ("toeplitz", "turned_mean", "content_content"):
        assert share(found, name) == pytest.approx(1, abs=1e-10)
    assert share(found, "position_position") == pytest.approx(0, abs=1e-10)
    # Amplitude, phase and frequency of the bands rebuild the profile.
    offset = torch.arange(LENGTH, dtype=torch.float64)
    bands = [found.bands[name][0, 0] for name in ("amplitude", "phase")]
    theory = (bands[0][:, None] * torch.cos(found.frequencies[:, None] * offset + bands[1][:, None])).sum(0)
    profile = found.profile[0, 0]
    gap = theory - profile
    assert float((gap - gap.mean()).abs().max()) < 1e-10
    moved = theory - profile.roll(1)
    assert float((moved[1:] - moved[1:].mean()).abs().max()) > 0.1, "control: one token off does not fit"


def test_without_a_turn_a_constant_is_nothing() -> None:
    """A constant logit is a row constant; only what else there is has shares."""
    p = parts()
    still = estimated(p["query_constant"] + p["query_content"], p["key_constant"] + p["key_content"])
    assert abs(share(still, "turned_mean")) < 1e-10


def test_row_constants_change_nothing() -> None:
    """The same logits with a constant added to every row, through an extra dimension that all keys share."""
    p = parts()
    query, key = p["query_constant"] + p["query_content"], p["key_constant"] + p["key_content"]
    before = estimated(query, key)
    row = 30 * torch.randn(INPUTS, LENGTH, 1, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    after = estimated(torch.cat([query, row], 2), torch.cat([key, torch.ones_like(row)], 2))
    for name, value in before.heads.items():
        assert float((after.heads[name] - value).abs().max()) < 1e-9


def test_noise_of_the_means_would_count_as_position_if_inputs_were_compared_with_themselves() -> None:
    """Control for unbiasedness: with the input's own vectors in the mean, position gets about 2/inputs of it all."""
    p = parts()
    query, key = p["query_content"][:8], p["key_content"][:8]
    own = [v.mean(0, keepdim=True) - v.mean((0, 1)) for v in (query, key)]
    logits = query @ key.transpose(-1, -2)
    with_position = logits - (query - own[0]) @ (key - own[1]).transpose(-1, -2)
    visible = torch.ones(LENGTH, LENGTH).tril().bool()

    def centred(x: torch.Tensor) -> torch.Tensor:
        x = x.masked_fill(~visible, 0.0)
        return (x - x.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)).masked_fill(~visible, 0.0)

    biased = (centred(with_position) * centred(logits)).sum() / centred(logits).square().sum()
    assert float(biased) > 0.1


def test_gpt2_with_equal_embeddings_of_tokens_and_positions_splits_evenly() -> None:
    """Theory: queries and keys are linear in token plus position vectors of equal variance: each term is a quarter."""
    found = wf.split(wf.load(tiny("gpt2", n_embd=256)), wf.random_tokens(48, 48, bos="off"))
    rows = found.table().filter((pl.col("layer") == 0) & pl.col("head").is_null() & (pl.col("analysis") == "split"))
    for term in ("content_content", "content_position", "position_content", "position_position"):
        row = rows.filter(pl.col("metric") == f"{term}_share")
        assert row["value"][0] == pytest.approx(0.25, abs=0.06)


def test_layer_0_of_a_rotary_model_has_no_position_vectors() -> None:
    """On random tokens without BOS nothing in the stream knows position yet: only content, turned."""
    found = wf.split(wf.load(tiny("llama")), wf.random_tokens(96, 32, bos="off"))
    rows = found.table().filter((pl.col("layer") == 0) & pl.col("head").is_null() & pl.col("offset").is_null())
    for metric in ("content_position_share", "position_content_share", "position_position_share", "absolute_share"):
        row = rows.filter(pl.col("metric") == metric)
        assert abs(row["value"][0]) < 4 * row["stderr"][0]
    assert rows.filter(pl.col("metric") == "position_share")["value"][0] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(("length", "rows"), [(24, None), (128, None), (129, None), (512, None), (2048, None), (40, 7)])
def test_rows_reach_from_early_to_the_last_query(length: int, rows: int | None) -> None:
    plan = plan_rows(length, rows)
    assert plan.positions[-1] == length - 1
    assert 1 <= plan.positions[0] <= plan.stride
    assert plan.exact == (length <= 128 and rows is None)
    assert plan.count <= (rows or (127 if length <= 128 else 64))

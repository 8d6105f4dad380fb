"""Sinks, learned sinks, the closed system at position 0, and the atlas."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from tiny import tiny

import wherefrom as wf
from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import RunInputs
from wherefrom.capture.session import run


def rows(trace: wf.Trace, analysis: str, metric: str, edit: str = "none") -> pl.DataFrame:
    return trace.table().filter(
        (pl.col("analysis") == analysis) & (pl.col("metric") == metric) & (pl.col("edit") == edit)
    )


def test_sink_attention_and_learned_share_equal_the_full_weights() -> None:
    """Visible weights and the learned sink's share add up to 1 in every row and head."""
    import naive

    model = tiny("gpt_oss")
    ids = torch.randint(3, 97, (4, 48), generator=torch.Generator().manual_seed(0))
    trace = wf.trace(wf.load(model), wf.given_tokens(ids), query_ranges=[(8, 48)], offsets=[1, 2, 3])
    start = 12
    for layer, logits in enumerate(naive.eager_logits(model, ids)):
        weights = torch.softmax(torch.as_tensor(logits), -1)
        expected = weights[:, :, start:, 0].mean((0, 2))
        shares = weights[:, :, start:, -1].mean((0, 2))
        found = rows(trace, "sinks", "sink_attention").filter(pl.col("layer") == layer).sort("head")
        learned = rows(trace, "sinks", "learned_sink_share").filter(pl.col("layer") == layer).sort("head")
        assert torch.allclose(torch.as_tensor(found["value"].to_list()), expected.float(), atol=1e-6)
        assert torch.allclose(torch.as_tensor(learned["value"].to_list()), shares.float(), atol=1e-6)


def test_a_diluted_learned_sink_is_the_masks_doing() -> None:
    """In layer 0 logits do not know position; as keys appear the sink's share falls, credited to the mask."""
    model = tiny("gpt_oss", layer_types=["full_attention", "full_attention"])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(3.0)
            layer.self_attn.q_proj.weight.mul_(0.3)
    trace = wf.trace(wf.load(model), wf.random_tokens(96, 64), offsets=[1, 2, 3, 5], query_ranges=[(8, 64)])

    def found(metric: str) -> tuple[float, float]:
        row = rows(trace, "leak", metric).filter(
            (pl.col("layer") == 0) & pl.col("head").is_null() & pl.col("offset").is_null()
        )
        return float(row["value"][0]), float(row["stderr"][0])

    level, _ = found("level_leak")
    assert found("mask")[0] == pytest.approx(level, rel=0.05)
    for part in ("first_token", "learned_sink"):
        value, error = found(part)
        assert abs(value) < 3 * error + 0.02 * level


def test_a_very_low_sink_gives_ordinary_softmax() -> None:
    model = tiny("gpt_oss")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(-1e4)
    trace = wf.trace(wf.load(model), wf.random_tokens(4, 48), query_ranges=[(8, 48)], offsets=[1, 2])
    assert float(rows(trace, "sinks", "learned_sink_share")["value"].max()) == 0.0


def test_a_planted_sink_is_found_and_is_constant_with_a_fixed_first_token_only() -> None:
    """One head whose queries all point at a marker that only the BOS carries; with varying first tokens none does."""
    model = tiny("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[:, :2] = 0.0
        model.model.embed_tokens.weight[:, 0] = 4.0
        model.model.embed_tokens.weight[1, 1] = 8.0
        attention = model.model.layers[0].self_attn
        attention.q_proj.weight[:16] = 0.0
        attention.k_proj.weight[:16] = 0.0
        attention.q_proj.weight[15, 0] = 3.0  # the slowest pair hardly turns
        attention.k_proj.weight[15, 1] = 3.0
    model = wf.load(model)
    fixed = wf.trace(model, wf.random_tokens(16, 64, bos="on"))
    varying = wf.trace(model, wf.random_tokens(16, 64, bos="off"))

    def head(trace: wf.Trace, metric: str) -> float:
        found = rows(trace, "sinks", metric).filter((pl.col("layer") == 0) & (pl.col("head") == 0))
        return float(found["value"][0])

    assert head(fixed, "sink_attention") > 0.6
    assert head(varying, "sink_attention") < 0.1
    assert head(fixed, "sink_constancy") > 0.9
    assert head(varying, "sink_constancy") < 0.5


def test_position_0_is_a_closed_system() -> None:
    trace = wf.trace(wf.load(tiny("llama", num_hidden_layers=4)), wf.random_tokens(4, 48))
    assert float(rows(trace, "first_token", "closed_system_error")["value"][0]) < 1e-12
    assert rows(trace, "first_token", "similarity")["value"].to_list() == pytest.approx([1.0] * 5)
    assert rows(trace, "first_token", "similarity_varying")["value"][0] < 0.5
    off = wf.load(tiny("llama", num_hidden_layers=4))
    first: list[torch.Tensor] = []
    ids = torch.randint(3, 97, (1, 20))
    from wherefrom.capture.edits import parse_edit

    for length in (20, 1):
        part = RunInputs(ids[:, :length], (0,), ids[:, 0])
        run(off, part, edits=parse_edit("mask=off"), residual=lambda k, h: first.append(h[:, 0]) if k == 4 else None)
    assert float((first[0] - first[1]).abs().max()) > 1e-3, "control: without the mask it is not closed"


def test_similarity_of_varying_first_tokens_equals_all_pairs() -> None:
    trace = wf.trace(wf.load(tiny("llama")), wf.random_tokens(12, 24, bos="off", seed=4), edits=[])
    model = wf.load(tiny("llama"))
    ids = wf.random_tokens(12, 24, bos="off", seed=4)(model).token_ids
    kept: dict[int, torch.Tensor] = {}
    run(model, RunInputs(ids, tuple(range(12)), ids[:, 0]), residual=lambda k, h: kept.update({k: h[:, 0].clone()}))
    unit = torch.nn.functional.normalize(kept[2], dim=-1)
    gram = unit @ unit.T
    expected = float((gram.sum() - gram.trace()) / (12 * 11))
    row = rows(trace, "first_token", "similarity").filter(pl.col("layer") == 2)
    assert float(row["value"][0]) == pytest.approx(expected, abs=1e-10)


def test_the_atlas_names_the_token_that_sinks() -> None:
    model = tiny("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[:, :2] = 0.0
        model.model.embed_tokens.weight[:, 0] = 4.0
        model.model.embed_tokens.weight[[1, 42], 1] = 8.0
        attention = model.model.layers[0].self_attn
        attention.q_proj.weight[:16] = 0.0
        attention.k_proj.weight[:16] = 0.0
        attention.q_proj.weight[15, 0] = 3.0
        attention.k_proj.weight[15, 1] = 3.0
    trace = wf.trace(wf.load(model), wf.random_tokens(8, 64), atlas=True)
    scores = rows(trace, "atlas", "sink_score").sort("token")
    assert len(scores) == 97
    top = scores.sort("value", descending=True)["token"].to_list()[:2]
    assert set(top) == {1, 42}
    real = rows(trace, "sinks", "sink_attention").filter((pl.col("layer") == 0) & (pl.col("head") == 0))
    assert float(scores["value"][1]) == pytest.approx(float(real["value"][0]), abs=0.15), "the mean-query estimate"
    assert float(rows(trace, "atlas", "sink_tokens")["value"][0]) == 2


def test_a_head_sees_the_first_key_only_inside_its_window() -> None:
    seen: list[float] = []

    def observe(call: AttentionCall) -> None:
        weight = torch.exp(call.logits_to_first - call.log_denominator)
        seen.append(float(weight[..., :8].sum()))

    model = wf.load(tiny("mistral"))
    ids = torch.randint(3, 97, (1, 40))
    run(model, RunInputs(ids, (0,), ids[:, 0]), observe)
    trace = wf.trace(model, wf.given_tokens(ids.repeat(2, 1)), query_ranges=[(16, 40)], offsets=[1, 2])
    assert all(value > 0 for value in seen)
    assert float(rows(trace, "sinks", "sink_attention")["value"].abs().max()) == 0.0

"""Models for which theory says exactly where position comes from."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from tiny import tiny

import wherefrom as wf
from wherefrom.capture.edits import RunInputs, parse_edit
from wherefrom.capture.session import run

BOS, PLAIN = 1, 5
FLAG, MARK, CONSTANT = 40, 41, 50


def metric(trace: wf.Trace, name: str, layer: int, query_range: str, edit: str = "none") -> tuple[float, float]:
    found = trace.table().filter(
        (pl.col("analysis") == "leak") & (pl.col("metric") == name) & (pl.col("layer") == layer)
        & pl.col("head").is_null() & pl.col("offset").is_null()
        & (pl.col("query_range") == query_range) & (pl.col("edit") == edit)
    )  # fmt: skip
    return float(found["value"][0]), float(found["stderr"][0])


def test_layer_0_of_a_rotary_model_leaks_through_the_mask_alone() -> None:
    model = tiny("llama", hidden_size=64)
    trace = wf.trace(wf.load(model), wf.random_tokens(96, 64), offsets=[1, 2, 3, 5], query_ranges=[(16, 64)])
    shape, shape_error = metric(trace, "shape_leak", 0, "16:64")
    mask, mask_error = metric(trace, "mask", 0, "16:64")
    attention, attention_error = metric(trace, "attention_leak", 0, "16:64")
    assert abs(shape) < 3 * shape_error
    assert abs(attention - mask) < 3 * (attention_error + mask_error)
    assert mask > 20 * mask_error, "control: there is something to explain"


def test_a_sinusoidal_layer_0_is_not_mask_alone() -> None:
    """Control for the oracle above: GPT-2's learned positions enter layer 0's profile."""
    trace = wf.trace(wf.load(tiny("gpt2")), wf.random_tokens(48, 64), offsets=[1, 2, 3, 5], query_ranges=[(16, 64)])
    shape, error = metric(trace, "shape_leak", 0, "16:64")
    assert shape > 5 * error


def test_behind_a_window_the_mask_part_is_zero_in_every_layer_and_layer_0_leaks_nothing() -> None:
    model = tiny("mistral", num_hidden_layers=3)
    trace = wf.trace(wf.load(model), wf.random_tokens(64, 64), offsets=[1, 2, 3, 5], query_ranges=[(16, 64)])
    for layer in range(3):
        assert metric(trace, "mask", layer, "16:64")[0] == 0.0
        assert metric(trace, "first_token", layer, "16:64")[0] == 0.0
    value, error = metric(trace, "attention_leak", 0, "16:64")
    assert abs(value) < 3 * error


def no_position_model() -> torch.nn.Module:
    """Two Llama layers by hand, to run without rotation. Layer 0 attends uniformly; only the BOS has a value there, so
    at position t the stream carries 1 / (t + 1) on MARK. Layer 1's queries are constant and its keys read MARK."""
    model = tiny("llama")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "lm_head" not in name:
                parameter.zero_()
        table = model.model.embed_tokens.weight
        table[:, :32] = torch.randint(0, 2, (97, 32), generator=generator).double() * 2 - 1
        table[:, CONSTANT] = 1.0
        table[BOS, FLAG] = 1.0
        first, second = model.model.layers
        first.self_attn.v_proj.weight[0, FLAG] = 1.0
        first.self_attn.o_proj.weight[MARK, 0] = 1.0
        for head in range(4):
            second.self_attn.q_proj.weight[head * 16, CONSTANT] = 8.0
        for head in range(2):
            second.self_attn.k_proj.weight[head * 16, MARK] = 8.0
    return model


def test_position_made_from_the_first_token_and_the_denominator_is_credited_to_both() -> None:
    model = wf.load(no_position_model())
    found: dict[int, torch.Tensor] = {}
    ids = torch.randint(10, 97, (1, 24), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = BOS
    inputs, off = RunInputs(ids, (0,), ids[:, 0]), parse_edit("rope=off")
    run(model, inputs, edits=off, residual=lambda depth, hidden: found.update({depth: hidden.clone()}))
    marks = found[1][0, :, MARK]
    position = torch.arange(24, dtype=torch.float64)
    assert torch.allclose(marks / marks[0], 1 / (position + 1), atol=1e-4), "layer 0 writes 1 / (t + 1)"

    trace = wf.trace(
        model,
        wf.random_tokens(32, 48),
        ["rope=off", f"rope=off,bos=token:{PLAIN}"],
        offsets=[1, 2, 3, 5],
        query_ranges=[(8, 48)],
    )
    where = "8:48"
    level, _ = metric(trace, "level_leak", 0, where, "rope=off")
    mask, _ = metric(trace, "mask", 0, where, "rope=off")
    assert mask == pytest.approx(level, rel=1e-9), "layer 0 is uniform: its denominator is the mask's"
    assert metric(trace, "shape_leak", 0, where, "rope=off")[0] == pytest.approx(0, abs=1e-12)
    shape, error = metric(trace, "shape_leak", 1, where, "rope=off")
    assert shape > 5 * error, "layer 1 reads the mark"
    gone, error = metric(trace, "shape_leak", 1, where, f"rope=off,bos=token:{PLAIN}")
    assert abs(gone) < 1e-12, "nothing is left once the BOS is an ordinary token"


def test_without_positions_and_with_equal_tokens_there_is_no_position_anywhere() -> None:
    model = wf.load(tiny("llama", num_hidden_layers=3))
    ids = torch.full((6, 40), PLAIN)
    trace = wf.trace(model, wf.given_tokens(ids), ["rope=off"], offsets=[1, 2, 3], query_ranges=[(8, 40)])
    for layer in range(3):
        assert abs(metric(trace, "residual", layer, "8:40", "rope=off")[0]) < 1e-12
        count = metric(trace, "count", layer, "8:40", "rope=off")[0]
        assert metric(trace, "mask", layer, "8:40", "rope=off")[0] == pytest.approx(count, rel=1e-9)
    assert metric(trace, "shape_leak", 1, "8:40")[0] == pytest.approx(0, abs=1e-12), "equal tokens, rotated alike"


def test_the_row_constants_of_a_key_bias_change_nothing_but_the_raw_split() -> None:
    """ALiBi on the key index alone and its relative form differ by a constant per row (softmax cannot see it)."""
    from test_leak_estimator import LENGTH, estimate, planted, value_and_error

    from wherefrom.capture.call import AttentionCall

    slope = 0.3
    position = torch.arange(LENGTH, dtype=torch.float64)[:, None]
    one = torch.ones_like(position)

    def biased(relative: bool) -> list[AttentionCall]:
        calls = []
        for call in planted(6, 4):
            row = -slope * position if relative else 0 * position
            query = torch.cat([call.query[0, 0], one, row], 1)[None, None]
            key = torch.cat([call.key[0, 0], slope * position, one], 1)[None, None]
            logits = (query @ key.transpose(-1, -2)).masked_fill(
                torch.ones(LENGTH, LENGTH).triu(1).bool(), float("-inf")
            )
            calls.append(
                AttentionCall(0, query, key, torch.zeros_like(key), 1.0, call.rule, torch.logsumexp(logits, -1))
            )
        return calls

    by_key, by_offset = estimate(biased(False), 3), estimate(biased(True), 3)
    for name in ("attention_leak", "shape_leak", "level_leak", "mask", "first_token", "rest"):
        assert value_and_error(by_key, name)[0] == pytest.approx(value_and_error(by_offset, name)[0], abs=1e-10)
    assert value_and_error(by_key, "raw_logit_leak")[0] > value_and_error(by_offset, "raw_logit_leak")[0] + 1

"""Analyses run on the small Transformer as on a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from toys import ENCODINGS, ids, logits_of, toy

sys.path.insert(0, str(Path(__file__).parent.parent))
from test_streamed_equals_naive import compare

import wherefrom as wf


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_its_leak_equals_the_full_matrices(encoding: str) -> None:
    model, tokens, offsets = toy(encoding, readout="tokens", max_length=48), ids(5, 40), [1, 2, 3, 5, 7]
    trace = wf.trace(model, wf.given_tokens(tokens), offsets=offsets, query_ranges=[(8, 20), (20, 40)], groups=1)
    hidden = torch.ones(40, 40, dtype=torch.bool).triu(1)
    logits = [
        found.expand(5, -1, -1, -1).masked_fill(hidden, float("-inf")).numpy() for found in logits_of(model, tokens)
    ]
    assert compare(trace, logits, offsets) < 1e-10
    assert trace.manifest["closure_max_abs"] < 1e-12
    assert trace.manifest["log_denominator_max_abs"] < 1e-12
    assert trace.manifest["model"]["encoding"] == encoding
    wrong = [full[:, [1, 0, 3, 2]] for full in logits]
    assert compare(trace, wrong, offsets) > 1e-4, "control: swapped heads must be noticed"


def test_a_windowed_model_has_no_mask_part() -> None:
    model = toy("rope", readout="tokens", window=12)
    trace = wf.trace(model, wf.given_tokens(ids(6, 48)), offsets=[1, 2, 4], query_ranges=[(16, 48)])
    leak = {entry["layer"]: entry for entry in trace.summary()["leak"]}
    assert abs(leak[0]["mask"]["value"]) < 1e-12


def test_a_model_without_a_causal_mask_is_traced_too() -> None:
    """Behind no mask at all every query sees every key, and a model without an encoding cannot know position."""
    model = toy("none", readout="mean", causal=False)
    trace = wf.trace(model, wf.random_tokens(inputs=16, length=48, bos="off"), offsets=[1, 2, 4])
    for entry in trace.summary()["leak"]:
        assert abs(entry["attention_leak"]["value"]) < 4 * entry["attention_leak"]["stderr"] + 1e-12

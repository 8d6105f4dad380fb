"""Tables that depend on the input length (R2): a result of ours depends on the input alone, and the base is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rotary_families import model_of
from torch import nn

import wherefrom as wf
from wherefrom.capture.edits import RunInputs
from wherefrom.capture.layer_rotation import read_rotations
from wherefrom.capture.rotary_state import fresh_rotary_state
from wherefrom.capture.session import run
from wherefrom.models.hf import Decoder, wrap

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32, "factor": 4.0,
    "short_factor": [1.0] * 8, "long_factor": [1.0 + 0.5 * i for i in range(8)],
}  # fmt: skip
IDS = torch.randint(0, 97, (1, 64), generator=torch.Generator().manual_seed(0))


def dynamic() -> Any:
    return model_of("llama", max_position_embeddings=32, rope_parameters=DYNAMIC)


def longrope() -> Any:
    return model_of("llama", max_position_embeddings=128, rope_parameters=LONGROPE)


def logits(decoder: Decoder, length: int) -> torch.Tensor:
    found = run(decoder, RunInputs(IDS[:, :length], (0,), IDS[:, 0]), output_logits=True).output_logits
    assert found is not None
    return found


@pytest.mark.parametrize("build", [dynamic, longrope])
@pytest.mark.parametrize("short", [20, 31, 32, 33, 40])
def test_an_earlier_long_input_changes_nothing(build: Any, short: int) -> None:
    decoder = wrap(build())
    first = logits(decoder, short)
    logits(decoder, 48)
    assert torch.equal(logits(decoder, short), first)
    decoder.model(IDS[:, :60])  # the user's own long input
    assert torch.equal(logits(decoder, short), first)


def test_control_the_model_itself_depends_on_the_order() -> None:
    """At the original length exactly, and beyond it, the module keeps the base of the longer input it met before."""
    model = dynamic()
    with torch.no_grad():
        fresh = model(IDS[:, :32]).logits
        model(IDS[:, :48])
        assert float((model(IDS[:, :32]).logits - fresh).abs().max()) > 1e-3


@pytest.mark.parametrize("build", [dynamic, longrope])
@pytest.mark.parametrize("length", [40, 64])
def test_our_runs_leave_the_state_of_the_module_as_it_was(build: Any, length: int) -> None:
    model = build()
    with torch.no_grad():
        model(IDS[:, :48])
    rotary: nn.Module = model.model.rotary_emb
    buffers = dict(rotary._buffers)
    values = copy.deepcopy(buffers)
    attributes = set(rotary.__dict__)
    cached = getattr(rotary, "max_seq_len_cached", None)
    logits(wrap(model), length)
    read_rotations(wrap(model), length)
    assert all(rotary._buffers[name] is buffer for name, buffer in buffers.items())
    assert all(torch.equal(rotary._buffers[name], value) for name, value in values.items())  # type: ignore[arg-type]
    assert set(rotary.__dict__) == attributes
    assert getattr(rotary, "max_seq_len_cached", None) is cached


def test_the_state_comes_back_after_an_error() -> None:
    model = dynamic()
    with torch.no_grad():
        model(IDS[:, :48])
    kept = model.model.rotary_emb.inv_freq.clone()

    def interrupted() -> None:
        with fresh_rotary_state(wrap(model)):
            assert not torch.equal(model.model.rotary_emb.inv_freq, kept)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    assert torch.equal(model.model.rotary_emb.inv_freq, kept)


def test_the_parity_check_holds_after_a_long_input() -> None:
    model = dynamic()
    with torch.no_grad():
        model(IDS)
    assert wf.load(model).parity["max_abs"] < 1e-5


def test_the_frequencies_are_read_at_the_length_asked_for() -> None:
    decoder = wrap(dynamic())
    plain, stretched = (read_rotations(decoder, n)[0].frequencies for n in (32, 48))
    assert torch.allclose(plain, 1e4 ** (-torch.arange(8).double() / 8), rtol=1e-6)
    base = 1e4 * (2.0 * 48 / 32 - 1) ** (16 / 14)
    assert torch.allclose(stretched, base ** (-torch.arange(8).double() / 8), rtol=1e-6)
    short, long = (read_rotations(wrap(longrope()), n)[0].frequencies for n in (32, 33))
    assert torch.allclose(short / long, torch.tensor(LONGROPE["long_factor"]).double(), rtol=1e-5)

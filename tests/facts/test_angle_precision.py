"""The precision of the angle path (P1): what the cosine is taken of, and how many positions stay apart."""

from __future__ import annotations

from typing import Any

import torch
from rotary_families import model_of

from wherefrom.capture.layer_probe import capture_layers
from wherefrom.capture.precision import AnglePrecision, read_precision
from wherefrom.models.hf import wrap


def precision_of(model: Any, layer: int = 0) -> AnglePrecision:
    decoder = wrap(model)
    found = read_precision(decoder, capture_layers(decoder, [0, 1, 2])[layer])
    assert found is not None
    return found


def test_angles_in_half_precision_merge_neighbouring_positions() -> None:
    model = model_of("llama", dtype=torch.bfloat16)

    def half_precision(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle = position_ids[..., None].to(x.dtype) * model.model.rotary_emb.inv_freq.to(x.dtype)
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()

    model.model.rotary_emb.forward = half_precision
    found = precision_of(model)
    assert (found.angle_dtype, found.table_dtype) == ("bfloat16", "bfloat16")
    assert found.distinct == {512: 385, 4096: 769}
    assert found.error is not None
    assert found.error > 1.0, "whole radians at 4096"


def test_a_wholesale_cast_rounds_frequencies_but_not_positions() -> None:
    """transformers 5 forms angles in float32 whatever the model is cast to; the stored frequencies are cast too."""
    found = precision_of(model_of("llama", dtype=torch.bfloat16))
    assert (found.angle_dtype, found.frequency_dtype, found.table_dtype) == ("float32", "bfloat16", "bfloat16")
    assert found.distinct == {512: 512, 4096: 4096}
    assert found.error is not None
    assert found.error < 1e-3


def test_every_layer_type_is_watched_and_float32_keeps_all_positions() -> None:
    for layer in (0, 5):
        found = precision_of(model_of("gemma3_text", dtype=torch.float32), layer)
        assert (found.angle_dtype, found.frequency_dtype) == ("float32", "float32")
        assert found.distinct == {512: 512, 4096: 4096}


def test_a_ready_table_has_its_own_length() -> None:
    found = precision_of(model_of("gptj", dtype=torch.float32))
    assert (found.angle_dtype, found.frequency_dtype, found.limit) == (None, None, 256)
    assert found.distinct == {512: 256, 4096: 256}


def test_a_model_without_rotation_has_no_angles() -> None:
    from tiny import tiny

    decoder = wrap(tiny("gpt2"))
    assert read_precision(decoder, capture_layers(decoder, [0, 1, 2])[0]) is None

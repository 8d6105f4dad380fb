"""The rotation read from a layer equals the family's own function, dimension by dimension (R7)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rotary_families import FAMILIES, MLA, model_of, own_rotation

from wherefrom.capture.layer_probe import table_modules
from wherefrom.capture.layer_rotation import LayerRotation, read_rotations
from wherefrom.errors import BadInput
from wherefrom.models.hf import wrap

POSITIONS = torch.tensor([0, 1, 2, 7, 31, 100])
PAIRINGS = {
    "phi": ("half", 8), "stablelm": ("half", 4), "gpt_neox": ("half", 4), "cohere": ("interleaved", 16),
    "cohere2": ("interleaved", 16), "glm": ("interleaved", 8), "gptj": ("interleaved", 8), "deepseek_v3": ("half", 8),
}  # fmt: skip
"""Pairing and rotary dimensions where they are not (half, whole head)."""


def tables(model: Any, rotary: Any, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the layer's own rotary module at POSITIONS."""
    dummy = torch.zeros(1, dtype=torch.float64)
    kinds = getattr(model.config, "layer_types", None)
    if isinstance(getattr(rotary, "rope_type", None), dict):
        return rotary(dummy, POSITIONS[None], kinds[layer])
    return rotary(dummy, POSITIONS[None])


def module_turns(model: Any, family: str, layer: int, size: int) -> torch.Tensor:
    """Unit vectors of the rotary part through the family's own function: (dim position dim)."""
    cosine, sine = tables(model, table_modules(wrap(model))[0], layer)
    units = torch.eye(size, dtype=torch.float64)[None, :, None].expand(-1, -1, len(POSITIONS), -1)
    return own_rotation(model, family)(units, cosine, sine)[0]


def turned_units(rotation: LayerRotation) -> torch.Tensor:
    units = torch.eye(rotation.head_dim, dtype=torch.float64)[:, None].expand(-1, len(POSITIONS), -1)
    return rotation.turn(units, POSITIONS)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_hot_vectors_turn_as_in_the_familys_own_function(family: str) -> None:
    model = model_of(family)
    rotations = read_rotations(wrap(model))
    assert all(rotation.magnitude_read for rotation in rotations.values())
    assert len(rotations) == model.config.get_text_config().num_hidden_layers
    for layer, rotation in rotations.items():
        assert (rotation.pairing, rotation.rotary_dims) == PAIRINGS.get(family, ("half", rotation.head_dim)) or (
            family == "cohere2" and rotation.pairing == "none"
        )
        ours = turned_units(rotation)
        if rotation.pairing == "none":
            assert torch.equal(ours[:, 0], ours[:, -1])
            continue
        if family == "deepseek_v3":
            # The module reorders interleaved weights into halves before it turns them: undo that at position 0.
            assert rotation.start == MLA["qk_nope_head_dim"]
            theirs = module_turns(model, family, layer, MLA["qk_rope_head_dim"])
            order = theirs[:, 0].argmax(-1)
            assert sorted(order.tolist()) == list(range(8))
            ours, theirs = ours[rotation.start :, :, rotation.start :], theirs[order.argsort()]
        elif family in {"gptj", "phi", "stablelm"}:  # their function is handed the rotary part only
            part = rotation.rotary_dims
            assert torch.equal(ours[part:, 0], ours[part:, -1])
            ours, theirs = ours[:part, :, :part], module_turns(model, family, layer, part)
        else:
            theirs = module_turns(model, family, layer, rotation.head_dim)
        assert float((ours - theirs).abs().max()) < 2e-5, "float32 tables at position 100"


def test_layer_types_with_tables_of_their_own_are_read_apart() -> None:
    model = model_of("gemma3_text")
    rotations = read_rotations(wrap(model))
    full = [i for i, kind in enumerate(model.config.layer_types) if kind == "full_attention"]
    assert full == [5]
    assert torch.allclose(rotations[5].frequencies, 1e6 ** (-torch.arange(8).double() / 8), rtol=1e-5)
    assert torch.allclose(rotations[0].frequencies, 1e4 ** (-torch.arange(8).double() / 8), rtol=1e-5)


def test_the_sense_of_rotation_is_read() -> None:
    assert read_rotations(wrap(model_of("nanochat")))[0].sign == -1
    assert read_rotations(wrap(model_of("llama")))[0].sign == 1


def test_the_two_partial_conventions_agree_at_distance_zero_only() -> None:
    """A check on the diagonal proves nothing: it cannot tell the two apart, nor half from interleaved."""
    proportional = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 10000.0}
    block = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 10000.0}
    across = read_rotations(wrap(model_of("llama", rope_parameters=proportional)))[0]
    inside = read_rotations(wrap(model_of("phi", rope_parameters=block)))[0]
    assert (across.rotary_dims, inside.rotary_dims) == (16, 8)
    assert int((across.frequencies == 0).sum()) == 4
    assert int((inside.frequencies == 0).sum()) == 0

    generator = torch.Generator().manual_seed(0)
    query, key = (2 * torch.randn(24, 16, generator=generator, dtype=torch.float64) for _ in range(2))

    def logits(rotation: LayerRotation) -> torch.Tensor:
        where = torch.arange(24)
        return rotation.turn(query, where) @ rotation.turn(key, where).T / 4

    one, other = logits(across), logits(inside)
    assert torch.allclose(one.diagonal(), other.diagonal(), atol=1e-12)
    off_diagonal = (one - other).tril(-1).abs()
    assert float(off_diagonal.max()) > 1.0


def test_turning_back_is_the_inverse() -> None:
    rotation = read_rotations(wrap(model_of("gpt_oss")))[0]
    assert rotation.magnitude == pytest.approx(1 + 0.1 * torch.tensor(8.0).log().item(), rel=1e-6)
    vectors = torch.randn(2, 3, 6, 16, dtype=torch.float64)
    there = rotation.turn(vectors, POSITIONS)
    assert torch.allclose(rotation.turn(there, POSITIONS, inverse=True), vectors, atol=1e-12)
    assert not torch.allclose(there, vectors, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_and_their_precision_play_no_part_and_the_model_is_untouched(dtype: torch.dtype) -> None:
    model = model_of("qwen3", dtype=dtype)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # a cast rounds its frequencies too
    model.train()
    before = copy.deepcopy(model.state_dict())
    implementation = model.config._attn_implementation
    rotations = read_rotations(wrap(model))
    assert torch.allclose(rotations[1].frequencies, 1e4 ** (-torch.arange(8).double() / 8), rtol=1e-6)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.config._attn_implementation == implementation
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_slow_pairs_are_read_to_the_precision_of_the_table() -> None:
    rope = {"rope_type": "default", "rope_theta": 5e8}
    for family in ("llama", "cohere"):  # cohere turns in float32
        rotation = read_rotations(wrap(model_of(family, rope_parameters=rope)))[0]
        expected = 5e8 ** (-torch.arange(8).double() / 8)
        assert torch.allclose(rotation.frequencies, expected, rtol=1e-6, atol=0)


def test_a_layer_that_does_not_rotate_by_position_is_refused_with_the_reason() -> None:
    model = model_of("llama")
    plain = model.model.rotary_emb.forward

    def squared(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return plain(x, position_ids**2)

    model.model.rotary_emb.forward = squared
    with pytest.raises(BadInput, match="layer 0 cannot be read: its angle is not proportional"):
        read_rotations(wrap(model))


def test_a_layer_without_rotation_has_none() -> None:
    from tiny import tiny

    rotation = read_rotations(wrap(tiny("gpt2")))[1]
    assert (rotation.pairing, rotation.rotary_dims) == ("none", 0)

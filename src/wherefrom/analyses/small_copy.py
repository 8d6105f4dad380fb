"""A small model built from a checkpoint's config, to see what a config key does: all that concerns position is kept.

Kept: head size, layer types, rotary settings, windows, caps. Shrunk: widths, heads, vocabulary, experts. The weights
are drawn from one seed, so two configs that mean the same give the same queries and keys to the last bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.layer_probe import capture_layers
from wherefrom.capture.mask_reading import read_mask
from wherefrom.models.hf import wrap
from wherefrom.models.loading import quiet

HEADS = 2
NARROW = {"vocab_size": 128, "intermediate_size": 16, "moe_intermediate_size": 16, "hidden_size_per_layer_input": 8,
          "vocab_size_per_layer_input": 128, "shared_expert_intermediate_size": 16}  # fmt: skip
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
LENGTHS = (3, 1 << 17)
"""Input lengths at which the copy is watched: a short one, and one behind every original length in use."""


def text_part(raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of the decoder in a config that also has other parts."""
    part = raw.get("text_config")
    return part if isinstance(part, dict) else raw


def shrunk(raw: dict[str, Any], config: Any, layers: int) -> dict[str, Any]:
    """`raw` with small widths and `layers` layers; `config` is the loaded config, for sizes that `raw` leaves out."""
    names: dict[str, str] = getattr(config, "attribute_map", {})
    small = copy.deepcopy(raw)
    hidden, heads, kv_heads = (
        getattr(config, name, None) for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    depth = int(config.num_hidden_layers)

    def put(name: str, value: Any) -> None:
        key = names.get(name, name)
        small.pop(name, None)
        small[key] = value

    if isinstance(hidden, int) and isinstance(heads, int) and heads >= HEADS:
        put("hidden_size", hidden // heads * HEADS)
        put("num_attention_heads", HEADS)
        if isinstance(kv_heads, int):
            put("num_key_value_heads", min(kv_heads, HEADS))
    put("num_hidden_layers", layers)
    for name, size in NARROW.items():
        value = getattr(config, name, None)
        if isinstance(value, int):
            put(name, min(value, size))
    for name in TOKENS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value >= NARROW["vocab_size"]:
            put(name, 0)
    for key, value in small.items():
        if isinstance(value, list) and len(value) == depth:
            small[key] = value[:layers]
    small.pop("quantization_config", None)
    return small


def observe(build: Callable[[Any], nn.Module], config: Any, learned_positions: int | None) -> list[Any]:
    """Everything about position that a model of `config` shows: q, k, masks and settings of each attention call.

    Raises what building or running it raises.
    """
    found: list[Any] = []
    devices: list[int] = []
    with quiet(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        model = build(config).float().eval()
    decoder = wrap(model)
    for length in LENGTHS:
        last = length - 1 if learned_positions is None else min(length, learned_positions) - 1
        with quiet():
            probes = capture_layers(decoder, [0, 1, max(last, 2)])
        for layer, probe in probes.items():
            settings = {k: v for k, v in probe.seen.settings.items() if isinstance(v, int | float | Tensor)}
            mask = read_mask(probe) if length == LENGTHS[0] else None
            found.append((layer, probe.seen.query, probe.seen.key, settings, mask))
    return found


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)

"""Logits rebuilt from the projections and what the fact sheet says, to set beside those of eager attention."""

from __future__ import annotations

from typing import Any

import naive
import torch
from torch import Tensor

from wherefrom.capture.layer_rotation import LayerRotation

IDS = torch.randint(3, 97, (2, 48), generator=torch.Generator().manual_seed(5))


def projections(model: Any, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Query and key of every layer before rotation: (batch head length dim)."""
    found: dict[tuple[int, str], Tensor] = {}
    handles = []
    for layer, block in enumerate(model.model.layers):
        for name in ("q_proj", "k_proj"):

            def keep(_: Any, __: Any, output: Tensor, place: tuple[int, str] = (layer, name)) -> None:
                found[place] = output.detach()

            handles.append(getattr(block.self_attn, name).register_forward_hook(keep))
    try:
        with torch.no_grad():
            model(ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    size = model.model.layers[0].self_attn.head_dim
    split = {place: out.view(*out.shape[:2], -1, size).transpose(1, 2) for place, out in found.items()}
    return [(split[layer, "q_proj"], split[layer, "k_proj"]) for layer in range(len(model.model.layers))]


def worst(
    model: Any, rotations: dict[int, LayerRotation], scale: float, key_head: Any = None, ids: Tensor = IDS
) -> float:
    """Largest distance of rebuilt from eager logits over visible pairs; `key_head`: key/value head by query head."""
    positions = torch.arange(ids.shape[1])
    seen = torch.ones(len(positions), len(positions), dtype=torch.bool).tril()
    largest = 0.0
    for layer, eager in enumerate(naive.eager_logits(model, ids)):
        query, key = projections(model, ids)[layer]
        group = query.shape[1] // key.shape[1]
        heads = [head // group if key_head is None else key_head(head) for head in range(query.shape[1])]
        query, key = rotations[layer].turn(query, positions), rotations[layer].turn(key, positions)[:, heads]
        rebuilt = query @ key.transpose(-1, -2) * scale
        expected = torch.as_tensor(eager[..., : len(positions)])
        assert 0.2 < float(expected[..., seen].std()) < 5, "logits must be large enough to tell tables apart"
        largest = max(largest, float((rebuilt - expected)[..., seen].abs().max()))
    return largest

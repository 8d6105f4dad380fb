"""The logit split written from its definition with full float64 matrices and plain loops: slow and independent.

Vectors before the rotation, and the rotation itself, come from the model's own `apply_rotary_pos_emb`, recorded and
called again on the parts. Nothing of the package is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Turn = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Layer:
    """One layer: query (input head query dim) and key (input head key dim) before the turn, key heads repeated."""

    query: torch.Tensor
    key: torch.Tensor
    turn: Turn
    logits: np.ndarray
    """(input head query key), before a soft-cap."""
    visible: np.ndarray
    """(query key)."""
    scale: float


def capture(model: Any, token_ids: torch.Tensor) -> list[Layer]:
    """Every layer of a stock pass."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    calls: list[tuple[torch.Tensor, torch.Tensor, Turn]] = []
    layers: list[Layer] = []
    module = sys.modules[type(model).__module__]
    original = getattr(module, "apply_rotary_pos_emb", None)

    def recording(query: torch.Tensor, key: torch.Tensor, cosine: Any, sine: Any, *rest: Any, **options: Any) -> Any:
        def turn(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return original(q, k, cosine[:1], sine[:1], *rest, **options)

        calls.append((query, key, turn))
        return original(query, key, cosine, sine, *rest, **options)

    def attention(block: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kw: Any) -> Any:
        group = query.shape[1] // key.shape[1]
        raw_query, raw_key, turn = calls[-1] if original is not None else (query, key, lambda q, k: (q, k))
        wide, values = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scale = kw.get("scaling") or query.shape[-1] ** -0.5
        logits = query @ wide.transpose(-1, -2) * scale
        layers.append(
            Layer(raw_query, raw_key.repeat_interleave(group, 1), turn, logits.numpy(), mask[0, 0].numpy(), scale)
        )
        if kw.get("softcap") is not None:
            logits = kw["softcap"] * torch.tanh(logits / kw["softcap"])
        logits = logits.masked_fill(~mask, float("-inf"))
        if kw.get("s_aux") is not None:
            sink = kw["s_aux"].view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
            return (torch.softmax(torch.cat([logits, sink], -1), -1)[..., :-1] @ values).transpose(1, 2), None
        return (torch.softmax(logits, -1) @ values).transpose(1, 2), None

    def mask(*args: Any, **kwargs: Any) -> Any:
        kwargs["allow_is_causal_skip"] = False
        return sdpa_mask(*args, **kwargs)

    AttentionInterface.register("naive_split", attention)
    AttentionMaskInterface.register("naive_split", mask)
    before = model.config._attn_implementation
    if original is not None:
        module.apply_rotary_pos_emb = recording
    model.set_attn_implementation("naive_split")
    try:
        with torch.no_grad():
            model(token_ids, use_cache=False)
    finally:
        model.set_attn_implementation(before)
        if original is not None:
            module.apply_rotary_pos_emb = original
    return layers


def terms(layer: Layer, query_position: torch.Tensor, key_position: torch.Tensor, item: int) -> dict[str, np.ndarray]:
    """The four Gram terms of one input, (head query key) each, every part turned by the model's own function."""
    q, k = layer.query[item : item + 1], layer.key[item : item + 1]
    qp, kp = query_position[None], key_position[None]
    turned_content = layer.turn(q - qp, k - kp)
    turned_position = layer.turn(qp, kp)
    result = {}
    for query_name, query in (("content", turned_content[0]), ("position", turned_position[0])):
        for key_name, key in (("content", turned_content[1]), ("position", turned_position[1])):
            result[f"{query_name}_{key_name}"] = (query @ key.transpose(-1, -2) * layer.scale)[0].numpy()
    return result


def position_parts(vectors: torch.Tensor, item: int) -> torch.Tensor:
    """Mean of the other inputs at each index, minus the grand mean over all inputs and positions: (head index dim)."""
    others = [vectors[b] for b in range(len(vectors)) if b != item]
    return torch.stack(others).mean(0) - vectors.mean((0, 2)).unsqueeze(1)


def centred(logits: np.ndarray, visible: np.ndarray, rows: list[int]) -> np.ndarray:
    """Row-centred logits (... row key) of the chosen rows, 0 where invisible."""
    result = np.zeros((*logits.shape[:-2], len(rows), logits.shape[-1]))
    for number, i in enumerate(rows):
        keys = np.flatnonzero(visible[i])
        row = logits[..., i, keys]
        result[..., number, keys] = row - row.mean(-1, keepdims=True)
    return result


def inner(one: np.ndarray, other: np.ndarray, visible: np.ndarray, rows: list[int]) -> float:
    """Mean over rows of the mean over visible keys of the product."""
    total = 0.0
    for number, i in enumerate(rows):
        total += float((one[number] * other[number]).sum() / visible[i].sum())
    return total / len(rows)


def toeplitz_part(rows_by_key: np.ndarray, visible: np.ndarray, rows: list[int]) -> np.ndarray:
    """Least-squares fit of a function of the offset (up to row constants) to row-centred logits (row key)."""
    offsets = sorted({i - j for i in rows for j in np.flatnonzero(visible[i])})
    columns, targets, roots = [], [], []
    for number, i in enumerate(rows):
        keys = np.flatnonzero(visible[i])
        block = np.zeros((len(keys), len(offsets)))
        for line, j in enumerate(keys):
            block[line, offsets.index(i - j)] = 1.0
        root = np.sqrt(1.0 / (len(rows) * len(keys)))
        columns.append((block - block.mean(0)) * root)
        targets.append(rows_by_key[number, keys] * root)
        roots.append(root)
    design = np.concatenate(columns)
    fitted = design @ np.linalg.lstsq(design, np.concatenate(targets), rcond=None)[0]
    result, at = np.zeros_like(rows_by_key), 0
    for number, i in enumerate(rows):
        keys = np.flatnonzero(visible[i])
        result[number, keys] = fitted[at : at + len(keys)] / roots[number]
        at += len(keys)
    return result


def split(layer: Layer, rows: list[int] | None = None) -> tuple[list[dict[str, float]], float]:
    """Every metric per head, and the largest closure error over inputs, heads, queries and keys."""
    inputs, heads, length = layer.logits.shape[:3]
    rows = [i for i in (rows or range(length)) if layer.visible[i].sum() > 1]
    visible = layer.visible
    found = [terms(layer, position_parts(layer.query, b), position_parts(layer.key, b), b) for b in range(inputs)]
    closure = max(float(np.abs(sum(t.values()) - layer.logits[b]).max()) for b, t in enumerate(found))
    grand = [v.mean((0, 2)).unsqueeze(1).expand(-1, length, -1)[None] for v in (layer.query, layer.key)]
    turned = layer.turn(*grand)
    mean_logits = (turned[0] @ turned[1].transpose(-1, -2) * layer.scale)[0].numpy()
    results = []
    for head in range(heads):
        whole = [centred(layer.logits[b, head], visible, rows) for b in range(inputs)]
        variance = float(np.mean([inner(s, s, visible, rows) for s in whole]))
        metrics = {"logit_variance": variance}
        for name in found[0]:
            parts = [centred(t[name][head], visible, rows) for t in found]
            covariance = np.mean([inner(p, s, visible, rows) for p, s in zip(parts, whole, strict=True)])
            metrics[f"{name}_share"] = float(covariance) / variance
        constant = centred(mean_logits[head], visible, rows)
        metrics["turned_mean_share"] = float(np.mean([inner(constant, s, visible, rows) for s in whole])) / variance
        fitted = [toeplitz_part(s, visible, rows) for s in whole]
        left = [s - t for s, t in zip(whole, fitted, strict=True)]
        first = [np.where(np.arange(length) == 0, x, 0.0) for x in left]
        metrics["positional_share"] = _pairs(whole, visible, rows) / variance
        metrics["toeplitz_share"] = _pairs(fitted, visible, rows) / variance
        metrics["absolute_share"] = _pairs(left, visible, rows) / variance
        metrics["first_key_share"] = _pairs(first, visible, rows) / variance
        metrics["content_share"] = 1 - metrics["positional_share"]
        results.append(metrics)
    return results, closure


def _pairs(matrices: list[np.ndarray], visible: np.ndarray, rows: list[int]) -> float:
    """Mean inner product of two different inputs' matrices: the squared norm of what all inputs share, unbiased."""
    products = [
        inner(one, other, visible, rows) for a, one in enumerate(matrices) for b, other in enumerate(matrices) if a != b
    ]
    return float(np.mean(products))

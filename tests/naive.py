"""The leak trace written from the formulas with full matrices and plain loops, in float64: slow and independent.

It shares no code with the package. `stock_log_attention` takes the model's own eager attention probabilities, so that
even capture is checked against transformers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

SUPPORT = 32


def eager_logits(model: Any, token_ids: torch.Tensor) -> list[np.ndarray]:
    """Full logits per layer (batch head query key), -inf where masked, through a capturing attention function."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    found: list[np.ndarray] = []

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[Any, None]:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
        logits = query @ key.transpose(-1, -2) * scale
        softcap, sink = kwargs.get("softcap"), kwargs.get("s_aux")
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logits = logits.masked_fill(~mask, float("-inf"))
        wide = logits
        if sink is not None:
            wide = torch.cat([logits, sink.view(1, -1, 1, 1).expand(*logits.shape[:3], 1)], -1)
        weights = torch.softmax(wide, -1)[..., : logits.shape[-1]]
        found.append(wide.detach().numpy())
        return (weights @ value).transpose(1, 2), None

    def mask(*args: Any, **kwargs: Any) -> Any:
        kwargs["allow_is_causal_skip"] = False
        return sdpa_mask(*args, **kwargs)

    AttentionInterface.register("naive", attention)
    AttentionMaskInterface.register("naive", mask)
    before = model.config._attn_implementation
    model.set_attn_implementation("naive")
    try:
        with torch.no_grad():
            model(token_ids, use_cache=False)
    finally:
        model.set_attn_implementation(before)
    return found


def covariance(x: np.ndarray, y: np.ndarray) -> float:
    """C(x, y) of DESIGN 4.1 for curves (input position): pairs of different inputs only."""
    inputs, positions = x.shape
    x = x - x.mean(1, keepdims=True)
    y = y - y.mean(1, keepdims=True)
    total = 0.0
    for one in range(inputs):
        for other in range(inputs):
            if one != other:
                total += float((x[one] * y[other]).mean())
    return total / (inputs * (inputs - 1))


def mean_profile(profile: np.ndarray, start: int, stop: int, lowest: int) -> dict[int, float]:
    """Mean of s' over inputs and the queries of the range that see each offset, key 0 left out, pooled below SUPPORT.

    `profile` (input query key) is s', NaN where invisible; queries are start..stop-1.
    """
    length = profile.shape[2]
    samples: dict[int, list[float]] = {offset: [] for offset in range(lowest, stop)}
    for offset in range(lowest, stop):
        for query in range(start, stop):
            key = query - offset
            if 1 <= key < length:
                samples[offset] += [v for v in profile[:, query - start, key].tolist() if v == v]
    means: dict[int, float] = {}
    for offset in range(lowest, stop):
        pooled: list[float] = []
        for lower in range(offset, lowest - 1, -1):
            pooled += samples[lower]
            if len(pooled) >= SUPPORT:
                break
        if pooled:
            means[offset] = float(np.mean(pooled))
    for offset in range(lowest, stop):
        if offset not in means:
            means[offset] = means[min(o for o in means if o > offset)]
    return means


def leak(
    logits: np.ndarray, offsets: list[int], start: int, stop: int, sink: bool = False, causal: bool = True
) -> dict[str, float]:
    """All leak metrics of one head from its full logits (input query key[+sink]), -inf where masked."""
    inputs, length = logits.shape[:2]
    with np.errstate(over="ignore"):
        z = np.log(np.exp(logits).sum(-1))[:, start:stop]
    keys = logits[:, start:stop, :length]
    queries = range(start, stop)
    s = np.stack([[[keys[b, i - start, i - d] for i in queries] for d in offsets] for b in range(inputs)])
    r = s.mean(1)
    shape, level = s - r[:, None], z - r
    by_offset = range(len(offsets))
    result = {
        "attention_leak": np.mean([covariance(s[:, d] - z, s[:, d] - z) for d in by_offset]),
        "shape_leak": np.mean([covariance(shape[:, d], shape[:, d]) for d in by_offset]),
        "level_leak": covariance(level, level),
        "raw_logit_leak": np.mean([covariance(s[:, d], s[:, d]) for d in by_offset]),
        "raw_denominator_leak": covariance(z, z),
        "raw_interaction": -2 * np.mean([covariance(s[:, d], z) for d in by_offset]),
    }
    relative = np.where(np.isfinite(keys), keys - r[:, :, None], np.nan)
    profile = mean_profile(relative, start, stop, 0 if causal else 1 - length)
    visible = np.isfinite(keys[0])
    mask_level = np.array(
        [np.log(sum(np.exp(profile[i - j]) for j in range(length) if visible[i - start, j])) for i in queries]
    )
    keys_level = mask_level
    parts: dict[str, np.ndarray] = {}
    if sink:
        log_keys = np.log(np.exp(keys).sum(-1))
        odds = logits[:, start:stop, length] - log_keys
        ordinary_sink = np.exp(odds.mean() + keys_level.mean())
        mask_level = np.log(np.exp(keys_level) + ordinary_sink)
        parts["learned_sink"] = (z - log_keys) - (mask_level - keys_level)
    first = np.zeros_like(level)
    for i in queries:
        if visible[i - start, 0] and visible[i - start].sum() > 1:
            others = np.log(np.exp(z[:, i - start]) - np.exp(keys[:, i - start, 0]))
            ordinary = np.log(np.exp(mask_level[i - start]) - np.exp(profile[i]))
            first[:, i - start] = (z[:, i - start] - others) - (mask_level[i - start] - ordinary)
    parts["first_token"] = first
    result["mask"] = float(((mask_level - mask_level.mean()) * (level - level.mean(1, keepdims=True)).mean(0)).mean())
    for name, curve in parts.items():
        result[name] = covariance(curve, level)
    result["rest"] = result["level_leak"] - result["mask"] - sum(result[name] for name in parts)
    result["residual"] = result["attention_leak"] - result["mask"]
    return {name: float(value) for name, value in result.items()}

"""Attention output and its log-denominator from one fused kernel, without an L x L matrix.

The one place that knows which kernel gives the log-sum-exp on which device. Everything the fused kernels cannot do
(soft-caps, odd devices) goes through a blocked form that holds `block x keys` logits at a time; both are tested
against the naive form.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from wherefrom.encodings.masks import MaskRule

BLOCK = 256
"""Queries handled at once where logits must be formed."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    rule: MaskRule,
    softcap: float | None = None,
    sink: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention and its log-denominator.

    Shapes: query (batch head query dim), key and value (batch kv_head key dim), sink (head,) and bias (1|batch head|1
    query key) in nats; the bias is added before a soft-cap. Query head h reads key/value head h // group. Returns the
    output (batch head query dim) and z (batch head query) in nats, the learned sink's term included.
    """
    outputs, denominators = [], []
    for queries, keys, mask in segments(rule, query.shape[2], query.device):
        part_bias = None if bias is None else bias[:, :, queries, keys]
        part = _segment(query[:, :, queries], key[:, :, keys], value[:, :, keys], scale, mask, softcap, part_bias)
        outputs.append(part[0])
        denominators.append(part[1])
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
    log_denominator = denominators[0] if len(denominators) == 1 else torch.cat(denominators, 2)
    if sink is not None:
        # A learned sink logit takes part in the softmax but has no value: it only rescales what the keys give.
        total = torch.logaddexp(log_denominator, sink.to(log_denominator).view(1, -1, 1))
        output = output * torch.exp(log_denominator - total).unsqueeze(-1).to(output)
        log_denominator = total
    return output, log_denominator


def segments(rule: MaskRule, length: int, device: torch.device) -> Iterator[tuple[slice, slice, Tensor | str | None]]:
    """Cut attention into pieces a kernel can do: (queries, keys, mask), mask None, "causal" (square) or boolean."""
    first = 1 if rule.hide_first else 0
    if not rule.causal:
        if first:
            yield slice(0, 1), slice(0, length), None
        yield slice(first, length), slice(first, length), None
        return
    if first:
        yield slice(0, 1), slice(0, 1), None
    if rule.window is None or rule.window >= length:
        if length > first:
            yield slice(first, length), slice(first, length), "causal"
        return
    step = max(rule.window, BLOCK)
    for start in range(first, length, step):
        stop = min(start + step, length)
        low = max(first, start - rule.window + 1)
        mask = rule.visible(
            torch.arange(start, stop, device=device)[:, None], torch.arange(low, stop, device=device)[None]
        )
        yield slice(start, stop), slice(low, stop), mask


def _segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    mask: Tensor | str | None,
    softcap: float | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    same_width = query.shape[-1] == value.shape[-1]
    if bias is not None:
        return _blocked(query, key, value, scale, mask, softcap, bias)
    if softcap is None and same_width and query.device.type == "cpu":
        return _flash_cpu(query, key, value, scale, mask)
    if softcap is None and query.device.type == "cuda" and not isinstance(mask, Tensor):
        return _efficient_cuda(query, key, value, scale, causal=mask == "causal")
    return _blocked(query, key, value, scale, mask, softcap)


def _flash_cpu(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | str | None
) -> tuple[Tensor, Tensor]:
    bias = None
    if isinstance(mask, Tensor):
        bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, float("-inf"))[None, None]
    output, log_denominator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, mask == "causal" if isinstance(mask, str) else False, attn_mask=bias, scale=scale
    )
    return output, log_denominator


def _efficient_cuda(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    output, log_denominator, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, None, True, 0.0, causal, scale=scale
    )
    return output, log_denominator[..., : query.shape[2]]  # the kernel pads the length to a multiple of its tile


def _blocked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    mask: Tensor | str | None,
    softcap: float | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    batch, heads, length, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    grouped = query.view(batch, kv_heads, heads // kv_heads, length, -1)
    outputs, denominators = [], []
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        seen = stop if mask == "causal" else keys
        logits = widen(grouped[..., start:stop, :]) @ widen(key[:, :, None, :seen]).transpose(-1, -2)
        logits = logits * scale
        if bias is not None:
            part = bias[:, :, start:stop, :seen].expand(-1, heads, -1, -1)
            logits = logits + part.unflatten(1, (kv_heads, heads // kv_heads))
        logits = cap(logits, softcap)
        if isinstance(mask, Tensor):
            logits = logits.masked_fill(~mask[start:stop, :seen], float("-inf"))
        elif mask == "causal":
            position = torch.arange(seen, device=query.device)
            logits = logits.masked_fill(position[None] > position[start:stop, None], float("-inf"))
        z = torch.logsumexp(logits, -1)
        weights = torch.exp(logits - z.unsqueeze(-1)).to(value.dtype)
        outputs.append(weights @ value[:, :, None, :seen])
        denominators.append(z)
    output = torch.cat(outputs, 3).reshape(batch, heads, length, value.shape[-1])
    return output, torch.cat(denominators, 3).reshape(batch, heads, length)


def widen(tensor: Tensor) -> Tensor:
    """At least float32: statistics are never formed in half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def cap(logits: Tensor, softcap: float | None) -> Tensor:
    """Soft-capped logits, c tanh(x / c), as Gemma-2 uses them; the identity without a cap."""
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)

"""The mean profile of logits over every offset, from full rows of a few queries per input.

Only rows are formed, `rows x keys` at a time. Every offset is seen by the sampled rows, so rotary's fast frequencies
cannot alias as they would on a sparse grid of offsets, and a soft-cap needs no special case.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.kernels import cap, widen
from wherefrom.encodings.masks import MaskRule

SUPPORT = 32
"""Samples behind each point of the profile; offsets seen less often are pooled with the next smaller ones."""


def lowest_offset(rule: MaskRule, length: int) -> int:
    """The smallest offset i - j a profile can hold: 0 under a causal mask."""
    return 0 if rule.causal else 1 - length


def profile_sums(call: AttentionCall, item: int, rows: slice, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of s' along equal offsets over some rows of logits, key 0 and invisible keys left out, and their counts.

    `rows` are equally spaced queries of batch item `item`, `reference` (head row) their r. Returns (head offset) and
    (offset,), the offsets running from `lowest_offset` to `rows.stop - 1`.
    """
    first, stop, stride = rows.start, rows.stop, rows.step
    queries = len(range(first, stop, stride))
    low, keys = lowest_offset(call.rule, call.length), stop if call.rule.causal else call.length
    high = stop if call.rule.window is None else min(stop, call.rule.window)
    left = max(0, high - 1 - first)
    right = max(0, first + stride * (queries - 1) - low - (keys - 1))
    width = left + keys + right
    # Keys that must not count are zero vectors, so their logits are 0 and no pass over the logits is needed.
    key = widen(call.key[item])
    padded = F.pad(key[:, 1:keys], (0, 0, left + 1, right)).unsqueeze(1)
    query = widen(call.query[item, :, rows]).unflatten(0, (key.shape[0], call.group)) * call.scale
    logits = query @ padded.transpose(-1, -2)
    if call.bias is not None:
        bias = call.bias[min(item, len(call.bias) - 1), :, rows, 1:keys].expand(call.heads, -1, -1)
        logits = logits + F.pad(bias, (left + 1, right)).unflatten(0, (key.shape[0], call.group))
    logits = cap(logits, call.softcap)
    # Moving down one row moves the query by `stride`, so an equal offset lies `width + stride` entries further on.
    diagonals = logits.as_strided(
        (call.heads, queries, high - low), (queries * width, width + stride, 1), left + first - high + 1
    )
    sums = diagonals.sum(1).flip(-1)
    # r is subtracted from the sums: each offset is seen by a contiguous run of rows.
    offset = torch.arange(low, high, device=key.device)
    begin = (-((first - offset - 1) // stride)).clamp(0, queries)
    end = ((keys - 1 + offset - first) // stride + 1).clamp(0, queries)
    running = F.pad(reference.cumsum(-1), (1, 0))
    sums = sums - (running[:, end] - running[:, begin])
    count = (end - begin).to(sums.dtype)
    return F.pad(sums, (0, stop - high)), F.pad(count, (0, stop - high))


def mean_log_profile(total: Tensor, count: Tensor) -> Tensor:
    """log m(offset): the mean of s' at every offset, from its sums (head offset) and counts (offset,), float64.

    A point with fewer than SUPPORT samples is pooled with the next smaller offsets until it has them; offsets with
    nothing at or below them take the nearest larger one.
    """
    counts = F.pad(count.double().cumsum(0), (1, 0))
    sums = F.pad(total.double().cumsum(-1), (1, 0))
    stop = torch.arange(1, len(counts), device=counts.device)
    start = torch.searchsorted(counts, counts[stop] - SUPPORT, right=True) - 1
    start = torch.minimum(start.clamp(min=0), stop - 1)
    samples = counts[stop] - counts[start]
    profile = (sums[:, stop] - sums[:, start]) / samples.clamp(min=1)
    if bool((samples == 0).any()):
        filled = torch.nonzero(samples > 0)[:, 0]
        nearest = torch.searchsorted(filled, torch.arange(len(samples), device=filled.device)).clamp(
            max=len(filled) - 1
        )
        profile = torch.where(samples > 0, profile, profile[:, filled[nearest]])
    return profile


def log_mask_level(profile: Tensor, rule: MaskRule, start: int, stop: int, length: int) -> Tensor:
    """z_M(i) = log of the sum of m over the offsets query i sees, for i in start:stop: (head query), nats."""
    query = torch.arange(start, stop, device=profile.device)
    first, last = rule.key_bounds(query, length)
    low = lowest_offset(rule, length)
    peak = profile.max(-1, keepdim=True).values
    mass = F.pad(torch.exp(profile - peak).cumsum(-1), (1, 0))
    return torch.log(mass[:, query - first - low + 1] - mass[:, query - last - low]) + peak


def ordinary_first_token(profile: Tensor, level: Tensor, rule: MaskRule, start: int, length: int) -> Tensor:
    """What an ordinary key in the place of key 0 adds to z_M: -log(1 - m(i) / exp z_M(i)), (head query), nats."""
    query = torch.arange(start, start + level.shape[-1], device=level.device)
    share = torch.exp(profile[:, query - lowest_offset(rule, length)] - level)
    return -torch.log1p(-share.clamp(max=1 - 1e-12))

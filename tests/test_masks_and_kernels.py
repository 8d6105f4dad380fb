"""Mask rules and the fused kernel: who sees whom, exactly, and outputs equal to the naive form."""

from __future__ import annotations

import pytest
import torch

from wherefrom.capture.kernels import attend, segments
from wherefrom.capture.session import read_rule
from wherefrom.encodings.masks import MaskRule, rule_from_mask
from wherefrom.errors import BadInput

RULES = [
    MaskRule(),
    MaskRule(window=1),
    MaskRule(window=7),
    MaskRule(window=300),
    MaskRule(hide_first=True),
    MaskRule(window=7, hide_first=True),
    MaskRule(causal=False),
    MaskRule(causal=False, hide_first=True),
]


def dense(rule: MaskRule, length: int) -> torch.Tensor:
    position = torch.arange(length)
    return rule.visible(position[:, None], position[None])


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 8, 300, 600])
def test_bounds_and_counts_agree_with_the_dense_mask(rule: MaskRule, length: int) -> None:
    seen, query = dense(rule, length), torch.arange(length)
    first, last = rule.key_bounds(query, length)
    assert torch.equal(rule.visible_count(query, length), seen.sum(-1))
    assert torch.equal(seen, (query[None] >= first[:, None]) & (query[None] <= last[:, None]))


def test_a_window_of_eight_shows_exactly_eight_keys() -> None:
    seen = dense(MaskRule(window=8), 32)
    assert seen[31].nonzero()[:, 0].tolist() == list(range(24, 32))
    wider = dense(MaskRule(window=9), 32)
    assert int((seen != wider).any(-1).nonzero()[0]) == 8


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_equals_naive(rule: MaskRule, softcap: float | None, sink: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    length, heads, kv_heads, dim = 530, 4, 2, 8
    query = torch.randn(2, heads, length, dim, generator=generator, dtype=dtype)
    key, value = (torch.randn(2, kv_heads, length, dim, generator=generator, dtype=dtype) for _ in range(2))
    sinks = torch.linspace(-2, 3, heads, dtype=dtype) if sink else None
    output, z = attend(query, key, value, 0.5, rule, softcap, sinks)

    logits = (query.double() @ key.double().repeat_interleave(2, 1).transpose(-1, -2)) * 0.5
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~dense(rule, length), float("-inf"))
    expected = torch.logsumexp(logits, -1)
    if sinks is not None:
        expected = torch.logaddexp(expected, sinks.double().view(1, -1, 1))
    weights = torch.exp(logits - expected.unsqueeze(-1))
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    assert float((z - expected).abs().max()) < tolerance
    assert float((output - weights @ value.double().repeat_interleave(2, 1)).abs().max()) < tolerance


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_piece_is_as_large_as_the_whole(rule: MaskRule) -> None:
    """A window's boolean masks stay a block wide; without one there is no mask at all."""
    length = 4096
    for _, _, mask in segments(rule, length, torch.device("cpu")):
        if isinstance(mask, torch.Tensor):
            assert mask.numel() <= 600 * 600


def test_masked_keys_get_exactly_no_attention_however_low_the_scores() -> None:
    """Scores near -110000: an additive -100000 would make the masked keys win."""
    length = 6
    query = torch.full((1, 1, length, 1), 1.0)
    key = torch.full((1, 1, length, 1), -110_000.0)
    value = torch.eye(length)[None, None]
    for rule in (MaskRule(), MaskRule(window=2), MaskRule(hide_first=True)):
        output, _ = attend(query, key, value, 1.0, rule)
        assert float(output[0, 0][~dense(rule, length)].abs().max()) == 0.0
    seen = dense(MaskRule(), length)
    additive = torch.softmax(torch.where(seen, -110_000.0, -100_000.0), -1)
    assert float(additive[0, 1:].sum()) == pytest.approx(1.0), "control: a constant of -100000 attends to the future"


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("spelling", ["boolean", "minus infinity", "lowest float"])
def test_a_dense_mask_reads_the_same_however_invisible_is_spelled(window: int | None, spelling: str) -> None:
    rule, padding = MaskRule(window=window), torch.tensor([0, 5])
    position = torch.arange(20)
    seen = dense(rule, 20)[None] & (position[None, None] >= padding[:, None, None])
    mask = seen[:, None]
    if spelling != "boolean":
        low = float("-inf") if spelling == "minus infinity" else torch.finfo(torch.float32).min
        mask = torch.zeros(mask.shape).masked_fill(~mask, low)
    found, pads = rule_from_mask(mask)
    assert found == rule
    assert pads.tolist() == [0, 5]


def test_an_empty_or_foreign_mask_is_an_error() -> None:
    with pytest.raises(BadInput, match="hides nothing"):
        rule_from_mask(torch.ones(1, 1, 8, 8, dtype=torch.bool))
    prefix = dense(MaskRule(), 8)
    prefix[:4, :4] = True
    with pytest.raises(BadInput, match="neither causal nor"):
        rule_from_mask(prefix[None, None])


def test_index_functions_are_read_and_chunked_ones_refused() -> None:
    assert read_rule(lambda b, h, q, k: k <= q, 40) == MaskRule()
    assert read_rule(lambda b, h, q, k: (k <= q) & (k > q - 8), 40) == MaskRule(window=8)
    assert read_rule(lambda b, h, q, k: q >= 0, 40) == MaskRule(causal=False)
    with pytest.raises(BadInput, match="chunked"):
        read_rule(lambda b, h, q, k: (k <= q) & (k // 8 == q // 8), 40)

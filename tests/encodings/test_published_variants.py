"""The encodings of the code published with paper [G], and their clean counterparts."""

from __future__ import annotations

import pytest
import torch

from wherefrom.encodings import build
from wherefrom.errors import BadInput


def heads_of(encoding, length=20, shift=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (1, encoding.dimensions.heads, length, encoding.dimensions.head_dim)
    query, key = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    positions = torch.arange(length) + shift
    return query, key, positions


def test_the_published_mla_table_is_not_a_rotation_and_the_clean_one_is():
    """Fault 7: norms change, and equal offsets give different scores."""
    for name, rotates in (("mla", True), ("published-mla", False)):
        encoding = build(name, d_model=32, heads=2)
        query, key, positions = heads_of(encoding)
        moved, _ = encoding.transform(query, key, positions, positions)
        still, _ = encoding.transform(query, key, torch.zeros_like(positions), torch.zeros_like(positions))
        norms = float((moved.norm(dim=-1) - still.norm(dim=-1)).abs().max())
        here = encoding.logits(query, key, positions, positions)
        there = encoding.logits(query, key, positions + 10, positions + 10)
        assert (norms < 1e-12) == rotates
        assert (float((here - there).abs().max()) < 1e-10) == rotates
        assert norms < 1e-12 or norms > 0.1


def test_mla_adds_a_position_free_and_a_rotary_part():
    encoding = build("mla:rotary_dim=6,shared_key=false", d_model=32, heads=2)
    query, key, positions = heads_of(encoding)
    content, rotary = (
        build(name, d_model=2 * dim, heads=2, head_dim=dim)
        for name, dim in (("none", 10), ("rope:pairing=interleaved", 6))
    )
    expected = content.logits(query[..., :10], key[..., :10], positions, positions, scale=16**-0.5) + rotary.logits(
        query[..., 10:], key[..., 10:], positions, positions, scale=16**-0.5
    )
    torch.testing.assert_close(encoding.logits(query, key, positions, positions), expected)


def test_sharing_query_and_key_makes_position_alike_in_all_heads():
    """In the published MLA every head reads one rotary query and one rotary key."""
    encoding = build("published-mla", d_model=32, heads=4, head_dim=8)
    query, key, positions = heads_of(encoding)
    query[..., :4] = 0  # leaves the position part alone
    logits = encoding.logits(query, key, positions, positions)
    torch.testing.assert_close(logits, logits[:, :1].expand_as(logits))
    shared_key_only = build("mla", d_model=32, heads=4, head_dim=8).logits(query, key, positions, positions)
    assert float((shared_key_only - shared_key_only[:, :1]).abs().max()) > 0.1


def test_mla_shares_one_key_over_grouped_heads_too():
    encoding = build("mla", d_model=32, heads=4, head_dim=8)
    query, key, positions = heads_of(encoding)
    _, turned = encoding.transform(query, key[:, :2], positions, positions)
    assert torch.equal(turned[:, 0, :, 4:], turned[:, 1, :, 4:])


def test_the_published_rope_arm_is_rope_plus_an_absolute_encoding():
    """Fault 4: its sines and cosines stand side by side, and its rotary pairs are neighbours."""
    arm = build("rope:pairing=interleaved+sinusoidal:layout=concatenated", d_model=16, heads=2)
    assert (arm.kind, arm.reference) == ("mixed", "absolute")
    x = torch.zeros(1, 3, 16, dtype=torch.float64)
    table = arm.embed(x, torch.arange(3))[0]
    assert table[0].tolist() == [0.0] * 8 + [1.0] * 8
    pure = build("rope", d_model=16, heads=2)
    assert (pure.kind, pure.reference) == ("multiplicative", "relative")
    assert pure.embed(x, torch.arange(3)) is x


def test_heads_too_small_for_two_parts_are_refused():
    with pytest.raises(BadInput, match="position-free and a rotary part"):
        build("mla", d_model=4, heads=2)
    with pytest.raises(BadInput, match="8 of 8 dimensions would rotate"):
        build("published-mla:rotary_dim=8", d_model=16, heads=2)


def test_pope_with_zero_phase_is_largest_where_positions_meet():
    encoding = build("pope", d_model=16, heads=2).double()
    same = torch.randn(1, 2, 1, 8, dtype=torch.float64).expand(-1, -1, 9, -1)
    positions = torch.arange(9)
    logits = encoding.logits(same, same, positions, positions)
    assert torch.equal(logits.argmax(-1), positions.expand(1, 2, 9))
    assert encoding.transform(same, same, positions, positions)[0].shape == (1, 2, 9, 16)

"""Which dimensions turn together, on which heads, and in what precision; case R7 against transformers' own modules."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPTNeoXConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as apply_partial
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_interleaved
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_half

from wherefrom.encodings import build, rope_frequencies, rotary_pairs, rotate
from wherefrom.errors import BadInput


def rope(settings="", heads=2, head_dim=16, **sizes):
    return build(f"rope:{settings}", d_model=heads * head_dim, heads=heads, head_dim=head_dim, **sizes)


def turned(encoding, x, positions):
    return encoding.transform(x, x, positions, positions)[0]


VARIANTS = [
    "pairing=half",
    "pairing=interleaved",
    "rotary_dim=4",
    "rotary_dim=4,pairing=interleaved",
    "rotary_dim=4,partial=proportional",
    "rotary_dim=4,partial=proportional,pairing=interleaved",
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_the_pairing_found_by_probing_is_the_pairing_declared(settings):
    """A one-hot vector turned by position 1 spreads to its partner, and to nothing else."""
    encoding = rope(settings)
    frequencies, _ = encoding.frequencies()
    first, second = encoding.pairs()
    probe = torch.eye(16, dtype=torch.float64)[None, None].expand(1, 2, -1, -1)
    answer = turned(encoding, probe, torch.ones(16, dtype=torch.long))[0, 0]
    expected = torch.eye(16, dtype=torch.float64)
    for band, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        angle = float(frequencies[band])
        expected[a, a] = expected[b, b] = math.cos(angle)
        expected[a, b], expected[b, a] = math.sin(angle), -math.sin(angle)
    torch.testing.assert_close(answer, expected, atol=1e-15, rtol=1e-14)


def test_half_and_partial_rotation_equal_llama_and_gpt_neox():
    query, key = torch.randn(2, 1, 2, 9, 16)
    positions = torch.arange(9) + 30
    frequencies, _ = rope_frequencies(16)
    angle = torch.outer(positions.double(), frequencies).repeat(1, 2)
    cosine, sine = angle.cos().float()[None], angle.sin().float()[None]
    ours = rope().transform(query, key, positions, positions)
    for left, right in zip(ours, apply_half(query, key, cosine, sine), strict=True):
        torch.testing.assert_close(left, right, atol=2e-6, rtol=0)

    config = GPTNeoXConfig(hidden_size=32, num_attention_heads=2, rotary_pct=0.25)
    cosine, sine = GPTNeoXRotaryEmbedding(config)(query, positions[None])
    ours = rope("rotary_dim=4").transform(query, key, positions, positions)
    for left, right in zip(ours, apply_partial(query, key, cosine, sine), strict=True):
        torch.testing.assert_close(left, right, atol=2e-5, rtol=0)


def test_interleaved_rotation_equals_gptj():
    query = torch.randn(1, 9, 2, 16, dtype=torch.float64)
    positions = torch.arange(9)
    angle = torch.outer(positions.double(), rope_frequencies(16)[0])
    theirs = apply_interleaved(query, angle.sin()[None], angle.cos()[None]).transpose(1, 2)
    ours = turned(rope("pairing=interleaved"), query.transpose(1, 2), positions)
    torch.testing.assert_close(ours, theirs, atol=1e-13, rtol=0)


def test_the_two_partial_conventions_agree_at_distance_zero_only():
    """A check on the diagonal proves nothing (case R7)."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 2, 64, 16, dtype=torch.float64)
    positions = torch.arange(64)
    block = rope("rotary_dim=4").logits(query, key, positions, positions)
    across = rope("rotary_dim=4,partial=proportional").logits(query, key, positions, positions)
    difference = (block - across).abs()
    assert float(difference.diagonal(dim1=-2, dim2=-1).max()) < 1e-13
    assert float(difference.max()) > 1.0


def test_full_proportional_is_full_block():
    x, positions = torch.randn(1, 2, 5, 16, dtype=torch.float64), torch.arange(5)
    torch.testing.assert_close(turned(rope("partial=proportional"), x, positions), turned(rope(), x, positions))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([2, 6, 16, 64]),
    st.sampled_from(["half", "interleaved"]),
    st.floats(1.5, 1e7),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 99),
)
def test_rotation_keeps_norms_composes_and_reads_offsets_only(dim, pairing, theta, here, there, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, 1, 1, dim, generator=generator, dtype=torch.float64)
    frequencies, _ = rope_frequencies(dim, theta)

    def at(x, position):
        return rotate(x, torch.tensor([position]), frequencies, pairing)

    # An angle of 1e6 radians is rounded by 1e-10.
    tolerance = 1e-9 * float(query.norm() * key.norm() + query.norm())
    assert float((at(query, here).norm() - query.norm()).abs()) < tolerance
    assert float((at(at(query, here), there) - at(query, here + there)).abs().max()) < tolerance
    relative = (at(query, here) * at(key, there)).sum() - (at(query, here + 7) * at(key, there + 7)).sum()
    assert float(relative.abs()) < tolerance


def test_rotating_some_heads_leaves_the_others_untouched():
    x, positions = torch.randn(1, 4, 6, 16, dtype=torch.float64), torch.arange(6) + 3
    answer = turned(rope("heads=1/3", heads=4), x, positions)
    everywhere = turned(rope(heads=4), x, positions)
    assert torch.equal(answer[:, [0, 2]], x[:, [0, 2]])
    torch.testing.assert_close(answer[:, [1, 3]], everywhere[:, [1, 3]])


def test_rotating_heads_respects_shared_key_heads():
    """Query head h reads key head h // group (case H2): heads 2 and 3 share key head 1."""
    query, key = torch.randn(1, 4, 6, 16, dtype=torch.float64), torch.randn(1, 2, 6, 16, dtype=torch.float64)
    positions = torch.arange(6) + 3
    grouped = rope("heads=2/3", heads=4)
    repeated = grouped.logits(query, key.repeat_interleave(2, dim=1), positions, positions)
    torch.testing.assert_close(grouped.logits(query, key, positions, positions), repeated)
    with pytest.raises(BadInput, match="choose whole groups"):
        rope("heads=1/2", heads=4).logits(query, key, positions, positions)
    with pytest.raises(BadInput, match="divisor of 4"):
        rope(heads=4).logits(query, key[:, :1].expand(1, 3, 6, 16), positions, positions)


def test_positions_in_half_precision_are_refused():
    """Case P1: in bfloat16 385 of 512 and 769 of 4096 positions stay distinct."""
    assert len(torch.arange(512).to(torch.bfloat16).unique()) == 385
    assert len(torch.arange(4096).to(torch.bfloat16).unique()) == 769
    x = torch.randn(1, 2, 512, 16)
    with pytest.raises(BadInput, match="merge neighbours"):
        turned(rope(), x, torch.arange(512).to(torch.bfloat16))


@pytest.mark.parametrize("start", [0, 300, 1000, 4096, 100_000])
def test_a_model_cast_to_half_keeps_its_angles(start):
    encoding = rope().to(torch.bfloat16)
    x = torch.randn(1, 2, 64, 16).to(torch.bfloat16)
    positions = torch.arange(64) + start
    error = (turned(encoding, x, positions).double() - turned(rope(), x.double(), positions)).abs().max()
    assert float(error) <= 2.0**-8 * float(x.abs().max()) * math.sqrt(2)


def test_wrong_sizes_are_refused_in_a_sentence():
    for options, words in (
        ("rotary_dim=3", "even number"),
        ("rotary_dim=18", "cannot rotate 18"),
        ("heads=2", "heads run from 0 to 1"),
        ("pairing=neighbours", "use one of `half`, `interleaved`"),
    ):
        with pytest.raises(BadInput, match=words):
            rope(options)
    with pytest.raises(BadInput, match="cannot be turned by 8 frequencies"):
        turned(rope(), torch.randn(1, 2, 3, 12), torch.arange(3))
    with pytest.raises(BadInput, match="even number"):
        rotary_pairs(7)
    with pytest.raises(BadInput, match=r"shape \(1, 1, 3\)"):
        turned(rope(), torch.randn(1, 2, 3, 16), torch.arange(3)[None, None])


def test_xpos_refuses_positions_beyond_the_range_of_its_dtype():
    encoding = build("xpos", d_model=16, heads=2)
    x, far = torch.randn(1, 2, 1, 8), torch.tensor([100_000])
    with pytest.raises(BadInput, match=r"position 100000 beyond the range of torch\.float32"):
        encoding.transform(x, x, far, far)
    assert bool(encoding.logits(x.double(), x.double(), far, far).isfinite().all())


def test_facts_are_plain_and_complete():
    facts = rope("rotary_dim=4,heads=1,scaling=yarn,factor=64,original_max_length=32").facts()
    assert facts["rotary_heads"] == [1]
    assert facts["attention_scale"] == pytest.approx(1.4159, abs=1e-4)
    assert len(facts["frequencies"]) == 2
    assert (facts["pairing"], facts["partial"], facts["rotary_dim"], facts["scaling"]) == ("half", "block", 4, "yarn")

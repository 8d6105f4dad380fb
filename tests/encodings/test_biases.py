"""Biases one by one: ALiBi slopes and forms (cases B1, B3), T5 buckets, tables, key positions (case B2), the rest."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from wherefrom.encodings import alibi_slopes, build, t5_bucket
from wherefrom.encodings.deberta import deberta_index
from wherefrom.encodings.t5 import T5Config
from wherefrom.errors import BadInput


def test_slope_rules_have_the_ends_they_are_known_by():
    """Case B3, twelve heads."""
    plain = alibi_slopes(12, "geometric")
    assert (float(plain[0]), float(plain[-1])) == pytest.approx((0.63, 0.0039), abs=5e-5, rel=2e-3)
    paper = alibi_slopes(12, "interleaved")
    assert float(paper[0]) == 0.5
    assert float(paper[7]) == 2.0**-8
    assert paper[8:].tolist() == pytest.approx([2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5])
    published = alibi_slopes(16, "published")
    assert published.tolist() == pytest.approx([math.exp(-h / 16) for h in range(16)])
    assert torch.equal(alibi_slopes(8, "geometric"), alibi_slopes(8, "interleaved"))


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 7, 8, 12, 16, 20, 32, 71])
def test_slopes_equal_those_of_bloom_and_mpt(heads):
    ours = alibi_slopes(heads)
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].double()
    torch.testing.assert_close(ours, bloom, rtol=2e-6, atol=0)
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0].double()
    torch.testing.assert_close(ours, mpt, rtol=2e-6, atol=0)
    if heads & (heads - 1):
        assert float((ours - alibi_slopes(heads, "geometric")).abs().max()) > 0.01


def test_slopes_are_named_where_they_are_used():
    encoding = build("alibi", d_model=24, heads=12)
    assert encoding.facts()["slope_rule"] == "interleaved"
    assert encoding.facts()["slopes"] == alibi_slopes(12).tolist()


def test_the_key_form_gives_the_softmax_of_the_causal_form():
    """Case B1: they differ by a constant per row."""
    query, key = torch.randn(2, 1, 4, 20, 8, dtype=torch.float64)
    positions = torch.arange(20) + 11
    causal = build("alibi:form=causal", d_model=32, heads=4).logits(query, key, positions, positions)
    by_key = build("alibi:form=key", d_model=32, heads=4).logits(query, key, positions, positions)
    constant = by_key - causal
    assert float((constant - constant[..., :1]).abs().max()) < 1e-12
    assert float(constant.abs().max()) > 1.0
    hidden = torch.ones(20, 20, dtype=torch.bool).triu(1)
    left, right = (logits.masked_fill(hidden, -torch.inf).softmax(-1) for logits in (causal, by_key))
    torch.testing.assert_close(left, right, atol=1e-13, rtol=0)


def test_forms_follow_the_mask_unless_named():
    def form(settings, causal):
        return build(settings, d_model=32, heads=4, causal=causal).facts()["form"]

    assert form("alibi", True) == "causal"
    assert form("alibi", False) == "symmetric"
    assert form("alibi:form=key", False) == "key"
    assert build("t5", d_model=32, heads=4, causal=False).facts()["bidirectional"]
    assert not build("t5", d_model=32, heads=4).facts()["bidirectional"]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (16, 64), (8, 20), (32, 1000), (64, 256), (4, 3)])
def test_buckets_equal_those_of_transformers(buckets, distance, bidirectional):
    offset = torch.arange(-3000, 3001)
    theirs = T5Attention._relative_position_bucket(-offset, bidirectional, buckets, distance)
    ours = t5_bucket(offset, buckets, distance, bidirectional)
    assert torch.equal(ours, theirs)
    assert int(ours.min()) == 0
    assert int(ours.max()) == buckets - 1


def test_impossible_buckets_are_refused():
    with pytest.raises(BadInput, match="use more than 16, or fewer buckets"):
        T5Config(max_distance=16, bidirectional=False)
    with pytest.raises(BadInput, match="use more than 16, or fewer buckets"):
        build("t5:max_distance=16", d_model=32, heads=4)
    build("t5:max_distance=16", d_model=32, heads=4, causal=False)


@pytest.mark.parametrize("specification", ["alibi", "t5", "relative-table", "kerple", "fire", "cope", "deberta"])
def test_a_bias_reads_key_positions_and_not_the_number_of_queries(specification):
    """Case B2, in the shape in which broadcasting would hide it: one query against nine cached keys."""
    torch.manual_seed(0)
    encoding = build(specification, d_model=16, heads=2, max_length=16)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    query, key = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    positions = torch.arange(9)
    whole = encoding.bias(query, key, positions, positions)
    last = encoding.bias(query[:, :, 8:], key, positions[8:], positions)
    torch.testing.assert_close(last, whole[:, :, 8:])
    assert float((last - last[..., :1]).detach().abs().max()) > 1e-3


def test_the_relative_table_clips_and_t5_does_not_equal_it():
    encoding = build("relative-table:max_distance=3", d_model=16, heads=2)
    zero = torch.zeros(1, 2, 9, 8)
    bias = encoding.bias(zero, zero, torch.arange(9), torch.arange(9))[0]
    assert torch.equal(bias[:, 8, 0], bias[:, 8, 5])
    assert not torch.equal(bias[:, 8, 5], bias[:, 8, 6])
    assert torch.equal(bias[:, 0, 3], bias[:, 0, 8])


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_falls_with_distance_and_is_trainable_at_distance_zero(form):
    encoding = build(f"kerple:form={form}", d_model=16, heads=4).double()
    zero, positions = torch.zeros(1, 4, 30, 4, dtype=torch.float64), torch.arange(30)
    bias = encoding.bias(zero, zero, positions, positions)
    assert bool((bias[0, :, 29].diff() > 0).all())
    assert float(bias.diagonal(dim1=-2, dim2=-1).detach().abs().max()) == 0.0
    bias.sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in encoding.parameters())


def test_fire_is_relative_up_to_its_threshold_and_absolute_beyond():
    encoding = build("fire:threshold=20", d_model=16, heads=2).double()
    zero, positions = torch.zeros(1, 2, 40, 8, dtype=torch.float64), torch.arange(40)
    diagonal = encoding.bias(zero, zero, positions, positions).diagonal(offset=-5, dim1=-2, dim2=-1)
    early, late = diagonal[..., :15], diagonal[..., 16:]
    assert float((early - early[..., :1]).detach().abs().max()) < 1e-14
    assert float((late - late[..., :1]).detach().abs().max()) > 1e-4


def test_cope_counts_what_the_query_counts():
    """Gates near 0 and 1: only the marked keys count, wherever they stand."""
    encoding = build("cope:scaled_gates=false", d_model=2, heads=1, max_length=16).double()
    marked = torch.tensor([0, 1, 0, 0, 1, 1], dtype=torch.float64)
    key = torch.stack((200 * marked - 100, torch.zeros(6, dtype=torch.float64)), dim=-1)[None, None]
    query = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 1, 6, 2)
    positions = torch.arange(6)
    counts = encoding.counts(query, key, positions, positions)[0, 0]
    assert counts[5].round().tolist() == [3, 3, 2, 2, 2, 1]
    assert counts[1].round().tolist() == [1, 1, 0, 0, 0, 0]
    shuffled = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = encoding.counts(query, key[:, :, shuffled], positions, positions[shuffled])[0, 0]
    torch.testing.assert_close(moved, counts[:, shuffled])


def test_deberta_rows_follow_equation_three():
    offset = torch.arange(-5, 6)
    assert deberta_index(offset, 3).tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5]
    with pytest.raises(BadInput, match="neither position term"):
        build("deberta:content_to_position=false,position_to_content=false", d_model=16, heads=2)


def test_biases_in_half_precision_models_stay_in_float32():
    for specification in ("alibi", "t5", "relative-table", "kerple", "fire", "cope", "deberta"):
        encoding = build(specification, d_model=16, heads=2, max_length=16).to(torch.bfloat16)
        query, positions = torch.randn(1, 2, 4, 8).to(torch.bfloat16), torch.arange(4)
        assert encoding.bias(query, query, positions, positions).dtype == torch.float32


def test_neighbouring_offsets_stay_apart_far_out():
    encoding = build("alibi", d_model=16, heads=2)
    query = torch.zeros(1, 2, 1, 8, dtype=torch.bfloat16)
    bias = encoding.bias(query, query, torch.tensor([4097]), torch.tensor([0, 1, 2]))
    assert len(bias[0, 0, 0].unique()) == 3

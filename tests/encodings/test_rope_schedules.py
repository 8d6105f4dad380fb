"""Rotary frequency schedules against transformers' own, over many settings; cases R1, R2 and R4."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

from wherefrom.encodings import build, list_scalings, rope_frequencies
from wherefrom.encodings.rope import SCALINGS
from wherefrom.encodings.scaling import (
    DefaultScaling,
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    ntk_theta,
)
from wherefrom.encodings.scaling_bands import LongRopeScaling, YarnScaling
from wherefrom.errors import BadInput

# transformers raises the base to a float32 exponent: its rounding is 2^-24·ln(base), relative, and a few more units.
FLOAT32_ROUNDING = 4e-6

thetas = st.sampled_from([100.0, 10000.0, 500000.0, 1e6, 1e7])
head_dims = st.sampled_from([8, 16, 64, 80, 128])
partials = st.sampled_from([1.0, 0.5, 0.25])
factors = st.sampled_from([1.0, 1.5, 2.0, 8.0, 32.0, 64.0])
lengths = st.sampled_from([32, 256, 4096, 8192])


def theirs(kind, head_dim, theta, partial=1.0, max_length=65536, call_length=None, **parameters):
    """Frequencies and attention factor of transformers for the same settings."""
    rope = {"rope_type": kind, "rope_theta": theta, "partial_rotary_factor": partial, **parameters}
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=max_length,
        rope_parameters=rope,
    )
    if kind == "default":
        # Llama's own function would ignore the partial factor.
        return GPTNeoXRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=call_length)


@pytest.fixture(autouse=True)
def _quiet():
    """transformers warns about every unusual combination, and these tests try all of them."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def assert_agree(ours, other, blended_from=0.0):
    """`blended_from`: the plain frequencies of a blend; float32 rounds the weight of its large term absolutely."""
    frequencies, magnitude = ours
    assert frequencies.dtype == torch.float64
    allowed = FLOAT32_ROUNDING * frequencies + 4 * 2.0**-24 * blended_from
    assert frequencies.shape == other[0].shape
    assert bool(((frequencies - other[0].double()).abs() <= allowed).all())
    assert magnitude == pytest.approx(other[1], rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(head_dims, thetas, partials)
def test_default_agrees_with_transformers(head_dim, theta, partial):
    rotary_dim = int(head_dim * partial)
    assert_agree(rope_frequencies(head_dim, theta, rotary_dim), theirs("default", head_dim, theta, partial))


@settings(max_examples=40, deadline=None)
@given(head_dims, thetas, partials, factors)
def test_linear_agrees_with_transformers(head_dim, theta, partial, factor):
    ours = rope_frequencies(head_dim, theta, int(head_dim * partial), scaling=LinearScaling(factor))
    assert_agree(ours, theirs("linear", head_dim, theta, partial, factor=factor))


@settings(max_examples=40, deadline=None)
@given(head_dims, thetas, partials, factors)
def test_proportional_agrees_with_transformers(head_dim, theta, partial, factor):
    ours = rope_frequencies(head_dim, theta, int(head_dim * partial), "proportional", LinearScaling(factor))
    assert_agree(ours, theirs("proportional", head_dim, theta, partial, factor=factor))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([16, 64, 80, 128]), thetas, partials, factors, lengths, st.sampled_from([1, 31, 33, 5000, 70000])
)
def test_dynamic_agrees_with_transformers(head_dim, theta, partial, factor, original, length):
    ours = rope_frequencies(
        head_dim, theta, int(head_dim * partial), scaling=DynamicNtkScaling(factor, original), length=length
    )
    other = theirs("dynamic", head_dim, theta, partial, max_length=original, call_length=length, factor=factor)
    assert_agree(ours, other)


@settings(max_examples=120, deadline=None)
@given(
    head_dims,
    thetas,
    partials,
    factors,
    lengths,
    st.sampled_from([None, 1.0, 0.5]),
    st.sampled_from([(None, None), (1.0, 1.0), (0.707, 1.0), (1.0, None)]),
    st.sampled_from([(32.0, 1.0), (16.0, 2.0), (64.0, 0.5)]),
    st.booleans(),
)
def test_yarn_agrees_with_transformers(head_dim, theta, partial, factor, original, attention, mscales, betas, truncate):
    scaling = YarnScaling(factor, original, betas[0], betas[1], attention, mscales[0], mscales[1], truncate)
    ours = rope_frequencies(head_dim, theta, int(head_dim * partial), scaling=scaling)
    parameters = {
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
        "attention_factor": attention,
        "mscale": mscales[0],
        "mscale_all_dim": mscales[1],
        "truncate": truncate,
    }
    given_parameters = {key: value for key, value in parameters.items() if value is not None}
    plain, _ = rope_frequencies(head_dim, theta, int(head_dim * partial))
    assert_agree(ours, theirs("yarn", head_dim, theta, partial, **given_parameters), plain)


@settings(max_examples=60, deadline=None)
@given(head_dims, thetas, factors, lengths, st.sampled_from([(1.0, 4.0), (1.0, 8.0), (2.0, 3.0)]))
def test_llama3_agrees_with_transformers(head_dim, theta, factor, original, ends):
    ours = rope_frequencies(head_dim, theta, scaling=Llama3Scaling(factor, original, *ends))
    other = theirs(
        "llama3",
        head_dim,
        theta,
        factor=factor,
        original_max_position_embeddings=original,
        low_freq_factor=ends[0],
        high_freq_factor=ends[1],
    )
    assert_agree(ours, other, rope_frequencies(head_dim, theta)[0])


@settings(max_examples=60, deadline=None)
@given(head_dims, thetas, factors, lengths, st.sampled_from([None, 1.25]), st.integers(-1, 1), st.integers(0, 99))
def test_longrope_agrees_with_transformers(head_dim, theta, factor, original, attention, beyond, seed):
    generator = torch.Generator().manual_seed(seed)
    short, long = (1 + 9 * torch.rand(2, head_dim // 2, generator=generator)).tolist()
    scaling = LongRopeScaling(tuple(short), tuple(long), original, factor, attention)
    ours = rope_frequencies(head_dim, theta, scaling=scaling, length=original + beyond)
    parameters = {"factor": factor, "original_max_position_embeddings": original}
    if attention is not None:
        parameters["attention_factor"] = attention
    other = theirs(
        "longrope",
        head_dim,
        theta,
        call_length=original + beyond,
        short_factor=short,
        long_factor=long,
        **parameters,
    )
    assert_agree(ours, other)


def test_ntk_stretches_the_slowest_band_by_the_factor_and_leaves_the_fastest():
    plain, _ = rope_frequencies(64)
    stretched, _ = rope_frequencies(64, scaling=NtkScaling(4.0))
    assert stretched[0] == plain[0] == 1.0
    assert float(plain[-1] / stretched[-1]) == pytest.approx(4.0, rel=1e-12)
    assert ntk_theta(10000.0, 4.0, 64) == pytest.approx(10000.0 * 4 ** (64 / 62), rel=1e-15)
    with pytest.raises(BadInput, match="have one"):
        rope_frequencies(2, scaling=NtkScaling(4.0))


def test_a_factor_of_eight_is_not_a_factor_of_thirty_two():
    """Case R1, with the original length shrunk to 32 so that the two differ within a short input."""
    query = torch.randn(1, 4, 48, 16, dtype=torch.float64)
    positions = torch.arange(48)

    def logits(factor):
        encoding = build(f"rope:scaling=llama3,factor={factor},original_max_length=32", d_model=64, heads=4)
        return encoding.logits(query, query, positions, positions)

    assert float((logits(32) - logits(8)).abs().max()) > 0.1


def test_yarn_attention_factor_enters_logits_squared():
    """Case R4: 2.00 against 1.0 for factor 64."""
    query = torch.randn(1, 1, 1, 16, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.long)

    def own_logit(settings):
        encoding = build(f"rope:{settings}", d_model=16, heads=1)
        return float(encoding.logits(query, query, zero, zero))

    plain = own_logit("theta=10000")
    yarn = "scaling=yarn,factor=64,original_max_length=32"
    assert own_logit(yarn) / plain == pytest.approx((0.1 * math.log(64) + 1) ** 2, rel=1e-12)
    assert own_logit(yarn) / plain == pytest.approx(2.0, abs=0.01)
    assert own_logit(f"{yarn},attention_factor=1") / plain == pytest.approx(1.0, rel=1e-12)
    assert own_logit(f"{yarn},attention_factor=0.5") / plain == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_short_input_after_a_long_one_is_as_before(name):
    """Case R2: a result depends on the input only; that it depends on the whole input is declared."""
    extra = {"dynamic": "factor=2", "longrope": "short_factors=1/1/1/1,long_factors=1/2/3/4"}[name]
    encoding = build(f"rope:scaling={name},{extra},original_max_length=32", d_model=16, heads=2)
    query = torch.randn(1, 2, 48, 8, dtype=torch.float64)
    positions = torch.arange(48)

    def logits(length):
        part = query[:, :, :length]
        return encoding.logits(part, part, positions[:length], positions[:length])

    short = logits(20)
    long = logits(48)
    assert torch.equal(logits(20), short)
    assert encoding.depends_on_length
    # Up to and including the original length nothing is stretched; one token more and the whole input turns otherwise.
    torch.testing.assert_close(logits(32)[:, :, :20, :20], short)
    assert float((logits(33)[:, :, :20, :20] - short).abs().max()) > 1e-4
    assert float((long[:, :, :20, :20] - short).abs().max()) > 1e-3


def test_a_fixed_length_makes_a_dynamic_schedule_cacheable():
    free = build("rope:scaling=dynamic,factor=2,original_max_length=32", d_model=16, heads=2)
    fixed = build("rope:scaling=dynamic,factor=2,original_max_length=32,length=48", d_model=16, heads=2)
    assert free.depends_on_length
    assert not fixed.depends_on_length
    query, positions = torch.randn(1, 2, 48, 8, dtype=torch.float64), torch.arange(48)
    arguments = (query, query, positions, positions)
    torch.testing.assert_close(fixed.logits(*arguments), free.logits(*arguments))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinearScaling(0.0), "`factor` of `linear` is 0.0"),
        (lambda: NtkScaling(math.nan), "`factor` of `ntk` is nan"),
        (lambda: DynamicNtkScaling(0.5, 32), "at least 1"),
        (lambda: YarnScaling(4.0, 32, beta_fast=1.0, beta_slow=2.0), "swap them"),
        (lambda: Llama3Scaling(8.0, 32, 4.0, 1.0), "must exceed"),
        (lambda: LongRopeScaling((1.0,), (1.0,), 1), "at least 2"),
        (lambda: LongRopeScaling((1.0, -1.0), (1.0,), 8), "short_factors"),
        (
            lambda: rope_frequencies(8, scaling=LongRopeScaling((1.0,), (1.0,), 8)),
            "`short_factors` of `longrope` has 1 numbers for 4 bands",
        ),
        (lambda: rope_frequencies(8, 1.0, scaling=YarnScaling(4.0, 32)), "base above 1"),
    ],
)
def test_impossible_schedules_are_refused_in_a_sentence(make, words):
    with pytest.raises(BadInput, match=words):
        make()


def test_every_schedule_is_listed_with_its_formula_and_source():
    rows = {row["name"]: row for row in list_scalings()}
    assert set(rows) == set(SCALINGS)
    assert all(row["formula"] and row["source"] for row in rows.values())
    assert rows["default"]["options"] == {}
    assert SCALINGS["default"] is DefaultScaling

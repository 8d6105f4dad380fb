"""Paper [G]'s formulas: the terms sum to the logits that the encodings give."""

from __future__ import annotations

import pytest
import torch

from wherefrom.encodings import build, rope_frequencies, sinusoidal_table
from wherefrom.encodings.kernels import (
    complex_gram,
    gram,
    gram_terms,
    hadamard_logits,
    rotary_kernel,
    toeplitz_bias,
)


def parts(seed=0, length=12, dim=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 1, 2, length, dim, generator=generator, dtype=torch.float64), torch.arange(length)


def test_the_four_gram_terms_sum_to_the_whole():
    (content_q, position_q, content_k, position_k), _ = parts()
    terms = gram_terms(content_q, position_q, content_k, position_k)
    torch.testing.assert_close(sum(terms.values()), gram(content_q + position_q, content_k + position_k))
    torch.testing.assert_close(terms["qc,kp"], gram(content_q, position_k))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope_is_the_hadamard_product_with_a_toeplitz_kernel(pairing):
    (content_q, position_q, content_k, position_k), positions = parts()
    frequencies, _ = rope_frequencies(8)
    kernel = rotary_kernel(frequencies, positions, positions)
    assert kernel.shape == (4, 12, 12)
    for offset in range(-11, 12):
        diagonal = kernel.diagonal(offset=offset, dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal))
    torch.testing.assert_close(kernel[1, 5, 2], torch.exp(3j * frequencies[1]))

    rope = build(f"rope:pairing={pairing}", d_model=16, heads=2)
    whole = rope.logits(content_q + position_q, content_k + position_k, positions, positions, scale=1.0)
    pieces = [
        hadamard_logits(complex_gram(query, key, pairing), kernel)
        for query in (content_q, position_q)
        for key in (content_k, position_k)
    ]
    torch.testing.assert_close(sum(pieces), whole)


def test_kernels_of_single_steps_and_of_rows_with_their_own_positions():
    frequencies, _ = rope_frequencies(8)
    whole = rotary_kernel(frequencies, torch.arange(6), torch.arange(6))
    torch.testing.assert_close(rotary_kernel(frequencies, torch.tensor([5]), torch.arange(6)), whole[:, 5:])
    rows = torch.stack((torch.arange(6), torch.arange(6) + 9))
    per_row = rotary_kernel(frequencies, rows, rows)
    torch.testing.assert_close(per_row[1].squeeze(), whole)


@pytest.mark.parametrize("name", ["alibi", "t5", "relative-table", "kerple"])
def test_relative_biases_are_toeplitz(name):
    encoding = build(name, d_model=16, heads=2, max_length=16)
    bias = toeplitz_bias(encoding, 10)
    assert bias.shape == (2, 10, 10)
    assert bias.dtype == torch.float64
    for offset in range(-9, 10):
        diagonal = bias.diagonal(offset=offset, dim1=-2, dim2=-1)
        assert torch.equal(diagonal, diagonal[:, :1].expand_as(diagonal))
    assert float(toeplitz_bias(build("rope", d_model=16, heads=2), 10).abs().max()) == 0.0


def test_sinusoids_alone_have_a_toeplitz_gram_matrix():
    table = sinusoidal_table(torch.arange(12), 16)
    matrix = gram(table, table)
    for offset in range(12):
        diagonal = matrix.diagonal(offset=offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    torch.testing.assert_close(sinusoidal_table(torch.arange(12), 16, layout="concatenated")[:, :8], table[:, 0::2])

"""Paper [G]'s formulas for attention logits, by name: Gram terms, the Toeplitz kernel, and their Hadamard product.

Everything here is pure maths on given vectors. Symbols are those of arXiv 2505.13027, section 3: a token's vector is
content plus position, x = c + p, and G_{a,b} is the matrix of dot products of a's (rows, queries) and b's (columns,
keys).
"""

from __future__ import annotations

import torch
from torch import Tensor

from wherefrom.encodings.base import Encoding
from wherefrom.encodings.rotary import rotary_angles, split_pairs


def gram(query: Tensor, key: Tensor) -> Tensor:
    """G_{a,b}(i,j) = a_i · b_j: (… query dim) and (… key dim) give (… query key)."""
    return query @ key.transpose(-1, -2)


def gram_terms(
    query_content: Tensor, query_position: Tensor, key_content: Tensor, key_position: Tensor
) -> dict[str, Tensor]:
    """The four terms of (q_c + q_p)·(k_c + k_p), unscaled, each (… query key).

    Keys: `qc,kc`, `qc,kp`, `qp,kc`, `qp,kp`. They sum to the Gram matrix of the whole vectors.
    """
    return {
        "qc,kc": gram(query_content, key_content),
        "qc,kp": gram(query_content, key_position),
        "qp,kc": gram(query_position, key_content),
        "qp,kp": gram(query_position, key_position),
    }


def rotary_kernel(frequencies: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """G_e(i,j) = e^{iθ(i−j)} of each frequency: complex (band query key), Toeplitz for evenly spaced positions."""
    angle = (
        rotary_angles(query_positions, frequencies)[..., :, None, :]
        - rotary_angles(key_positions, frequencies)[..., None, :, :]
    )
    return torch.polar(torch.ones_like(angle), angle).movedim(-1, -3)


def complex_gram(query: Tensor, key: Tensor, pairing: str = "half") -> Tensor:
    """Gram matrix of each rotating pair read as a complex number, q_i[m] conj(k_j[m]): complex (… band query key)."""
    query_pairs = torch.complex(*split_pairs(query, pairing))
    key_pairs = torch.complex(*split_pairs(key, pairing))
    return (query_pairs[..., :, None, :] * key_pairs[..., None, :, :].conj()).movedim(-1, -3)


def hadamard_logits(content: Tensor, kernel: Tensor) -> Tensor:
    """Re{ G ∘ G_e } summed over the bands: complex (… band query key) twice gives real (… query key), unscaled.

    With `complex_gram` and `rotary_kernel` this is the dot product of the rotated vectors, as `rotate` gives it.
    """
    return (content * kernel).real.sum(dim=-3)


def toeplitz_bias(encoding: Encoding, length: int) -> Tensor:
    """B(i,j) of an encoding whose bias reads positions alone, (head query key), float64, for positions 0 … length-1.

    Zero where the encoding has no bias. A content-dependent bias (CoPE, DeBERTa) is evaluated on zero vectors.
    """
    dimensions = encoding.dimensions
    device = next((parameter.device for parameter in encoding.parameters()), torch.device("cpu"))
    zeros = torch.zeros(1, dimensions.heads, length, dimensions.head_dim, dtype=torch.float64, device=device)
    positions = torch.arange(length, device=device)
    bias = encoding.bias(zeros, zeros, positions, positions)
    shape = (dimensions.heads, length, length)
    return zeros.new_zeros(shape) if bias is None else bias[0].expand(shape)

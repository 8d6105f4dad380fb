"""Rotation by position as pure functions: which dimensions pair, how fast they turn, and the turn itself.

Angles are always computed in float64 (float32 on devices without it), whatever the dtype of the vectors.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from wherefrom.encodings.base import angle_dtype, check_positions, compute_dtype
from wherefrom.encodings.scaling import DefaultScaling, Scaling
from wherefrom.errors import BadInput
from wherefrom.settings import check_choice, check_count

Pairing = Literal["half", "interleaved"]
Partial = Literal["block", "proportional"]


def rope_frequencies(
    head_dim: int,
    theta: float = 10000.0,
    rotary_dim: int | None = None,
    partial: str = "block",
    scaling: Scaling | None = None,
    length: int | None = None,
    device: torch.device | None = None,
) -> tuple[Tensor, float]:
    """Radians per token of each rotating pair, (band,), float64, and the factor on cosines and sines.

    `rotary_dim` of the `head_dim` dimensions rotate (None: all). In the `block` convention they are the first ones and
    the frequencies spread over them; in the `proportional` convention pairs run across the whole head, frequencies
    spread over `head_dim`, and all but the first rotary_dim/2 are zero, so there are head_dim/2 bands.
    `length` is the longest position of the call plus one; only dynamic schedules read it.

    Raises BadInput for odd or impossible sizes. Source: Su et al., arXiv 2104.09864, eq. (15); see `scaling`.
    """
    rotary_dim = check_rotary_dim(head_dim, rotary_dim)
    check_choice("rope", "partial", partial, get_args(Partial))
    spread = rotary_dim if partial == "block" else head_dim
    frequencies, magnitude = (scaling or DefaultScaling()).frequencies(spread, theta, length, device)
    if partial == "proportional":
        band = torch.arange(head_dim // 2, device=frequencies.device)
        frequencies = torch.where(band < rotary_dim // 2, frequencies, 0.0)
    return frequencies, magnitude


def check_rotary_dim(head_dim: int, rotary_dim: int | None) -> int:
    """The number of rotating dimensions. Raises BadInput unless it is even and fits the head."""
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    check_count("rope", "rotary_dim", rotary_dim, least=2, even=True)
    if head_dim % 2 or rotary_dim > head_dim:
        raise BadInput(f"Heads of {head_dim} dimensions cannot rotate {rotary_dim} of them in pairs; use fewer.")
    return rotary_dim


def rotary_pairs(
    head_dim: int, rotary_dim: int | None = None, pairing: str = "half", partial: str = "block"
) -> tuple[Tensor, Tensor]:
    """Indices of the two dimensions of each pair, (band,) and (band,), in the order of the frequencies."""
    rotary_dim = check_rotary_dim(head_dim, rotary_dim)
    check_choice("rope", "pairing", pairing, get_args(Pairing))
    check_choice("rope", "partial", partial, get_args(Partial))
    width = rotary_dim if partial == "block" else head_dim
    if pairing == "interleaved":
        return torch.arange(0, width, 2), torch.arange(1, width, 2)
    return torch.arange(width // 2), torch.arange(width // 2, width)


def rotary_angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Angle of every position and band in radians: (length band), or (batch 1 length band) for positions per input."""
    dtype = angle_dtype(positions.device)
    angle = check_positions(positions).to(dtype)[..., None] * frequencies.to(device=positions.device, dtype=dtype)
    return angle[:, None] if angle.ndim == 3 else angle


def split_pairs(x: Tensor, pairing: str) -> tuple[Tensor, Tensor]:
    """First and second members of all pairs along the last axis."""
    if pairing == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def join_pairs(first: Tensor, second: Tensor, pairing: str) -> Tensor:
    """Inverse of `split_pairs`."""
    if pairing == "interleaved":
        return torch.stack((first, second), dim=-1).flatten(-2)
    return torch.cat((first, second), dim=-1)


def rotate(
    x: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    pairing: str = "half",
    magnitude: float = 1.0,
    phase: Tensor | None = None,
) -> Tensor:
    """Turn each pair of the last axis of `x` (batch head length dim) by position times frequency.

    `dim` must be twice the number of `frequencies`; `magnitude` multiplies the result; `phase` (radians) is added to
    the angles. Returns the dtype of `x`; half-precision input is turned in float32 and rounded once.
    Source: Su et al., arXiv 2104.09864, eq. (13).
    """
    check_choice("rope", "pairing", pairing, get_args(Pairing))
    if x.shape[-1] != 2 * frequencies.shape[0]:
        raise BadInput(
            f"Vectors of {x.shape[-1]} dimensions cannot be turned by {frequencies.shape[0]} frequencies; build the "
            "encoding with the head size of the model."
        )
    angle = rotary_angles(positions, frequencies)
    if phase is not None:
        angle = angle + phase.to(angle.dtype)
    dtype = compute_dtype(x)
    cosine, sine = (magnitude * angle.cos()).to(dtype), (magnitude * angle.sin()).to(dtype)
    first, second = split_pairs(x.to(dtype), pairing)
    return join_pairs(first * cosine - second * sine, first * sine + second * cosine, pairing).to(x.dtype)

"""Naive evaluation of the encodings that turn queries and keys, and of the rotary frequency schedules."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from typing import Any

Vector = Sequence[float]


def inner(left: Vector, right: Vector) -> float:
    """Dot product, one float at a time."""
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def naive_frequencies(scaling: Any, dim: int, theta: float, length: int) -> tuple[list[float], float]:
    """Radians per token of each band and the factor on cosines and sines, as plain floats, from the formulas."""
    name = scaling.name
    if name == "ntk":
        theta = theta * scaling.factor ** (dim / (dim - 2))
    if name == "dynamic":
        longest = max(scaling.length or length, scaling.original_max_length)
        stretch = scaling.factor * longest / scaling.original_max_length - scaling.factor + 1
        theta = theta * stretch ** (dim / (dim - 2))
    bands = [1 / theta ** (2 * m / dim) for m in range(dim // 2)]
    if name == "linear":
        return [band / scaling.factor for band in bands], 1.0
    if name == "longrope":
        long = (scaling.length or length) > scaling.original_max_length
        factors = scaling.long_factors if long else scaling.short_factors
        magnitude = scaling.attention_factor
        if magnitude is None:
            grown = math.log(max(scaling.factor, 1.0)) / math.log(scaling.original_max_length)
            magnitude = math.sqrt(1 + grown)
        return [band / factor for band, factor in zip(bands, factors, strict=True)], magnitude
    if name == "llama3":
        return [_llama3(scaling, band) for band in bands], 1.0
    if name == "yarn":
        return [_yarn(scaling, band, m, dim, theta) for m, band in enumerate(bands)], _yarn_magnitude(scaling)
    return bands, 1.0


def _llama3(scaling: Any, band: float) -> float:
    wavelength = 2 * math.pi / band
    if wavelength > scaling.original_max_length / scaling.low_frequency_factor:
        return band / scaling.factor
    if wavelength < scaling.original_max_length / scaling.high_frequency_factor:
        return band
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    blend = (scaling.original_max_length / wavelength - low) / (high - low)
    return (1 - blend) * band / scaling.factor + blend * band


def _yarn(scaling: Any, band: float, m: int, dim: int, theta: float) -> float:
    ends = []
    for turns in (scaling.beta_fast, scaling.beta_slow):
        # turns = original_max_length · theta^(-2m/dim) / 2π, solved for m
        ends.append(dim / 2 * math.log(scaling.original_max_length / (2 * math.pi * turns), theta))
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if scaling.truncate else ends
    low, high = max(low, 0), min(high, dim - 1)
    slow = (m - low) / (high - low if high != low else 0.001)
    slow = min(max(slow, 0.0), 1.0)
    return band * (1 - slow) + band / scaling.factor * slow


def _yarn_magnitude(scaling: Any) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    grown = 0.1 * math.log(max(scaling.factor, 1.0))
    if scaling.mscale and scaling.mscale_all_dim:
        return (scaling.mscale * grown + 1) / (scaling.mscale_all_dim * grown + 1)
    return grown + 1


def members(dim: int, pairing: str) -> list[tuple[int, int]]:
    """The two dimensions of every pair."""
    if pairing == "interleaved":
        return [(2 * m, 2 * m + 1) for m in range(dim // 2)]
    return [(m, dim // 2 + m) for m in range(dim // 2)]


def turned_product(query: Vector, key: Vector, bands: Vector, offset: int, pairing: str) -> float:
    """Re Σ_m q[m] conj(k[m]) e^{iθ_m·offset}."""
    total = 0.0
    for band, (first, second) in zip(bands, members(len(query), pairing), strict=True):
        q, k = complex(query[first], query[second]), complex(key[first], key[second])
        total += (q * k.conjugate() * cmath.exp(1j * band * offset)).real
    return total


def _rope(pair: Any) -> float:
    config = pair.config
    if config.heads is not None and pair.head not in config.heads:
        return inner(pair.q, pair.k) / pair.root
    head_dim = len(pair.q)
    rotary_dim = config.rotary_dim or head_dim
    width = rotary_dim if config.partial == "block" else head_dim
    bands, magnitude = naive_frequencies(config.scaling, width, config.theta, pair.longest)
    if config.partial == "proportional":
        bands = [band if m < rotary_dim // 2 else 0.0 for m, band in enumerate(bands)]
    turned = turned_product(pair.q[:width], pair.k[:width], bands, pair.i - pair.j, config.pairing)
    return (magnitude**2 * turned + inner(pair.q[width:], pair.k[width:])) / pair.root


def _xpos(pair: Any) -> float:
    config, head_dim = pair.config, len(pair.q)
    total = 0.0
    for m, (first, second) in enumerate(members(head_dim, config.pairing)):
        q, k = complex(pair.q[first], pair.q[second]), complex(pair.k[first], pair.k[second])
        turn = cmath.exp(1j * (pair.i - pair.j) / config.theta ** (2 * m / head_dim))
        zeta = (2 * m / head_dim + config.gamma) / (1 + config.gamma)
        total += zeta ** ((pair.i - pair.j) / config.scale_base) * (q * k.conjugate() * turn).real
    return total / pair.root


def _pope(pair: Any) -> float:
    phases = pair.parameter("phase")[pair.head]
    total = 0.0
    for c, (q, k, phase) in enumerate(zip(pair.q, pair.k, phases, strict=True)):
        phase = min(max(phase, -2 * math.pi), 0.0)
        angle = (pair.j - pair.i) / pair.config.theta ** (c / len(pair.q)) + phase
        total += math.log1p(math.exp(q)) * math.log1p(math.exp(k)) * math.cos(angle)
    return total / pair.root


def _rotary_parts(pair: Any) -> tuple[Vector, Vector, float]:
    """The query's and key's rotary parts, shared as configured, and the dot product of the position-free parts."""
    size = pair.config.rotary_dim or 2 * (len(pair.q) // 4)
    query = (pair.first_q if pair.config.shared_query else pair.q)[-size:]
    key = (pair.first_k if pair.config.shared_key else pair.k)[-size:]
    return query, key, inner(pair.q[:-size], pair.k[:-size])


def _mla(pair: Any) -> float:
    query, key, content = _rotary_parts(pair)
    bands = [1 / pair.config.theta ** (2 * m / len(query)) for m in range(len(query) // 2)]
    return (content + turned_product(query, key, bands, pair.i - pair.j, pair.config.pairing)) / pair.root


def _published_mla(pair: Any) -> float:
    query, key, content = _rotary_parts(pair)
    size = len(query)
    bands = [1 / pair.config.theta ** (2 * m / size) for m in range(size // 2)]
    read = []
    for vector, position in ((query, pair.i), (key, pair.j)):
        table = [math.sin(position * band) for band in bands] + [math.cos(position * band) for band in bands]
        for m in range(size // 2):
            sine, cosine = table[2 * m], table[2 * m + 1]
            read.append(vector[2 * m] * cosine - vector[2 * m + 1] * sine)
            read.append(vector[2 * m] * sine + vector[2 * m + 1] * cosine)
    return (content + inner(read[:size], read[size:])) / pair.root


TURNS: dict[str, Callable[[Any], float]] = {
    "rope": _rope,
    "xpos": _xpos,
    "pope": _pope,
    "mla": _mla,
    "published-mla": _published_mla,
}
"""Naive scaled dot product of one pair after the turn, by encoding."""

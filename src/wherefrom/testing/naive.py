"""Naive evaluation of every encoding of the package: plain loops over heads, queries and keys, one float at a time.

Written from the formulas and independent of the modules under test, of which it reads settings and parameters only. It
is slow, and meant to be read beside the papers. The first input of a batch is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wherefrom.encodings.base import Encoding
from wherefrom.encodings.composite import Composite
from wherefrom.testing.naive_rotary import TURNS, inner

Vector = Sequence[float]
Bias = Callable[["Pair"], float]


class Pair:
    """One query and one key of one head, and what else a formula may read."""

    def __init__(
        self,
        encoding: Encoding,
        query: list[Any],
        key: list[Any],
        positions: tuple[Any, Any],
        index: tuple[int, int, int],
    ) -> None:
        self.encoding, self.config, self.dimensions = encoding, encoding.config, encoding.dimensions
        self.query_positions, self.key_positions = positions
        self.head, query_index, key_index = index
        self.keys = key[self.head]
        self.q, self.k = query[self.head][query_index], self.keys[key_index]
        self.first_q, self.first_k = query[0][query_index], key[0][key_index]
        self.i, self.j = self.query_positions[query_index], self.key_positions[key_index]
        self.longest = max(*self.query_positions, *self.key_positions) + 1
        self.root = math.sqrt(len(self.q))

    def of(self, encoding: Encoding) -> Pair:
        """The same pair as another encoding sees it."""
        seen = object.__new__(Pair)
        seen.__dict__.update(self.__dict__, encoding=encoding, config=encoding.config)
        return seen

    def parameter(self, name: str) -> Any:
        """A parameter of the encoding as nested lists."""
        return self.encoding.state_dict()[name].double().tolist()


def naive_logits(
    encoding: Encoding, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
) -> Tensor:
    """Scaled logits with bias of the first input, (1 head query key), float64, for positions (length,)."""
    queries, keys = query[0].double().tolist(), key[0].double().tolist()
    positions = (query_positions.tolist(), key_positions.tolist())
    parts = encoding.encodings() if isinstance(encoding, Composite) else [encoding]
    table = [
        [
            [
                _logit(Pair(encoding, queries, keys, positions, (head, row, column)), parts)
                for column in range(len(positions[1]))
            ]
            for row in range(len(positions[0]))
        ]
        for head in range(len(queries))
    ]
    return torch.tensor([table], dtype=torch.float64)


def _logit(pair: Pair, parts: list[Encoding]) -> float:
    turning = [part for part in parts if part.config.name in TURNS]
    dot = TURNS[turning[0].config.name](pair.of(turning[0])) if turning else inner(pair.q, pair.k) / pair.root
    for part in parts:
        name = part.config.name
        if name == "deberta" and part.config.rescale:  # type: ignore[attr-defined]
            dot /= math.sqrt(1 + part.config.content_to_position + part.config.position_to_content)  # type: ignore[attr-defined]
        if name in BIASES:
            dot += BIASES[name](pair.of(part))
    return dot


def naive_embed(encoding: Encoding, x: Tensor, positions: Tensor) -> Tensor:
    """Embeddings with position added, (batch length d_model), float64, for positions (length,)."""
    rows = x.double().tolist()
    parts = encoding.encodings() if isinstance(encoding, Composite) else [encoding]
    for part in parts:
        add = {"sinusoidal": _sinusoidal, "learned": _learned}.get(part.config.name)
        if add is not None:
            rows = [[add(part, vector, i) for vector, i in zip(row, positions.tolist(), strict=True)] for row in rows]
    return torch.tensor(rows, dtype=torch.float64)


def _sinusoidal(encoding: Encoding, vector: Vector, i: int) -> Vector:
    config: Any = encoding.config
    result = list(vector)
    for m in range(len(vector) // 2):
        angle = i / config.theta ** (2 * m / len(vector))
        places = (2 * m, 2 * m + 1) if config.layout == "interleaved" else (m, len(vector) // 2 + m)
        result[places[0]] += config.amplitude * math.sin(angle)
        result[places[1]] += config.amplitude * math.cos(angle)
    return result


def _learned(encoding: Encoding, vector: Vector, i: int) -> Vector:
    row = encoding.state_dict()["table"][i].tolist()
    return [value + added for value, added in zip(vector, row, strict=True)]


def _relative_table(pair: Pair) -> float:
    table = pair.parameter("table")[pair.head]
    limit = (len(table) - 1) // 2
    return table[max(-limit, min(limit, pair.i - pair.j)) + limit]


def _t5(pair: Pair) -> float:
    config: Any = pair.config
    both = config.bidirectional if config.bidirectional is not None else not pair.dimensions.causal
    offset, count, first = pair.i - pair.j, config.buckets, 0
    if both:
        count //= 2
        first = count if offset < 0 else 0
        offset = abs(offset)
    offset = max(offset, 0)
    exact = count // 2
    if offset >= exact:
        grown = math.log(offset / exact) / math.log(config.max_distance / exact) * (count - exact)
        offset = min(exact + int(grown), count - 1)
    return pair.parameter("table")[first + offset][pair.head]


def _alibi(pair: Pair) -> float:
    config: Any = pair.config
    heads, h = pair.dimensions.heads, pair.head + 1
    lower = 1
    while 2 * lower <= heads:
        lower *= 2
    if config.slopes == "published":
        slope = math.exp(-pair.head / heads)
    elif config.slopes == "geometric":
        slope = 2 ** (-config.max_exponent * h / heads)
    elif h <= lower:
        slope = 2 ** (-config.max_exponent * h / lower)
    else:
        slope = 2 ** (-config.max_exponent * (2 * (h - lower) - 1) / (2 * lower))
    form = config.form if config.form != "auto" else ("causal" if pair.dimensions.causal else "symmetric")
    distance = {"causal": pair.i - pair.j, "symmetric": abs(pair.i - pair.j), "key": -pair.j}[form]
    return -slope * distance


def _kerple(pair: Pair) -> float:
    config: Any = pair.config
    amplitude = math.log1p(math.exp(pair.parameter("raw_amplitude")[pair.head]))
    raw = pair.parameter("raw_shape")[pair.head]
    distance = abs(pair.i - pair.j)
    if config.form == "log":
        return -amplitude * math.log(1 + math.log1p(math.exp(raw)) * distance)
    return -amplitude * distance ** (2 / (1 + math.exp(-raw)))


def _fire(pair: Pair) -> float:
    config: Any = pair.config
    steepness = abs(pair.parameter("steepness"))
    threshold = abs(pair.parameter("threshold_factor") * config.threshold)
    share = math.log(1 + steepness * abs(pair.i - pair.j)) / math.log(1 + steepness * max(threshold, pair.i))
    in_weight, in_bias = pair.parameter("hidden.weight"), pair.parameter("hidden.bias")
    hidden = [max(0.0, weight[0] * share + offset) for weight, offset in zip(in_weight, in_bias, strict=True)]
    return inner(pair.parameter("readout.weight")[pair.head], hidden)


def _cope(pair: Pair) -> float:
    config: Any = pair.config
    table = pair.parameter("table")[0 if config.shared_heads else pair.head]
    scale = 1 / pair.root if config.scaled_gates else 1.0
    count = 0.0
    for position, key in zip(pair.key_positions, pair.keys, strict=True):
        if pair.j <= position <= pair.i:
            count += 1 / (1 + math.exp(-inner(pair.q, key) * scale))
    count = min(count, len(table) - 1)
    below = math.floor(count)
    above = math.ceil(count)
    return (1 - (count - below)) * inner(pair.q, table[below]) + (count - below) * inner(pair.q, table[above])


def _deberta(pair: Pair) -> float:
    config: Any = pair.config
    table = pair.parameter("table")
    limit, dim = len(table) // 2, len(pair.q)

    def row(offset: int, projection: str) -> Vector:
        index = 0 if offset <= -limit else 2 * limit - 1 if offset >= limit else offset + limit
        weight = pair.parameter(projection)[pair.head * dim : (pair.head + 1) * dim]
        return [inner(line, table[index]) for line in weight]

    total = 0.0
    if config.content_to_position:
        total += inner(pair.q, row(pair.i - pair.j, "key_projection.weight"))
    if config.position_to_content:
        total += inner(pair.k, row(pair.j - pair.i, "query_projection.weight"))
    terms = 1 + config.content_to_position + config.position_to_content
    return total / math.sqrt(dim * (terms if config.rescale else 1))


BIASES: dict[str, Bias] = {
    "relative-table": _relative_table,
    "t5": _t5,
    "alibi": _alibi,
    "kerple": _kerple,
    "fire": _fire,
    "cope": _cope,
    "deberta": _deberta,
}
"""Naive bias of one pair, by encoding."""

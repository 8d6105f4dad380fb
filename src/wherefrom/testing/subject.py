"""What the checks work on: an encoding with moved parameters, inputs of the right size, and one attention layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.encodings.base import Encoding
from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput, CheckFailed

EncodingOrFactory = Encoding | Callable[[], Encoding]

BATCH = 2
PARAMETER_SHIFT = 0.3
"""Standard deviation of the noise added to parameters, so that tables that start at zero have an effect."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of one check that did not fail."""

    check: str
    """Name of the check."""
    applies: bool
    """False where the encoding's declarations exempt it."""
    detail: str
    """One sentence: what held, and how closely, or why the check does not apply."""


class Subject:
    """An encoding under test, in float64, with parameters moved away from their initial values."""

    def __init__(self, factory: Callable[[], Encoding], seed: int = 0) -> None:
        self._factory = factory
        self._seed = seed
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = factory()
        if not isinstance(made, Encoding):
            raise BadInput(f"The conformance suite got a {type(made).__name__}; pass an Encoding, or a factory of one.")
        self.prototype = shift_parameters(made.double(), seed)
        self.dimensions = self.prototype.dimensions
        self.name = self.prototype.config.spelling() or type(self.prototype).__name__

    def make(self) -> Encoding:
        """A fresh copy with the subject's parameters that has never been called."""
        return copy.deepcopy(self.prototype)

    def make_different(self) -> Encoding:
        """A new encoding of the same settings, with other parameters."""
        with torch.random.fork_rng():
            torch.manual_seed(self._seed + 1)
            return shift_parameters(self._factory().double(), self._seed + 1)

    def length(self, wanted: int, spare: int = 0) -> int:
        """`wanted` tokens, or as many as the encoding's limit allows when `spare` more must fit as well."""
        limit = self.prototype.max_length
        return wanted if limit is None else max(2, min(wanted, limit - spare))

    def shift(self, wanted: int, length: int) -> int:
        """The largest shift up to `wanted` at which `length` tokens still fit."""
        limit = self.prototype.max_length
        return wanted if limit is None else max(0, min(wanted, limit - length))

    def draw(self, *shape: int, seed: int = 0) -> Tensor:
        """Unit normals in float64. For queries and keys they give scaled logits of standard deviation 1."""
        generator = torch.Generator().manual_seed(1000 * self._seed + seed)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def queries_and_keys(self, length: int) -> tuple[Tensor, Tensor]:
        """Random queries and keys, (batch head length dim)."""
        shape = (BATCH, self.dimensions.heads, length, self.dimensions.head_dim)
        return self.draw(*shape, seed=1), self.draw(*shape, seed=2)

    def tokens(self, length: int, seed: int = 3) -> Tensor:
        """Random embeddings, (batch length d_model)."""
        return self.draw(BATCH, length, self.dimensions.d_model, seed=seed)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Fixed random queries, keys and values of embeddings, each (batch head length dim)."""
        dimensions = self.dimensions
        shape = (3, dimensions.heads, dimensions.d_model, dimensions.head_dim)
        weights = self.draw(*shape, seed=4) * dimensions.d_model**-0.5
        query, key, value = (torch.einsum("bld,hde->bhle", x, weight) for weight in weights)
        return query, key, value

    def layer_logits(self, encoding: Encoding, x: Tensor, positions: Tensor) -> Tensor:
        """Unmasked logits of one attention layer on embeddings `x`, through all three touch points."""
        query, key, _ = self.project(encoding.embed(x, positions))
        return encoding.logits(query, key, positions, positions)

    def layer_output(self, encoding: Encoding, x: Tensor, positions: Tensor) -> Tensor:
        """Output of one attention layer under the model's mask, (batch head length dim)."""
        query, key, value = self.project(encoding.embed(x, positions))
        logits = encoding.logits(query, key, positions, positions)
        return self.masked(logits, positions).softmax(-1) @ value

    def masked(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Logits with invisible keys excluded."""
        visible = MaskRule(causal=self.dimensions.causal).visible(positions[:, None], positions[None])
        return logits.masked_fill(~visible, -torch.inf)


def make_subject(encoding: EncodingOrFactory | Subject, seed: int = 0) -> Subject:
    """Wrap an encoding, or a factory of one, for the checks; a Subject is returned as it is."""
    if isinstance(encoding, Subject):
        return encoding
    if isinstance(encoding, Encoding):
        kept = copy.deepcopy(encoding)
        return Subject(lambda: copy.deepcopy(kept), seed)
    return Subject(encoding, seed)


def shift_parameters(encoding: Encoding, seed: int) -> Encoding:
    """Add normal noise to every parameter, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoding.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(PARAMETER_SHIFT * noise)
    return encoding


def gap(left: Tensor, right: Tensor) -> float:
    """Largest difference, relative to the largest entry (at least 1); infinite for NaN or unequal shapes."""
    if left.shape != right.shape:
        return float("inf")
    if left.numel() == 0:
        return 0.0
    difference = float((left - right).detach().abs().max() / right.detach().abs().max().clamp(min=1.0))
    return difference if difference == difference else float("inf")


def require(condition: bool, sentence: str) -> None:
    """Raise CheckFailed with `sentence` unless `condition` holds."""
    if not condition:
        raise CheckFailed(sentence)


def passed(check: str, detail: str) -> CheckResult:
    """A check that held."""
    return CheckResult(check, True, detail)


def not_applicable(check: str, detail: str) -> CheckResult:
    """A check that the encoding's declarations exempt it from."""
    return CheckResult(check, False, detail)

"""Edits of the token at position 0: `bos=mean|zero|random|noise|token:<id or text>` and `freeze-first`.

Position 0 attends only to itself, so replacing its embedding replaces its whole trajectory and nothing else directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.edits.base import Edit, RunInputs
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.suggest import suggestion

CHUNK = 8192
"""Vocabulary rows embedded at once when the table's moments are formed."""


@dataclass(frozen=True)
class ReplaceFirst(Edit):
    """Replace the embedding at position 0 before the forward pass (paper [R], BOS replacement)."""

    kind: str = "mean"
    """`mean`, `zero`, `random`, `noise` or `token`."""
    token: str = ""
    """Token id or text, for `token`."""

    def check(self, decoder: Decoder, length: int, first_tokens: Tensor) -> None:
        """The named token must exist."""
        if self.kind == "token":
            self._token_id(decoder)

    def _token_id(self, decoder: Decoder) -> int:
        if self.token.isdecimal():
            if int(self.token) >= decoder.vocabulary:
                raise BadInput(f"'{self.text}': the vocabulary has ids 0 to {decoder.vocabulary - 1}.")
            return int(self.token)
        if decoder.tokenizer is None:
            raise BadInput(f"'{self.text}': this model came without a tokenizer; name the token by its id.")
        ids = decoder.tokenizer.encode(self.token, add_special_tokens=False)
        if len(ids) != 1:
            raise BadInput(f"'{self.text}': {self.token!r} is {len(ids)} tokens ({ids}); name one token or its id.")
        return int(ids[0])

    def _replacement(self, decoder: Decoder, inputs: RunInputs) -> Tensor:
        batch = len(inputs.indices)
        if self.kind == "token":
            ids = torch.full((batch,), self._token_id(decoder))
            return decoder.positions_embedded(ids)
        if self.kind == "random":
            draws = [torch.randint(decoder.vocabulary, (1,), generator=g) for g in _generators(inputs)]
            return decoder.positions_embedded(torch.cat(draws))
        mean, deviation = _moments(decoder)
        if self.kind == "zero":
            return torch.zeros_like(mean).expand(batch, -1)
        if self.kind == "noise":
            draws = [torch.randn(mean.shape, generator=g, dtype=torch.float64) for g in _generators(inputs)]
            return mean + deviation * torch.stack(draws).to(mean)
        return mean.expand(batch, -1)

    @contextmanager
    def installed(self, decoder: Decoder, inputs: RunInputs) -> Iterator[None]:
        """A hook on the input embedding puts the replacement at position 0."""
        with _first_embedding_replaced(decoder, self._replacement(decoder, inputs)):
            yield


@dataclass(frozen=True)
class FreezeFirst(Edit):
    """Position 0 follows one other input's trajectory, the same for all: input 0's (and input 1's for input 0).

    The trajectory is closed (nothing but its own embedding enters it), so handing over the embedding hands over the
    whole trajectory; the closed-system error of the first-token analysis states how exactly that holds.
    """

    def check(self, decoder: Decoder, length: int, first_tokens: Tensor) -> None:
        """Needs first tokens that differ."""
        if bool((first_tokens == first_tokens[0]).all()):
            raise BadInput("freeze-first changes nothing when every input starts with the same token; use --bos off.")

    @contextmanager
    def installed(self, decoder: Decoder, inputs: RunInputs) -> Iterator[None]:
        """As ReplaceFirst, with the donor's first token."""
        donors = torch.tensor([int(inputs.first_tokens[1 if index == 0 else 0]) for index in inputs.indices])
        with _first_embedding_replaced(decoder, decoder.positions_embedded(donors)):
            yield


@contextmanager
def _first_embedding_replaced(decoder: Decoder, replacement: Tensor) -> Iterator[None]:
    def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, 0] = replacement.to(output)
        return output

    handle = decoder.embedding.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _generators(inputs: RunInputs) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(inputs.seed * 1_000_003 + index) for index in inputs.indices]


def _moments(decoder: Decoder) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per dimension of the whole embedding table, as the model scales it."""
    weight: Tensor = decoder.embedding.weight  # type: ignore[assignment]
    key = (weight.data_ptr(), weight._version)
    if decoder.memo.get("moments_key") != key:
        total = square = torch.zeros((), dtype=torch.float64)
        for start in range(0, decoder.vocabulary, CHUNK):
            ids = torch.arange(start, min(start + CHUNK, decoder.vocabulary))
            rows = decoder.positions_embedded(ids).double()
            total, square = total + rows.sum(0), square + rows.square().sum(0)
        mean = total / decoder.vocabulary
        deviation = (square / decoder.vocabulary - mean.square()).clamp(min=0).sqrt()
        decoder.memo.update(moments_key=key, moments=(mean, deviation))
    mean, deviation = decoder.memo["moments"]
    return mean, deviation


def replace_first(text: str, value: str) -> ReplaceFirst:
    """`bos=mean|zero|random|noise|token:<id or text>`."""
    kind, _, token = value.partition(":")
    if kind not in {"mean", "zero", "random", "noise", "token"}:
        kinds = [f"bos={kind}" for kind in ("mean", "zero", "random", "noise", "token")]
        closest = suggestion(f"bos={kind}", kinds) or "."
        raise BadInput(f"'{text}' is not known; bos takes mean, zero, random, noise or token:<id or text>{closest}")
    if (kind == "token") != bool(token):
        raise BadInput(f"'{text}': write bos=token:<id or text>, or bos=mean, zero, random or noise alone.")
    return ReplaceFirst(text, kind, token)


def freeze_first(text: str, value: str) -> FreezeFirst:
    """`freeze-first`."""
    if value:
        raise BadInput(f"'{text}': freeze-first takes no value.")
    return FreezeFirst(text)

"""Inputs of a trace: equal length, content independent of position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder


@dataclass(frozen=True)
class Prompts:
    """Token ids of all inputs and how they came about."""

    token_ids: Tensor
    """(inputs length)."""
    origin: str
    """`random tokens`, `windows of <file>` or `given`."""
    seed: int = 0
    """Seed of the draw; also seeds edits that need randomness."""
    excluded_rows: int = 0
    """Padded positions left out: they see no key and are never averaged over."""
    warnings: tuple[str, ...] = field(default_factory=tuple)
    """What a reader should know of these inputs."""

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.token_ids.shape[0]

    @property
    def length(self) -> int:
        """Tokens per input."""
        return self.token_ids.shape[1]


def random_tokens(decoder: Decoder, inputs: int = 64, length: int = 512, bos: str = "auto", seed: int = 0) -> Prompts:
    """Uniform random ordinary tokens, the first one BOS where the model has one: exactly exchangeable content.

    Special tokens and rows of the embedding that no token uses are not drawn. `bos`: `auto`, `on` (an error without a
    BOS) or `off`.
    """
    _check_size(decoder, inputs, length)
    pool = ordinary_tokens(decoder)
    generator = torch.Generator().manual_seed(seed)
    ids = pool[torch.randint(len(pool), (inputs, length), generator=generator)]
    ids, notes = _with_bos(decoder, ids, bos)
    return Prompts(ids, "random tokens", seed, warnings=notes)


def text_windows(
    decoder: Decoder, file: str | Path, inputs: int = 64, length: int = 512, bos: str = "auto", seed: int = 0
) -> Prompts:
    """Random windows of a text file, the first token BOS where the model has one.

    Windows start at any token, so position in the window says nothing about the content. Raises BadInput for a file
    that cannot be read or is shorter than a window, or a model without a tokenizer.
    """
    _check_size(decoder, inputs, length)
    if decoder.tokenizer is None:
        raise BadInput(f"'{decoder.source}' came without a tokenizer, so a text cannot be turned into tokens.")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The text '{file}' cannot be read as UTF-8 ({type(error).__name__}).") from error
    ids = torch.tensor(decoder.tokenizer.encode(text, add_special_tokens=False))
    if len(ids) < length + 1:
        raise BadInput(f"The text '{file}' has {len(ids)} tokens; windows of {length} need a longer one or --length.")
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - length + 1, (inputs,), generator=generator)
    windows, notes = _with_bos(decoder, torch.stack([ids[s : s + length] for s in starts.tolist()]), bos)
    if len(set(starts.tolist())) < inputs or inputs * length > len(ids):
        notes = (
            *notes,
            f"{inputs} windows of {length} tokens overlap in a text of {len(ids)}; errors are understated.",
        )
    return Prompts(windows, f"windows of {Path(file).name}", seed, warnings=notes)


def given_tokens(decoder: Decoder, token_ids: Any, attention_mask: Any = None, seed: int = 0) -> Prompts:
    """Token ids as they are: nothing is added, whatever the tokenizer's settings.

    `attention_mask` (inputs length) marks padding at either end. Padding never reaches the model: each row is cut to
    its real tokens and all rows to the shortest, and the padded positions are counted as excluded.
    """
    ids = torch.as_tensor(token_ids)
    if ids.ndim != 2 or ids.is_floating_point():
        raise BadInput("Token ids must be a table of whole numbers: (inputs, length).")
    excluded = 0
    if attention_mask is not None:
        ids, excluded = _without_padding(ids, torch.as_tensor(attention_mask).bool())
    _check_size(decoder, *ids.shape)
    if int(ids.min()) < 0 or int(ids.max()) >= decoder.vocabulary:
        raise BadInput(
            f"Token ids must lie in 0 to {decoder.vocabulary - 1}; found {int(ids.min())} to {int(ids.max())}."
        )
    return Prompts(ids.long(), "given", seed, excluded, _bos_warnings(decoder, ids))


def _without_padding(ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    if mask.shape != ids.shape:
        raise BadInput(f"The attention mask is {tuple(mask.shape)}, the token ids are {tuple(ids.shape)}.")
    lengths = mask.sum(1)
    starts = mask.long().argmax(1)
    shortest = int(lengths.min())
    if shortest == 0:
        raise BadInput(f"Input {int(lengths.argmin())} is all padding.")
    position = torch.arange(ids.shape[1])[None]
    solid = (position >= starts[:, None]) & (position < (starts + lengths)[:, None])
    if not torch.equal(solid, mask):
        raise BadInput("The attention mask has a gap between real tokens; only padding at the ends can be stripped.")
    rows: Sequence[Tensor] = [row[s : s + shortest] for row, s in zip(ids, starts.tolist(), strict=True)]
    return torch.stack(list(rows)), int((~mask).sum())


def _check_size(decoder: Decoder, inputs: int, length: int) -> None:
    if inputs < 2:
        raise BadInput(f"{inputs} input cannot give an error bar; use --inputs of at least 2.")
    limit = decoder.max_length
    if limit is not None and length > limit:
        raise BadInput(f"This model has positions for {limit} tokens; use --length of at most {limit}.")


def ordinary_tokens(decoder: Decoder) -> Tensor:
    """Token ids that are neither special nor unused rows of the embedding."""
    size = decoder.vocabulary
    special: set[int] = {decoder.bos} if decoder.bos is not None else set()
    if decoder.tokenizer is not None:
        special |= set(decoder.tokenizer.all_special_ids) | set(getattr(decoder.tokenizer, "added_tokens_decoder", {}))
        size = min(size, len(decoder.tokenizer))
    pool = [token for token in range(size) if token not in special]
    if len(pool) < 2:
        raise BadInput("The vocabulary has fewer than two ordinary tokens to draw from.")
    return torch.tensor(pool)


def _with_bos(decoder: Decoder, ids: Tensor, bos: str) -> tuple[Tensor, tuple[str, ...]]:
    if bos not in {"auto", "on", "off"}:
        raise BadInput(f"--bos takes auto, on or off, not '{bos}'.")
    token = decoder.bos
    if bos == "on" and token is None:
        raise BadInput(f"'{decoder.source}' names no BOS token; use --bos off.")
    if bos == "off" or token is None:
        return ids, (() if bos == "off" else ("The model names no BOS token; inputs start with an ordinary token.",))
    if not 0 <= token < decoder.vocabulary:
        raise BadInput(f"The BOS token {token} is not in the vocabulary of {decoder.vocabulary}; use --bos off.")
    ids = ids.clone()
    ids[:, 0] = token
    return ids, ()


def _bos_warnings(decoder: Decoder, ids: Tensor) -> tuple[str, ...]:
    """Say so when given ids start without the BOS or with two of them."""
    if decoder.bos is None:
        return ()
    none = int((ids[:, 0] != decoder.bos).sum())
    twice = int(((ids[:, 0] == decoder.bos) & (ids[:, 1] == decoder.bos)).sum())
    notes = []
    if none:
        notes.append(f"{none} of {len(ids)} inputs do not start with the BOS token {decoder.bos}.")
    if twice:
        notes.append(f"{twice} of {len(ids)} inputs start with two BOS tokens.")
    return tuple(notes)

"""Inputs of a trace: equal length, content independent of position."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder

LIBRARY_TEXT = 1 << 20
"""Characters of the standard library's source that windows are drawn from."""


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
    generator = torch.Generator().manual_seed(check_seed(seed))
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
    return _windows(decoder, _read_text(Path(file)), Path(file).name, (inputs, length), bos, seed)


def library_windows(decoder: Decoder, inputs: int = 64, length: int = 512, bos: str = "auto", seed: int = 0) -> Prompts:
    """Random windows of the source of Python's standard library, which every machine has; else as `text_windows`."""
    folder, text = Path(sysconfig.get_paths()["stdlib"]), ""
    for file in sorted(folder.glob("*.py")):
        text += _read_text(file)
        if len(text) > LIBRARY_TEXT:
            break
    return _windows(decoder, text, "Python's standard library", (inputs, length), bos, seed)


def _windows(decoder: Decoder, text: str, name: str, size: tuple[int, int], bos: str, seed: int) -> Prompts:
    inputs, length = size
    _check_size(decoder, inputs, length)
    if decoder.tokenizer is None:
        raise BadInput(f"'{decoder.source}' came without a tokenizer, so a text cannot be turned into tokens.")
    ids = torch.tensor(decoder.tokenizer.encode(text, add_special_tokens=False, verbose=False), dtype=torch.long)
    if len(ids) < length + 1:
        raise BadInput(f"The text '{name}' has {len(ids)} tokens; windows of {length} need a longer one or --length.")
    generator = torch.Generator().manual_seed(check_seed(seed))
    starts = torch.randint(len(ids) - length + 1, (inputs,), generator=generator)
    windows, notes = _with_bos(decoder, torch.stack([ids[s : s + length] for s in starts.tolist()]), bos)
    if len(set(starts.tolist())) < inputs or inputs * length > len(ids):
        notes = (
            *notes,
            f"{inputs} windows of {length} tokens overlap in a text of {len(ids)}; errors are understated.",
        )
    return Prompts(windows, f"windows of {name}", seed, warnings=notes)


def given_tokens(decoder: Decoder, token_ids: Any, attention_mask: Any = None, seed: int = 0) -> Prompts:
    """Token ids as they are: nothing is added, whatever the tokenizer's settings.

    `attention_mask` (inputs length) marks padding at either end. Padding never reaches the model: each row is cut to
    its real tokens and all rows to the shortest, and the padded positions are counted as excluded.
    """
    ids = _table(token_ids, "token ids")
    excluded, notes = 0, tuple[str, ...]()
    if attention_mask is not None:
        mask = _table(attention_mask, "attention mask")
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise BadInput("The attention mask must hold 1 for real tokens and 0 for padding, nothing else.")
        ids, excluded, notes = _without_padding(ids, mask.bool())
    _check_size(decoder, *ids.shape)
    if int(ids.min()) < 0 or int(ids.max()) >= decoder.vocabulary:
        raise BadInput(
            f"Token ids must lie in 0 to {decoder.vocabulary - 1}; found {int(ids.min())} to {int(ids.max())}."
        )
    return Prompts(ids.long(), "given", check_seed(seed), excluded, (*notes, *_bos_warnings(decoder, ids)))


def check_seed(seed: int) -> int:
    """The seed, if it is one that every draw can use. Raises BadInput."""
    if not 0 <= seed < 1 << 32:
        raise BadInput(f"The seed {seed} is not in 0 to {(1 << 32) - 1}.")
    return seed


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # a byte-order mark is no content
    except UnicodeDecodeError as error:
        raise BadInput(f"The text '{file}' is not UTF-8 (byte {error.start}); convert it first.") from error
    except OSError as error:
        raise BadInput(f"The text '{file}' cannot be read ({error.strerror}).") from error


def _table(values: Any, what: str) -> Tensor:
    try:
        table = torch.as_tensor(values).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"The {what} cannot be read as numbers in rows of equal length ({error}).") from error
    if table.ndim != 2 or table.is_floating_point() or (table.dtype == torch.bool and what == "token ids"):
        raise BadInput(f"The {what} must be a table of whole numbers: (inputs, length).")
    return table


def _without_padding(ids: Tensor, mask: Tensor) -> tuple[Tensor, int, tuple[str, ...]]:
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
    cut = int((lengths - shortest).sum())
    notes = (f"{cut} real tokens at the ends of longer inputs were left out: all inputs are {shortest} tokens long.",)
    return torch.stack(list(rows)), int((~mask).sum()), notes if cut else ()


def _check_size(decoder: Decoder, inputs: int, length: int) -> None:
    if inputs < 2:
        raise BadInput(
            f"{inputs} input{'' if inputs == 1 else 's'} cannot give an error bar; use --inputs of at least 2."
        )
    if length < 4:
        raise BadInput(f"Inputs of {length} tokens are too short to trace; use --length of at least 4.")
    limit = decoder.max_length
    if limit is not None and length > limit:
        raise BadInput(f"This model has positions for {limit} tokens; use --length of at most {limit}.")


def ordinary_tokens(decoder: Decoder) -> Tensor:
    """Token ids that are neither special nor unused rows of the embedding."""
    size = decoder.vocabulary
    special: set[int | None] = {decoder.bos} if decoder.bos is not None else set()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token = getattr(decoder.config, name, None)
        special |= set(token) if isinstance(token, list | tuple) else {token}
    if decoder.tokenizer is not None:
        special |= set(decoder.tokenizer.all_special_ids) | set(getattr(decoder.tokenizer, "added_tokens_decoder", {}))
        size = min(size, len(decoder.tokenizer))
    pool = [token for token in range(size) if token not in special]
    if len(pool) < 2:
        raise BadInput("The vocabulary has fewer than two ordinary tokens to draw from.")
    return torch.tensor(pool)


def check_bos(bos: str) -> None:
    """Raise BadInput unless `bos` is one of the three words."""
    if bos not in {"auto", "on", "off"}:
        raise BadInput(f"--bos takes auto, on or off, not '{bos}'.")


def _with_bos(decoder: Decoder, ids: Tensor, bos: str) -> tuple[Tensor, tuple[str, ...]]:
    check_bos(bos)
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

"""What a positional encoding is: three touch points, identity by default.

A model calls `embed` once on its token embeddings, and `transform` and `bias` in every attention layer; `logits` says
how the two go together. Nothing else of an encoding is visible to a model, so a model needs no `if` about encodings.

Shapes use the axes batch, head, query, key, dim. Positions are (length,) or (batch, length): whole numbers, in tokens.
Nothing here caches a table: every result is computed from the positions given, so a cached decoder, a shifted sequence
and a second setting in the same process cannot meet each other's angles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from wherefrom.errors import BadInput
from wherefrom.settings import Settings, check_count

KINDS = ("none", "additive", "multiplicative", "mixed")
REFERENCES = ("none", "relative", "absolute", "content")


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of the model an encoding is built for."""

    d_model: int
    """Width of the residual stream, which `embed` adds to."""
    heads: int
    """Number of query heads."""
    head_dim: int
    """Width of the query and key vectors that `transform` receives."""
    max_length: int | None = None
    """Longest sequence in tokens; needed for one row per position, elsewhere only a default for table sizes."""
    causal: bool = True
    """Whether keys after the query are masked; encodings with a one- and a two-sided form take the one that fits."""

    def __post_init__(self) -> None:
        for key in ("d_model", "heads", "head_dim"):
            check_count("the model", key, getattr(self, key))
        if self.max_length is not None:
            check_count("the model", "max_length", self.max_length)


class EncodingConfig(Settings):
    """Base of the configurations of encodings."""

    __slots__ = ()


class Encoding(nn.Module):
    """A positional encoding. Subclasses override one or more touch points and declare what they are.

    The class docstring of a subclass carries two paragraphs that begin with `Formula:` and `Source:`; the list of
    encodings prints them.
    """

    kind: str = "none"
    """How position meets content: `none`, `additive`, `multiplicative` or `mixed`."""
    reference: str = "none"
    """What position means: `relative` (offset), `absolute` (position), `content` (what stands between) or `none`."""
    learned: bool = False
    """Whether it has parameters."""
    max_length: int | None = None
    """Number of positions it can encode, 0 to `max_length - 1`; None: no limit."""
    limited: ClassVar[bool] = False
    """Whether instances carry a `max_length`."""
    rotation: bool = False
    """Whether the norm of a transformed vector is the same at every position."""
    depends_on_length: bool = False
    """Whether results change with the longest position of the call (dynamic schedules); such an encoding cannot be
    causal or cached exactly, and says so here."""

    def __init__(self, config: EncodingConfig, dimensions: Dimensions) -> None:
        super().__init__()
        self.config = config
        self.dimensions = dimensions

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add position to embeddings `x` (batch query dim) at `positions`. The default returns `x`."""
        return x

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Encode position into queries (batch head query dim) and keys (batch kv_head key dim).

        Unless `depends_on_length`, the new key is a function of that key and its position alone, so transformed keys
        may be cached. The last axis may grow (PoPE); the logit scale stays that of the original head size.
        """
        return query, key

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Bias to add to the scaled logits, broadcastable to (batch head query key), or None.

        `query` and `key` are the vectors that `transform` was given, not what it returned; a content-dependent bias
        reads them. A cached decoder passes all keys so far with their positions. The bias is at least float32, also for
        half-precision queries: in bfloat16 the offsets 4095 and 4096 would be one number.
        """
        return None

    def logits(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float | None = None
    ) -> Tensor:
        """Scaled logits with bias, unmasked, (batch head query key): the order in which a model uses the touch points.

        `scale` multiplies the dot products; None: 1/sqrt(dim of `query` as given). Grouped key heads are repeated.
        """
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        turned_query, turned_key = self.transform(query, key, query_positions, key_positions)
        scores = turned_query @ repeat_heads(turned_key, query.shape[1]).transpose(-1, -2) * factor
        bias = self.bias(query, key, query_positions, key_positions)
        return scores if bias is None else scores + bias

    def facts(self) -> dict[str, object]:
        """The constants in use (slopes, frequencies, pairing, ...), as plain numbers and lists for a fact sheet."""
        return {}

    def extra_repr(self) -> str:
        return self.config.spelling()


def check_positions(positions: Tensor) -> Tensor:
    """Return `positions` if they can be trusted: (length,) or (batch, length), not in half precision.

    Raises BadInput otherwise. In bfloat16 only 385 of the positions 0 to 511 are distinct numbers.
    """
    if positions.dtype in (torch.bfloat16, torch.float16):
        raise BadInput(f"Positions in {positions.dtype} merge neighbours; pass them as whole numbers (torch.int64).")
    if positions.ndim not in (1, 2):
        raise BadInput(
            f"Positions have shape {tuple(positions.shape)}; pass one row (length,) or one per input (batch, length)."
        )
    return positions


def offsets(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Offset i - j of every query and key, (1 or batch, 1, query, key), in the dtype of the positions."""
    query_positions, key_positions = check_positions(query_positions), check_positions(key_positions)
    difference = query_positions[..., :, None] - key_positions[..., None, :]
    return difference[:, None] if difference.ndim == 3 else difference[None, None]


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which position arithmetic on `x` is done: float64 for float64, float32 for everything below."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def angle_dtype(device: torch.device) -> torch.dtype:
    """The dtype of angles: float64 wherever the device has it, float32 on the one that has not."""
    return torch.float32 if device.type == "mps" else torch.float64


def repeat_heads(key: Tensor, heads: int) -> Tensor:
    """Repeat grouped key heads so that query head h finds key head h // group. (batch heads key dim)"""
    if key.shape[1] == heads:
        return key
    if heads % key.shape[1]:
        raise BadInput(f"{heads} query heads cannot share {key.shape[1]} key heads evenly; use a divisor of {heads}.")
    return key.repeat_interleave(heads // key.shape[1], dim=1)

"""In which precision a model forms its rotary angles, and how many positions that leaves apart.

A bfloat16 number has 8 significant bits: beyond 256 neighbouring positions round to the same number, and so to the same
angle. The table is watched while it is made: what matters is the tensor that goes into the cosine, not a config field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from wherefrom.capture.layer_probe import LayerProbe, TableCall
from wherefrom.capture.rotary_state import fresh_rotary_state
from wherefrom.models.hf import Decoder

LENGTHS = (512, 4096)
"""First positions that are counted."""
_TURNS = (torch.ops.aten.cos.default, torch.ops.aten.sin.default)


@dataclass(frozen=True)
class AnglePrecision:
    """Precision of the path from a position to its rotation, for one layer."""

    angle_dtype: str | None
    """Type of the tensor whose cosine is taken; None where a ready table is only looked up."""
    frequency_dtype: str | None
    """Type in which the frequencies are stored; None where no buffer holds them."""
    table_dtype: str
    """Type of the cosines and sines that turn q and k."""
    distinct: dict[int, int]
    """By n of LENGTHS: how many of the first n positions have an angle of their own in some pair."""
    limit: int | None = None
    """Length of a ready table, where it is shorter than what was asked."""
    error: float | None = None
    """Largest distance in radians of an angle at the first 4096 positions from position times frequency."""


class _Watch(TorchDispatchMode):
    """Keeps what the cosine, the sine or the polar form is taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.angles: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TURNS:
            self.angles.append(args[0].detach())
        elif func is torch.ops.aten.polar.default:
            self.angles.append(args[1].detach())
        return func(*args, **(kwargs or {}))


def read_precision(decoder: Decoder, probe: LayerProbe) -> AnglePrecision | None:
    """The precision of one layer's angles, or None for a layer without a rotary table."""
    if not probe.table_calls:
        return None
    call = probe.table_calls[0]
    with torch.no_grad(), fresh_rotary_state(decoder):
        watched = {n: _watched(call, n) for n in LENGTHS}
    angles, tables, limit = watched[max(LENGTHS)]
    rows = {n: (found[0] if found[0] is not None else torch.cat(found[1], -1)) for n, found in watched.items()}
    error = None
    if angles is not None and len(angles) > 1:
        # Position 1 times a frequency is the frequency as this path holds it.
        exact = torch.arange(len(angles), device=angles.device).double()[:, None] * angles[1].double()
        error = float((angles.double() - exact).abs().max())
    return AnglePrecision(
        None if angles is None else _name(angles.dtype),
        _frequency_dtype(call),
        _name(tables[0].dtype),
        {n: int(torch.unique(values, dim=0).shape[0]) for n, values in rows.items()},
        limit,
        error,
    )


def _watched(call: TableCall, length: int) -> tuple[Tensor | None, list[Tensor], int | None]:
    """Angles (position pair) if any were formed, the tables (position …) and the table's own length if that is less."""
    limit = None
    ready = getattr(call.module, "embed_positions", None)
    if isinstance(ready, Tensor) and len(ready) < length:
        limit = length = len(ready)
    with _Watch() as watch:
        tables = call.again(torch.arange(length))
    flat = [_flat(table, length) for table in tables]
    angles = [_flat(angle, length) for angle in watch.angles if length in angle.shape]
    return (angles[0] if angles else None), flat, limit


def _flat(table: Tensor, length: int) -> Tensor:
    """(position, everything else)."""
    axis = list(table.shape).index(length)
    table = torch.view_as_real(table) if table.is_complex() else table
    return table.movedim(axis, 0).reshape(length, -1)


def _frequency_dtype(call: TableCall) -> str | None:
    names = [b.dtype for n, b in call.module.named_buffers(recurse=False) if n.endswith("inv_freq")]
    return _name(names[0]) if names else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Rotary modules that keep state: start every run of ours from the loaded state, and put back what was there.

In transformers the `dynamic` schedule keeps the frequencies of the longest input it has met until a shorter one than
the original length resets them, and `longrope` rewrites its table in place. A result of ours must depend on its input
alone, so a run starts as if the model had just been loaded, and ends with the model as the user had it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.models.hf import Decoder

_TORCH = {"_parameters", "_buffers", "_modules"}
_FRESH = "original_inv_freq"
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Schedules whose frequencies depend on the length of the input."""


def rope_types(module: nn.Module) -> set[str]:
    """Schedules of a rotary module; several where layer types differ."""
    kind = getattr(module, "rope_type", "default")
    return {str(k) for k in kind.values()} if isinstance(kind, dict) else {str(kind)}


def depends_on_length(module: nn.Module) -> bool:
    """Whether the module recomputes its frequencies from the input length."""
    return any(marker in kind for kind in rope_types(module) for marker in LENGTH_DEPENDENT)


@contextmanager
def fresh_rotary_state(decoder: Decoder) -> Iterator[None]:
    """Rotary modules as just loaded within the context; afterwards bit-identical to before it."""
    modules = [module for module in decoder.rotary_modules() if depends_on_length(module)]
    saved = [_snapshot(module) for module in modules]
    try:
        for module in modules:
            _reset(module)
        yield
    finally:
        for module, (buffers, values, attributes) in zip(modules, saved, strict=True):
            _restore(module, buffers, values, attributes)


def _snapshot(module: nn.Module) -> tuple[dict[str, Tensor | None], dict[str, Tensor], dict[str, Any]]:
    buffers = dict(module._buffers)
    values = {name: buffer.clone() for name, buffer in buffers.items() if buffer is not None}
    return buffers, values, {k: v for k, v in module.__dict__.items() if k not in _TORCH}


def _reset(module: nn.Module) -> None:
    for name, original in list(module.named_buffers(recurse=False)):
        if name.endswith(_FRESH):
            prefix = name.removesuffix(_FRESH)
            module._buffers[f"{prefix}inv_freq"] = original.clone()
            if hasattr(module, f"{prefix}max_seq_len_cached"):
                setattr(module, f"{prefix}max_seq_len_cached", getattr(module, "original_max_seq_len", 0))


def _restore(
    module: nn.Module, buffers: dict[str, Tensor | None], values: dict[str, Tensor], attributes: dict[str, Any]
) -> None:
    with torch.no_grad():
        for name, value in values.items():
            buffer = buffers[name]
            assert buffer is not None
            if not torch.equal(buffer, value):
                buffer.copy_(value)
    module._buffers.clear()
    module._buffers.update(buffers)
    for name in set(module.__dict__) - set(attributes) - _TORCH:
        del module.__dict__[name]
    module.__dict__.update(attributes)

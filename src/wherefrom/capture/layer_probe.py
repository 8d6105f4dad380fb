"""Ask one attention layer what it does with vectors of our choice, without touching the model.

The layer's own code runs, on a stand-in that shares its settings and gets the rotary tables the model hands it, but has
small random projections in float64 in place of the weights: what is read is the layer's arithmetic, and no weight of
the checkpoint can blur it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.rotary_state import fresh_rotary_state
from wherefrom.models.hf import Decoder

NAME = "wherefrom-probe"


@dataclass(frozen=True)
class Seen:
    """What reached the attention function."""

    query: Tensor
    """(batch head query dim), after rotation and any q/k normalisation."""
    key: Tensor
    """(batch kv_head key dim)."""
    value: Tensor
    """(batch kv_head key dim)."""
    settings: dict[str, Any]
    """Keywords of the call: scaling, softcap, sliding_window, s_aux …"""
    mask: Any = None
    """What was handed over as the mask: a MaskIndex where the model uses transformers' mask builders."""


@dataclass(frozen=True)
class MaskIndex:
    """The index rule of a mask: (batch, head, query, key) positions to visible or not, at any length."""

    function: Callable[..., Tensor]


@dataclass(frozen=True)
class TableCall:
    """How the model called the module that made a rotary table."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def again(self, position_ids: Tensor, dtype: torch.dtype | None = None) -> list[Tensor]:
        """The tables at other positions (position,), for vectors of `dtype` (None: as in the call)."""

        def change(value: Tensor) -> Tensor:
            if value.is_floating_point():
                return value[:, :1].to(dtype or value.dtype)
            return position_ids.to(value).expand(*value.shape[:-1], -1)

        return _tensors(self.module(*_map(self.args, change), **_map(self.kwargs, change)))


class _Enough(Exception):
    """Ends a probe once q and k have been seen: what the layer does with its output is of no interest."""


_stop: ContextVar[bool] = ContextVar("wherefrom_probe_stop", default=False)
_seen: ContextVar[list[tuple[nn.Module, Seen]] | None] = ContextVar("wherefrom_probe", default=None)


def _record(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **settings: Any
) -> tuple[Tensor, None]:
    """Stand-in for an attention function: keeps its arguments and returns each position's own value."""
    record = _seen.get()
    assert record is not None, "only called inside `capture_layers` or `LayerProbe.ask`"
    record.append((module, Seen(query.detach(), key.detach(), value.detach(), settings, attention_mask)))
    if _stop.get():
        raise _Enough
    group = query.shape[1] // value.shape[1]
    return value.repeat_interleave(group, dim=1).transpose(1, 2).contiguous(), None


def _mask_index(*_: Any, mask_function: Callable[..., Tensor] | None = None, **__: Any) -> MaskIndex | None:
    """Stand-in for a mask builder: hands on the rule itself, so that any length can be asked about."""
    return None if mask_function is None else MaskIndex(mask_function)


@contextmanager
def _recording(model: nn.Module) -> Iterator[list[tuple[nn.Module, Seen]]]:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _record)
    AttentionMaskInterface.register(NAME, _mask_index)
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = {key: config._attn_implementation_internal for key, config in configs.items()}
    training = [module for module in model.modules() if module.training]
    record: list[tuple[nn.Module, Seen]] = []
    token = _seen.set(record)
    try:
        for config in configs.values():
            config._attn_implementation_internal = NAME
        for module in training:
            module.training = False
        with torch.no_grad():
            yield record
    finally:
        _seen.reset(token)
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
        for module in training:
            module.training = True


@dataclass
class LayerProbe:
    """One attention layer with the arguments the model called it with."""

    layer: int
    """Layer index."""
    module: nn.Module
    """The model's attention module; never changed."""
    args: tuple[Any, ...]
    """Positional arguments of the call."""
    kwargs: dict[str, Any]
    """Keyword arguments of the call."""
    seen: Seen
    """q, k and v of the model itself on the probe tokens."""
    tables: dict[int, Tensor] = field(default_factory=dict)
    """By id of a captured argument: the same rotary table, recomputed by its module for float64 vectors."""
    length: int = 0
    """Number of positions of the call."""
    table_calls: list[TableCall] = field(default_factory=list)
    """The calls that made the tables."""

    def ask(self, hidden: Tensor, turned: bool = True) -> Seen:
        """q and k for `hidden` (batch hidden), the same at every position, float64.

        `turned=False` hands in rotary tables of no rotation (cosine 1, sine 0) instead of the model's own. Raises
        whatever the layer raises; `LookupError` where the layer gets no rotary table that could be swapped.
        """
        swapped = self._swap(self.tables if turned else self._identity())
        batch = hidden.shape[0]
        states = hidden[:, None].expand(-1, self.length, -1)
        args, kwargs = list(swapped[0]), dict(swapped[1])
        if args:
            args[0] = states
        else:
            kwargs["hidden_states"] = states
        args = [_batched(value, batch) for value in args]
        kwargs = {name: _batched(value, batch) for name, value in kwargs.items()}
        token = _stop.set(True)
        try:
            with _recording(self.stand_in) as record, suppress(_Enough):
                self.stand_in(*args, **kwargs)
        finally:
            _stop.reset(token)
        return record[-1][1]

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        states = self.args[0] if self.args else self.kwargs["hidden_states"]
        return int(states.shape[-1])

    @property
    def stand_in(self) -> nn.Module:
        """The layer's code with random projections, built once."""
        if not hasattr(self, "_stand_in"):
            width = 2 * max(self.seen.query.shape[-1], self.seen.key.shape[-1])
            self._stand_in = _stand_in(self.module, width, self.seen.query.device)
        return self._stand_in

    def _identity(self) -> dict[int, Tensor]:
        if not self.tables:
            raise LookupError("this layer is handed no rotary table")
        plain = {}
        for key, table in self.tables.items():
            if table.is_complex():
                plain[key] = torch.ones_like(table)
            else:
                # At position 0 every sine is 0 and every cosine is the attention scaling, never 0.
                is_sine = not bool(table.select(-2, 0).any())
                plain[key] = torch.zeros_like(table) if is_sine else torch.ones_like(table)
        return plain

    def _swap(self, tables: dict[int, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _map(self.args, lambda t: tables.get(id(t), t)), _map(self.kwargs, lambda t: tables.get(id(t), t))


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_map(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return value


def _batched(value: Any, batch: int) -> Any:
    """Arguments of a batch of one, for a batch of many."""
    return _map(value, lambda t: t.expand(batch, *t.shape[1:]) if t.ndim > 1 and t.shape[0] == 1 else t)


class _Projection(nn.Module):
    """A random linear map that reads the first `width` inputs only: cheap, well conditioned and without a bias."""

    def __init__(self, inputs: int, outputs: int, width: int, generator: torch.Generator, device: torch.device) -> None:
        super().__init__()
        self.width = min(inputs, width)
        drawn = torch.randn(self.width, outputs, generator=generator, dtype=torch.float64)
        self.map = drawn.to(device) / self.width**0.5

    def forward(self, x: Tensor) -> Tensor:
        if (
            x.ndim == 3 and x.shape[1] > 1 and x.stride(1) == 0
        ):  # the same vector at every position: one product serves all
            return self(x[:, :1]).expand(-1, x.shape[1], -1)
        return x[..., : self.width] @ self.map


def _stand_in(module: nn.Module, width: int, device: torch.device) -> nn.Module:
    """A copy that shares no parameter that it may change: projections random, norms left out, the rest in float64."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    twin = copy.deepcopy(module, shared)  # the memo keeps the weights from being copied
    generator = torch.Generator().manual_seed(0)
    for name, child in list(twin.named_modules()):
        parent = twin.get_submodule(name.rpartition(".")[0]) if name else None
        if parent is None:
            continue
        leaf = name.rpartition(".")[2]
        weight = getattr(child, "weight", None)
        if "Norm" in type(child).__name__:
            # Before the rotation a norm only rescales; behind it, it would hide the rotation.
            setattr(parent, leaf, nn.Identity())
        elif isinstance(weight, Tensor) and weight.ndim == 2:
            outputs, inputs = weight.shape if isinstance(child, nn.Linear) else weight.shape[::-1]
            setattr(parent, leaf, _Projection(inputs, outputs, width, generator, device))
    for owner in twin.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None:
                owner._parameters[name] = nn.Parameter(parameter.detach().double(), requires_grad=False)
        for name, buffer in list(owner._buffers.items()):
            if buffer is not None and buffer.is_floating_point():
                owner._buffers[name] = buffer.double()
    return twin.eval()


def capture_layers(decoder: Decoder, positions: list[int]) -> dict[int, LayerProbe]:
    """Run the model on a few tokens at `positions` and keep how every attention layer was called.

    The model is bit-identical afterwards. `positions` start at 0; their largest decides what a table that depends on
    the input length does.
    """
    layers = {id(module): layer for layer, module in decoder.attention.items()}
    calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    tables: dict[int, tuple[Tensor, Tensor, TableCall]] = {}

    def entering(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[layers[id(module)]] = (args, kwargs)

    def turning(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if busy:
            return
        busy.append(module)
        try:
            call = TableCall(module, args, kwargs)
            wide = module(*_wide(args), **_wide(kwargs))
            for given, recomputed in zip(_tensors(output), _tensors(wide), strict=True):
                tables[id(given)] = (given, recomputed, call)  # `given` is kept so that its id stays its own
        finally:
            busy.clear()

    busy: list[nn.Module] = []
    handles = [m.register_forward_pre_hook(entering, with_kwargs=True) for m in decoder.attention.values()]
    handles += [m.register_forward_hook(turning, with_kwargs=True) for m in table_modules(decoder)]
    ids = (torch.arange(len(positions), device=decoder.device)[None] + 3) % decoder.vocabulary  # 0 is often padding
    where = torch.tensor([positions], device=decoder.device)
    # An explicit mask of ones keeps transformers from taking a gap in the positions for a packed row.
    arguments = {"position_ids": where, "attention_mask": torch.ones_like(ids), "use_cache": False}
    try:
        with fresh_rotary_state(decoder), _recording(decoder.model) as record:
            decoder.body(ids, **arguments)
    finally:
        for handle in handles:
            handle.remove()
    found = {layers[id(module)]: seen for module, seen in record if id(module) in layers}
    probes = {}
    for layer in sorted(found):
        args, kwargs = calls[layer]
        held = {id(t): tables[id(t)][1] for t in _tensors((args, kwargs)) if id(t) in tables}
        made = {id(t): tables[id(t)][2] for t in _tensors((args, kwargs)) if id(t) in tables}
        by_call = list({id(call): call for call in made.values()}.values())
        module, length = decoder.attention[layer], len(positions)
        probes[layer] = LayerProbe(layer, module, args, kwargs, found[layer], held, length, by_call)
    return probes


def table_modules(decoder: Decoder) -> list[nn.Module]:
    """Modules that make rotary tables: those with frequencies, and those with a ready table (GPT-J)."""
    with_frequencies = {id(module) for module in decoder.rotary_modules()}
    return [m for m in decoder.body.modules() if id(m) in with_frequencies or "RotaryEmbedding" in type(m).__name__]


def _tensors(value: Any) -> list[Tensor]:
    kept: list[Tensor] = []
    _map(value, lambda t: kept.append(t) or t)  # type: ignore[func-returns-value]
    return kept


def _wide(value: Any) -> Any:
    return _map(value, lambda t: t.double() if t.is_floating_point() else t)

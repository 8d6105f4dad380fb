"""Where the heads of a layer are still apart: what enters its output projection, and how to replace it for one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.errors import CheckFailed
from wherefrom.models.toy import ToyTransformer


@dataclass(frozen=True)
class HeadProjection:
    """The output projection of one layer, and which of its inputs each query head writes."""

    module: nn.Module
    """The linear map that mixes the heads."""
    columns: Tensor
    """(head dim): indices along the last axis of its input."""
    bare: bool = True
    """What the projection gives is what its attention module returns, with nothing in between."""

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return int(self.columns.shape[0])

    def weight(self) -> Tensor:
        """(head dim out): what each head's outputs are multiplied by."""
        weight: Tensor = self.module.weight.detach()  # type: ignore[operator]
        across = weight.T if isinstance(self.module, nn.Linear) else weight  # GPT-2's Conv1D stores (in, out)
        return across[self.columns.to(across.device)]


def toy_projections(model: ToyTransformer) -> dict[int, HeadProjection]:
    """The output projections of a model of the lab, by layer."""
    columns = torch.arange(model.settings.d_model).view(model.settings.heads, -1)
    return {layer: HeadProjection(block.attention.output, columns) for layer, block in enumerate(model.body.blocks)}  # type: ignore[union-attr,arg-type]


Replacement = Mapping[int, Mapping[int, Tensor | float]]
"""layer -> head -> what the head hands on instead: 0, or a tensor that broadcasts to (batch length dim)."""


@contextmanager
def replaced(projections: Mapping[int, HeadProjection], replacement: Replacement) -> Iterator[None]:
    """Heads hand something else to their output projection within the context; nothing of the model is changed.

    Raises CheckFailed on leaving if a projection was never called, because then the replacement had no effect.
    """
    called: set[int] = set()
    with ExitStack() as stack:
        for layer, heads in replacement.items():
            if heads:
                hook = _replacing(projections[layer], heads, layer, called)
                stack.callback(projections[layer].module.register_forward_pre_hook(hook).remove)
        yield
        missed = sorted({layer for layer, heads in replacement.items() if heads} - called)
        if missed:
            raise CheckFailed(f"The output projection of layer {missed[0]} never ran, so its heads were not replaced.")


def _replacing(
    projection: HeadProjection, heads: Mapping[int, Tensor | float], layer: int, called: set[int]
) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        called.add(layer)
        mixed = args[0].clone()
        for head, value in heads.items():
            columns = projection.columns[head].to(mixed.device)
            mixed[..., columns] = value.to(mixed) if isinstance(value, Tensor) else value
        return mixed, *args[1:]

    return hook


@contextmanager
def replaced_apart(projection: HeadProjection, heads: Sequence[int], instead: Tensor | float) -> Iterator[None]:
    """Within the context copy k of a batch of copies has head `heads[k]` replaced, and no other.

    `instead`: 0, or what all heads hand on instead, broadcastable to (length head*dim). Raises CheckFailed on leaving
    if the projection never ran.
    """
    called: list[bool] = []

    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        called.append(True)
        mixed = args[0].clone().view(len(heads), -1, args[0].shape[-1])  # some families flatten (batch length)
        for copy, head in enumerate(heads):
            columns = projection.columns[head].to(mixed.device)
            mixed[copy][:, columns] = instead[..., columns].to(mixed) if isinstance(instead, Tensor) else instead
        return mixed.view_as(args[0]), *args[1:]

    handle = projection.module.register_forward_pre_hook(hook)
    try:
        yield
        if not called:
            raise CheckFailed("An output projection never ran, so its heads were not replaced.")
    finally:
        handle.remove()


@contextmanager
def recorded(projections: Mapping[int, HeadProjection], into: dict[int, Tensor]) -> Iterator[None]:
    """Within the context `into` gets what enters each layer's output projection: (batch length head*dim)."""

    def taking(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            into[layer] = args[0].detach()

        return hook

    with ExitStack() as stack:
        for layer, projection in projections.items():
            stack.callback(projection.module.register_forward_pre_hook(taking(layer)).remove)
        yield

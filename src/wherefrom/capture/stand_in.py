"""A stand-in for an attention layer: its code, its settings and its rotary buffers, with random projections."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


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


def stand_in(module: nn.Module, width: int, device: torch.device) -> nn.Module:
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

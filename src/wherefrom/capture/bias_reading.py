"""Biases on logits (ALiBi), read from attention modules that do not dispatch through transformers' interface.

The module runs with every weight 0, so that what enters its softmax is the bias alone, in nats, with any factor the
module puts on it. Families: BLOOM, MPT, Falcon.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from wherefrom.encodings.alibi import alibi_slopes

RULES = ("geometric", "interleaved", "published")
LENGTH = 8
"""Tokens of the probe."""
HIDDEN = -1e4
"""Logits below this stand for masked keys, however the model spells them."""


@dataclass(frozen=True)
class BiasFacts:
    """The bias of one layer on its logits."""

    slopes: tuple[float, ...]
    """Per head, nats per token: by how much the logit falls with each token of distance. Empty if not linear."""
    rules: tuple[str, ...]
    """Slope rules (`encodings.alibi.alibi_slopes`) that give these slopes up to `factor`; several where they agree."""
    factor: float = 1.0
    """Common factor on the rule's slopes (Falcon divides its bias by the root of the head size)."""


class _Watch(TorchDispatchMode):
    """Keeps what enters a softmax, and masks that a fused kernel adds."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name == "aten._softmax.default":
            self.logits.append(args[0].detach())
        elif "scaled_dot_product" in name and "backward" not in name:
            mask = (kwargs or {}).get("attn_mask")
            if isinstance(mask, Tensor) and mask.is_floating_point():
                self.logits.append(mask.detach())
        return func(*args, **(kwargs or {}))


def attention_modules(body: nn.Module) -> list[nn.Module]:
    """Innermost modules whose class calls itself attention, in the order of the layers."""
    named = [module for module in body.modules() if "Attention" in type(module).__name__]
    inner = {id(m) for m in named if not any(m is not n and _contains(m, n) for n in named)}
    return [module for module in named if id(module) in inner]


def _contains(outer: nn.Module, inner: nn.Module) -> bool:
    return any(module is inner for module in outer.modules())


def read_bias(model: nn.Module, modules: list[nn.Module]) -> list[BiasFacts | None]:
    """The bias of each attention module of `model`, None where there is none. The model is not changed."""
    calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def entering(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[id(module)] = (args, kwargs)

    handles = [module.register_forward_pre_hook(entering, with_kwargs=True) for module in modules]
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        device = next(model.parameters()).device
        with torch.no_grad():
            model(torch.zeros(1, LENGTH, dtype=torch.long, device=device), use_cache=False)
            return [_bias(module, *calls[id(module)]) for module in modules if id(module) in calls]
    finally:
        for handle in handles:
            handle.remove()
        for module in training:
            module.training = True


def _bias(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BiasFacts | None:
    shared: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    twin = copy.deepcopy(module, shared)
    for owner in twin.modules():
        owner._forward_pre_hooks.clear()
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None:
                owner._parameters[name] = nn.Parameter(torch.zeros_like(parameter), requires_grad=False)
    with _Watch() as watch:
        twin(*args, **kwargs)
    for found in watch.logits:
        if found.shape[-1] == LENGTH:
            last = found.double().reshape(-1, found.shape[-2], LENGTH)[:, -1].cpu()
            return _described(last)
    return None


def _described(rows: Tensor) -> BiasFacts | None:
    """From the last query's logits (head key)."""
    if not bool((rows > HIDDEN).all()) or not bool(rows.diff(dim=-1).any()):
        return None
    slopes = (rows[:, -1] - rows[:, 0]) / (LENGTH - 1)
    line = rows[:, :1] + slopes[:, None] * torch.arange(LENGTH).double()
    # bfloat16 biases (Falcon's) carry not quite three digits.
    if not bool(((rows - line).abs() <= 1e-2 * (line[:, -1:] - line[:, :1]).abs()).all()):
        return BiasFacts((), ())
    rules, factor = [], 1.0
    for rule in RULES:
        expected = alibi_slopes(len(slopes), rule)
        ratio = float((slopes / expected).median())
        if torch.allclose(slopes, ratio * expected, rtol=1e-2, atol=0):
            rules.append(rule)
            factor = 1.0 if abs(ratio - 1) < 1e-2 else ratio
    return BiasFacts(tuple(slopes.tolist()), tuple(rules), factor)

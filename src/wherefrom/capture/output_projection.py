"""Find each layer's output projection by running it: which linear map gets what the heads give, head by head.

Names differ between families (`o_proj`, `c_proj`, `dense`, `out_proj`, ...) and say nothing about the order of heads or
about gates in between, so the map is found by what it is handed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import RunInputs
from wherefrom.capture.head_projection import HeadProjection
from wherefrom.capture.kernels import attend
from wherefrom.capture.session import run
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder

PROMPT = 8
"""Tokens of the prompt on which projections are sought."""
ROUNDINGS = 1000
"""Largest difference, in roundings of the model's precision, between what the heads give and what a map is handed."""


def decoder_projections(decoder: Decoder) -> dict[int, HeadProjection]:
    """The output projections of a checkpoint, by attention layer.

    A layer's projection is the linear map inside its attention module whose input is, number by number, the outputs of
    its heads side by side. Raises BadInput, with the layer, where there is none: a family that gates or normalises
    head outputs on the way, or whose projection is not a linear map of its own.
    """
    handed: dict[int, list[tuple[nn.Module, Tensor]]] = {layer: [] for layer in decoder.attention}
    given: dict[int, Tensor] = {}

    def taking(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                handed[layer].append((module, args[0].detach()))

        return hook

    def observe(call: AttentionCall) -> None:
        parts = (call.query, call.key, call.value, call.scale, call.rule, call.softcap, call.sink, call.bias)
        given[call.layer] = attend(*parts)[0].transpose(1, 2)  # (batch length head dim)

    length = PROMPT if decoder.max_length is None else min(PROMPT, decoder.max_length)
    ids = torch.randint(decoder.vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    with ExitStack() as stack:
        for layer, attention in decoder.attention.items():
            for module in attention.modules():
                if module is not attention and isinstance(getattr(module, "weight", None), nn.Parameter):
                    stack.callback(module.register_forward_pre_hook(taking(layer)).remove)
        run(decoder, RunInputs(ids, (0,), ids[:, 0]), observe)
    return {layer: _found(decoder, layer, given[layer], handed[layer]) for layer in sorted(decoder.attention)}


def _found(decoder: Decoder, layer: int, outputs: Tensor, handed: list[tuple[nn.Module, Tensor]]) -> HeadProjection:
    heads, dim = outputs.shape[-2:]
    flat = outputs.flatten(-2)
    allowed = ROUNDINGS * torch.finfo(flat.dtype).eps * float(flat.abs().max())
    for module, entered in reversed(handed):  # the projection comes last, after those of queries, keys and values
        same = entered.numel() == flat.numel() and entered.shape[-1] == heads * dim
        if same and float((entered.view_as(flat) - flat).abs().max()) <= allowed and _is_linear(module, heads * dim):
            return HeadProjection(module, torch.arange(heads * dim).view(heads, dim))
    raise BadInput(
        f"In layer {layer} of '{decoder.source}' ({decoder.family}) no linear map is handed the heads' outputs as they "
        "are (they are gated, normalised or mixed on the way), so its heads cannot be ablated one by one."
    )


def _is_linear(module: nn.Module, width: int) -> bool:
    weight: Any = module.weight
    return weight.ndim == 2 and width in weight.shape

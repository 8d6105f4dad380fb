"""Run a decoder once and let observers see every attention call and the residual stream, leaving the model untouched.

Attention is taken over through transformers' attention interface: a function and a mask function under one name. The
mask function hands on a rule instead of a tensor, so no L x L mask is built either. Everything that is switched for a
run (implementation name, training flags, hooks, rotary state) is put back when the run ends, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits.base import Edit, RunInputs
from wherefrom.capture.kernels import attend
from wherefrom.capture.rotary_state import fresh_rotary_state
from wherefrom.encodings.masks import MaskRule, rule_from_mask
from wherefrom.errors import BadInput, CheckFailed
from wherefrom.models.hf import Decoder

NAME = "wherefrom"
HARMLESS = {
    "attention_dropout", "cache", "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "dropout",
    "is_causal", "layer_idx", "logits_to_keep", "max_length_k", "max_length_q", "num_items_in_batch",
    "output_attentions",
    "output_hidden_states", "output_router_logits", "past_key_values", "position_embeddings", "position_ids",
    "return_dict", "sliding_window", "training", "use_cache", "use_top_left_mask", "seq_idx",
}  # fmt: skip
"""Keywords that do not change the maths of a whole-sequence pass in evaluation mode."""

AttentionObserver = Callable[[AttentionCall], None]


@dataclass
class _Session:
    decoder: Decoder
    edits: Sequence[Edit]
    observer: AttentionObserver | None
    layers: dict[int, int]
    seen: dict[int, MaskRule] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)


_active: ContextVar[_Session | None] = ContextVar("wherefrom_session", default=None)


def _session() -> _Session:
    session = _active.get()
    if session is None:
        raise CheckFailed("The attention implementation 'wherefrom' only works inside a run of wherefrom.")
    return session


def observed_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> MaskRule:
    """Stand-in for transformers' mask builders: reads the rule off `mask_function` at O(length) cost."""
    if q_length != kv_length or int(q_offset) or int(kv_offset):
        raise BadInput("A trace runs whole sequences without a cache; this call had cached keys.")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise BadInput("Padding reached the model; pass the mask to the trace, which strips padding before the run.")
    return read_rule(mask_function, kv_length, batch_size, device)


def read_rule(
    mask_function: Callable[..., Tensor] | None, length: int, batch: int = 1, device: torch.device | str = "cpu"
) -> MaskRule:
    """The MaskRule an index-based mask function follows at this length, checked on edge, window and spread rows."""
    if mask_function is None:
        return MaskRule()
    key = torch.arange(length, device=device)
    zero = torch.zeros((), dtype=torch.long, device=device)

    def row(query: int) -> Tensor:
        index = torch.as_tensor(query, device=device)
        return torch.as_tensor(mask_function(zero, zero, index, key), device=device).expand(length)

    widest = int(row(length - 1).sum())
    candidates = [MaskRule(causal=False)] if length > 1 and bool(row(0).all()) else [MaskRule()]
    if widest < length:
        candidates = [MaskRule(window=widest)]
    spread = {0, 1, length // 2, length - 2, length - 1, *range(0, length, max(1, length // 16))}
    spread |= {widest - 1, widest, widest + 1}
    for query in sorted(q for q in spread if 0 <= q < length):
        expected = candidates[0].visible(torch.as_tensor(query, device=device), key)
        if not torch.equal(row(query), expected):
            raise BadInput(
                f"Query {query} of {length} sees keys that are neither a causal mask nor a sliding window "
                "(chunked, prefix or packed attention); such a mask cannot be traced yet."
            )
    return candidates[0]


def observed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    attention_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Stand-in for transformers' attention functions: the fused output, and an AttentionCall for the observer."""
    session = _session()
    layer = session.layers.get(id(module))
    name = type(module).__name__
    if layer is None:
        raise BadInput(f"{name} attends outside the decoder's own layers; such a model cannot be traced.")
    unknown = sorted(k for k, v in kwargs.items() if v is not None and k not in HARMLESS)
    if unknown:
        raise BadInput(
            f"{name} hands '{unknown[0]}' to its attention function, which changes the maths in a way "
            "that this version does not follow; choose a model without it."
        )
    if query.shape[2] != key.shape[2]:
        raise BadInput(f"{name} attends to {key.shape[2]} keys from {query.shape[2]} queries; caches cannot be traced.")
    rule = attention_mask if isinstance(attention_mask, MaskRule) else _rule_of(attention_mask)
    session.windows[layer] = rule.window if rule.window is not None else kwargs.get("sliding_window")
    for edit in session.edits:
        rule = edit.rule(layer, rule)
    rule = rule.at_length(query.shape[2])
    session.seen[layer] = rule
    scale = float(scaling) if scaling is not None else query.shape[-1] ** -0.5
    sink = None if s_aux is None else s_aux.detach().reshape(-1)
    output, log_denominator = attend(query, key, value, scale, rule, softcap, sink, attention_bias)
    if session.observer is not None:
        _refuse_non_finite(log_denominator, layer)
        call = AttentionCall(layer, query, key, value, scale, rule, log_denominator, softcap, sink, attention_bias)
        session.observer(call)
    return output.transpose(1, 2).contiguous(), None


def _rule_of(mask: Any) -> MaskRule:
    if mask is None:
        return MaskRule()
    if isinstance(mask, Tensor) and mask.ndim == 4:
        rule, padding = rule_from_mask(mask)
        if not bool(padding.any()):
            return rule
    raise BadInput("The model built an attention mask of its own that is neither causal nor a sliding window.")


def _refuse_non_finite(log_denominator: Tensor, layer: int) -> None:
    finite = torch.isfinite(log_denominator)
    if not bool(finite.all()):
        head = int((~finite).any(-1).any(0).nonzero()[0])
        raise BadInput(
            f"Logits are NaN or infinite in layer {layer}, head {head}: the weights or this precision cannot be used; "
            "try --dtype float32 or check the checkpoint."
        )


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, observed_attention)
    AttentionMaskInterface.register(NAME, observed_mask)


def _running_configs(model: nn.Module) -> dict[int, Any]:
    """The config objects that say which attention function is in use."""
    found = [getattr(module, "config", None) for module in model.modules()]
    return {id(config): config for config in found if hasattr(config, "_attn_implementation_internal")}


@contextmanager
def _switched(decoder: Decoder) -> Iterator[None]:
    """Our attention in place and dropout off; put back afterwards, whatever happens."""
    _register()
    configs = _running_configs(decoder.model)
    before = {key: config._attn_implementation_internal for key, config in configs.items()}
    training = [module for module in decoder.model.modules() if module.training]
    try:
        for config in configs.values():
            config._attn_implementation_internal = NAME
        for module in training:
            module.training = False
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
        for module in training:
            module.training = True


def run(
    decoder: Decoder,
    inputs: RunInputs,
    observer: AttentionObserver | None = None,
    edits: Sequence[Edit] = (),
    residual: Callable[[int, Tensor], None] | None = None,
    output_logits: bool = False,
) -> RunOutcome:
    """One forward pass over `inputs`.

    `observer` gets every attention call, layer by layer; `residual` gets (k, hidden (batch length dim)): the stream
    entering block k, and leaving the last block for k = number of blocks. Raises BadInput for what cannot be observed;
    the model is bit-identical afterwards in every case.
    """
    layers = {id(module): layer for layer, module in decoder.attention.items()}
    session = _Session(decoder, edits, observer, layers)
    token = _active.set(session)
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(fresh_rotary_state(decoder))
            stack.enter_context(_switched(decoder))
            if residual is not None:
                stack.enter_context(_watched(decoder, residual))
            arguments: dict[str, Any] = {"use_cache": False}
            for edit in edits:
                extra = stack.enter_context(edit.installed(decoder, inputs))
                arguments.update(extra or {})
            module = decoder.model if output_logits else decoder.body
            result = module(inputs.token_ids.to(decoder.device), **arguments)
    finally:
        _active.reset(token)
    missing = sorted(set(decoder.attention) - set(session.seen))
    if missing:
        raise BadInput(f"Layer {missing[0]} never called the attention interface; such a model cannot be traced.")
    return RunOutcome(session.seen, session.windows, result.logits if output_logits else None)


@dataclass(frozen=True)
class RunOutcome:
    """What a run leaves behind beside what observers took."""

    rules: dict[int, MaskRule]
    """Mask rule in force per layer, edits included."""
    windows: dict[int, int | None]
    """Sliding window per layer as the model states it, also where the input was too short to meet it."""
    output_logits: Tensor | None
    """Vocabulary logits (batch length vocabulary), if asked for."""


@contextmanager
def _watched(decoder: Decoder, residual: Callable[[int, Tensor], None]) -> Iterator[None]:
    def entering(index: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            residual(index, args[0] if args else kwargs["hidden_states"])

        return hook

    def leaving(_: nn.Module, __: Any, output: Any) -> None:
        residual(len(decoder.blocks), output[0] if isinstance(output, tuple) else output)

    handles = [block.register_forward_pre_hook(entering(i), with_kwargs=True) for i, block in enumerate(decoder.blocks)]
    handles.append(decoder.blocks[-1].register_forward_hook(leaving))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

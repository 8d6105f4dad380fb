"""Before a model is trusted: our path against the stock path on a short prompt, and the loaded weights themselves."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import RunInputs
from wherefrom.capture.rotary_state import fresh_rotary_state
from wherefrom.capture.session import run
from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder

PROMPT = 48
"""Tokens of the parity prompt."""
ROTATED = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
"""Ends of the names of tensors whose rows a rotary layout orders."""
COSINE, LENGTH_RATIO = 0.9, 0.8
"""Quantisation keeps direction and length of a tensor at least this well."""


def parity_check(decoder: Decoder) -> Decoder:
    """Compare output logits of our path and the model's own, and learn shapes and windows on the way.

    Stores `parity` (max_abs, tolerance, prompt_tokens), `windows` and `shapes` on the decoder. The tolerance is 100
    roundings of the stock path's precision at the largest logit. Raises BadInput on a mismatch.
    """
    limit = decoder.max_length
    length = PROMPT if limit is None else min(PROMPT, limit)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(0, decoder.vocabulary, (1, length), generator=generator)

    def observe(call: AttentionCall) -> None:
        decoder.shapes[call.layer] = (call.heads, call.key.shape[1], call.query.shape[-1])

    inputs = RunInputs(prompt, (0,), prompt[:, 0])
    outcome = run(decoder, inputs, observe, output_logits=True)
    decoder.windows = dict(outcome.windows)
    _refuse_bidirectional(decoder, outcome.rules)
    ours = outcome.output_logits
    assert ours is not None
    stock = _stock_logits(decoder, prompt)
    difference = float((ours.double() - stock.double()).abs().max())
    # A constant dropped in our path is off by orders of magnitude; rounding is not. Eager attention takes its softmax
    # in float32 also in a float64 model, so the stock path is never better than float32.
    rounding = max(torch.finfo(decoder.dtype).eps, torch.finfo(torch.float32).eps)
    tolerance = 100 * rounding * float(stock.abs().max())
    decoder.parity = {"max_abs": difference, "tolerance": tolerance, "prompt_tokens": length}
    if not math.isfinite(difference):
        raise BadInput(_non_finite(decoder))
    if not difference <= tolerance:
        raise BadInput(
            f"Our pass over '{decoder.source}' differs from the stock model by {difference:.2g} in its output logits "
            f"(allowed: {tolerance:.2g}), so nothing measured on it could be trusted."
        )
    return decoder


def _refuse_bidirectional(decoder: Decoder, rules: dict[int, MaskRule]) -> None:
    if not decoder.causal:
        return
    for layer, rule in rules.items():
        if not rule.causal:
            raise BadInput(
                f"'{decoder.source}' is no decoder: in layer {layer} queries see the keys after them; only models "
                "with a causal mask can be traced (BERT-type models take is_decoder=True in their config)."
            )


def _non_finite(decoder: Decoder) -> str:
    """What to say where attention is finite and the output logits are not."""
    for name, parameter in decoder.model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"The weights '{name}' of '{decoder.source}' hold NaN or infinite numbers; check the checkpoint."
    return (
        f"The output logits of '{decoder.source}' are NaN or infinite although its weights are not; this precision "
        f"({str(decoder.dtype).removeprefix('torch.')}) cannot be used, try --dtype float32."
    )


def _stock_logits(decoder: Decoder, prompt: Tensor) -> Tensor:
    """Output logits of the model as the user loaded it, in evaluation mode and as if it had met no input before."""
    training = [module for module in decoder.model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad(), fresh_rotary_state(decoder):
            logits: Tensor = decoder.model(prompt.to(decoder.device), use_cache=False).logits
            return logits
    finally:
        for module in training:
            module.training = True


def compare_weights(loaded: Any, reference: Any) -> dict[str, Any]:
    """Do two copies of a model hold the same weights, and if not, what kind of difference is it?

    Both are torch modules with equal parameter names. Returns `verdict` (`equal`, `quantisation noise`,
    `rotary layout`, `different`), `tensor` (the worst one) and `cosine` per query/key projection. A rotary layout
    fault leaves only q and k wrong, and right again once their rows are paired the other way.
    """
    ours, theirs = (
        {name: parameter.detach() for name, parameter in module.named_parameters()} for module in (loaded, reference)
    )
    foreign = ours.keys() ^ theirs.keys() or {n for n in ours if ours[n].shape != theirs[n].shape}
    if foreign:
        return {"verdict": "different", "tensor": min(foreign), "cosine": {}}
    cosines = {name: _cosine(ours[name], theirs[name]) for name in ours}
    projections = {n: c for n, c in cosines.items() if n.endswith(ROTATED)}
    worst = min(cosines, key=lambda name: cosines[name])
    wrong = [name for name in ours if not _alike(ours[name], theirs[name])]
    if all(torch.equal(ours[name], theirs[name]) for name in ours):
        verdict = "equal"
    elif not wrong:
        verdict = "quantisation noise"
    elif set(wrong) <= set(projections) and all(_repaired(ours[n], theirs[n], reference.config) for n in wrong):
        verdict = "rotary layout"
    else:
        verdict = "different"
    return {"verdict": verdict, "tensor": worst, "cosine": projections}


def _cosine(one: Tensor, other: Tensor) -> float:
    if torch.equal(one, other):  # a bias of zeros has no direction
        return 1.0
    return float(torch.cosine_similarity(one.double().reshape(-1), other.double().reshape(-1), dim=0))


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by no more than rounding to a few bits: same direction, same length."""
    norms = [float(torch.linalg.vector_norm(tensor.double())) for tensor in (one, other)]
    return _cosine(one, other) >= COSINE and LENGTH_RATIO * max(norms) <= min(norms)


def _repaired(ours: Tensor, theirs: Tensor, config: Any) -> bool:
    """Whether re-pairing the rows of each head (half-split against interleaved) makes the two agree."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rows = ours.reshape(-1, head_dim, ours[0].numel())
    interleaved = rows.unflatten(1, (2, head_dim // 2)).transpose(1, 2).reshape_as(ours)
    halves = rows.unflatten(1, (head_dim // 2, 2)).transpose(1, 2).reshape_as(ours)
    return _alike(interleaved, theirs) or _alike(halves, theirs)

"""Before a model is trusted: our path against the stock path on a short prompt, and the loaded weights themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import RunInputs
from wherefrom.capture.rotary_state import fresh_rotary_state
from wherefrom.capture.session import run
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder

PROMPT = 48
"""Tokens of the parity prompt."""


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
    ours = outcome.output_logits
    assert ours is not None
    stock = _stock_logits(decoder, prompt)
    difference = float((ours.double() - stock.double()).abs().max())
    # A constant dropped in our path is off by orders of magnitude; rounding is not. Eager attention takes its softmax
    # in float32 also in a float64 model, so the stock path is never better than float32.
    rounding = max(torch.finfo(decoder.dtype).eps, torch.finfo(torch.float32).eps)
    tolerance = 100 * rounding * float(stock.abs().max())
    decoder.parity = {"max_abs": difference, "tolerance": tolerance, "prompt_tokens": length}
    if not difference <= tolerance:
        raise BadInput(
            f"Our pass over '{decoder.source}' differs from the stock model by {difference:.2g} in its output logits "
            f"(allowed: {tolerance:.2g}), so nothing measured on it could be trusted."
        )
    return decoder


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
    ours, theirs = dict(loaded.named_parameters()), dict(reference.named_parameters())
    if ours.keys() != theirs.keys():
        return {"verdict": "different", "tensor": sorted(ours.keys() ^ theirs.keys())[0], "cosine": {}}
    cosines = {name: _cosine(ours[name], theirs[name]) for name in ours}
    projections = {n: c for n, c in cosines.items() if n.endswith(("q_proj.weight", "k_proj.weight"))}
    worst = min(cosines, key=lambda name: cosines[name])
    wrong = [name for name, cosine in cosines.items() if cosine < 0.9]
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
    return float(torch.cosine_similarity(one.double().reshape(-1), other.double().reshape(-1), dim=0))


def _repaired(ours: Tensor, theirs: Tensor, config: Any) -> bool:
    """Whether re-pairing the rows of each head (half-split against interleaved) makes the two agree."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rows = ours.view(-1, head_dim, ours.shape[-1])
    interleaved = rows.view(-1, 2, head_dim // 2, ours.shape[-1]).transpose(1, 2).reshape_as(ours)
    halves = rows.view(-1, head_dim // 2, 2, ours.shape[-1]).transpose(1, 2).reshape_as(ours)
    return max(_cosine(interleaved, theirs), _cosine(halves, theirs)) > 0.9

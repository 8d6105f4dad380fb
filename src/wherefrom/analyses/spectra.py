"""Spectra: does multiplying by the rotary kernel contract the Gram matrix of queries and keys? (paper [G])

For one head and TOKENS queries and keys of one input, before rotation: the Gram matrix G(i, j) = q_i·k_j, the bracket
of paper [G]'s L = Re{ (G_{qc,kc} + ...) ∘ G_e }, and the product L, the same vectors turned. The kernel's own matrix is
the mean over bands of cos θ(i - j). Position 0 is left out, whose vectors are a constant of their own.

One band alone can contract nothing: G_e is e e* there, so the complex product only changes phases of rows and columns
and keeps every singular value. What contracts, or expands, is the sum over bands and its real part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits.base import RunInputs
from wherefrom.capture.kernels import widen
from wherefrom.capture.rotary_probe import RotaryWatch, watched_rotation
from wherefrom.capture.rotation import Rotation
from wherefrom.capture.session import run
from wherefrom.capture.split_pass import SplitPass
from wherefrom.rows import Row

TOKENS = 32
"""Queries and keys of a matrix, at most; never more than the head size, so that a condition number can be finite."""
INPUTS = 16
"""Inputs behind the spectra of a model, at most."""
DRAWS = 64
"""Random matrices of each kind."""
RANDOM_KINDS = ("independent", "shared", "with_mean")
"""Gaussian queries and keys: independent; the same vectors for both; independent around a mean of equal size."""


def spectrum(matrix: Tensor) -> dict[str, Tensor]:
    """Spectral norm, condition number and effective rank of (... query key) matrices.

    Condition number: largest over smallest singular value, infinite where that is lost in rounding. Effective rank:
    exponential of the entropy of the singular values as shares of their sum (Roy & Vetterli 2007), between 1 and the
    size.
    """
    values = torch.linalg.svdvals(matrix.double())
    lowest = values[..., -1]
    resolved = lowest > torch.finfo(torch.float64).eps * matrix.shape[-1] * values[..., 0]
    share = values / values.sum(-1, keepdim=True)
    return {
        "norm": values[..., 0],
        "condition": torch.where(resolved, values[..., 0] / lowest, torch.inf),
        "effective_rank": torch.exp(torch.special.entr(share).sum(-1)),
    }


def kernel_matrix(frequencies: Tensor, tokens: int) -> Tensor:
    """Mean over bands of cos θ(i - j): the Toeplitz matrix that a constant content would be multiplied by."""
    position = torch.arange(tokens, dtype=torch.float64, device=frequencies.device)
    offset = position[:, None] - position[None]
    return torch.cos(frequencies.double()[:, None, None] * offset).mean(0)


def compared(query: Tensor, key: Tensor, turns: tuple[Rotation, Rotation], start: int) -> dict[str, Tensor]:
    """Spectra of one set of heads, queries and keys (head token dim) before rotation, standing at `start` and on.

    Gives gram_* and product_* of `spectrum`, and the ratios product / gram: `contraction_ratio` (of norms),
    `condition_ratio`, `rank_ratio`. (head,) each.
    """
    place = slice(start, start + query.shape[1])
    gram = spectrum(query @ key.transpose(-1, -2))
    product = spectrum(turns[0].apply(query, place) @ turns[1].apply(key, place).transpose(-1, -2))
    result = {f"gram_{name}": value for name, value in gram.items()}
    result |= {f"product_{name}": value for name, value in product.items()}
    result["contraction_ratio"] = product["norm"] / gram["norm"]
    result["condition_ratio"] = product["condition"] / gram["condition"]
    result["rank_ratio"] = product["effective_rank"] / gram["effective_rank"]
    return result


UNITS = {"norm": "nats", "condition": "ratio", "effective_rank": "directions", "ratio": "ratio"}


def spectra_rows(the_pass: SplitPass, token_ids: Tensor, edit: str, seed: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of analysis `spectra`, and a verdict for the manifest: does the kernel contract, on heads and at random?

    Values are geometric means over inputs (over heads too without a head), errors those of the mean over inputs.
    Nothing for a model without rotation.
    """
    found, turns = _model_spectra(the_pass, token_ids, seed)
    if not found:
        return [], {}
    inputs = len(next(iter(found.values()))["contraction_ratio"])
    rows: list[Row] = []

    def write(metric: str, logs: Tensor, n: int, **where: Any) -> None:
        value, error = _geometric(logs)
        if math.isfinite(value):
            unit = next(unit for name, unit in UNITS.items() if metric.endswith(name))
            rows.append(Row("spectra", metric, value, unit, n, error if math.isfinite(error) else None, edit, **where))

    for layer, metrics in found.items():
        for metric, values in metrics.items():
            for head in range(values.shape[1]):
                write(metric, values[:, head].log(), inputs, layer=layer, head=head)
            write(metric, values.log().mean(1), inputs, layer=layer)
        for metric, value in spectrum(kernel_matrix(turns[layer][0].frequencies, TOKENS)).items():
            write(f"kernel_{metric}", value.log().view(1), inputs, layer=layer)
    overall = {
        ratio: torch.cat([metrics[ratio] for metrics in found.values()], 1).log()
        for ratio in ("contraction_ratio", "condition_ratio", "rank_ratio")
    }
    for ratio, logs in overall.items():
        write(ratio, logs.mean(1), inputs)
    everywhere = overall["contraction_ratio"]
    share, error, clear = _contracting(everywhere)
    rows.append(Row("spectra", "contracting_share", share, "share", everywhere.shape[1], error, edit))
    verdict: dict[str, Any] = {
        "heads": everywhere.shape[1],
        "contracting_heads": round(share * everywhere.shape[1]),
        "clearly_contracting_heads": clear[0],
        "clearly_expanding_heads": clear[1],
        **{ratio: _interval(logs.mean(1)) for ratio, logs in overall.items()},
        "random": {},
    }
    layer = next(iter(found))
    for kind in RANDOM_KINDS:
        ratios = random_ratios(kind, turns[layer], seed)
        for metric, values in ratios.items():
            write(f"random_{kind}_{metric}", values.log(), DRAWS, layer=layer)
        verdict["random"][kind] = _interval(ratios["contraction_ratio"].log())
    return rows, verdict


def random_ratios(kind: str, turns: tuple[Rotation, Rotation], seed: int = 0) -> dict[str, Tensor]:
    """The three ratios on Gaussian queries and keys of one of RANDOM_KINDS: (draw,) each."""
    dim = turns[0].dim
    tokens = min(TOKENS, dim, turns[0].length)
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, DRAWS, tokens, dim, generator=generator, dtype=torch.float64)
    if kind == "shared":
        key = query
    if kind == "with_mean":
        means = torch.randn(2, DRAWS, 1, dim, generator=generator, dtype=torch.float64)
        query, key = query + means[0], key + means[1]
    device = turns[0].cosine.device
    found = compared(query.to(device), key.to(device), turns, 0)
    return {name: found[name].cpu() for name in ("contraction_ratio", "condition_ratio", "rank_ratio")}


def _model_spectra(
    the_pass: SplitPass, token_ids: Tensor, seed: int
) -> tuple[dict[int, dict[str, Tensor]], dict[int, tuple[Rotation, Rotation]]]:
    """Spectra per layer, (input head) each, of layers that rotate; and the rotations."""
    found: dict[int, dict[str, list[Tensor]]] = {}
    turns: dict[int, tuple[Rotation, Rotation]] = {}
    length = min(token_ids.shape[1], TOKENS + 1)

    def observe(call: AttentionCall) -> None:
        if call.layer not in turns:
            turns[call.layer] = the_pass.reading.rotations(call.layer, watch.tables, call)
        if not len(turns[call.layer][0].pairs):
            return
        stop = min(call.length, call.query.shape[-1] + 1)
        query, key = (
            turn.undo(widen(x[0]).double())[:, 1:stop]
            for turn, x in zip(turns[call.layer], (call.query, call.key), strict=True)
        )
        metrics = compared(query * call.scale, key.repeat_interleave(call.group, 0), turns[call.layer], 1)
        for name, value in metrics.items():
            found.setdefault(call.layer, {}).setdefault(name, []).append(value.cpu())

    for item in range(min(INPUTS, len(token_ids))):
        inputs = RunInputs(token_ids[item : item + 1, :length], (item,), token_ids[:, 0], seed)
        with watched_rotation(the_pass.decoder, RotaryWatch()) as watch:
            run(the_pass.decoder, inputs, observe, the_pass.edits)
    return {layer: {n: torch.stack(v) for n, v in metrics.items()} for layer, metrics in found.items()}, turns


def _geometric(logs: Tensor) -> tuple[float, float]:
    """Geometric mean and its standard error from logarithms along axis 0."""
    value = float(logs.mean().exp())
    error = float(logs.std() / len(logs) ** 0.5) if len(logs) > 1 else math.nan
    return value, value * error


def _interval(logs: Tensor) -> dict[str, float]:
    """Geometric mean with a 95 % interval."""
    mean, error = float(logs.mean()), float(logs.std() / len(logs) ** 0.5)
    return {"value": math.exp(mean), "low": math.exp(mean - 1.96 * error), "high": math.exp(mean + 1.96 * error)}


def _contracting(logs: Tensor) -> tuple[float, float, tuple[int, int]]:
    """Share of heads (input head) whose mean log-ratio is below 0, its error, how many are clearly below and above."""
    mean = logs.mean(0)
    error = logs.std(0) / len(logs) ** 0.5
    share = float((mean < 0).double().mean())
    clear = (int((mean < -1.96 * error).sum()), int((mean > 1.96 * error).sum()))
    return share, math.sqrt(share * (1 - share) / len(mean)), clear


def verdict_sentence(verdict: Mapping[str, Any]) -> str:
    """The claim "the kernel contracts the spectrum" in one sentence, either way."""
    if not verdict:
        return "This model has no rotation, so there is no kernel to contract anything."
    norm, condition, rank = (_spelt(verdict[f"{name}_ratio"]) for name in ("contraction", "condition", "rank"))
    random: Sequence[str] = [f"{kind.replace('_', ' ')} {_spelt(value)}" for kind, value in verdict["random"].items()]
    return (
        f"Multiplying by the rotary kernel shrinks the spectral norm in {verdict['contracting_heads']} of "
        f"{verdict['heads']} heads (clear of noise: {verdict['clearly_contracting_heads']} shrink, "
        f"{verdict['clearly_expanding_heads']} grow). Product over Gram matrix: norm {norm}, condition "
        f"number {condition}, effective rank {rank}; norm on Gaussian vectors: {', '.join(random)}."
    )


def _spelt(interval: Mapping[str, float]) -> str:
    return f"{interval['value']:.2f} ({interval['low']:.2f} to {interval['high']:.2f})"

"""The first token: a closed system whose trajectory later layers read (DESIGN 4.3; paper [R])."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wherefrom.analyses.jackknife import leave_one_out, standard_error
from wherefrom.analyses.sinks import THRESHOLD
from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import RunInputs
from wherefrom.capture.kernels import cap, widen
from wherefrom.capture.residual_sums import ResidualSums
from wherefrom.capture.session import run
from wherefrom.capture.sink_sums import SinkSums
from wherefrom.models.hf import Decoder
from wherefrom.progress import Progress
from wherefrom.rows import Row

VARYING = 256
"""Random first tokens behind `similarity_varying`."""
ATLAS_BATCH = 2048
"""Tokens of the vocabulary run at once, each as an input of its own."""


def first_token_rows(groups: Sequence[ResidualSums], edit: str = "none") -> list[Row]:
    """Norm at position 0, its ratio to later positions, and the similarity of the trajectory over inputs, by depth."""
    counts = torch.tensor([group.inputs for group in groups], dtype=torch.float64)
    inputs = int(counts.sum())
    n = leave_one_out(counts)
    rows = []
    for depth in sorted(groups[0].depths):
        sums = {
            name: leave_one_out(torch.stack([group.depths[depth][name].double().cpu() for group in groups]))
            for name in groups[0].depths[depth]
        }
        curves = {
            "norm": (sums["norm"] / n, "norm"),
            "norm_ratio": (sums["ratio"] / n, "ratio"),
            "similarity": ((sums["direction"].square().sum(-1) - n) / (n * (n - 1)), "cosine"),
        }
        for metric, (values, unit) in curves.items():
            error = float(standard_error(values[1:]))
            shown = error if math.isfinite(error) else None
            rows.append(Row("first_token", metric, float(values[0]), unit, inputs, shown, edit, depth))
    return rows


def trajectories(decoder: Decoder, token_ids: Tensor) -> dict[int, Tensor]:
    """Residual stream at position 0 for inputs `token_ids` (batch length), by depth: (batch dim)."""
    found: dict[int, Tensor] = {}

    def keep(depth: int, hidden: Tensor) -> None:
        found[depth] = widen(hidden[:, 0]).clone()

    inputs = RunInputs(token_ids, tuple(range(len(token_ids))), token_ids[:, 0])
    run(decoder, inputs, residual=keep)
    return found


def closed_system_rows(decoder: Decoder, token_ids: Tensor, ordinary: Tensor) -> list[Row]:
    """Position 0 in a full run against a run on that one token, and how alike different first tokens become.

    `token_ids` (inputs length): the first two are run. `ordinary`: token ids to draw varying first tokens from.
    """
    few = token_ids[:2].split(1)  # one at a time: memory stays that of a single input
    error = scale = 0.0
    for ids in few:
        full, alone = trajectories(decoder, ids), trajectories(decoder, ids[:, :1])
        error = max(error, *(float((full[k] - alone[k]).abs().max()) for k in full))
        scale = max(scale, *(float(full[k].abs().max()) for k in full))
    rows = [
        Row("first_token", "closed_system_error", error, "activation", len(few)),
        Row("first_token", "closed_system_relative", error / scale, "share", len(few)),
    ]
    generator = torch.Generator().manual_seed(0)
    chosen = ordinary[torch.randperm(len(ordinary), generator=generator)[:VARYING]]
    for depth, first in trajectories(decoder, chosen[:, None]).items():
        unit = torch.nn.functional.normalize(first.double(), dim=-1)
        count = len(unit)
        similar = float((unit.sum(0).square().sum() - count) / (count * (count - 1)))
        # Delete-one jackknife in closed form: dropping input b removes its products with all others.
        without = (unit.sum(0).square().sum() - count - 2 * (unit @ unit.sum(0) - 1)) / ((count - 1) * (count - 2))
        rows.append(
            Row(
                "first_token",
                "similarity_varying",
                similar,
                "cosine",
                count,
                float(standard_error(without)),
                layer=depth,
            )
        )
    return rows


def atlas_rows(
    decoder: Decoder, sinks: Sequence[SinkSums], residual: Sequence[ResidualSums], progress: Progress
) -> list[Row]:
    """Every token of the vocabulary as a first token: how far its norm grows and how much attention it would draw.

    `norm_ratio`: largest ratio, over depths, of its norm to the mean norm of later positions. `sink_score`: attention
    that the mean query of each sink-reading head would give its key beside the other keys' mean log-denominator,
    averaged over those heads (a mean-query estimate: exact were all queries equal).
    """
    inputs = sum(group.inputs for group in sinks)
    readers = _readers(sinks, inputs)
    later = {
        depth: float(
            sum(g.depths[depth]["norm"].sum() for g in residual) / sum(g.depths[depth]["ratio"].sum() for g in residual)
        )
        for depth in residual[0].depths
    }
    rows: list[Row] = []
    sinking = 0
    with progress.task("atlas", decoder.vocabulary) as task:
        for start in range(0, decoder.vocabulary, ATLAS_BATCH):
            ids = torch.arange(start, min(start + ATLAS_BATCH, decoder.vocabulary))
            scores: list[Tensor] = []
            ratio = torch.zeros(len(ids))

            def observe(call: AttentionCall, scores: list[Tensor] = scores) -> None:
                if call.layer in readers:
                    heads, query, others = readers[call.layer]
                    key = widen(call.key[:, :, 0])[:, heads // call.group]
                    logit = cap((key * query.to(key)).sum(-1), call.softcap)
                    scores.append(torch.sigmoid(logit - others.to(key)).cpu())

            def keep(depth: int, hidden: Tensor, ratio: Tensor = ratio) -> None:
                norm = torch.linalg.vector_norm(widen(hidden[:, 0]), dim=-1).cpu()
                torch.maximum(ratio, norm / later[depth], out=ratio)

            run(decoder, RunInputs(ids[:, None], tuple(range(len(ids))), ids), observe, residual=keep)
            score = torch.cat(scores, 1).mean(1)
            sinking += int((score >= THRESHOLD).sum())
            for token, value, norm in zip(ids.tolist(), score.tolist(), ratio.tolist(), strict=True):
                rows.append(Row("atlas", "sink_score", value, "share", inputs, token=token))
                rows.append(Row("atlas", "norm_ratio", norm, "ratio", inputs, token=token))
            task.advance(len(ids))
    rows.append(Row("atlas", "sink_tokens", float(sinking), "tokens", inputs))
    return rows


def _readers(sinks: Sequence[SinkSums], inputs: int) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Sink-reading heads per layer with their mean scaled query and the others' log-denominator; all heads if none."""
    means = {
        layer: {
            name: torch.stack([g.layers[layer][name] for g in sinks]).sum(0) / inputs
            for name in ("attention", "query", "others")
        }
        for layer in sinks[0].layers
    }
    strong = any(bool((m["attention"] >= THRESHOLD).any()) for m in means.values())
    readers = {}
    for layer, mean in means.items():
        chosen = mean["attention"] >= THRESHOLD if strong else torch.ones_like(mean["attention"], dtype=torch.bool)
        heads = torch.nonzero(chosen)[:, 0]
        if len(heads):
            readers[layer] = (heads, mean["query"][heads], mean["others"][heads])
    return readers

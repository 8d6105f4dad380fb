"""What is written beside the rows: the manifest, and the summary that `--json` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from wherefrom.analyses.leak import LeakEstimate
from wherefrom.capture.plan import LeakPlan
from wherefrom.capture.prompts import Prompts
from wherefrom.models.hf import Decoder
from wherefrom.results.versions import versions


def describe_run(decoder: Decoder, prompts: Prompts) -> dict[str, Any]:
    """The part of a manifest that every kind of run has: versions, model, inputs, parity."""
    ids = prompts.token_ids
    first = sorted(set(ids[:, 0].tolist()))
    named: dict[str, Any] = {"id": first[0]} if len(first) == 1 else {"id": None, "distinct": len(first)}
    if len(first) == 1:
        named["is_bos"] = first[0] == decoder.bos
        if decoder.tokenizer is not None:
            named["text"] = decoder.tokenizer.convert_ids_to_tokens(first[0])
    return {
        **versions("transformers"),
        "model": decoder.describe(),
        "inputs": prompts.inputs,
        "length": prompts.length,
        "origin": prompts.origin,
        "first_token": named,
        "input_token_ids": ids[:4, :64].tolist(),
        "seed": prompts.seed,
        "device": str(decoder.device),
        "dtype": str(decoder.dtype).removeprefix("torch."),
        "backend": "fused attention with log-sum-exp",
        "parity": decoder.parity,
        "excluded_rows": prompts.excluded_rows,
        "warnings": list(prompts.warnings),
    }


def build_manifest(
    decoder: Decoder,
    prompts: Prompts,
    plan: LeakPlan,
    estimates: Sequence[LeakEstimate],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Everything a reader needs to trust and repeat a trace: versions, inputs, plan, parity and closure errors."""
    return {
        **describe_run(decoder, prompts),
        **settings,
        "query_ranges": [span.text for span in plan.ranges],
        "offsets": {span.text: list(span.offsets) for span in plan.ranges},
        "bins": {span.text: span.bins for span in plan.ranges},
        "profile_stride": {span.text: span.stride for span in plan.ranges},
        "closure_max_abs": max(estimate.closure for estimate in estimates),
        "log_denominator_max_abs": max(estimate.denominator_error for estimate in estimates),
        "layers": estimates[0].layers,
    }


def summary(rows: pl.DataFrame, manifest: dict[str, Any]) -> dict[str, Any]:
    """Leak and removed fractions as nested values with standard errors, for scripts."""
    metrics = [
        "attention_leak", "shape_leak", "level_leak", "mask", "first_token", "learned_sink", "rest", "residual",
        "residual_share", "raw_logit_leak", "raw_denominator_leak", "raw_interaction",
    ]  # fmt: skip
    leak = rows.filter((pl.col("analysis") == "leak") & pl.col("head").is_null() & pl.col("offset").is_null())
    table: dict[tuple[str, str, int | str], dict[str, Any]] = {}
    for row in leak.iter_rows(named=True):
        if row["metric"] in metrics:
            layer = "all" if row["layer"] is None else row["layer"]
            place = (row["edit"], row["query_range"], layer)
            entry = table.setdefault(place, dict(zip(("edit", "query_range", "layer"), place, strict=True)))
            entry[row["metric"]] = {"value": _number(row["value"]), "stderr": _number(row["stderr"])}
    removed = rows.filter((pl.col("analysis") == "removed") & pl.col("layer").is_null())
    removed = removed.select("edit", "query_range", "metric", "value", "stderr")
    return {
        "model": manifest["model"]["source"],
        "parity_max_abs": _number(manifest["parity"].get("max_abs")),
        "closure_max_abs": _number(manifest["closure_max_abs"]),
        "seconds": manifest["seconds"],
        "leak": list(table.values()),
        "removed": [
            {**row, "value": _number(row["value"]), "stderr": _number(row["stderr"])} for row in removed.to_dicts()
        ],
    }


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity: a share of nothing is null."""
    return value if value is not None and math.isfinite(value) else None

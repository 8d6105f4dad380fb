"""Attention sinks: which heads read position 0, and what they read there (DESIGN 4.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wherefrom.analyses.jackknife import leave_one_out, standard_error
from wherefrom.capture.sink_sums import SinkSums
from wherefrom.rows import Row

THRESHOLD = 0.3
"""Mean attention to key 0 from which a head counts as sink-reading (Gu et al., arXiv 2410.10781)."""
UNITS = {
    "sink_attention": "share",
    "value_norm_ratio": "ratio",
    "sink_constancy": "cosine",
    "learned_sink_share": "share",
}


def sink_replicates(groups: Sequence[SinkSums]) -> dict[int, dict[str, Tensor]]:
    """Per layer and metric: (1 + groups, head), the estimate and then the jackknife replicates.

    `sink_attention`: mean attention to key 0. `value_norm_ratio`: norm of value 0 over the mean norm of the others.
    `sink_constancy`: how alike the head's contribution from key 0 is over inputs, (mean product of two different
    inputs) / (mean squared norm): 1 when constant, 0 when unrelated. `learned_sink_share`: attention that a learned
    sink logit takes.
    """
    n = leave_one_out(torch.tensor([group.inputs for group in groups], dtype=torch.float64)).view(-1, 1)
    results: dict[int, dict[str, Tensor]] = {}
    for layer in sorted(groups[0].layers):
        sums = {
            name: leave_one_out(torch.stack([group.layers[layer][name].double().cpu() for group in groups]))
            for name in groups[0].layers[layer]
        }
        total = sums["contribution"].square().sum(-1)
        squares = sums["square_contribution"]
        results[layer] = {
            "sink_attention": sums["attention"] / n,
            "value_norm_ratio": sums["value_ratio"] / n,
            "sink_constancy": (total - squares) / (n - 1) / squares,
        }
        if "learned_sink" in sums:
            results[layer]["learned_sink_share"] = sums["learned_sink"] / n
    return results


def sink_rows(groups: Sequence[SinkSums], edit: str = "none") -> list[Row]:
    """Sink metrics per head, their mean over heads and layers, and the number of sink-reading heads."""
    inputs = sum(group.inputs for group in groups)
    replicates = sink_replicates(groups)
    rows = []
    for layer, metrics in replicates.items():
        for metric, values in metrics.items():
            for head, error in enumerate(standard_error(values[1:]).tolist()):
                value = float(values[0, head])
                if math.isfinite(value):  # a head that never looks at key 0 has no constancy
                    rows.append(Row("sinks", metric, value, UNITS[metric], inputs, _known(error), edit, layer, head))
    for metric in UNITS:
        present = [metrics[metric] for metrics in replicates.values() if metric in metrics]
        if present and metric in {"sink_attention", "learned_sink_share"}:
            mean = torch.cat(present, 1).mean(1)
            error = float(standard_error(mean[1:]))
            rows.append(Row("sinks", metric, float(mean[0]), UNITS[metric], inputs, _known(error), edit))
    heads = torch.cat([metrics["sink_attention"] for metrics in replicates.values()], 1) >= THRESHOLD
    count = heads.double().sum(1)
    rows.append(
        Row("sinks", "sink_heads", float(count[0]), "heads", inputs, _known(float(standard_error(count[1:]))), edit)
    )
    return rows


def _known(error: float) -> float | None:
    return error if math.isfinite(error) else None

"""Logit split: how much of the attention logits is content, how much position, and of which kind (DESIGN 4.5).

At the vectors that enter the dot product, before rotation and after any q/k normalisation, q = content + position, with
position(i) the input-mean at index i minus the grand mean. An input's own vectors are left out of the mean that it is
compared with, so that no sampling noise counts as position. All variances and covariances are those of row-centred
logits (softmax cannot see a row constant), every query of the plan weighing the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.capture.query_rows import OffsetFit
from wherefrom.capture.rotation import Rotation
from wherefrom.capture.split_sums import band_products

TERMS = ("content_content", "content_position", "position_content", "position_position")
"""Query part, then key part: G_{qc,kc}, G_{qc,kp}, G_{qp,kc}, G_{qp,kp} of paper [G], each turned."""
SHARES = (*(f"{term}_share" for term in TERMS), "turned_mean_share")
"""The four add up to 1. `turned_mean`: what the grand-mean query and key alone give once turned, a part of
content_content; it is the position that a rotation makes out of a constant."""
MEANS = ("toeplitz_share", "absolute_share", "content_share", "first_key_share", "positional_share")
"""toeplitz + absolute + content = 1. `first_key`: the part of absolute that lies on key 0. `positional`: toeplitz +
absolute, the share that is the same for every input."""
BAND_PARTS = ("content", "turned_mean", "position")
"""Per band: content-content without the turned mean, the turned mean, and the three terms with position. They add up to
the band's share."""
CLASS_SHARE = 2 / 3
"""Rule: a head is `positional` when at least this share of its logit variance is the same for every input
(positional_share), `content` when at least this share differs between inputs (content_share), else `mixed`."""
CLASSES = ("positional", "content", "mixed")
RULE = (
    f"positional: positional_share >= {CLASS_SHARE:.2f}; content: content_share >= {CLASS_SHARE:.2f}; "
    "mixed: every other head (shares of the row-centred logit variance)"
)


@dataclass
class LayerSplit:
    """Estimates of one layer: index 0 of every first axis, then one jackknife replicate per group."""

    heads: dict[str, Tensor]
    """Metric -> (1 + groups, head): SHARES, MEANS and `logit_variance`."""
    profile: Tensor
    """(1 + groups, head, offset), nats: the function of the offset that explains most, its weighted mean 0."""
    bands: dict[str, Tensor]
    """`<part>` of BAND_PARTS, `amplitude`, `phase`, `norm` -> (1 + groups, head, band)."""
    unturned: dict[str, Tensor]
    """`<part>` of BAND_PARTS -> (1 + groups, head): the dimensions that do not turn."""
    frequencies: Tensor
    """(band,), radians per token."""
    low: int
    """Offset of the profile's first entry."""

    def classes(self) -> list[str]:
        """Class of every head by RULE; empty for a head whose logits do not vary."""
        found = []
        for head in range(self.heads["content_share"].shape[1]):
            positional, content = (float(self.heads[n][0, head]) for n in ("positional_share", "content_share"))
            if positional != positional:
                found.append("")
            elif positional >= CLASS_SHARE:
                found.append("positional")
            else:
                found.append("content" if content >= CLASS_SHARE else "mixed")
        return found


def estimate_layer(sums: Mapping[str, Tensor], fit: OffsetFit, turns: tuple[Rotation, Rotation]) -> LayerSplit:
    """One estimate (no replicates: the first axis has length 1) from the sums of one layer (`SplitSums.without`)."""
    n = float(sums["inputs"])
    names = ("query", "key", "rows", "by_key", "by_query", "by_dim")
    query, key, rows, by_key, by_query, by_dim = (sums[name].double() for name in names)
    group = query.shape[0] // key.shape[0]
    key = key.repeat_interleave(group, 0)
    query_mean, key_mean = sums["query_mean"] / n, sums["key_mean"].repeat_interleave(group, 0) / n
    positions = fit.query
    turned_query = turns[0].apply(query_mean.unsqueeze(1).expand_as(query), positions)
    turned_key = turns[1].apply(key_mean.unsqueeze(1).expand_as(key))

    # Position parts from the other inputs: (sum - own) / (n - 1) - turned grand mean. `a` and `c` hold what all inputs
    # share of that; the own vector is taken off inside each product, which leaves multiples of the contractions.
    a, c = query / (n - 1) - turned_query, key / (n - 1) - turned_key
    whole_position = (by_key * c).sum(1) - by_dim / (n - 1)
    position_whole = (by_query * a).sum(1) - by_dim / (n - 1)
    position_position = (a * (rows @ c)).sum(1) - (by_key * c).sum(1) / (n - 1) - (a * by_query).sum(1) / (n - 1)
    position_position = position_position + by_dim / (n - 1) ** 2
    turned_mean = (turned_query * (rows @ turned_key)).sum(1)
    terms = {
        "content_content": by_dim - whole_position - position_whole + position_position,
        "content_position": whole_position - position_position,
        "position_content": position_whole - position_position,
        "position_position": position_position,
    }
    variance = by_dim.sum(-1) / n
    total = variance * n
    heads = {f"{term}_share": value.sum(-1) / total for term, value in terms.items()}
    heads["turned_mean_share"] = turned_mean.sum(-1) / total
    heads |= {name: value / variance for name, value in _mean_parts(sums, rows, fit, n, variance).items()}
    heads["logit_variance"] = variance

    by_part = {
        "content": terms["content_content"] - turned_mean,
        "turned_mean": turned_mean,
        "position": terms["content_position"] + terms["position_content"] + terms["position_position"],
    }
    still = ~turns[0].turns
    real, imaginary = turns[0].pairs[:, 0], turns[0].pairs[:, 1]
    bands = {p: (value[:, real] + value[:, imaginary]) / total[:, None] for p, value in by_part.items()}
    product = band_products(turns[0], sums["query_mean"], sums["key_mean"].repeat_interleave(group, 0))
    product = (product - torch.complex(sums["mean_real"], sums["mean_imaginary"])) / (n * (n - 1))
    bands |= {"amplitude": product.abs(), "phase": product.angle()}
    bands["norm"] = sums["query_norm"] * sums["key_norm"].repeat_interleave(group, 0) / n**2
    return LayerSplit(
        {name: value[None].cpu() for name, value in heads.items()},
        fit.profile(sums["offsets"])[None].cpu() / n,
        {name: value[None].cpu() for name, value in bands.items()},
        {p: (value[:, still].sum(-1) / total)[None].cpu() for p, value in by_part.items()},
        turns[0].frequencies.cpu(),
        fit.low,
    )


def _mean_parts(
    sums: Mapping[str, Tensor], rows: Tensor, fit: OffsetFit, n: float, variance: Tensor
) -> dict[str, Tensor]:
    """Variance of the input-mean logits and its parts, nats squared, from pairs of different inputs: (head,) each."""
    pairs = n * (n - 1)
    scale = torch.where(fit.weight > 0, 1 / fit.weight.clamp(min=1e-300), 0.0)[:, None]
    mean = ((rows.square() * scale).sum((1, 2)) - variance * n) / pairs
    profile = fit.profile(sums["offsets"])
    toeplitz = ((profile * sums["offsets"]).sum(-1) - sums["offset_square"]) / pairs
    left = rows[..., 0] * scale[:, 0] - fit.at_first_key(profile)
    first = ((left.square() * fit.weight * fit.visible[:, 0]).sum(-1) - sums["first_square"]) / pairs
    return {
        "toeplitz_share": toeplitz,
        "absolute_share": mean - toeplitz,
        "content_share": variance - mean,
        "first_key_share": first,
        "positional_share": mean,
    }


def with_replicates(estimates: list[LayerSplit]) -> LayerSplit:
    """One LayerSplit from the estimate (first) and its leave-one-group-out replicates."""

    def joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    first = estimates[0]
    return LayerSplit(
        joined([e.heads for e in estimates]),
        torch.cat([e.profile for e in estimates]),
        joined([e.bands for e in estimates]),
        joined([e.unturned for e in estimates]),
        first.frequencies,
        first.low,
    )

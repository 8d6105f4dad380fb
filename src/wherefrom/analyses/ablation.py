"""What an ablation is, and what the ablated head hands on instead (DESIGN 4.6).

A head is ablated before the output projection, so that only this head goes and the projection's bias stays. An ablation
is a value handed to one evaluation: nothing of the model is changed, and the order of ablations cannot matter.

- `zero`: the head hands on 0;
- `mean`: its mean output over all examples given and their real tokens, the same vector for every token;
- `resample`: its output on another example, a fixed permutation without fixed points drawn from the seed, among
  examples of the same length where there are several; token t gets the donor's token t, modulo the donor's length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from wherefrom.capture.head_projection import HeadProjection
from wherefrom.errors import BadInput

How = Literal["zero", "mean", "resample"]
HOWS: tuple[How, ...] = get_args(How)


@dataclass(frozen=True, slots=True)
class Ablation:
    """Some query heads of one layer, and what they hand on instead."""

    layer: int
    """Layer index from 0."""
    heads: tuple[int, ...]
    """Query heads, from 0."""
    how: How = "zero"
    """`zero`, `mean` or `resample`."""


def check_how(how: str) -> None:
    """Raise BadInput unless `how` names an ablation."""
    if how not in HOWS:
        raise BadInput(f"There is no ablation '{how}'; use one of {', '.join(HOWS)}.")


def check_ablations(projections: Mapping[int, HeadProjection], ablations: Sequence[Ablation]) -> None:
    """Raise BadInput for a layer or head that is not there, or a head that is named twice."""
    seen: set[tuple[int, int]] = set()
    for ablation in ablations:
        check_how(ablation.how)
        if ablation.layer not in projections:
            raise BadInput(f"There is no attention layer {ablation.layer}; there are {sorted(projections)}.")
        heads = projections[ablation.layer].heads
        for head in ablation.heads:
            if not 0 <= head < heads:
                raise BadInput(f"Layer {ablation.layer} has no head {head}: it has {heads}, counted from 0.")
            if (ablation.layer, head) in seen:
                raise BadInput(f"Head {head} of layer {ablation.layer} is ablated twice; name it once.")
            seen.add((ablation.layer, head))


def donors(lengths: Tensor, seed: int) -> Tensor:
    """Which example each one takes its outputs from: a permutation without fixed points, (example,).

    Examples are shuffled from the seed, ordered by length, and each takes the next one of its length; an example that
    is alone with its length joins the next longer ones. Raises BadInput for fewer than two examples.
    """
    if len(lengths) < 2:
        raise BadInput("Resampling takes a head's output from another example, so it needs at least two; give more.")
    lengths = lengths.cpu()
    shuffled = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    order = shuffled[lengths[shuffled].argsort(stable=True)]
    starts = [0, *((lengths[order][1:] != lengths[order][:-1]).nonzero()[:, 0] + 1).tolist(), len(order)]
    edges = [0]
    for edge in starts[1:]:
        if edge - edges[-1] >= 2:
            edges.append(edge)
    edges[-1] = len(order)  # a last example that is alone joins those before it
    found = torch.empty_like(order)
    for low, high in zip(edges, edges[1:], strict=False):
        found[order[low:high]] = order[low:high].roll(-1)
    return found


def donated(outputs: Tensor, donor_lengths: Tensor, length: int) -> Tensor:
    """Donors' outputs (batch donor_length width), repeated behind their ends: (batch length width)."""
    place = torch.arange(length, device=outputs.device) % donor_lengths[:, None]
    return outputs.gather(1, place[..., None].expand(-1, -1, outputs.shape[-1]))

"""Deposit index: does one head of a layer carry what the layer does (DESIGN 4.6)?

Per layer, with d_h the mean drop of head h over examples and p_h = max(d_h, 0) / Σ max(d, 0):

- `largest_drop`, `second_drop`: the two largest d_h; `leading_head`: the index of the first;
- `largest_share`: p of the leading head; `effective_heads`: 1 / Σ p², 1 for a single head, H for H equal ones. A
  negative drop (the layer does better without the head) counts as 0 in p: it deposits nothing;
- `single_head_deposit`: 1 where the largest drop is at least 0.3 and at least twice the second, in the estimate and in
  at least 97.5 % of bootstrap draws over examples, which is what "beyond noise" means here; 0 otherwise.

Standard errors are those of the bootstrap. One set of draws serves all heads, so that differences between them are
paired. Source: the single-head deposit pattern of Gu et al., arXiv 2505.13027, section 5; the index is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.analyses.head_map import HeadMap
from wherefrom.rows import Row

DRAWS = 1000
"""Bootstrap draws."""
LEAST, TIMES, SURE = 0.3, 2.0, 0.975
"""The smallest drop that counts, how many times the second it must be, and in which share of draws."""


@dataclass(frozen=True)
class Deposit:
    """The deposit index of one layer, or of one bootstrap draw of it: (draw,) each."""

    largest: Tensor
    second: Tensor
    share: Tensor
    effective: Tensor

    @property
    def holds(self) -> Tensor:
        """Whether both conditions of the verdict hold."""
        return (self.largest >= LEAST) & (self.largest >= TIMES * self.second)


def deposit_index(drops: Tensor) -> Deposit:
    """The index of mean drops (draw head). A layer with one head has a second drop of 0."""
    ordered = drops.sort(1, descending=True).values
    second = ordered[:, 1] if drops.shape[1] > 1 else torch.zeros_like(ordered[:, 0])
    positive = drops.clamp(min=0)
    total = positive.sum(1)
    share = positive / total[:, None]
    none = total == 0
    return Deposit(
        ordered[:, 0],
        second,
        share.max(1).values.masked_fill(none, float("nan")),
        (1 / share.square().sum(1)).masked_fill(none, float("nan")),
    )


def bootstrap_means(values: Tensor, draws: int = DRAWS, seed: int = 0) -> Tensor:
    """Means of (head example) over examples drawn with replacement: (draw head), the same draws for every head."""
    examples = values.shape[1]
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, examples, (draws, examples), generator=generator)
    weight = torch.zeros(draws, examples, dtype=values.dtype)
    weight.scatter_add_(1, index, torch.ones(draws, examples, dtype=values.dtype))
    return weight @ values.T / examples


def deposit_rows(found: HeadMap, draws: int = DRAWS, seed: int = 0) -> list[Row]:
    """Rows of analysis `deposit` per layer, `edit` = how.

    A checkpoint, which is scored by its loss, has `largest_rise` and `second_rise` in nats in place of drops, and no
    verdict: its 0.3 is a matter of accuracy.
    """
    rows: list[Row] = []
    judged = found.metric == "drop"
    name, unit = ("drop", "share") if judged else ("rise", "nats")
    for layer, values in found.effect().items():
        means = values.mean(1)[None]
        whole, again = deposit_index(means), deposit_index(bootstrap_means(values, draws, seed))

        def write(metric: str, value: Tensor, unit: str, drawn: Tensor | None, layer: int = layer) -> None:
            if bool(torch.isfinite(value)):
                error = None if drawn is None else float(drawn[torch.isfinite(drawn)].std())
                rows.append(Row("deposit", metric, float(value), unit, found.examples, error, found.how, layer))

        write(f"largest_{name}", whole.largest[0], unit, again.largest)
        write(f"second_{name}", whole.second[0], unit, again.second)
        write("largest_share", whole.share[0], "share", again.share)
        write("effective_heads", whole.effective[0], "heads", again.effective)
        write("leading_head", means.argmax(1)[0].double(), "index", None)
        if judged:
            sure = float(again.holds.double().mean()) >= SURE
            write("single_head_deposit", torch.tensor(float(bool(whole.holds[0]) and sure)), "flag", None)
    return rows

"""Heads: what is lost without each of them (DESIGN 4.6).

Every head of every layer is ablated alone, before the output projection, on the same held-out examples. `drop` is
accuracy lost, `loss_rise` loss gained; a checkpoint is scored by its next-token loss per input.
"""

from __future__ import annotations

from wherefrom.analyses.ablation import check_how
from wherefrom.analyses.head_map import HeadMap
from wherefrom.analyses.heads_toy import BATCH, toy_map
from wherefrom.models.toy import ToyTransformer
from wherefrom.tasks.base import Examples


def ablation_map(
    model: ToyTransformer, data: Examples, how: str = "zero", seed: int = 0, batch: int = BATCH
) -> HeadMap:
    """Every head of every layer of a model of the lab ablated alone, on held-out `data`.

    `how`: `zero`, `mean` or `resample` (the permutation from `seed`); `batch`: sequences run at once. The model is
    bit-identical afterwards. Raises BadInput for an unknown ablation.
    """
    check_how(how)
    return toy_map(model, data, how, seed, batch)

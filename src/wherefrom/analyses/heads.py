"""Heads: what is lost without each of them (DESIGN 4.6).

Every head of every layer is ablated alone, before the output projection, on the same held-out examples. `drop` is
accuracy lost, `loss_rise` loss gained; a checkpoint is scored by its next-token loss per input.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wherefrom.analyses.ablation import check_how
from wherefrom.analyses.head_map import HeadMap, PerExample
from wherefrom.analyses.heads_checkpoint import CheckpointAblation
from wherefrom.analyses.heads_toy import BATCH, toy_map
from wherefrom.models.hf import Decoder
from wherefrom.models.toy import ToyTransformer
from wherefrom.tasks.base import Examples

InputLosses = tuple[float, dict[str, dict[int, Tensor]]]
"""What `CheckpointAblation.one_input` gives."""


def ablation_map(
    model: ToyTransformer, data: Examples, how: str = "zero", seed: int = 0, batch: int = BATCH
) -> HeadMap:
    """Every head of every layer of a model of the lab ablated alone, on held-out `data`.

    `how`: `zero`, `mean` or `resample` (the permutation from `seed`); `batch`: sequences run at once. The model is
    bit-identical afterwards. Raises BadInput for an unknown ablation.
    """
    check_how(how)
    return toy_map(model, data, how, seed, batch)


def checkpoint_map(
    decoder: Decoder, token_ids: Tensor, how: str = "zero", seed: int = 0, layers: Sequence[int] | None = None
) -> HeadMap:
    """Every head of some layers (all by default) of a checkpoint ablated alone, on `token_ids` (input length).

    Raises BadInput for an unknown ablation or layer, or a family whose heads are not apart anywhere.
    """
    check_how(how)
    ablation = CheckpointAblation(decoder, token_ids, [how], seed, layers)
    return joined(how, [ablation.one_input(index) for index in range(len(token_ids))])


def joined(how: str, found: Sequence[InputLosses]) -> HeadMap:
    """The map of one kind of ablation from what was found input by input."""
    base = PerExample(torch.tensor([loss for loss, _ in found], dtype=torch.float64))
    layers = found[0][1][how]
    return HeadMap(how, base, {k: torch.stack([one[1][how][k] for one in found], 1) for k in layers})

"""The logit split as rows: per head, per layer, over all; per rotary band; and the class of every head."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wherefrom.analyses.jackknife import standard_error
from wherefrom.analyses.split import BAND_PARTS, CLASS_SHARE, CLASSES, MEANS, SHARES, LayerSplit
from wherefrom.rows import Row

BAND_METRICS = {f"band_{part}_share": part for part in BAND_PARTS}


class _Writer:
    """Writes rows of one edit; values that no data stand behind are left out."""

    def __init__(self, inputs: int, edit: str) -> None:
        self.inputs, self.edit = inputs, edit
        self.rows: list[Row] = []

    def __call__(self, analysis: str, metric: str, unit: str, replicates: Tensor, *axes: str, **where: Any) -> None:
        """One row per entry of replicates (1 + groups, ...); `axes` name the columns of the axes behind the first."""
        values = replicates[0].reshape(-1).tolist()
        if len(replicates) > 2:
            errors = standard_error(replicates[1:]).reshape(-1).tolist()
        else:
            errors = [math.nan] * len(values)
        places = itertools.product(*(range(size) for size in replicates.shape[1:]))
        for value, error, place in zip(values, errors, places, strict=True):
            if math.isfinite(value):
                known = error if math.isfinite(error) else None
                at = {**where, **dict(zip(axes, place, strict=True))}
                self.rows.append(Row(analysis, metric, value, unit, self.inputs, known, self.edit, **at))


def split_rows(
    layers: Mapping[int, LayerSplit], inputs: int, edit: str, query_range: str, offsets: Sequence[int]
) -> list[Row]:
    """All rows of analysis `split` and `bands` for one edit.

    Rows of a layer are means over heads, rows without a layer means over heads and layers. Head classes are rows
    `class_positional`, `class_content`, `class_mixed` (value 1, one per head), counted in `positional_heads` and so on;
    `class_rule_positional` and `class_rule_content` carry the thresholds.
    """
    write = _Writer(inputs, edit)
    where: dict[str, Any] = {"query_range": query_range}
    metrics = {**dict.fromkeys((*SHARES, *MEANS), "share"), "logit_variance": "nats2"}
    for metric, unit in metrics.items():
        for layer, found in layers.items():
            write("split", metric, unit, found.heads[metric], "head", layer=layer, **where)
            write("split", metric, unit, found.heads[metric].nanmean(1), layer=layer, **where)
        everywhere = torch.stack([found.heads[metric].nanmean(1) for found in layers.values()])
        write("split", metric, unit, everywhere.nanmean(0), **where)
    _class_rows(write, layers, where)
    for layer, found in layers.items():
        for offset in offsets:
            column = offset - found.low
            if 0 <= column < found.profile.shape[2]:
                curve = found.profile[:, :, column]
                write("split", "toeplitz_profile", "nats", curve, "head", layer=layer, offset=offset, **where)
        _band_rows(write, layer, found, where)
    return write.rows


def _class_rows(write: _Writer, layers: Mapping[int, LayerSplit], where: dict[str, Any]) -> None:
    counts: dict[str, int] = dict.fromkeys(CLASSES, 0)
    for layer, found in layers.items():
        for head, name in enumerate(found.classes()):
            if name:
                counts[name] += 1
                write("split", f"class_{name}", "class", torch.ones(1), layer=layer, head=head, **where)
    for name, count in counts.items():
        write("split", f"{name}_heads", "heads", torch.tensor([float(count)]), **where)
    for name in ("positional", "content"):
        write("split", f"class_rule_{name}", "share", torch.tensor([CLASS_SHARE], dtype=torch.float64), **where)


def _band_rows(write: _Writer, layer: int, found: LayerSplit, where: dict[str, Any]) -> None:
    share = torch.stack([found.bands[part] for part in BAND_PARTS]).sum(0)
    curves = {"band_share": ("share", share)}
    curves |= {metric: ("share", found.bands[part]) for metric, part in BAND_METRICS.items()}
    curves |= {"band_amplitude": ("nats", found.bands["amplitude"]), "band_norm": ("nats", found.bands["norm"])}
    curves["band_phase"] = ("radians", _unwrapped(found.bands["phase"]))
    for metric, (unit, values) in curves.items():
        write("bands", metric, unit, values, "head", "band", layer=layer, **where)
        if unit == "share":
            write("bands", metric, unit, values.nanmean(1), "band", layer=layer, **where)
    write("bands", "band_frequency", "radians/token", found.frequencies[None], "band", layer=layer, **where)
    if found.frequencies.numel() == 0 or any(bool((v[0] != 0).any()) for v in found.unturned.values()):
        for part, values in found.unturned.items():
            write("bands", f"unturned_{part}_share", "share", values, "head", layer=layer, **where)
    _strongest(write, layer, found, where)


def _strongest(write: _Writer, layer: int, found: LayerSplit, where: dict[str, Any]) -> None:
    """Per head: the band that carries most content, and the one that carries most position."""
    if found.frequencies.numel() == 0:
        return
    position = found.bands["turned_mean"][0] + found.bands["position"][0]
    for metric, values in (("content_band", found.bands["content"][0]), ("position_band", position)):
        for head in range(values.shape[0]):
            if bool(torch.isfinite(values[head]).all()):
                band = int(values[head].argmax())
                write("bands", metric, "band", torch.tensor([float(band)]), layer=layer, head=head, band=band, **where)


def _unwrapped(phase: Tensor) -> Tensor:
    """Phases whose replicates lie on the same branch as the estimate, so that their spread means something."""
    return phase[:1] + torch.remainder(phase - phase[:1] + torch.pi, 2 * torch.pi) - torch.pi

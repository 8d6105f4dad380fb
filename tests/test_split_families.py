"""The split closes, and the rotation it undoes is the model's, in every decoder family built here."""

from __future__ import annotations

import pytest
import torch
from families import DECODERS, FLOAT32_ROTATION, decoder

import wherefrom as wf
from wherefrom.capture.query_rows import plan_rows
from wherefrom.capture.split_pass import SplitPass


def test_there_are_at_least_25_families() -> None:
    assert len(DECODERS) >= 25


@pytest.mark.parametrize("name", DECODERS)
def test_the_split_closes(name: str) -> None:
    model = wf.load(decoder(name))
    ids = torch.randint(3, 97, (4, 20), generator=torch.Generator().manual_seed(1))
    found = wf.split(model, wf.given_tokens(ids), groups=1)
    manifest = found.manifest
    assert manifest["closure_max_abs"] < 1e-10
    assert manifest["rotation_max_relative"] < (1e-6 if name in FLOAT32_ROTATION else 1e-12)
    assert not [note for note in manifest["warnings"] if "cannot be read" in note]
    variances = found.table().filter(
        (found.table()["metric"] == "logit_variance") & found.table()["head"].is_not_null()
    )
    assert len(variances) == 8
    assert variances["value"].min() > 1e-4, "logits near constant: the check would prove nothing"
    reading = SplitPass(model, (), plan_rows(20)).reading
    turning = tuple(int((reading.queries[i].call >= 0).sum()) if reading.queries else 0 for i in range(2))
    assert turning == DECODERS[name][1]

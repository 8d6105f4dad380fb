"""Shared fixtures."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)  # tiny models lose more time to waking threads than they win


@pytest.fixture(autouse=True)
def _quiet_and_repeatable() -> None:
    torch.manual_seed(0)

"""Shared fixtures."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet_and_repeatable() -> None:
    torch.manual_seed(0)

"""What must not creep in: nothing as large as L x L is ever allocated during a trace."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny
from torch.utils._python_dispatch import TorchDispatchMode

import wherefrom as wf


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage().nbytes() // max(1, value.element_size())
                self.elements = max(self.elements, min(storage, value.numel()))
        return result


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_nothing_is_as_large_as_length_squared(family: str) -> None:
    length = 2048
    model = wf.load(tiny(family, max_position_embeddings=4096, num_hidden_layers=2))
    with Largest() as watch:
        wf.trace(model, wf.random_tokens(2, length), edits=["window=4", "hide-first"])
    assert watch.elements < length * length


def test_the_watch_sees_a_square(capsys: pytest.CaptureFixture[str]) -> None:
    with Largest() as watch:
        torch.ones(64, 4) @ torch.ones(4, 64)
    assert watch.elements >= 64 * 64

"""One side of a comparison in a process of its own: `python -m benchmarks.worker SIDE LENGTH PASSES`.

Prints one JSON object: seconds per forward pass (after one warm-up pass) and the process's peak memory.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

import torch

from wherefrom.capture.edits import RunInputs
from wherefrom.capture.group import RunSums
from wherefrom.capture.plan import plan_leak
from wherefrom.models.hf import Decoder
from wherefrom.models.loading import load


def plain(decoder: Decoder, ids: torch.Tensor) -> Callable[[int], None]:
    """transformers' own fused forward pass."""
    decoder.model.set_attn_implementation("sdpa")  # type: ignore[operator]

    def step(_: int) -> None:
        with torch.no_grad():
            decoder.body(ids, use_cache=False)

    return step


def attentions(decoder: Decoder, ids: torch.Tensor) -> Callable[[int], None]:
    """transformers with output_attentions: every L x L matrix kept."""
    decoder.model.set_attn_implementation("eager")  # type: ignore[operator]

    def step(_: int) -> None:
        with torch.no_grad():
            decoder.body(ids, use_cache=False, output_attentions=True)

    return step


def trace(decoder: Decoder, ids: torch.Tensor) -> Callable[[int], None]:
    """The leak trace with its default offsets and ranges, sinks and first token included."""
    sums = RunSums(plan_leak(ids.shape[1]))

    def step(index: int) -> None:
        sums.take(decoder, RunInputs(ids, (index,), ids[:, 0]), ())

    return step


SIDES = {"plain": plain, "trace": trace, "attentions": attentions}


def main() -> None:
    """Measure one side."""
    side, length, passes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    decoder = load("smollm2")
    ids = torch.randint(3, decoder.vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    step = SIDES[side](decoder, ids)
    step(0)
    seconds = []
    for index in range(passes):
        started = time.perf_counter()
        step(index + 1)
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": min(seconds), "peak_bytes": peak}))


if __name__ == "__main__":
    main()

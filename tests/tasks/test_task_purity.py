"""Examples are a function of (settings, seed, split, index) and of nothing else."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from task_oracles import DEFAULTS, VARIANTS

from wherefrom.errors import BadInput
from wherefrom.tasks import Examples, build_task, examples
from wherefrom.tasks.base import generator_of
from wherefrom.tasks.parity import Parity, ParityConfig

CALLS = [(seed, split, index) for seed in (0, 7) for split in ("train", "test", "long") for index in (0, 1)]


def digest(batch):
    parts = (batch.token_ids, batch.lengths, batch.labels, *batch.facts.values())
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


def drawn(task, call):
    seed, split, index = call
    return digest(examples(task, 64, seed=seed, split=split, index=index))


def check_pure(task):
    """Same examples in either order, with other things drawn in between and other global states."""
    forwards = {call: drawn(task, call) for call in CALLS}
    torch.manual_seed(99)
    torch.rand(5)
    backwards = {call: drawn(task, call) for call in reversed(CALLS)}
    assert forwards == backwards
    assert len(set(forwards.values())) == len(CALLS)


@pytest.mark.parametrize("variant", DEFAULTS)
def test_every_part_differs_from_batch_to_batch(variant):
    """One part drawn from a generator of its own could repeat in every batch, and the test above would not see it."""
    task = build_task(variant)
    for other in ({"index": 1}, {"seed": 1}, {"split": "test"}):
        one, two = examples(task, 64, **{"seed": 0, **other}), examples(task, 64, seed=0)
        for name, values in one.facts.items():
            fixed = len(values.unique()) == 1
            assert torch.equal(values, two.facts[name]) == fixed
        assert one.labels.shape != two.labels.shape or not torch.equal(one.labels, two.labels)


class Leaky(Parity):
    """Takes part of its examples from the global generator."""

    def draw(self, count, generator, split="train"):
        batch = super().draw(count, generator, split)
        flip = torch.randint(0, 2, (count,))
        return Examples(batch.token_ids, batch.lengths, (batch.labels + flip) % 2, batch.facts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_order_of_drawing_does_not_matter(variant):
    if variant.startswith("parity:"):
        variant = "parity:shortest=3,longest=6"
    check_pure(build_task(variant))


def test_a_task_that_uses_the_global_generator_is_noticed():
    """Control."""
    with pytest.raises(AssertionError):
        check_pure(Leaky(ParityConfig()))


def global_numpy():
    return str(np.random.get_state())  # noqa: NPY002, the legacy state is the one that must stay as it is


@pytest.mark.parametrize("variant", DEFAULTS)
def test_global_generators_are_left_alone(variant):
    task = build_task(variant)
    before = torch.get_rng_state(), global_numpy(), random.getstate()
    for call in CALLS:
        drawn(task, call)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (global_numpy(), random.getstate())


@pytest.mark.parametrize("variant", DEFAULTS)
def test_threads_default_types_and_devices_do_not_matter(variant):
    task = build_task(variant)
    plain = [drawn(task, call) for call in CALLS]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert [drawn(task, call) for call in CALLS] == plain
    finally:
        torch.set_num_threads(threads)
    try:
        torch.set_default_dtype(torch.float64)
        assert [drawn(task, call) for call in CALLS] == plain
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert [drawn(task, call) for call in CALLS] == plain


def test_another_process_draws_the_same():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_task_purity import CALLS, DEFAULTS, build_task, drawn\n"
        "for name in reversed(DEFAULTS): print(name, *[drawn(build_task(name), call) for call in CALLS])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "5", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, os.path.dirname(__file__)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    found = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    assert found == {name: [drawn(build_task(name), call) for call in CALLS] for name in DEFAULTS}


def test_the_kind_of_number_does_not_matter_but_the_settings_do():
    task = build_task("copy")
    assert drawn(task, (np.int64(3), "train", np.int64(1))) == drawn(task, (3, "train", 1))
    assert drawn(task, (3, "train", 0)) != drawn(build_task("copy:reverse=true"), (3, "train", 0))


def test_held_out_batches_never_start_from_a_seed_of_training():
    """torch keeps 32 bits of a seed, so that many streams could otherwise meet."""
    draws = [torch.rand(4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1 + 2**32)]
    assert torch.equal(*draws)
    for part in range(500):
        seeds = [generator_of("task", part, held_out=held_out).initial_seed() for held_out in (False, True)]
        assert seeds[0] < 2**31 <= seeds[1] < 2**32


def test_examples_say_what_is_held_out():
    seeds = {}

    class Spy(Parity):
        def draw(self, count, generator, split="train"):
            seeds.setdefault(split, []).append(generator.initial_seed())
            return super().draw(count, generator, split)

    task = Spy(ParityConfig())
    for call in CALLS * 10:
        drawn(task, call)
    for part in range(40):
        drawn(task, (part, "train", part))
    assert max(seeds["train"]) < 2**31 <= min(seeds["test"] + seeds["long"])


def test_bad_requests_are_refused():
    task = build_task("parity")
    with pytest.raises(BadInput, match="no split 'dev'"):
        examples(task, 3, seed=0, split="dev")
    with pytest.raises(BadInput, match="0 examples"):
        examples(task, 0, seed=0)

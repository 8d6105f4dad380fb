"""The lab against its naive forms: `python -m benchmarks.lab [step] [heads] [checkpoint] [sweep]`.

Both sides in one process, in turn (A B A B ...), one thread; times are medians over rounds, and each pair's results are
compared before anything is timed.

step        a training step against the published model's arithmetic (attention matrices formed, rotary tables made anew
            in every layer, a mask of large negative numbers, an optimiser that loops over parameters)
heads       the ablation map of a model of the lab against one full evaluation per head
checkpoint  the same on the packaged SmolLM2, scored by its loss
sweep       many tiny trainings: time outside the training loops, as a share of the whole
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from wherefrom.analyses.ablation import Ablation
from wherefrom.analyses.heads import ablation_map
from wherefrom.analyses.heads_checkpoint import CheckpointAblation
from wherefrom.analyses.heads_toy import ablated_scores
from wherefrom.models.loading import load
from wherefrom.models.toy import ToyTransformer, loss
from wherefrom.recipes.base import Cell
from wherefrom.tasks.base import Examples, examples
from wherefrom.training.config import TrainConfig
from wherefrom.training.loop import Run, train
from wherefrom.training.scores import held_out
from wherefrom.workflows.sweep import sweep

ROUNDS = 5
MAX_LENGTH = 128
"""Tokens to which the published code pads every input."""
PUBLISHED = {"layers": 6, "heads": 16, "d_model": 256, "d_ff": 512, "memory_keys": True, "published_padding": True}


def in_turn(sides: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each side, run in turn after one warm-up each."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            started = time.perf_counter()
            side()
            if number:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken) for name, taken in times.items()}


def line(what: str, naive: float, ours: float, note: str) -> None:
    """One result."""
    print(f"{what:<52} naive {naive:8.3f} s   ours {ours:8.3f} s   {naive / ours:5.2f} x   {note}", flush=True)


def naive_logits(model: ToyTransformer, batch: Examples) -> Tensor:
    """The model's forward pass as the published code writes it, on the same weights."""
    settings = model.settings
    x = memory = model.body.embedding(batch.token_ids)
    length, dim = x.shape[1], settings.head_dim
    for block in model.body.blocks:
        attention, normed = block.attention, block.attention_norm(x)
        source = memory if settings.memory_keys else normed
        apart = []
        for projection, given in ((attention.query, normed), (attention.key, source), (attention.value, source)):
            apart.append(projection(given).view(*x.shape[:2], settings.heads, dim).permute(0, 2, 1, 3))
        query, key, value = rotated(apart[0]), rotated(apart[1]), apart[2]
        logits = torch.matmul(query, key.transpose(-1, -2)) / dim**0.5
        if not settings.published_padding:
            hidden = torch.arange(length)[None] >= batch.lengths[:, None]
            logits = logits.masked_fill(hidden[:, None, None], -1e9)
        weights = F.dropout(torch.softmax(logits, dim=-1), settings.dropout, model.training)
        mixed = torch.matmul(weights, value).permute(0, 2, 1, 3).contiguous().view(*x.shape)
        x = x + attention.output(mixed)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return model.read(model.body.norm(x), batch.lengths)


def rotated(x: Tensor) -> Tensor:
    """RoPE with the two halves of a head paired, its table made anew."""
    length, dim = x.shape[-2:]
    frequency = 10000.0 ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.arange(length).float()[:, None] * frequency[None]
    cos, sin = torch.cat((angle.cos(), angle.cos()), -1), torch.cat((angle.sin(), angle.sin()), -1)
    half = torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), -1)
    return x * cos + half * sin


def step() -> None:
    """Training steps of the published model: its own arithmetic pads every input to the longest possible one."""
    one_step("as published", {})
    one_step("clean", {"memory_keys": False, "published_padding": False})


def one_step(name: str, more: dict[str, bool]) -> None:
    """Both sides of one setting."""
    config = TrainConfig(
        task="distance:max_between=70,side=25",
        encoding="rope",
        learning_rate=1e-30,  # both sides stay at the same weights
        **{**PUBLISHED, **more},
    )
    run = Run(config, torch.device("cpu"), None, {})
    batch = examples(run.task, config.batch, config.seed, "train", 0)
    padded = Examples(F.pad(batch.token_ids, (0, MAX_LENGTH - batch.token_ids.shape[1])), batch.lengths, batch.labels)
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-30, foreach=False)

    def published(given: Examples = padded) -> float:
        optimizer.zero_grad()
        value = loss(naive_logits(run.model, given), given.labels)
        value.backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), config.clip)
        optimizer.step()
        return value.item()

    # Padding that takes part changes the result with its amount: the same amount on both sides for the comparison.
    apart = abs(published(batch) - run.step(0))
    assert apart < 1e-5, f"the losses differ by {apart}"
    times = in_turn({"naive": published, "ours": lambda: run.step(0)})
    what = f"training step, {name}, batch {config.batch} of at most {MAX_LENGTH}"
    line(what, *times.values(), f"loss within {apart:.0e} nats")


def heads() -> None:
    """Ablation maps of models of the lab."""
    one_map("3 layers x 8 heads", {"layers": 3, "heads": 8, "d_model": 128})
    one_map("6 layers x 16 heads", {"layers": 6, "heads": 16, "d_model": 256}, examples=64)


def one_map(name: str, sizes: dict[str, int], examples: int = 300) -> None:
    """Both sides of one size."""
    config = TrainConfig(task="distance:max_between=30,side=5", encoding="rope", **sizes)
    task = config.build_task()
    torch.manual_seed(0)
    model = ToyTransformer(config.model(task))
    data = held_out(task, examples)
    places = [(layer, head) for layer in range(sizes["layers"]) for head in range(sizes["heads"])]

    def plain() -> Tensor:
        found = [ablated_scores(model, data, [Ablation(layer, (head,))]).correct for layer, head in places]
        return torch.stack(found)  # type: ignore[arg-type]

    found = ablation_map(model, data).correct
    assert found is not None
    assert torch.equal(torch.cat([found[layer] for layer in sorted(found)]), plain()), "the maps differ"
    times = in_turn({"naive": plain, "ours": lambda: ablation_map(model, data)}, 3)
    line(f"ablation map, {name}, distance", *times.values(), "same accuracies to the last example")


def checkpoint() -> None:
    """The ablation map of some layers of SmolLM2."""
    decoder = load("smollm2")
    ids = torch.randint(3, decoder.vocabulary, (1, 128), generator=torch.Generator().manual_seed(0))
    ablation = CheckpointAblation(decoder, ids, ["zero"], layers=[2, 10, 18, 26])

    def plain() -> Tensor:
        return torch.cat([ablation.scores([Ablation(k, (h,))]) for k in ablation.layers for h in range(9)])

    def ours() -> Tensor:
        return torch.cat([*ablation.one_input(0)[1]["zero"].values()])

    apart = float((plain() - ours()).abs().max())
    assert apart < 1e-4, f"the maps differ by {apart}"
    times = in_turn({"naive": plain, "ours": ours}, 2)
    line("ablation map, SmolLM2, layers 2, 10, 18, 26", *times.values(), f"losses within {apart:.0e} nats")


def overhead(cells: int = 500) -> None:
    """Tiny trainings in a sweep."""
    config = TrainConfig(task="distance:max_between=4,side=2", layers=1, steps=20, test_examples=100, evaluations=1)
    made = [
        Cell({"task": "distance"}, TrainConfig(**{**config.to_dict(), "seed": seed}), (), ()) for seed in range(cells)
    ]
    train(config)  # warm-up
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        sweep(made, Path(folder) / "run", "overhead", workers=1)
        whole = time.perf_counter() - started
    started = time.perf_counter()
    for cell in made[:50]:
        train(cell.config)
    alone = (time.perf_counter() - started) * cells / 50
    print(
        f"sweep of {cells} trainings of 20 steps, one worker: {whole:.1f} s, the trainings alone {alone:.1f} s, "
        f"overhead {whole / alone - 1:.1%}",
        flush=True,
    )


PARTS = {"step": step, "heads": heads, "checkpoint": checkpoint, "sweep": overhead}


def main() -> None:
    """Run the parts asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all without a choice")
    torch.set_num_threads(1)
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()

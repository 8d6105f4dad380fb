"""The training loop. What happens at a step depends on the settings and the step alone, so a run resumes exactly."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch

from wherefrom.errors import BadInput
from wherefrom.models.loading import resolve_device
from wherefrom.models.toy import ToyTransformer, loss
from wherefrom.models.toy_store import load_toy, toy_files
from wherefrom.progress import Progress
from wherefrom.progress import Task as Bar
from wherefrom.results.folder import RunFolder
from wherefrom.results.table import read_rows, to_table
from wherefrom.rows import Row
from wherefrom.tasks.base import IGNORED, Examples, Task, examples, generator_of
from wherefrom.training.config import TrainConfig
from wherefrom.training.manifest import training_manifest
from wherefrom.training.scores import held_out, score
from wherefrom.training.state import TrainingState

SAVE_EVERY = 20.0
"""Seconds between checkpoints of a run with a folder."""
ON_THE_WAY = 500
"""Held-out examples, at most, of the scores before the last one."""
CURVE_POINTS = 200
"""Points of the loss curve, each the mean over the steps since the one before."""
PIECES, WORTH_CUTTING = 8, 0.1
"""Pieces a padded batch is cut into on a CPU, and the share of padding from which that pays."""


@dataclass
class Training:
    """What a training run gave."""

    config: TrainConfig
    rows: pl.DataFrame
    manifest: dict[str, Any]
    model: ToyTransformer
    folder: Path | None = field(default=None)

    def table(self) -> pl.DataFrame:
        """Tidy rows, one per measurement (`.to_pandas()` works)."""
        return self.rows

    def summary(self) -> dict[str, Any]:
        """Final held-out scores with their errors, for scripts."""
        last = self.rows.filter((pl.col("step") == self.config.steps) & pl.col("offset").is_null())
        last = last.filter(pl.col("length").is_null() & pl.col("metric").is_in(list(FINAL)))
        scores = {row["metric"]: {"value": row["value"], "stderr": row["stderr"]} for row in last.to_dicts()}
        about = {key: getattr(self.config, key) for key in ("task", "encoding", "seed", "steps")}
        return {**about, "chance": self.manifest["chance"], "seconds": self.manifest["seconds"], **scores}


Measure = Callable[[ToyTransformer, Task, int], list[Row]]
"""Something to measure on the model at a score: (model, task, step) to rows. It must leave the model as it was."""
FINAL = ("train_loss", "test_loss", "test_accuracy", "long_accuracy")


def train(
    config: TrainConfig,
    out: str | Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    command: str | None = None,
    measures: Mapping[str, Measure] | None = None,
    durable: bool = True,
) -> Training:
    """Train one small model and score it on held-out data.

    `measures` are taken at every score, by name; `durable` waits for the disk at the end. With a folder the run can be
    interrupted and continued, with the numbers of an uninterrupted run on the same machine and thread count. Raises
    BadInput for settings that do not fit, a folder of another run, or a loss that is not finite.
    """
    progress = progress or Progress(quiet=True)
    target = resolve_device(device)
    identity = fingerprint(config, measures or {})
    folder = None if out is None else RunFolder(out)
    with nullcontext() if folder is None else folder.claimed(identity):
        if folder is not None and folder.finished:
            progress.say(f"'{folder.path}' already holds this run, finished; showing its results.")
            return Training(config, read_rows(folder.path), folder.manifest(), load_toy(folder.path), folder.path)
        run = Run(config, target, folder, measures or {})
        with progress.task(
            f"{config.task}, {config.encoding}, seed {config.seed}", config.steps, run.state.step
        ) as bar:
            run.go(bar)
        table = to_table(run.state.rows)
        manifest = training_manifest(config, run.task, run.model, run.state.seconds, target)
        manifest |= {"fingerprint": identity, "command": command}
        result = Training(config, table, manifest, run.model.eval())
        if folder is not None:
            for name, data in toy_files(run.model).items():
                folder.write(name, data, durable)
            folder.finish(table, manifest, durable)
            result.folder = folder.path
    return result


def fingerprint(config: TrainConfig, measures: Iterable[str] = ()) -> str:
    """Short hash of what a run is: its settings and what is measured on the way."""
    settings = json.dumps([config.to_dict(), sorted(measures)], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


class Run:
    """A training under way: what `train` runs, step by step."""

    def __init__(
        self, config: TrainConfig, device: torch.device, folder: RunFolder | None, measures: Mapping[str, Measure]
    ) -> None:
        self.measures = measures
        self.config, self.device, self.folder = config, device, folder
        self.task = config.build_task()
        with _own_randomness(config.seed, "weights"):
            self.model = ToyTransformer(config.model(self.task))
        self.model.to(device, torch.float64 if config.precision == "float64" else torch.float32)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.state = TrainingState()
        if folder is not None:
            self.state = TrainingState.restored(folder, self.model, self.optimizer) or self.state
        self.data = None if config.examples is None else examples(self.task, config.examples, config.seed)
        self.test = held_out(self.task, config.test_examples, "test")
        every = config.steps / config.evaluations
        self.score_at = {round(every * (k + 1)) for k in range(config.evaluations)} | {config.steps}
        self.curve = max(1, config.steps // CURVE_POINTS)

    def go(self, bar: Bar) -> None:
        """Run the remaining steps."""
        saved = started = time.monotonic()
        before = self.state.seconds
        if self.state.step == 0:
            self._score(0)
        while self.state.step < self.config.steps:
            step = self.state.step
            self.state.losses.append(self.step(step))
            self.state.step = step + 1
            self.state.seconds = before + time.monotonic() - started
            if self.state.step % self.curve == 0 or self.state.step == self.config.steps:
                self._close_point()
            if self.state.step in self.score_at:
                bar.note = self._score(self.state.step)
            bar.advance()
            if self.folder is not None and time.monotonic() - saved > SAVE_EVERY:
                self.state.keep(self.folder, self.model, self.optimizer)
                saved = time.monotonic()
        for row in score(self.model, held_out(self.task, self.config.test_examples, "long")).rows(
            "long", self.config.steps
        ):
            self.state.rows.append(row)

    def step(self, step: int) -> float:
        """One optimiser step on the batch of `step`; its loss, nats."""
        config = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * learning_rate_factor(config, step)
        batch = self._batch(step).to(self.device)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        found = 0.0
        with _own_randomness(config.seed, "dropout", step) if config.dropout or config.head_dropout else nullcontext():
            for piece, share in self._pieces(batch):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                    output_logits = self.model(piece.token_ids, piece.lengths).logits
                value = loss(output_logits.float() if config.precision == "bfloat16" else output_logits, piece.labels)
                (value * share).backward()
                found += float(value.detach()) * share
        if config.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        if not math.isfinite(found):
            raise BadInput(
                f"The loss became {found} at step {step} of {config.task} with {config.encoding}; "
                f"lower the learning rate ({config.learning_rate:g})."
            )
        return found

    def _pieces(self, batch: Examples) -> Iterator[tuple[Examples, float]]:
        """The batch in pieces of similar length, each cut to its longest example, with its share of the loss.

        On a CPU time goes with the number of tokens, and padding is tokens. A GPU prefers one large piece.
        """
        padding = 1 - float(batch.lengths.float().mean()) / batch.token_ids.shape[1]
        if self.device.type != "cpu" or padding < WORTH_CUTTING or not self.model.cuttable:
            yield batch, 1.0
            return
        answers = int((batch.labels != IGNORED).sum())
        for index in batch.lengths.argsort(stable=True).chunk(PIECES):
            piece = batch.take(index)
            yield piece, int((piece.labels != IGNORED).sum()) / answers

    def _batch(self, step: int) -> Examples:
        config = self.config
        if self.data is None:
            return examples(self.task, config.batch, config.seed, "train", step)
        epoch, place = divmod(step, len(self.data) // config.batch)
        order = torch.randperm(len(self.data), generator=generator_of(config.seed, "order", epoch))
        return self.data.take(order[place * config.batch : (place + 1) * config.batch])

    def _close_point(self) -> None:
        losses = torch.tensor(self.state.losses, dtype=torch.float64)
        error = float(losses.std() / len(losses) ** 0.5) if len(losses) > 1 else None
        self.state.rows.append(
            Row("training", "train_loss", float(losses.mean()), "nats", len(losses), error, step=self.state.step)
        )
        self.state.losses.clear()

    def _score(self, step: int) -> str:
        last = step == self.config.steps
        found = score(self.model, self.test if last else self.test.take(slice(0, ON_THE_WAY)))
        rows = [row for row in found.rows("test", step) if last or (row.offset is None and row.length is None)]
        self.state.rows.extend(rows)
        for measure in self.measures.values():
            self.state.rows.extend(dataclasses.replace(row, step=step) for row in measure(self.model, self.task, step))
        values = {row.metric: row.value for row in rows[:2]}
        return f"loss {values['test_loss']:.3f}, accuracy {values['test_accuracy']:.3f}"


def learning_rate_factor(config: TrainConfig, step: int) -> float:
    """Share of the peak learning rate at a step: a linear rise, then a cosine to 0 or nothing."""
    rise = config.warmup * config.steps
    if step < rise:
        return (step + 1) / (rise + 1)
    if config.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, config.steps - rise)))


@contextlib.contextmanager
def _own_randomness(*parts: object) -> Iterator[None]:
    """Randomness that is a function of `parts`; torch's global generators are as before afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(generator_of(*parts).initial_seed())
        yield

"""Head ablations, end to end: a training run scored by its task's accuracy, a checkpoint by its loss."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch

from wherefrom.analyses.ablation import HOWS, check_how, donors
from wherefrom.analyses.deposit import deposit_rows
from wherefrom.analyses.head_map import HeadMap
from wherefrom.analyses.heads import InputLosses, ablation_map, joined
from wherefrom.analyses.heads_checkpoint import CheckpointAblation
from wherefrom.capture.prompts import Prompts
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.models.toy_store import is_toy, load_toy
from wherefrom.progress import Progress
from wherefrom.results.folder import RunFolder
from wherefrom.results.table import read_rows, to_table
from wherefrom.results.versions import versions
from wherefrom.tasks.base import Examples
from wherefrom.training.config import TrainConfig
from wherefrom.training.scores import held_out
from wherefrom.workflows.heads_state import InputStore
from wherefrom.workflows.manifest import describe_run

EXAMPLES = 2000
"""Held-out examples of a task on which heads are ablated."""
SAME_ANSWER = 0.9
"""Share of donors with the example's own answer from which resampling is said to tell little."""


@dataclass
class Heads:
    """What ablating each head cost."""

    rows: pl.DataFrame
    manifest: dict[str, Any]
    folder: Path | None = field(default=None)

    def table(self) -> pl.DataFrame:
        """Tidy rows, one per measurement (`.to_pandas()` works)."""
        return self.rows

    def summary(self) -> dict[str, Any]:
        """The keys that `--json` prints."""
        layered = self.rows.filter(pl.col("layer").is_not_null())
        keys = ["edit", "layer", "head", "metric", "value", "stderr"]
        base = self.rows.filter(pl.col("layer").is_null())
        return {
            "model": self.manifest["model"]["source"],
            "score": self.manifest["score"],
            "examples": self.manifest["examples"],
            "seconds": self.manifest["seconds"],
            "whole": {row["metric"]: {"value": row["value"], "stderr": row["stderr"]} for row in base.to_dicts()},
            "heads": layered.filter(pl.col("analysis") == "heads").select(keys).to_dicts(),
            "deposit": layered.filter(pl.col("analysis") == "deposit").drop("head").select(
                [key for key in keys if key != "head"]
            ).to_dicts(),
        }  # fmt: skip


def trained_heads(
    folder: str | Path,
    hows: Sequence[str] = HOWS,
    examples: int = EXAMPLES,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
    command: str | None = None,
) -> Heads:
    """Ablate each head of a training run on held-out examples of its task.

    `hows`: kinds of ablation. Raises BadInput for a folder that holds no finished training, or other bad settings.
    """
    progress = progress or Progress(quiet=True)
    _check_hows(hows)
    if examples < 2:
        raise BadInput(f"--examples {examples} cannot give an error bar; use at least 2.")
    home = Path(folder)
    if not is_toy(home):
        raise BadInput(f"'{home}' holds no model of the lab; give a folder that `wherefrom train --out` wrote.")
    trained = RunFolder(home).manifest()
    try:
        config = TrainConfig(**trained["training"])
    except (KeyError, TypeError) as error:
        raise BadInput(f"'{home / 'manifest.json'}' does not say what was trained; train the model again.") from error
    identity = _identity({"run": trained["fingerprint"], "hows": list(hows), "examples": examples, "seed": seed})

    def measure() -> tuple[list[HeadMap], dict[str, Any]]:
        model = load_toy(home).to(device)
        data = held_out(config.build_task(), examples)
        maps = []
        with progress.task("kinds of ablation", len(hows)) as bar:
            for how in hows:
                maps.append(ablation_map(model, data, how, seed))
                bar.advance()
        about = {
            "model": {**trained["model"], "source": str(home)},
            "training": trained["training"],
            "chance": trained["chance"],
            "score": "accuracy",
            "inputs": examples,
            "seed": seed,
            "device": device,
            "warnings": _alike(data, seed) if "resample" in hows else [],
        }
        return maps, about

    return _kept(measure, out, identity, list(hows), progress, command)


def checkpoint_heads(
    decoder: Decoder,
    prompts: Prompts,
    hows: Sequence[str] = ("zero",),
    layers: Sequence[int] | None = None,
    out: str | Path | None = None,
    out_root: str | Path | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> Heads:
    """Ablate each head of a checkpoint, scored by the next-token loss of each input.

    `layers`: attention layers whose heads are ablated, all without a choice. With a folder the run can be interrupted
    and continued. Raises BadInput with one sentence for what cannot be done.
    """
    progress = progress or Progress(quiet=True)
    _check_hows(hows)
    ablation = CheckpointAblation(decoder, prompts.token_ids, hows, prompts.seed, layers)
    tokens = hashlib.sha256(prompts.token_ids.numpy().tobytes()).hexdigest()
    parts = {"model": decoder.fingerprint(), "dtype": str(decoder.dtype), "tokens": tokens, "seed": prompts.seed}
    identity = _identity({**parts, "hows": list(hows), "layers": ablation.layers})
    if out is None and out_root is not None:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", Path(decoder.source).name).strip("-.") or "model"
        out = Path(out_root) / f"{name}-heads-{identity[:8]}"

    def measure() -> tuple[list[HeadMap], dict[str, Any]]:
        store = InputStore(None if out is None else RunFolder(out))
        found: list[InputLosses] = store.restored()
        if found:
            progress.say(f"Continuing: {len(found)} of {prompts.inputs} inputs were finished before.")
        with progress.task("inputs", prompts.inputs, len(found)) as bar, store:
            for index in range(len(found), prompts.inputs):
                found.append(ablation.one_input(index))
                store.add(found)
                bar.advance()
        about = {
            **describe_run(decoder, prompts),
            "score": "loss",
            "layers": ablation.layers,
            "replayed": ablation.cuts,
        }
        return [joined(how, found) for how in hows], about

    return _kept(measure, out, identity, list(hows), progress, command)


def _kept(
    measure: Callable[[], tuple[list[HeadMap], dict[str, Any]]],
    out: str | Path | None,
    identity: str,
    hows: list[str],
    progress: Progress,
    command: str | None,
) -> Heads:
    """Measure, and keep the result in a folder where there is one."""
    folder = None if out is None else RunFolder(out)
    with nullcontext() if folder is None else folder.claimed(identity):
        if folder is not None and folder.finished:
            progress.say(f"'{folder.path}' already holds this run, finished; showing its results.")
            return Heads(read_rows(folder.path), folder.manifest(), folder.path)
        started = time.monotonic()
        maps, about = measure()
        rows = maps[0].base_rows()
        for found in maps:
            rows += [*found.rows(), *deposit_rows(found)]
        manifest = {
            "kind": "heads",
            **versions(),
            **about,
            "fingerprint": identity,
            "command": command,
            "hows": hows,
            "examples": maps[0].examples,
            "edits": [],
            "query_ranges": [],
            "threads": torch.get_num_threads(),
            "seconds": time.monotonic() - started,
        }
        result = Heads(to_table(rows), manifest)
        if folder is not None:
            folder.finish(result.rows, manifest)
            result.folder = folder.path
    return result


def _alike(data: Examples, seed: int) -> list[str]:
    """A warning where resampling tells little, because the donor's answer is the example's own."""
    given = donors(data.lengths, seed)
    same = float((data.labels[given] == data.labels).double().mean())
    if same < SAME_ANSWER:
        return []
    return [
        f"Resampling takes outputs from examples of the same length, and {same:.0%} of those have the same answer: the "
        "length gives it away, and resampling hides what heads carry (for `distance`, use same_length=true)."
    ]


def _check_hows(hows: Sequence[str]) -> None:
    if not hows:
        raise BadInput(f"No kind of ablation was chosen; name one of {', '.join(HOWS)}.")
    for how in hows:
        check_how(how)
        if list(hows).count(how) > 1:
            raise BadInput(f"The ablation '{how}' is given twice.")


def _identity(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps({"analysis": "heads", **parts}, sort_keys=True).encode()).hexdigest()[:16]

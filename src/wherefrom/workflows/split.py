"""The logit split, end to end: run inputs under edits, keep sums, estimate with error bars, hand on rows.

Means and contractions are summed over all inputs first. A jackknife replicate needs the total without one group, so
group sums are kept where they fit (KEEP bytes), and otherwise made once more in a second pass over the same inputs.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from wherefrom.analyses.closure import ClosureCheck, check_closure
from wherefrom.analyses.readout import FOLDS, readout_rows
from wherefrom.analyses.spectra import spectra_rows, verdict_sentence
from wherefrom.analyses.split import RULE, LayerSplit, estimate_layer, with_replicates
from wherefrom.analyses.split_rows import split_rows
from wherefrom.capture.edits import Edit, RunInputs, parse_edit
from wherefrom.capture.group import group_bounds
from wherefrom.capture.plan import default_offsets
from wherefrom.capture.position_sums import PositionSums
from wherefrom.capture.prompts import Prompts
from wherefrom.capture.query_rows import RowPlan, plan_rows
from wherefrom.capture.split_pass import SplitPass
from wherefrom.capture.split_sums import SplitSums
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.progress import Progress
from wherefrom.results.folder import RunFolder
from wherefrom.results.table import read_rows, to_table
from wherefrom.rows import Row
from wherefrom.workflows.manifest import describe_run
from wherefrom.workflows.split_state import SplitState
from wherefrom.workflows.split_summary import summary

GROUPS = 16
"""Jackknife groups, where there are that many inputs."""
KEEP = 768 * 2**20
"""Bytes of group sums that are kept in memory; what does not fit is run again in a second pass."""
SAVE_EVERY = 60.0
"""Seconds between saved states of an unfinished run."""
STATE_VERSION = 1


@dataclass
class Split:
    """What a split found."""

    rows: pl.DataFrame
    manifest: dict[str, Any]
    folder: Path | None = field(default=None)

    def table(self) -> pl.DataFrame:
        """Tidy rows, one per measurement (`.to_pandas()` works)."""
        return self.rows

    def summary(self) -> dict[str, Any]:
        """The keys that `--json` prints."""
        return summary(self.rows, self.manifest)

    def save(self, folder: str | Path) -> Path:
        """Write `rows.parquet` and `manifest.json` into a new folder."""
        target = RunFolder(folder)
        with target.claimed(self.manifest["fingerprint"]):
            if not target.finished:
                target.finish(self.rows, self.manifest)
        self.folder = target.path
        return target.path


@dataclass(frozen=True)
class _Job:
    decoder: Decoder
    prompts: Prompts
    runs: dict[str, tuple[Edit, ...]]
    plan: RowPlan
    bounds: list[tuple[int, int]]
    batch: int
    folder: RunFolder | None
    progress: Progress

    def inputs(self, low: int, high: int) -> RunInputs:
        """The batch of inputs `low:high`."""
        ids = self.prompts.token_ids
        return RunInputs(ids[low:high], tuple(range(low, high)), ids[:, 0], self.prompts.seed)


def split(
    decoder: Decoder,
    prompts: Prompts,
    edits: Sequence[str] = (),
    rows: int | None = None,
    out: str | Path | None = None,
    out_root: str | Path | None = None,
    groups: int = GROUPS,
    batch: int | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> Split:
    """Split attention logits into content and position, unedited and under each edit, on the same inputs.

    `rows`: most query rows, evenly spaced, all keys each; None: all up to 128 tokens, else 64. With a folder the
    run can be interrupted and continued. Raises BadInput with one sentence for what cannot be done, and CheckFailed
    where the split does not close or the rotation read is not the model's.
    """
    progress = progress or Progress(quiet=True)
    if prompts.inputs < 3:
        raise BadInput(f"{prompts.inputs} inputs cannot tell position from noise; use --inputs of at least 3.")
    runs = _parsed(decoder, prompts, edits)
    if batch is None:
        batch = max(1, (8192 if decoder.device.type == "cuda" else 512) // prompts.length)
    bounds = group_bounds(prompts.inputs, max(1, min(groups, prompts.inputs)))
    plan = plan_rows(prompts.length, rows)
    identity = _fingerprint(decoder, prompts, list(runs), plan, bounds)
    if out is None and out_root is not None:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", Path(decoder.source).name).strip("-.") or "model"
        out = Path(out_root) / f"{name}-split-{identity[:8]}"
    folder = None if out is None else RunFolder(out)
    job = _Job(decoder, prompts, runs, plan, bounds, batch, folder, progress)
    with nullcontext() if folder is None else folder.claimed(identity):
        if folder is not None and folder.finished:
            progress.say(f"'{folder.path}' already holds this run, finished; showing its results.")
            return Split(read_rows(folder.path), folder.manifest(), folder.path)
        result = _run(job, identity, command)
        if folder is not None:
            folder.finish(result.rows, result.manifest)
            result.folder = folder.path
    return result


def _parsed(decoder: Decoder, prompts: Prompts, edits: Sequence[str]) -> dict[str, tuple[Edit, ...]]:
    runs: dict[str, tuple[Edit, ...]] = {"none": ()}
    for text in edits:
        parsed = parse_edit(text)
        name = ",".join(edit.text for edit in parsed)
        if any(set(parsed) == set(run) for run in runs.values()):
            raise BadInput(f"The edit '{name}' is given twice.")
        runs[name] = parsed
        for edit in parsed:
            edit.check(decoder, prompts.length, prompts.token_ids[:, 0])
    return runs


def _run(job: _Job, identity: str, command: str | None) -> Split:
    started = time.monotonic()
    rows: list[Row] = []
    checks: dict[str, ClosureCheck] = {}
    notes: list[str] = list(job.prompts.warnings)
    passes: dict[str, int] = {}
    timings: dict[str, float] = {}
    spectra: dict[str, dict[str, Any]] = {}
    for number, (name, edits) in enumerate(job.runs.items()):
        began = time.monotonic()
        the_pass = SplitPass(job.decoder, edits, job.plan)
        notes += [note for note in the_pass.reading.notes() if note not in notes]
        state, kept, checks[name] = _sums(job, the_pass, number)
        passes[name] = 1 if len(kept) == len(job.bounds) else 2
        layers = _estimates(job, the_pass, state.total, kept)
        span = f"{job.plan.first}:{job.prompts.length}"
        rows += split_rows(layers, job.prompts.inputs, name, span, default_offsets(job.prompts.length))
        rows += readout_rows(state.positions, name, span)
        found, spectra[name] = spectra_rows(the_pass, job.prompts.token_ids, name, job.prompts.seed)
        rows += found
        timings[name] = time.monotonic() - began
    manifest = {
        **describe_run(job.decoder, job.prompts),
        "analysis": "split",
        "fingerprint": identity,
        "command": command,
        "edits": [name for name in job.runs if name != "none"],
        "batch": job.batch,
        "groups": len(job.bounds),
        "query_ranges": [f"{job.plan.first}:{job.prompts.length}"],
        "query_rows": list(job.plan.positions),
        "query_rows_exact": job.plan.exact,
        "passes": passes,
        "closure_max_abs": max(check.closure for check in checks.values()),
        "closure_allowed": max(check.allowed for check in checks.values()),
        "rotation_max_relative": max(check.rotation for check in checks.values()),
        "class_rule": RULE,
        "spectra": spectra,
        "spectra_verdict": verdict_sentence(spectra["none"]),
        "timings": timings,
        "seconds": time.monotonic() - started,
    }
    manifest["warnings"] = notes
    return Split(to_table(rows), manifest)


def _sums(job: _Job, the_pass: SplitPass, number: int) -> tuple[SplitState, dict[int, SplitSums], ClosureCheck]:
    """Sums over all inputs, the group sums that fit in memory, and the closure check."""
    where = f"state/group-sums-{number}.safetensors"
    state = SplitState.restored(job.plan, job.folder, where, job.decoder.device)
    kept: dict[int, SplitSums] = {}
    finished = job.bounds[state.done - 1][1] if state.done else 0
    if finished:
        job.progress.say(f"Continuing: {finished} of {job.prompts.inputs} inputs were finished before.")
    check: ClosureCheck | None = None
    saved, done_before = time.monotonic(), state.done
    name = list(job.runs)[number]
    try:
        with job.progress.task("inputs" if name == "none" else f"inputs, {name}", job.prompts.inputs, finished) as task:
            for group in range(state.done, len(job.bounds)):
                sums, positions = SplitSums(job.plan), PositionSums(job.plan)
                _take(job, the_pass, group, sums, positions, task)
                state.add(sums, positions, FOLDS)
                # Also with one group only: a split that does not close must not run to its end first.
                check = check or check_closure(the_pass, state.total, job.inputs(0, 1))
                if sums.size() * len(job.bounds) <= KEEP:
                    kept[group] = sums
                if job.folder is not None and time.monotonic() - saved > SAVE_EVERY:
                    job.folder.write(where, state.to_bytes())
                    saved, done_before = time.monotonic(), state.done
    finally:
        if job.folder is not None and state.done > done_before:
            job.folder.write(where, state.to_bytes())
    if check is None:  # everything was summed before an interruption
        check = check_closure(the_pass, state.total, job.inputs(0, 1))
    return state, kept, check


def _take(
    job: _Job, the_pass: SplitPass, group: int, sums: SplitSums, positions: PositionSums | None, task: Any
) -> None:
    start, stop = job.bounds[group]
    for low in range(start, stop, job.batch):
        high = min(low + job.batch, stop)
        the_pass.take(job.inputs(low, high), sums, positions)
        task.advance(high - low)


def _estimates(job: _Job, the_pass: SplitPass, total: SplitSums, kept: dict[int, SplitSums]) -> dict[int, LayerSplit]:
    """Every layer's estimate with one jackknife replicate per group; none where too few inputs would be left."""

    def estimate(layer: int, out: SplitSums | None) -> LayerSplit:
        sums = total.without(layer, out)
        if layer not in the_pass.turns:
            the_pass.take(job.inputs(0, 1), SplitSums(job.plan))  # a continued run has not met its rotations yet
        return estimate_layer(sums, the_pass.fit(total.rules[layer], job.decoder.device), the_pass.turns[layer])

    found = {layer: [estimate(layer, None)] for layer in sorted(total.layers)}
    largest = max(stop - start for start, stop in job.bounds)
    if len(job.bounds) > 1 and job.prompts.inputs - largest >= 2:
        again = [group for group in range(len(job.bounds)) if group not in kept]
        left = sum(job.bounds[group][1] - job.bounds[group][0] for group in again)
        with job.progress.task("second pass" if again else "error bars", left or len(job.bounds)) as task:
            for group in range(len(job.bounds)):
                sums = kept.get(group)
                if sums is None:
                    sums = SplitSums(job.plan)
                    _take(job, the_pass, group, sums, None, task)
                elif not again:
                    task.advance(1)
                for layer, estimates in found.items():
                    estimates.append(estimate(layer, sums))
    return {layer: with_replicates(estimates) for layer, estimates in found.items()}


def _fingerprint(
    decoder: Decoder, prompts: Prompts, runs: list[str], plan: RowPlan, bounds: list[tuple[int, int]]
) -> str:
    parts = {
        "analysis": "split",
        "state": STATE_VERSION,
        "model": decoder.fingerprint(),
        "dtype": str(decoder.dtype),
        "tokens": hashlib.sha256(prompts.token_ids.numpy().tobytes()).hexdigest(),
        "seed": prompts.seed,
        "edits": runs,
        "plan": repr(plan),
        "groups": bounds,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

"""The main job, end to end: run inputs under edits, keep sums, estimate, and hand on rows and a manifest."""

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

from wherefrom.analyses.first_token import atlas_rows, closed_system_rows, first_token_rows
from wherefrom.analyses.leak import LeakEstimate, estimate_leak, leak_rows, removed_rows
from wherefrom.analyses.sinks import sink_rows
from wherefrom.capture.edits import Edit, RunInputs, parse_edit
from wherefrom.capture.group import GroupSums, group_bounds
from wherefrom.capture.plan import LeakPlan, plan_leak
from wherefrom.capture.prompts import Prompts, ordinary_tokens
from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.progress import Progress
from wherefrom.results.folder import RunFolder
from wherefrom.results.table import read_rows, to_table
from wherefrom.workflows.manifest import build_manifest, summary

GROUPS = 16
"""Jackknife groups, where there are that many inputs."""
STATE_VERSION = 1


@dataclass
class Trace:
    """What a trace found."""

    rows: pl.DataFrame
    manifest: dict[str, Any]
    folder: Path | None = field(default=None)

    def table(self) -> pl.DataFrame:
        """Tidy rows, one per measurement (`.to_pandas()` works)."""
        return self.rows

    def summary(self) -> dict[str, Any]:
        """The keys that `--json` prints (DESIGN 5)."""
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
    plan: LeakPlan
    bounds: list[tuple[int, int]]
    batch: int


def trace(
    decoder: Decoder,
    prompts: Prompts,
    edits: Sequence[str] = (),
    offsets: Sequence[int] | None = None,
    query_ranges: Sequence[tuple[int, int]] | None = None,
    atlas: bool = False,
    out: str | Path | None = None,
    out_root: str | Path | None = None,
    groups: int = GROUPS,
    batch: int | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> Trace:
    """Trace where absolute position comes from, unedited and under each edit, on the same inputs.

    With a folder the run can be interrupted and continued: finished inputs are not run again and the numbers are those
    of an uninterrupted run. The folder is `out`, or one named after model and settings under `out_root`. Raises
    BadInput with one sentence for what cannot be done.
    """
    progress = progress or Progress(quiet=True)
    job = _prepare(decoder, prompts, edits, offsets, query_ranges, groups, batch)
    identity = _fingerprint(job, atlas)
    if out is None and out_root is not None:
        out = Path(out_root) / f"{_slug(decoder.source)}-{identity[:8]}"
    folder = None if out is None else RunFolder(out)
    with nullcontext() if folder is None else folder.claimed(identity):
        if folder is not None and folder.finished:
            progress.say(f"'{folder.path}' already holds this run, finished; showing its results.")
            return Trace(read_rows(folder.path), folder.manifest(), folder.path)
        started = time.monotonic()
        kept, timings = _run_all(job, folder, progress)
        rows, estimates = _analyse(job, kept, atlas, progress)
        manifest = build_manifest(
            decoder, prompts, job.plan, list(estimates.values()), {"batch": job.batch, "groups": len(job.bounds)}
        )
        manifest |= {
            "fingerprint": identity,
            "command": command,
            "edits": [name for name in job.runs if name != "none"],
        }
        manifest |= {"timings": timings, "seconds": time.monotonic() - started}
        result = Trace(to_table(rows), manifest)
        if folder is not None:
            folder.finish(result.rows, manifest)
            result.folder = folder.path
    return result


def _prepare(
    decoder: Decoder,
    prompts: Prompts,
    edits: Sequence[str],
    offsets: Sequence[int] | None,
    query_ranges: Sequence[tuple[int, int]] | None,
    groups: int,
    batch: int | None,
) -> _Job:
    runs: dict[str, tuple[Edit, ...]] = {"none": ()}
    for text in edits:
        parsed = parse_edit(text)
        name = ",".join(edit.text for edit in parsed)
        if any(set(parsed) == set(run) for run in runs.values()):
            raise BadInput(f"The edit '{name}' is given twice.")
        runs[name] = parsed
        for edit in parsed:
            edit.check(decoder, prompts.length, prompts.token_ids[:, 0])
    rules = [rule for run in runs.values() for rule in expected_rules(decoder, prompts.length, run).values()]
    plan = plan_leak(prompts.length, rules, offsets, query_ranges)
    if batch is None:
        batch = max(1, (8192 if decoder.device.type == "cuda" else 512) // prompts.length)
    bounds = group_bounds(prompts.inputs, max(1, min(groups, prompts.inputs)))
    return _Job(decoder, prompts, runs, plan, bounds, batch)


def expected_rules(decoder: Decoder, length: int, edits: Sequence[Edit] = ()) -> dict[int, MaskRule]:
    """Mask rule per attention layer for inputs of `length` tokens, edits included."""
    rules = {}
    for layer in decoder.attention:
        rule = MaskRule(causal=decoder.causal, window=decoder.windows.get(layer))
        for edit in edits:
            rule = edit.rule(layer, rule)
        rules[layer] = rule.at_length(length)
    return rules


def _run_all(job: _Job, folder: RunFolder | None, progress: Progress) -> tuple[list[GroupSums], dict[str, float]]:
    timings = dict.fromkeys(job.runs, 0.0)
    done: list[GroupSums] = []
    waiting: list[tuple[int, GroupSums]] = []
    for number in range(len(job.bounds)):
        group = _restore(job, folder, number)
        waiting.append((number, group))
    finished = sum(len(group.done) for _, group in waiting)
    if finished:
        progress.say(f"Continuing: {finished} of {job.prompts.inputs} inputs were finished before.")
    with progress.task("inputs", job.prompts.inputs, finished) as task:
        for number, group in waiting:
            start, stop = job.bounds[number]
            for low in range(start + len(group.done), stop, job.batch):
                indices = tuple(range(low, min(low + job.batch, stop)))
                _take(job, group, indices, timings)
                if folder is not None:
                    folder.write(f"state/group-{number:04d}.safetensors", group.to_bytes())
                task.advance(len(indices))
            done.append(group)
    return done, timings


def _restore(job: _Job, folder: RunFolder | None, number: int) -> GroupSums:
    """A group as an earlier, interrupted run left it, or a new one."""
    path = None if folder is None else folder.state / f"group-{number:04d}.safetensors"
    if path is not None and path.is_file():
        try:
            return GroupSums.from_file(job.plan, str(path))
        except Exception as error:
            raise BadInput(f"'{path}' is damaged; delete that file, and its inputs are run again.") from error
    return GroupSums(job.plan, list(job.runs))


def _take(job: _Job, group: GroupSums, indices: tuple[int, ...], timings: dict[str, float]) -> None:
    ids = job.prompts.token_ids
    inputs = RunInputs(ids[list(indices)], indices, ids[:, 0], job.prompts.seed)
    for name, edits in job.runs.items():
        started = time.monotonic()
        group.runs[name].take(job.decoder, inputs, edits)
        timings[name] += time.monotonic() - started
    group.done.extend(indices)


def _analyse(
    job: _Job, kept: Sequence[GroupSums], atlas: bool, progress: Progress
) -> tuple[list[Any], dict[str, LeakEstimate]]:
    rows: list[Any] = []
    estimates: dict[str, LeakEstimate] = {}
    for name in job.runs:
        parts = [group.runs[name] for group in kept]
        estimates[name] = estimate_leak([part.leak for part in parts])
        rows += leak_rows(estimates[name], name)
        rows += sink_rows([part.sinks for part in parts], name)
        rows += first_token_rows([part.residual for part in parts], name)
        if name != "none":
            rows += removed_rows(estimates["none"], estimates[name], name)
    base = [group.runs["none"] for group in kept]
    rows += closed_system_rows(job.decoder, job.prompts.token_ids, ordinary_tokens(job.decoder))
    if atlas:
        rows += atlas_rows(job.decoder, [p.sinks for p in base], [p.residual for p in base], progress)
    return rows, estimates


def _slug(source: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", Path(source).name).strip("-.") or "model"


def _fingerprint(job: _Job, atlas: bool) -> str:
    parts = {
        "state": STATE_VERSION,
        "model": job.decoder.fingerprint(),
        "dtype": str(job.decoder.dtype),
        "tokens": hashlib.sha256(job.prompts.token_ids.numpy().tobytes()).hexdigest(),
        "seed": job.prompts.seed,
        "edits": list(job.runs),
        "plan": repr(job.plan),
        "groups": job.bounds,
        "atlas": atlas,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

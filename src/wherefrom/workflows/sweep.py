"""Many trainings: the cells of a recipe over a pool of processes, each cell exactly as it is alone.

A cell's numbers depend on the cell only, so it does not matter which worker ran it or what ran before. Finished cells
are kept in folders of their own and never run again; a worker that dies is replaced and its cell is taken up from its
last checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import polars as pl
import torch

from wherefrom.errors import BadInput, WherefromError
from wherefrom.progress import Progress
from wherefrom.recipes.base import Cell
from wherefrom.results.folder import STATE, RunFolder
from wherefrom.results.table import read_rows
from wherefrom.workflows.cell import cell_identity, run_cell
from wherefrom.workflows.sweep_manifest import sweep_manifest

CELLS = "cells"
TRIES = 3
"""How often a cell is tried whose worker dies."""


UNSTARTED = (
    'The worker processes did not start. In a script, make the call under `if __name__ == "__main__":`, which new '
    "processes need, or use workers=1."
)
DIED = "Its worker process died again and again (out of memory?); use fewer --workers."


@dataclass
class Sweep:
    """What a sweep found."""

    rows: pl.DataFrame
    """Rows of all cells, with the cell's labels, its seed and its slug (`cell`) as columns in front."""
    manifest: dict[str, Any]
    folder: Path | None = field(default=None)

    def table(self) -> pl.DataFrame:
        """Tidy rows, one per measurement (`.to_pandas()` works)."""
        return self.rows


def sweep(
    cells: Sequence[Cell],
    out: str | Path,
    name: str = "sweep",
    workers: int | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    command: str | None = None,
) -> Sweep:
    """Run cells side by side, one thread each, and collect their rows in `out`.

    `workers`: processes; None: one per core, at most one per cell. With one worker cells run in this process. An
    interrupted sweep continues where it stopped. Raises BadInput for a folder of another sweep or a second driver; a
    cell that cannot be trained is reported in the manifest (`failed`) and the others go on.
    """
    progress = progress or Progress(quiet=True)
    names = [cell.slug for cell in cells]
    if not cells:
        raise BadInput("There is nothing to sweep: no cells.")
    if len(set(names)) < len(names):
        raise BadInput(f"Two cells of '{name}' are the same ({max(names, key=names.count)}); give each one once.")
    workers = min(len(cells), os.cpu_count() or 1) if workers is None else workers
    if workers < 1:
        raise BadInput(f"{workers} workers run nothing; use at least 1.")
    identity = hashlib.sha256(json.dumps([cell.to_dict() for cell in cells], sort_keys=True).encode()).hexdigest()[:16]
    folder = RunFolder(out)
    with folder.claimed(identity):
        if folder.finished:
            progress.say(f"'{folder.path}' already holds this sweep, finished; showing its results.")
            return Sweep(pl.read_parquet(folder.path / "rows.parquet"), folder.manifest(), folder.path)
        folder.write(f"{STATE}/group-cells.json", json.dumps(names).encode())
        started = time.monotonic()
        failed = _run_all(list(cells), folder.path, workers, device, progress)
        rows = collect(cells, folder.path)
        manifest = sweep_manifest(name, cells, failed, time.monotonic() - started, workers)
        manifest |= {"fingerprint": identity, "command": command}
        folder.finish(rows, manifest)
    return Sweep(rows, manifest, folder.path)


def collect(cells: Sequence[Cell], out: Path) -> pl.DataFrame:
    """The rows of all finished cells, with columns in front that say which cell; also while others still run."""
    tables = []
    for cell in cells:
        folder = out / CELLS / cell.slug
        if RunFolder(folder).finished:
            labels = {"cell": cell.slug, **cell.labels}
            columns = [pl.lit(value).alias(key) for key, value in labels.items()]
            tables.append(read_rows(folder).select(*columns, pl.lit(cell.config.seed).alias("seed"), pl.all()))
    return pl.concat(tables, how="diagonal") if tables else pl.DataFrame()


def _run_all(cells: list[Cell], out: Path, workers: int, device: str, progress: Progress) -> dict[str, str]:
    """Run what is not finished; returns the sentence of each cell that failed."""
    waiting = [cell for cell in cells if not _is_finished(cell, out, progress)]
    failed: dict[str, str] = {}
    done = len(cells) - len(waiting)
    if done and waiting:
        progress.say(f"Continuing: {done} of {len(cells)} cells were finished before.")
    with progress.task("cells", len(cells), done) as bar:
        for cell, sentence in _outcomes(waiting, out, workers, device):
            if sentence is not None:
                failed[cell.slug] = sentence
                progress.say(f"{cell.slug} failed: {sentence}")
            bar.note = cell.slug
            bar.advance()
    return failed


def _is_finished(cell: Cell, out: Path, progress: Progress) -> bool:
    """Whether a cell's results are in and whole; damaged ones are named and cleared away, to be made anew."""
    folder = RunFolder(out / CELLS / cell.slug)
    if not folder.finished:
        return False
    with contextlib.suppress(BadInput):
        read_rows(folder.path)
        if folder.identity() == cell_identity(cell):
            return True
    progress.say(f"The results of {cell.slug} are damaged; it is run again.")
    shutil.rmtree(folder.path)
    return False


def _outcomes(cells: list[Cell], out: Path, workers: int, device: str) -> Iterator[tuple[Cell, str | None]]:
    """Each cell as it ends, with its sentence if it failed."""
    if workers == 1 or len(cells) <= 1:
        with _one_thread():
            for cell in cells:
                yield cell, _work(cell.to_dict(), str(out), device)
        return
    tries = {cell.slug: 0 for cell in cells}
    left = {cell.slug: cell for cell in cells}
    while left:
        with _pool(workers) as pool:
            futures = {pool.submit(_work, cell.to_dict(), str(out), device): cell for cell in left.values()}
            try:
                for future, cell in _as_they_end(futures):
                    yield cell, future.result()
                    del left[cell.slug]
            except BrokenProcessPool:
                # Which worker died cannot be told; those cells that were running have left a checkpoint.
                begun = [slug for slug in left if (out / CELLS / slug).exists()]
                if not begun:
                    raise BadInput(UNSTARTED) from None
                for slug in begun:
                    tries[slug] += 1
                for slug in [slug for slug in begun if tries[slug] >= TRIES]:
                    yield left.pop(slug), DIED


def _as_they_end(futures: dict[Future[str | None], Cell]) -> Iterator[tuple[Future[str | None], Cell]]:
    pending = set(futures)
    while pending:
        ended, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in ended:
            yield future, futures[future]


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose workers do not outlive an interrupt."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the driver's to handle
    torch.set_num_threads(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker, so that a cell has the same numbers here and there."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _work(values: dict[str, Any], out: str, device: str) -> str | None:
    """Run one cell in this process; the sentence of what went wrong, if anything."""
    cell = Cell.from_dict(values)
    try:
        run_cell(cell, Path(out) / CELLS / cell.slug, device)
    except WherefromError as error:
        return str(error)
    return None

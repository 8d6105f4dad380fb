"""A run folder: what a run is, what it has finished, what it found. Safe against kills and second writers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from wherefrom.errors import BadInput
from wherefrom.results.table import write_atomically

STATE = "state"


class RunFolder:
    """Layout: `rows.parquet`, `manifest.json`, `report.html`; while running also `state/` with sums per group."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def state(self) -> Path:
        """Where unfinished work is kept."""
        return self.path / STATE

    @property
    def finished(self) -> bool:
        """Whether results are in."""
        return (self.path / "manifest.json").is_file() and (self.path / "rows.parquet").is_file()

    def identity(self) -> str | None:
        """Fingerprint of the run that owns this folder, or None for a new folder."""
        for file in (self.path / "manifest.json", self.state / "run.json"):
            if file.is_file():
                try:
                    return str(json.loads(file.read_text())["fingerprint"])
                except (ValueError, KeyError, TypeError) as error:
                    raise BadInput(f"'{file}' is damaged; choose another --out or delete the folder.") from error
        return None

    @contextlib.contextmanager
    def claimed(self, fingerprint: str) -> Iterator[RunFolder]:
        """Own the folder for one run. Raises BadInput if it holds another run, other files, or a second writer."""
        owner = self.identity()
        if owner is None and self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise BadInput(f"'{self.path}' is not empty and holds no run of wherefrom; choose another --out.")
        if owner is not None and owner != fingerprint:
            raise BadInput(f"'{self.path}' holds another run (other model, inputs or settings); choose another --out.")
        if self.finished:
            yield self
            return
        with says_where(self.path):
            self.state.mkdir(parents=True, exist_ok=True)
            lock = (self.state / "lock").open("w")
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BadInput(
                    f"Another process is writing to '{self.path}'; wait for it or choose another --out."
                ) from error
            self.write(STATE + "/run.json", json.dumps({"fingerprint": fingerprint}).encode())
            yield self
        finally:
            lock.close()

    def write(self, name: str, data: bytes) -> None:
        """Write one file atomically; a full disk is one clear sentence."""
        with says_where(self.path):
            write_atomically(self.path / name, data)

    def finish(self, table: pl.DataFrame, manifest: dict[str, Any]) -> None:
        """Write the results and drop the unfinished state."""
        buffer = io.BytesIO()
        table.write_parquet(buffer)
        with says_where(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.write("rows.parquet", buffer.getvalue())
        self.write("manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False).encode())
        shutil.rmtree(self.state, ignore_errors=True)

    def manifest(self) -> dict[str, Any]:
        """The manifest of a finished run. Raises BadInput where there is none or it cannot be read."""
        path = self.path / "manifest.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise BadInput(f"'{self.path}' holds no manifest.json, so it is not a finished run.") from error
        except (ValueError, OSError) as error:
            raise BadInput(f"'{path}' is damaged and cannot be read.") from error
        return found


@contextlib.contextmanager
def says_where(path: Path) -> Iterator[None]:
    """Turn an operating-system error into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BadInput(
                f"The disk is full: nothing more could be written to '{path}'. Free space and run again."
            ) from error
        raise BadInput(
            f"'{path}' cannot be written ({os.strerror(error.errno or 0)}); choose another --out."
        ) from error

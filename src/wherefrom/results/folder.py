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
from typing import IO, Any

import polars as pl

from wherefrom.errors import BadInput
from wherefrom.results.table import write_atomically

STATE = "state"
LOCK = "lock"


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
                    return str(json.loads(file.read_text(encoding="utf-8"))["fingerprint"])
                except (OSError, ValueError, KeyError, TypeError) as error:
                    raise BadInput(
                        f"'{file}' is damaged and cannot be read; choose another --out or delete the folder."
                    ) from error
        return None

    @contextlib.contextmanager
    def claimed(self, fingerprint: str) -> Iterator[RunFolder]:
        """Own the folder for one run. Raises BadInput if it holds another run, other files, or a second writer.

        A run that fails before anything is finished leaves no folder behind, so that the next one may take its place.
        """
        new = not self.path.exists()
        self._check_owner(fingerprint)
        if self.finished:
            yield self
            return
        with says_where(self.path):
            self.state.mkdir(parents=True, exist_ok=True)
            lock = (self.state / LOCK).open("w")
        with lock:
            _lock(lock, self.path)
            try:
                self._check_owner(fingerprint)  # whoever held the lock before may have finished the run meanwhile
                if not self.finished:
                    self._sweep()
                    self.write(f"{STATE}/run.json", json.dumps({"fingerprint": fingerprint}).encode())
                yield self
            finally:
                if self.finished or not any(self.state.glob("group-*")):
                    shutil.rmtree(self.state, ignore_errors=True)
                if new:
                    with contextlib.suppress(OSError):
                        self.path.rmdir()  # only where it is empty

    def _check_owner(self, fingerprint: str) -> None:
        owner = self.identity()
        if owner is None and self.path.exists() and not self._is_blank():
            raise BadInput(f"'{self.path}' is not empty and holds no run of wherefrom; choose another --out.")
        if owner is not None and owner != fingerprint:
            raise BadInput(f"'{self.path}' holds another run (other model, inputs or settings); choose another --out.")

    def _is_blank(self) -> bool:
        """Whether there is nothing but what a run killed in its first moment leaves: a lock and nameless pieces."""
        try:
            if any(entry.name != STATE for entry in self.path.iterdir()):
                return False
            return not self.state.exists() or all(
                entry.name == LOCK or entry.name.startswith(".run.json.") for entry in self.state.iterdir()
            )
        except OSError:
            return False

    def _sweep(self) -> None:
        """Delete the unfinished pieces that a killed writer left."""
        for folder in (self.path, self.state):
            for piece in folder.glob(".*.part"):
                piece.unlink(missing_ok=True)

    def write(self, name: str, data: bytes, durable: bool = True) -> None:
        """Write one file atomically, results safe against a power cut; a full disk is one clear sentence."""
        with says_where(self.path):
            write_atomically(self.path / name, data, durable=durable and not name.startswith(f"{STATE}/"))

    def finish(self, table: pl.DataFrame, manifest: dict[str, Any], durable: bool = True) -> None:
        """Write the results; the unfinished state goes when the claim ends."""
        buffer = io.BytesIO()
        table.write_parquet(buffer)
        with says_where(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.write("rows.parquet", buffer.getvalue(), durable)
        self.write("manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False).encode(), durable)

    def manifest(self) -> dict[str, Any]:
        """The manifest of a finished run. Raises BadInput where there is none or it cannot be read."""
        path = self.path / "manifest.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not found.keys() >= {"fingerprint", "model", "query_ranges", "edits"}:
                raise ValueError("incomplete")
        except FileNotFoundError as error:
            raise BadInput(f"'{self.path}' holds no manifest.json, so it is not a finished run.") from error
        except (ValueError, OSError) as error:
            raise BadInput(f"'{path}' is damaged and cannot be read; delete the folder and run again.") from error
        return found


def _lock(file: IO[str], path: Path) -> None:
    with says_where(path):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"Another process is writing to '{path}'; wait for it or choose another --out.") from error


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

"""A run folder survives interrupts, kills, a full disk and a second writer, and its numbers are those of one go."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from observed import token_ids
from tiny import tiny

import wherefrom as wf
from wherefrom.capture import group
from wherefrom.models.hf import Decoder
from wherefrom.results import table
from wherefrom.results.folder import RunFolder

INPUTS, BATCH = 11, 2
"""Not a multiple: groups end in the middle of a batch."""
EDITS = ("bos=mean", "window=6")


@pytest.fixture(scope="module")
def model() -> Decoder:
    return wf.load(tiny("gpt_oss"))  # windows and a learned sink: every kind of sum there is


@pytest.fixture(scope="module")
def whole(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> wf.Trace:
    """The run in one go."""
    return traced(model, tmp_path_factory.mktemp("whole") / "run")


def traced(model: Any, out: Path | None, seed: int = 3, **options: Any) -> wf.Trace:
    settings: dict[str, Any] = {"offsets": [1, 2], "query_ranges": [(6, 24)], "groups": 4, "batch": BATCH, **options}
    return wf.trace(model, wf.given_tokens(token_ids(INPUTS, seed=seed)), EDITS, out=out, **settings)


def refusal(call: Any) -> str:
    with pytest.raises(wf.BadInput) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def inputs_run(monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None, error: Any = None) -> list[int]:
    """Indices of inputs in the order of their forward passes; the pass number `fail_at` raises instead."""
    indices: list[int] = []
    passes = 0
    run = group.run

    def counted(decoder: Any, inputs: Any, *rest: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == fail_at:
            raise error
        indices.extend(inputs.indices)
        return run(decoder, inputs, *rest)

    monkeypatch.setattr(group, "run", counted)
    return indices


# Interrupts


@pytest.mark.parametrize("fail_at", [2, 4, 5, 12])
def test_an_interrupted_run_continues_to_the_same_bits(
    fail_at: int, model: Decoder, whole: wf.Trace, tmp_path: Path
) -> None:
    """Interrupted within the first batch, after it, within a later one, and in the last of a group."""
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        before = inputs_run(patch, fail_at, RuntimeError("planned"))
        with pytest.raises(RuntimeError, match="planned"):
            traced(model, out)
    runs = 1 + len(EDITS)
    finished = (fail_at - 1) // runs  # batches of which every run was made
    assert not (out / "manifest.json").exists()
    assert out.exists() == (finished > 0), "nothing finished, nothing kept"
    with pytest.MonkeyPatch.context() as patch:
        after = inputs_run(patch)
        again = traced(model, out)
    assert again.table().equals(whole.table())
    kept = sorted(set(before[: _rows(finished) * runs]))
    assert sorted(set(after)) == sorted(set(range(INPUTS)) - set(kept)), "finished inputs are not run again"
    assert len(after) == runs * (INPUTS - len(kept))
    assert names(out) == ["manifest.json", "rows.parquet"]


def _rows(batches: int) -> int:
    """Inputs in the first `batches` batches: groups of 11 inputs over 4 are 3, 3, 2 and 3 long."""
    return sum([2, 1, 2, 1, 2, 2, 1][:batches])


def test_the_comparison_above_can_fail(model: Decoder, whole: wf.Trace) -> None:
    """Control: other inputs give other bits, and so would a lost input."""
    assert not traced(model, None, seed=4).table().equals(whole.table())


def test_a_finished_run_is_shown_and_not_run_again(model: Decoder, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = traced(model, out)
    before = {entry.name: entry.stat().st_mtime_ns for entry in out.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        ran = inputs_run(patch)
        second = traced(model, out)
    assert ran == []
    assert second.table().equals(first.table())
    assert second.manifest == json.loads((out / "manifest.json").read_text())
    assert second.summary() == first.summary()
    assert {entry.name: entry.stat().st_mtime_ns for entry in out.iterdir()} == before


# Whose folder it is


def test_the_folder_of_another_run_is_refused(model: Decoder, tmp_path: Path) -> None:
    out = tmp_path / "run"
    traced(model, out)
    before = (out / "rows.parquet").read_bytes()
    for other in ({"seed": 4}, {"groups": 3}, {"offsets": [1]}, {"query_ranges": [(6, 20)]}):
        assert "holds another run" in refusal(lambda other=other: traced(model, out, **other))
    assert "holds another run" in refusal(lambda: traced(wf.load(tiny("gpt_oss", seed=1)), out))
    assert (out / "rows.parquet").read_bytes() == before
    traced(model, out, batch=5)  # control: the batch changes rounding only, so it is the same run


def test_the_folder_of_another_unfinished_run_is_refused(model: Decoder, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        inputs_run(patch, 5, RuntimeError)
        with pytest.raises(RuntimeError):
            traced(model, out)
    before = names(out / "state")
    assert "holds another run" in refusal(lambda: traced(model, out, seed=4))
    assert names(out / "state") == before


def test_a_folder_of_other_files_is_refused(model: Decoder, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert "is not empty" in refusal(lambda: traced(model, tmp_path))
    assert names(tmp_path) == ["thesis.tex"]
    assert "is not empty" in refusal(lambda: traced(model, tmp_path / "thesis.tex"))
    (tmp_path / "mine" / "state").mkdir(parents=True)
    (tmp_path / "mine" / "state" / "notes").write_text("x")
    assert "is not empty" in refusal(lambda: traced(model, tmp_path / "mine"))
    (tmp_path / "empty").mkdir()
    traced(model, tmp_path / "empty")  # control


def test_a_second_writer_is_refused(model: Decoder, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with RunFolder(out).claimed("one"):
        assert "Another process is writing" in refusal(lambda: _claim(out, "one"))
        assert names(out / "state") == ["lock", "run.json"]
    _claim(out, "one")  # control: free again


def _claim(out: Path, fingerprint: str) -> None:
    with RunFolder(out).claimed(fingerprint):
        pass


def test_who_waited_for_the_lock_sees_that_the_run_is_finished(
    model: Decoder, whole: wf.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process finished between our look at the folder and our lock."""
    from wherefrom.results import folder as module

    out, lock = tmp_path / "run", module._lock

    def late(*rest: Any) -> None:
        monkeypatch.setattr(module, "_lock", lock)
        other = RunFolder(out)
        other.finish(whole.table(), whole.manifest)
        lock(*rest)

    monkeypatch.setattr(module, "_lock", late)
    ran = inputs_run(monkeypatch)
    assert traced(model, out).table().equals(whole.table())
    assert ran == []


# Disks


@contextlib.contextmanager
def full_disk(after: int) -> Iterator[list[Path]]:
    """Writes beyond the first `after` fail in the middle, as on a full disk."""
    written: list[Path] = []
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if len(written) >= after:
            os.truncate(source, 10)
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(Path(target))
        replace(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table.os, "replace", full)
        yield written


@pytest.mark.parametrize("after", [0, 1, 3, 8, 9])
def test_a_full_disk_is_one_sentence_and_continues_later(
    after: int, model: Decoder, whole: wf.Trace, tmp_path: Path
) -> None:
    """At the first write, within the inputs, at the rows and at the manifest."""
    out = tmp_path / "run"
    with full_disk(after) as written:
        assert "disk is full" in refusal(lambda: traced(model, out))
    assert len(written) == after
    assert not list(tmp_path.rglob(".*.part")), "no half file"
    assert not (out / "manifest.json").exists()
    assert out.exists() == (after > 1), "without anything finished nothing is left"
    assert traced(model, out).table().equals(whole.table())


def test_a_really_full_disk(model: Decoder, whole: wf.Trace, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        assert "disk is full" in refusal(lambda: traced(model, disk / "run"))
        assert (disk / "run" / "state").is_dir(), "some inputs did fit"
        assert not list(disk.rglob(".*.part"))
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        with pytest.MonkeyPatch.context() as patch:
            ran = inputs_run(patch)
            assert traced(model, disk / "run").table().equals(whole.table())
        assert 0 < len(ran) < 3 * INPUTS
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("place", ["/proc/wherefrom", "/sys/wherefrom", "/dev/null/run"])
def test_a_place_that_cannot_be_written_is_refused(place: str, model: Decoder) -> None:
    assert place in refusal(lambda: traced(model, Path(place)))


def test_a_read_only_folder_is_refused_and_a_finished_run_in_it_is_shown(model: Decoder, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        first = traced(model, disk / "run")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert "cannot be written (Read-only file system)" in refusal(lambda: traced(model, disk / "other"))
        assert traced(model, disk / "run").table().equals(first.table())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# Damage


def test_a_damaged_state_file_is_named(model: Decoder, whole: wf.Trace, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for damage in (b"", b"nonsense" * 20, None):
        with pytest.MonkeyPatch.context() as patch:
            inputs_run(patch, 9, RuntimeError)
            with pytest.raises(RuntimeError):
                traced(model, out)
        file = out / "state" / "group-0000.safetensors"
        file.write_bytes(file.read_bytes()[:-20] if damage is None else damage)
        text = refusal(lambda: traced(model, out))
        assert str(file) in text
        assert "delete that file" in text
        file.unlink()  # as the sentence says
    assert traced(model, out).table().equals(whole.table())


def test_a_damaged_manifest_or_table_is_named(model: Decoder, whole: wf.Trace, tmp_path: Path) -> None:
    out = tmp_path / "run"
    traced(model, out)
    manifest, rows = out / "manifest.json", out / "rows.parquet"
    good = manifest.read_bytes(), rows.read_bytes()
    for damage in (b"", b"{", b"[]", b"{}", b"\xff\xfe"):
        manifest.write_bytes(damage)
        assert str(manifest) in refusal(lambda: traced(model, out))
    manifest.write_bytes(json.dumps({"fingerprint": whole.manifest["fingerprint"]}).encode())
    assert str(manifest) in refusal(lambda: traced(model, out))
    manifest.write_bytes(good[0])
    for damage in (b"", good[1][:100], good[1][:-10]):
        rows.write_bytes(damage)
        assert "delete that file and run the trace again" in refusal(lambda: traced(model, out))
    rows.unlink()  # as the sentence says
    assert traced(model, out).table().equals(whole.table())
    pl.DataFrame({"value": [1.0]}).write_parquet(rows)
    assert "lacks the column 'analysis'" in refusal(lambda: traced(model, out))


def test_results_are_as_readable_as_other_files(model: Decoder, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        traced(model, tmp_path / "run")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(entry.stat().st_mode) for entry in (tmp_path / "run").iterdir()}
    assert modes == {0o640}


def test_saving_a_trace_twice_or_over_another(model: Decoder, whole: wf.Trace, tmp_path: Path) -> None:
    trace = traced(model, None)
    assert trace.save(tmp_path / "run") == trace.save(str(tmp_path / "run"))
    assert names(tmp_path / "run") == ["manifest.json", "rows.parquet"]
    assert pl.read_parquet(tmp_path / "run" / "rows.parquet").equals(whole.table())
    assert "holds another run" in refusal(lambda: traced(model, None, seed=4).save(tmp_path / "run"))


def test_a_run_that_fails_at_once_leaves_its_place_free(tmp_path: Path) -> None:
    """After NaN logits in half precision, the same --out takes the run in full precision."""
    out = tmp_path / "run"
    model = wf.load(tiny("llama"))
    with pytest.MonkeyPatch.context() as patch:
        inputs_run(patch, 1, wf.BadInput("Logits are NaN."))
        assert "NaN" in refusal(lambda: traced(model, out))
    assert not out.exists()
    traced(wf.load(tiny("llama", seed=1)), out)

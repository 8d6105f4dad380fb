"""What was run, whether to trust it, and how to run it again: all from the manifest, none of it required."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import polars as pl
from markupsafe import Markup, escape

from wherefrom.report.blocks import Block, Cell, Check, Checks, Code, Column, Facts, Section, Table, Text
from wherefrom.report.formatting import brief, number
from wherefrom.report.selection import edit_label, pick
from wherefrom.report.source import Run
from wherefrom.report.tables import shown_token

CLOSURE_SHARE = 1e-3
"""Largest gap between parts and whole, as a share of the whole's size, that counts as rounding."""
FEW_INPUTS = 16


def _join(entries: Any) -> str | None:
    if isinstance(entries, list | tuple):
        return ", ".join(str(entry) for entry in entries) or None
    return None if entries is None else str(entries)


def _number(entry: Any) -> float | None:
    return float(entry) if isinstance(entry, int | float) and not isinstance(entry, bool) else None


def _per_range(entry: Any) -> str | None:
    """`{range: numbers}` in words, said once where all ranges agree."""
    if not isinstance(entry, dict):
        return _join(entry)
    texts = {str(name): _join(value) or "none" for name, value in entry.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def _model(run: Run) -> str | None:
    name, source = run.get("model", "name"), run.get("model", "source")
    return f"{name} (from {source})" if name and source and name != source else _join(name or source)


def _shape(run: Run) -> str | None:
    layers, heads, shared = (run.get("model", key) for key in ("layers", "heads", "kv_heads"))
    if layers is None and heads is None:
        return None
    text = f"{layers or 'unknown'} layers × {heads or 'unknown'} heads"
    return text + (f", {shared} key/value heads" if shared and shared != heads else "")


def _first_token(run: Run) -> str | None:
    text, token, is_bos = (run.get("first_token", key) for key in ("text", "id", "is_bos"))
    if text is None and token is None:
        return None
    shown = shown_token(text) if text is not None else ""
    kind = "" if is_bos is None else (", the tokenizer's BOS" if is_bos else ", not the tokenizer's BOS")
    return f"{shown} (id {token}{kind})" if token is not None else f"{shown}{kind}"


def _inputs(run: Run) -> str | None:
    count, length = run.get("inputs"), run.get("length")
    if count is None and length is None:
        return None
    return f"{count or 'unknown'} inputs × {length or 'unknown'} tokens, {run.get('origin', default='origin unknown')}"


def _first_inputs(run: Run) -> str | None:
    inputs = run.get("input_token_ids")
    if not isinstance(inputs, list) or not inputs or not isinstance(inputs[0], list):
        return None
    start = inputs[0][:12]
    return _join(start + ["…"] if len(inputs[0]) > len(start) else start)


def _time(run: Run) -> str | None:
    seconds, timings = _number(run.get("seconds")), run.get("timings")
    parts = []
    if isinstance(timings, dict):
        parts = [f"{edit_label(str(edit))} {number(_number(value))} s" for edit, value in timings.items()]
    whole = f"{number(seconds)} s" if seconds is not None else None
    return f"{whole} ({', '.join(parts)})" if whole and parts else whole or _join(parts or None)


def _versions(run: Run) -> str | None:
    versions = run.get("versions", default={})
    named = [f"{name} {version}" for name, version in versions.items()] if isinstance(versions, dict) else []
    return _join([f"wherefrom {run.get('wherefrom')}", *named] if run.get("wherefrom") else named) or None


def _machine(run: Run) -> str | None:
    return _join([entry for entry in (run.get("device"), run.get("dtype"), run.get("backend")) if entry]) or None


FACTS: tuple[tuple[str, Callable[[Run], str | None]], ...] = (
    ("Model", _model),
    ("Family", lambda run: _join(run.get("model", "family"))),
    ("Shape", _shape),
    ("Head width", lambda run: _join(run.get("model", "head_dim"))),
    ("Position encoding", lambda run: _join(run.get("model", "encoding"))),
    ("Vocabulary", lambda run: _join(run.get("model", "vocabulary"))),
    ("Inputs", _inputs),
    ("First token", _first_token),
    ("First input's token ids", _first_inputs),
    ("Seed", lambda run: _join(run.get("seed"))),
    (
        "Edits",
        lambda run: _join([edit_label(str(edit)) for edit in run.get("edits", default=[]) if isinstance(edit, str)]),
    ),
    ("Query ranges", lambda run: _join(run.get("query_ranges"))),
    ("Offsets", lambda run: _per_range(run.get("offsets"))),
    ("Position bins", lambda run: _per_range(run.get("bins"))),
    ("Batch", lambda run: _join(run.get("batch"))),
    ("Jackknife groups", lambda run: _join(run.get("groups"))),
    ("Device, type, backend", _machine),
    ("Versions", _versions),
    ("Created", lambda run: _join(run.get("created"))),
    ("Time", _time),
)


def what_section(runs: list[Run]) -> Section:
    """The set-up of one run, or of several side by side."""
    title = "What was run"
    if len(runs) == 1:
        entries = [(name, text) for name, fact in FACTS if (text := fact(runs[0]))]
        return Section("what", title, [Facts(entries)] if entries else [])
    rows = [
        [Cell(name), *(Cell(fact(run) or "–") for run in runs)]
        for name, fact in FACTS
        if any(fact(run) for run in runs)
    ]
    columns = [Column("", numeric=False), *(Column(run.name, numeric=False) for run in runs)]
    return Section("what", title, [Table("what-table", "The runs side by side", columns, rows)] if rows else [])


def trust_section(runs: list[Run]) -> Section:
    """Parity, closure, what was left out, and warnings."""
    blocks: list[Block] = []
    for run in runs:
        if len(runs) > 1:
            blocks.append(Text(Markup("<strong>{}</strong>").format(run.name)))
        blocks.append(Checks(checks(run)))
    return Section("trust", "Is it trustworthy?", blocks)


def checks(run: Run) -> list[Check]:
    """Every check that the manifest or the rows allow."""
    return [*_parity(run), *_closure(run), *_closed_system(run), *_left_out(run), *_few_inputs(run), *_warnings(run)]


def _parity(run: Run) -> list[Check]:
    title = "Same output as the stock model"
    worst, tolerance = _number(run.get("parity", "max_abs")), _number(run.get("parity", "tolerance"))
    if worst is None:
        return [Check("note", title, "The manifest does not say whether this was checked.")]
    tokens = run.get("parity", "prompt_tokens")
    detail = f"largest difference of output logits {brief(worst)}"
    detail += f", allowed {brief(tolerance)}" if tolerance is not None else ""
    detail += f", on a prompt of {tokens} tokens" if tokens is not None else ""
    # `not <=` so that a NaN difference does not pass.
    failed = tolerance is not None and not worst <= tolerance
    return [Check("bad" if failed else "good", title, detail + ".")]


def _closure(run: Run) -> list[Check]:
    made = []
    stored = _number(run.get("closure_max_abs"))
    if stored is not None:
        detail = f"largest difference between a whole and the sum of its parts while measuring: {brief(stored)}."
        made.append(Check("good" if stored < 1e-4 else "bad", "Parts sum to the whole", detail))
    gap, size = closure_of_rows(run.rows)
    if gap is not None and size is not None:
        state: Literal["good", "bad"] = "good" if gap <= CLOSURE_SHARE * max(size, 1e-9) else "bad"
        detail = f"attention leak against its parts in every row, recomputed here: {brief(gap)} nats² at most."
        made.append(Check(state, "Parts sum to the whole in the stored table", detail))
    return made


def closure_of_rows(rows: pl.DataFrame) -> tuple[float | None, float | None]:
    """Largest |attention_leak − parts| over all rows that have the parts, and the largest |attention_leak|."""
    parts = ["shape_leak", "mask", "first_token", "rest", "learned_sink"]
    leak = rows.filter(
        (pl.col("analysis") == "leak") & pl.col("offset").is_null() & pl.col("metric").is_in(["attention_leak", *parts])
    )
    if leak.is_empty():
        return None, None
    keys = ["edit", "layer", "head", "query_range"]
    wide = leak.pivot(on="metric", index=keys, values="value", aggregate_function="first")
    if not {"attention_leak", *parts[:4]} <= set(wide.columns):
        return None, None
    if "learned_sink" not in wide.columns:
        wide = wide.with_columns(learned_sink=pl.lit(0.0))
    whole = pl.col("attention_leak")
    gap = (whole - sum((pl.col(part) for part in parts[:4]), pl.col("learned_sink").fill_null(0.0))).abs()
    found = wide.select(gap=gap.max(), size=whole.abs().max()).row(0)
    return found[0], found[1]


def _closed_system(run: Run) -> list[Check]:
    found = pick(run.rows, "first_token", ["closed_system_error"])
    if found.is_empty():
        return []
    worst = found.sort("value", descending=True).row(0, named=True)
    size = brief(worst["value"])
    detail = f"position 0 in a full run against a run of that token alone differs by {size} (activation) at most."
    return [Check("note", "Position 0 is a closed system", detail)]


def _left_out(run: Run) -> list[Check]:
    made = []
    excluded = run.get("excluded_rows")
    if excluded is not None:
        count = sum(map(int, excluded.values())) if _counts(excluded) else excluded
        text = "No row was fully masked." if count == 0 else f"Fully masked rows that were left out: {count}."
        made.append(Check("good" if count == 0 else "note", "Excluded rows", text))
    if run.not_finite:
        text = f"{run.not_finite} rows of the table are not finite (a fraction of 0, for example) and are not shown."
        made.append(Check("note", "Numbers that are not finite", text))
    return made


def _counts(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(value, int) for value in entry.values())


def _few_inputs(run: Run) -> list[Check]:
    inputs = _number(run.get("inputs"))
    if inputs is None or inputs >= FEW_INPUTS:
        return []
    text = f"{number(inputs)} inputs make wide and unsure error bars; use {FEW_INPUTS} or more before relying on them."
    return [Check("note", "Few inputs", text)]


def _warnings(run: Run) -> list[Check]:
    warnings = run.get("warnings", default=[])
    listed = warnings if isinstance(warnings, list) else [warnings]
    return [Check("bad", "Warning", str(warning)) for warning in listed]


def reproduce_section(runs: list[Run]) -> Section:
    """The command and the Python lines."""
    blocks: list[Block] = []
    for index, run in enumerate(runs):
        suffix = f": {run.name}" if len(runs) > 1 else ""
        for key, title in (("command", "On the command line"), ("python", "In Python")):
            text = run.get(key)
            if isinstance(text, list):
                text = "\n".join(str(line) for line in text)
            if text:
                blocks.append(Code(f"{key}-{index}", f"{title}{suffix}", str(text)))
    note = Markup(
        "All numbers of this page are in <code>rows.parquet</code>, set-up and versions in <code>manifest.json</code>."
    )
    return Section("reproduce", "Run it again", [*blocks, Text(note)], intro=escape(""))

"""The report's first sentences, put together from the rows and never from a template of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from markupsafe import Markup

from wherefrom.report import heads_text, split_words, training_text
from wherefrom.report.formatting import NORMAL_INTERVAL, number, percent, with_error
from wherefrom.report.selection import edits_of, one, pick, range_order, ranges_of
from wherefrom.report.source import Run
from wherefrom.report.sweep_table import arms
from wherefrom.report.sweep_text import comparisons
from wherefrom.report.terms import SINK_THRESHOLD, UNEDITED

EARLY = 16
"""Before this position so few offsets are seen that a range says little about the model."""
ABSOLUTE_ENCODINGS = ("sinusoidal", "learned", "absolute")


@dataclass(frozen=True)
class Headline:
    """What the report opens with."""

    lead: Markup
    """One or two sentences."""
    points: list[Markup]
    """Further findings, one sentence each."""


def headline_range(rows: pl.DataFrame) -> str:
    """The earliest range of queries from 16 on; the last one if all start before that."""
    ranges = ranges_of(pick(rows, "leak"))
    if not ranges:
        ranges = ranges_of(rows.filter(pl.col("analysis") == "leak")) or [""]
    return next((name for name in ranges if range_order(name)[0] >= EARLY), ranges[-1])


def has_absolute_part(run: Run) -> bool:
    """Whether the model's encoding adds absolute positions, so that shape is not the residual stream alone."""
    encoding = str(run.get("model", "encoding", default="")).lower()
    return any(name in encoding for name in ABSOLUTE_ENCODINGS)


def headline(run: Run) -> Headline:
    """The findings of one run in words, each number with its standard error."""
    if run.kind == "sweep":
        return _of_sweep(run)
    if run.kind == "split":
        lead, *more = split_words.sentences(run)
        return Headline(lead, more)
    if run.kind == "training":
        return Headline(Markup("{}").format(training_text.sentence(run)), [])
    if run.kind == "heads":
        lead, *more = [
            Markup("{}").format(heads_text.sentence(run.rows, run.manifest, str(how))) for how in run.get("hows")
        ]
        return Headline(lead, more)
    leak = pick(run.rows, "leak")
    ranges = ranges_of(leak)
    points: list[Markup] = []
    if ranges:
        first = headline_range(run.rows)
        lead = _share_sentence(run, leak, first) + _edit_sentence(run.rows, leak, first)
        if ranges[-1] != first:
            points.append(
                _share_sentence(run, leak, ranges[-1], late=True) + _edit_sentence(run.rows, leak, ranges[-1])
            )
        points += _deepest(run.rows, first)
    else:
        lead = Markup("This run holds no leak averaged over layers; see the sections below for what it measured.")
    points += _sinks(run)
    return Headline(lead, points)


def _of_sweep(run: Run) -> Headline:
    found = arms(run.table, run.manifest)
    sentences = comparisons(found)
    deposits = [f"{', '.join(arm.labels.values())}: {arm.deposits} of {arm.judged}" for arm in found if arm.judged]
    points = [Markup("{}").format(sentence) for sentence in sentences[1:]]
    if deposits:
        points.append(Markup("Seeds with a single-head deposit in the first layer: {}.").format("; ".join(deposits)))
    lead = sentences[0] if sentences else f"{len(found)} arms were trained; the table below compares them."
    return Headline(Markup("{}").format(lead), points)


def _share_sentence(run: Run, leak: pl.DataFrame, query_range: str, *, late: bool = False) -> Markup:
    total = one(leak, "attention_leak", UNEDITED, query_range)
    where = Markup("At queries {}").format(query_range)
    if total is None:
        return Markup("{} nothing was measured without an edit.").format(where)
    value, stderr = total
    size = f"{with_error(value, stderr)}\N{NO-BREAK SPACE}nats²"
    if value <= NORMAL_INTERVAL * (stderr or 0.0):
        return Markup("{} no positional leak is seen beyond noise ({}).").format(where, size)
    share = one(leak, "residual_share", UNEDITED, query_range)
    if share is None:
        residual = one(leak, "residual", UNEDITED, query_range)
        if residual is None:
            return Markup("{} the positional leak is {}.").format(where, size)
        share = residual[0] / value, None
    part = Markup("<strong>{}</strong> of the positional leak ({})").format(percent(*share), size)
    if late:
        return Markup("{}, {} comes through the residual stream.").format(where, part)
    rest = "the rest through the causal mask"
    if share[0] > 1:
        rest = "the causal mask works against it"
    elif share[0] < 0:
        rest = "the causal mask brings more than the whole"
    source = "the residual stream" + (", the absolute encoding included" if has_absolute_part(run) else "")
    return Markup("{}, {} comes through {}; {}.").format(where, part, source, rest)


def _edit_sentence(rows: pl.DataFrame, leak: pl.DataFrame, query_range: str) -> Markup:
    """The edit that clearly removes most of the residual-stream component, and the one that clearly adds most."""
    base = one(leak, "residual", UNEDITED, query_range)
    if base is None or base[0] <= NORMAL_INTERVAL * (base[1] or 0.0):
        return Markup("")
    removed = pick(rows, "removed", ["residual"]).filter(pl.col("query_range") == query_range)
    found = [
        (value, stderr, edit)
        for edit in edits_of(removed)
        for value, stderr in [one(removed, "residual", edit, query_range) or (0.0, None)]
        if abs(value) > NORMAL_INTERVAL * (stderr or 0.0)
    ]
    if not found:
        return Markup("") if removed.is_empty() else Markup(" No edit clearly removes any of it.")
    best, worst = max(found, key=lambda entry: entry[0]), min(found, key=lambda entry: entry[0])
    sentence = Markup("")
    if best[0] > 0:
        text = " <code>{}</code> removes <strong>{}</strong> of the residual-stream part."
        sentence += Markup(text).format(best[2], percent(best[0], best[1]))
    if worst[0] < -0.2:
        factor = with_error(1 - worst[0], worst[1])
        sentence += Markup(" <code>{}</code> makes it {} times as large.").format(worst[2], factor)
    return sentence


def _deepest(rows: pl.DataFrame, query_range: str) -> list[Markup]:
    """The layer that leaks most."""
    layers = pick(rows, "leak", ["attention_leak"], layer="each").filter(
        (pl.col("query_range") == query_range) & (pl.col("edit") == UNEDITED)
    )
    if layers.height < 2:
        return []
    top = layers.sort("value", descending=True).row(0, named=True)
    text = "At queries {} the leak is largest in layer {}: {} nats²."
    return [Markup(text).format(query_range, top["layer"], with_error(top["value"], top["stderr"]))]


def _sinks(run: Run) -> list[Markup]:
    counted = one(pick(run.rows, "sinks"), "sink_heads", UNEDITED, None)
    if counted is None:
        return []
    heads = pick(run.rows, "sinks", ["sink_attention"], layer="each", head="each").filter(pl.col("edit") == UNEDITED)
    out_of = Markup(" of {}").format(heads.height) if heads.height else Markup("")
    text = "<strong>{}</strong>{} heads read the first token as a sink (mean attention to key 0 of at least {})."
    return [Markup(text).format(number(counted[0]), out_of, SINK_THRESHOLD)]

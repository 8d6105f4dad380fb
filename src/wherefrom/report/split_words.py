"""What a logit split found, in sentences put together from its rows."""

from __future__ import annotations

import polars as pl
from markupsafe import Markup

from wherefrom.report.formatting import number, percent, with_error
from wherefrom.report.selection import edits_of, pick
from wherefrom.report.source import Run
from wherefrom.report.terms import UNEDITED

Found = tuple[float, float | None]


def value_of(rows: pl.DataFrame, metric: str, edit: str) -> Found | None:
    """Value and standard error of a metric averaged over layers and heads."""
    chosen = rows.filter((pl.col("metric") == metric) & (pl.col("edit") == edit))
    return (chosen["value"][0], chosen["stderr"][0]) if len(chosen) else None


def ranked_heads(rows: pl.DataFrame, edit: str = UNEDITED) -> list[tuple[int, int]]:
    """(layer, head), the most positional first."""
    heads = pick(rows, "split", ["positional_share"], layer="each", head="each").filter(pl.col("edit") == edit)
    return list(heads.sort("value", descending=True).select("layer", "head").iter_rows())


def shares_sentence(rows: pl.DataFrame, edit: str) -> Markup:
    """Offset, absolute and content shares of one run."""
    averages = pick(rows, "split")
    names = ("toeplitz_share", "absolute_share", "content_share", "first_key_share")
    found = {name: value_of(averages, name, edit) for name in names}
    if any(found[name] is None for name in names[:3]):
        return Markup("This run holds no shares averaged over heads and layers.")
    texts = {name: percent(*value) for name, value in found.items() if value is not None}
    where = Markup("") if edit == UNEDITED else Markup(" under <code>{}</code>").format(edit)
    sentence = Markup(
        "Of the logit variance that softmax sees{}, <strong>{}</strong> goes with the offset, <strong>{}</strong> with "
        "absolute position beyond it"
    ).format(where, texts["toeplitz_share"], texts["absolute_share"])
    if "first_key_share" in texts:
        sentence += Markup(" (at key 0 alone: {})").format(texts["first_key_share"])
    return sentence + Markup(" and <strong>{}</strong> with content.").format(texts["content_share"])


def sentences(run: Run) -> list[Markup]:
    """All findings, the main one first."""
    rows = run.rows
    found = [shares_sentence(rows, UNEDITED)]
    counted = {kind: value_of(pick(rows, "split"), f"{kind}_heads", UNEDITED) for kind in KINDS}
    if all(counted.values()):
        parts = ", ".join(f"{number(value[0])} {kind}" for kind, value in counted.items() if value)
        top = ranked_heads(rows)
        text = Markup("Heads: {}.").format(parts)
        if top:
            text += Markup(" The most positional is head {} of layer {}.").format(top[0][1], top[0][0])
        found.append(text)
    found += [shares_sentence(rows, edit) for edit in edits_of(pick(rows, "split")) if edit != UNEDITED]
    return [*found, *_readout(rows)]


KINDS = ("positional", "content", "mixed")


def _readout(rows: pl.DataFrame) -> list[Markup]:
    base = rows.filter((pl.col("analysis") == "readout") & (pl.col("edit") == UNEDITED))
    probe = base.filter(pl.col("metric") == "probe_error").sort("value")
    chance = base.filter(pl.col("metric") == "probe_chance")
    if probe.is_empty() or chance.is_empty():
        return []
    text = "A linear probe reads position best from the stream entering block {}, to {} tokens (by chance {})."
    error = with_error(probe["value"][0], probe["stderr"][0])
    return [Markup(text).format(probe["layer"][0], error, number(chance["value"][0]))]

"""The report's tables, from rows."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from wherefrom.report.blocks import Cell, Column, Table, measured
from wherefrom.report.selection import edit_label, edits_of, metrics_of, one, pick, ranges_of
from wherefrom.report.source import Run
from wherefrom.report.terms import LEAK_TERMS, RAW_COLUMNS, SPLIT_COLUMNS, label, meaning

TOKENS_SHOWN = 15
REMOVED_COLUMNS = (
    "attention_leak",
    "residual",
    "shape_leak",
    "level_leak",
    "mask",
    "first_token",
    "rest",
    "learned_sink",
)


def _columns(metrics: Sequence[str]) -> list[Column]:
    return [Column(label(metric), meaning(metric)) for metric in metrics]


def components_table(rows: pl.DataFrame) -> Table:
    """Component averages per query range and edit, with the raw split beside them."""
    leak = pick(rows, "leak")
    split, raw = metrics_of(leak, SPLIT_COLUMNS), metrics_of(leak, RAW_COLUMNS)
    body = [
        [
            Cell(query_range),
            Cell(edit_label(edit)),
            *(
                measured(one(leak, metric, edit, query_range), share=metric == "residual_share")
                for metric in [*split, *raw]
            ),
        ]
        for query_range in ranges_of(leak)
        for edit in edits_of(leak)
        if one(leak, "attention_leak", edit, query_range) is not None
    ]
    groups = [("", 2), ("split that softmax can see", len(split))]
    if raw:
        groups.append(("raw split (depends on each row's reference)", len(raw)))
    return Table(
        "components",
        "Leak averaged over layers, heads and offsets, in nats² (value ± standard error)",
        [
            Column("queries", numeric=False),
            Column("edit", numeric=False),
            *_columns(split),
            # The group's head says "raw" already, and thirteen columns have no room to say it four times more.
            *(Column(label(metric).removeprefix("raw "), meaning(metric)) for metric in raw),
        ],
        body,
        heads=2,
        groups=groups,
        read="attention leak = shape + level, and level = mask + first token + rest (+ learned sink). The raw columns "
        "mix in whatever shifts a whole row of logits, which softmax cannot see: compare them with other work, not "
        "with each other.",
    )


def removed_table(rows: pl.DataFrame) -> Table:
    """Removed fraction of every metric per edit and query range."""
    removed = pick(rows, "removed")
    metrics = metrics_of(removed, REMOVED_COLUMNS)
    body = [
        [
            Cell(edit),
            Cell(query_range),
            *(measured(one(removed, metric, edit, query_range), share=True) for metric in metrics),
        ]
        for edit in edits_of(removed)
        for query_range in ranges_of(removed.filter(pl.col("edit") == edit))
    ]
    return Table(
        "removed",
        "Removed fraction 1 − V(edit) ÷ V(unedited), paired on the same inputs (value ± standard error)",
        [Column("edit", numeric=False), Column("queries", numeric=False), *_columns(metrics)],
        body,
        heads=2,
        read="Negative: the edit made that part larger. Where the unedited part is about 0 the fraction says nothing, "
        "and its error shows it.",
    )


def sinks_table(rows: pl.DataFrame, edits: Sequence[str]) -> Table:
    """Sink attention and number of sink-reading heads per edit."""
    sinks = pick(rows, "sinks")
    body = [
        [
            Cell(edit_label(edit)),
            measured(one(sinks, "sink_heads", edit, None)),
            measured(one(sinks, "sink_attention", edit, None), share=True),
        ]
        for edit in edits
    ]
    columns = [Column("edit", numeric=False), Column("sink-reading heads"), Column(label("sink_attention"))]
    return Table("sinks", "Sinks under each edit", columns, body, half=True)


def token_tables(run: Run) -> list[Table]:
    """The tokens with the highest and the lowest sink score."""
    atlas = pick(run.rows, "atlas", ["sink_score", "norm_ratio"], token="each")
    wide = atlas.pivot(on="metric", index="token", values="value", aggregate_function="first")
    if "sink_score" not in wide.columns:
        return []
    if "norm_ratio" not in wide.columns:
        wide = wide.with_columns(norm_ratio=pl.lit(None, dtype=pl.Float64))
    wide = wide.drop_nulls("sink_score").sort("sink_score", "token", descending=[True, False])
    texts = run.get("atlas", "tokens", default={})
    texts = texts if isinstance(texts, dict) else {}
    ends = [("top", "Tokens that would make the strongest sinks", wide.head(TOKENS_SHOWN))]
    if wide.height > TOKENS_SHOWN:
        weakest = wide.tail(min(TOKENS_SHOWN, wide.height - TOKENS_SHOWN)).reverse()
        ends.append(("bottom", "Tokens that would make the weakest sinks", weakest))
    return [_token_table(f"tokens-{name}", caption, part, texts) for name, caption, part in ends]


def _token_table(name: str, caption: str, part: pl.DataFrame, texts: dict[str, object]) -> Table:
    body = [
        [
            Cell(shown_token(texts.get(str(token)))),
            Cell(str(token), float(token)),
            measured((score, None)),
            measured(None if ratio is None else (ratio, None)),
        ]
        for token, score, ratio in part.select("token", "sink_score", "norm_ratio").iter_rows()
    ]
    columns = [
        Column("token", numeric=False),
        Column("id"),
        Column("sink score"),
        Column(label("norm_ratio"), meaning("norm_ratio")),
    ]
    return Table(name, caption, columns, body, half=True)


def shown_token(text: object) -> str:
    """A token's text with its spaces and control characters made visible."""
    if text is None:
        return "(text not stored)"
    visible = "".join(_visible(character) for character in str(text))
    return visible if len(visible) <= 60 else visible[:59] + "…"


def _visible(character: str) -> str:
    if character == " ":
        return "␣"
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def meanings_table(rows: pl.DataFrame) -> Table:
    """What every leak metric in this run means."""
    present = metrics_of(rows.filter(pl.col("analysis") == "leak"), LEAK_TERMS)
    body = [[Cell(label(metric)), Cell(metric), Cell(meaning(metric))] for metric in present]
    columns = [
        Column("name", numeric=False),
        Column("metric in the table", numeric=False),
        Column("meaning", numeric=False),
    ]
    return Table("meanings", "The measures", columns, body)

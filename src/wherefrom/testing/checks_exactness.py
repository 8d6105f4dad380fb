"""Checks that the same question always gets the same answer: causality, caches, batches, shared state, the formula."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wherefrom.encodings import ENCODINGS
from wherefrom.encodings.base import Encoding
from wherefrom.encodings.composite import CompositeConfig
from wherefrom.testing.naive import naive_embed, naive_logits
from wherefrom.testing.subject import (
    CheckResult,
    EncodingOrFactory,
    Subject,
    gap,
    make_subject,
    not_applicable,
    passed,
    require,
)

TOLERANCE = 1e-10
"""Largest relative difference in float64 between two routes to one number."""
Reference = Callable[[Encoding, Tensor, Tensor, Tensor, Tensor], Tensor]


def check_causality(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """Under the causal mask, the output at t ignores what comes after t, and whether anything comes at all."""
    subject = make_subject(encoding)
    if not subject.dimensions.causal:
        return not_applicable("causality", "The encoding is built for a model without a causal mask.")
    length = subject.length(24)
    cut = length // 2
    positions = torch.arange(length)
    x = subject.tokens(length)
    changed = torch.cat((x[:, :cut], subject.tokens(length, seed=5)[:, cut:]), dim=1)
    whole = subject.layer_output(subject.make(), x, positions)[:, :, :cut]
    after = gap(subject.layer_output(subject.make(), changed, positions)[:, :, :cut], whole)
    require(
        after <= TOLERANCE,
        f"{subject.name}: changing tokens after position {cut - 1} changes the output before by {after:.1e}; "
        "it looks ahead.",
    )
    if subject.prototype.depends_on_length:
        return passed("causality", "Later tokens do not matter; their number does, as declared.")
    alone = gap(subject.layer_output(subject.make(), x[:, :cut], positions[:cut]), whole)
    require(
        alone <= TOLERANCE,
        f"{subject.name}: {cut} tokens alone give another output than as the start of {length}, by {alone:.1e}; "
        "it depends on the length (declare `depends_on_length` if that is meant).",
    )
    return passed("causality", f"Later tokens change nothing (to {max(after, alone):.1e}).")


def check_cached(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """8 tokens plus single steps equal the whole pass; then lengths 24, 25 and 23 through one instance.

    Both ways to cache are tried: keys as they were given, and keys after `transform`.
    """
    subject = make_subject(encoding)
    length = subject.length(24, spare=1)
    query, key = subject.queries_and_keys(length + 1)
    positions = torch.arange(length + 1)
    one = subject.make()
    for size in (length, length + 1, length - 1):
        arguments = (query[:, :, :size], key[:, :, :size], positions[:size], positions[:size])
        difference = gap(one.logits(*arguments), subject.make().logits(*arguments))
        require(
            difference <= TOLERANCE,
            f"{subject.name}: a call of {size} tokens after calls of other lengths differs from a first call by "
            f"{difference:.1e}; it keeps a table from an earlier call.",
        )
    if subject.prototype.depends_on_length:
        return not_applicable("cached", "Earlier keys would turn with the length, as declared; no cache can be exact.")
    query, key, positions = query[:, :, :length], key[:, :, :length], positions[:length]
    whole = subject.make().logits(query, key, positions, positions).tril()
    decoder = subject.make()
    turned_keys = decoder.transform(query[:, :, :8], key[:, :, :8], positions[:8], positions[:8])[1]
    worst = gap(
        decoder.logits(query[:, :, :8], key[:, :, :8], positions[:8], positions[:8]).tril(), whole[:, :, :8, :8]
    )
    for step in range(8, length):
        now = slice(step, step + 1)
        seen = slice(0, step + 1)
        row = decoder.logits(query[:, :, now], key[:, :, seen], positions[now], positions[seen])
        turned_query, turned_key = decoder.transform(query[:, :, now], key[:, :, now], positions[now], positions[now])
        turned_keys = torch.cat((turned_keys, turned_key), dim=2)
        scores = turned_query @ turned_keys.transpose(-1, -2) * query.shape[-1] ** -0.5
        bias = decoder.bias(query[:, :, now], key[:, :, seen], positions[now], positions[seen])
        expected = whole[:, :, now, seen]
        worst = max(worst, gap(row, expected), gap(scores if bias is None else scores + bias, expected))
    require(
        worst <= TOLERANCE,
        f"{subject.name}: {length} tokens at once and 8 plus single steps differ by {worst:.1e}; use the key positions "
        "given, not the number of queries.",
    )
    return passed("cached", f"Cached and whole passes agree to {worst:.1e}.")


def check_positions_per_row(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """Each input of a batch may have positions of its own; a row then equals that input alone."""
    subject = make_subject(encoding)
    length = subject.length(12, spare=3)
    rows = torch.stack((torch.arange(length), torch.arange(length) + min(3, subject.shift(3, length))))
    x = subject.tokens(length)
    made = subject.make()
    query, key, _ = subject.project(made.embed(x, rows))
    together = made.logits(query, key, rows, rows)
    worst = 0.0
    # A schedule that depends on length sees the longest row of the batch, as declared.
    if not made.depends_on_length:
        for row in range(2):
            alone = subject.layer_logits(subject.make(), x[row : row + 1], rows[row])
            worst = max(worst, gap(together[row : row + 1], alone))
    require(
        worst <= TOLERANCE,
        f"{subject.name}: a batch with positions per row differs from its rows alone by {worst:.1e}; positions must "
        "not be shared over the batch.",
    )
    return passed("positions_per_row", f"Rows with their own positions equal those inputs alone to {worst:.1e}.")


def check_shared_state(
    encoding: EncodingOrFactory | Subject, other: EncodingOrFactory | Subject | None = None
) -> CheckResult:
    """Positions from 0, then from 5, then from 0 again, and another setting in between, do not meet.

    `other` is the same encoding with another setting (say another base); without it only offsets are tried.
    """
    subject = make_subject(encoding)
    length = subject.length(12, spare=5)
    query, key = subject.queries_and_keys(length)
    x = subject.tokens(length)
    made = subject.make()

    def call(target: Encoding, start: int) -> list[Tensor]:
        positions = torch.arange(length) + start
        bias = target.bias(query, key, positions, positions)
        results = [target.embed(x, positions), *target.transform(query, key, positions, positions)]
        return results if bias is None else [*results, bias.expand(*query.shape[:3], length)]

    before = call(made, 0)
    middle = call(made, min(5, subject.shift(5, length)))
    rival = call(make_subject(other).make(), 0) if other is not None else None
    after = call(made, 0)
    worst = max(gap(left, right) for left, right in zip(after, before, strict=True))
    require(worst == 0.0, f"{subject.name}: the same call gives another answer after calls in between, by {worst:.1e}.")
    if not made.depends_on_length:
        start = min(5, subject.shift(5, length))
        worst = max(gap(left, right) for left, right in zip(_one_by_one(subject, x, start), middle, strict=True))
        require(
            worst <= TOLERANCE,
            f"{subject.name}: positions from {start} on at once differ from the same positions one by one by "
            f"{worst:.1e}; a table is cached by something less than all it depends on.",
        )
    if rival is not None and all(gap(left, right) == 0.0 for left, right in zip(rival, before, strict=True)):
        require(False, f"{subject.name}: another setting gives identical results; the two share a table.")
    return passed("shared_state", "Offsets 0, 5, 0 and other settings do not meet.")


def _one_by_one(subject: Subject, x: Tensor, start: int) -> list[Tensor]:
    """All touch points with one query position per call."""
    length = x.shape[1]
    query, key = subject.queries_and_keys(length)
    positions = torch.arange(length) + start
    made = subject.make()
    embedded, queries, keys, biases = [], [], [], []
    for index in range(length):
        now = slice(index, index + 1)
        embedded.append(made.embed(x[:, now], positions[now]))
        turned = made.transform(query[:, :, now], key[:, :, now], positions[now], positions[now])
        queries.append(turned[0])
        keys.append(turned[1])
        bias = made.bias(query[:, :, now], key, positions[now], positions)
        if bias is not None:
            biases.append(bias.expand(*query.shape[:2], 1, length))
    results = [torch.cat(embedded, 1), torch.cat(queries, 2), torch.cat(keys, 2)]
    return [*results, torch.cat(biases, 2)] if biases else results


def check_reference(encoding: EncodingOrFactory | Subject, reference: Reference | None = None) -> CheckResult:
    """Logits and embeddings equal a naive float64 evaluation of the formula, pair by pair.

    Encodings of the package have one in `wherefrom.testing.naive`; for others pass `reference`, a function of
    (encoding, query, key, query_positions, key_positions) that returns logits.
    """
    subject = make_subject(encoding)
    made = subject.make()
    config = made.config
    known = isinstance(config, CompositeConfig) or (
        config.name in ENCODINGS and type(made) is ENCODINGS[config.name].encoding
    )
    if reference is None and not known:
        return not_applicable("reference", "No naive reference was given for this encoding.")
    length = subject.length(7)
    query, key = subject.queries_and_keys(length)
    query, key = query[:1], key[:1]
    worst = 0.0
    for start in {0, subject.shift(40, length)}:
        positions = torch.arange(length) + start
        arguments = (query[:, :, 2:], key, positions[2:], positions)
        expected = (reference or naive_logits)(made, *arguments)
        worst = max(worst, gap(made.logits(*arguments), expected))
        if reference is None:
            x = subject.tokens(length)
            worst = max(worst, gap(made.embed(x, positions), naive_embed(made, x, positions)))
    require(worst <= TOLERANCE, f"{subject.name}: differs from the naive evaluation of its formula by {worst:.1e}.")
    return passed("reference", f"Equals the naive evaluation of its formula to {worst:.1e}.")

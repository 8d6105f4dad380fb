"""Every check has a control: an encoding that is broken in the way the check looks for, and must be caught."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from wherefrom.encodings import Dimensions, Encoding, EncodingConfig, build
from wherefrom.encodings.alibi import Alibi, AlibiConfig
from wherefrom.encodings.cope import Cope, CopeConfig
from wherefrom.encodings.learned import Learned, LearnedConfig
from wherefrom.encodings.published_mla import PublishedMla, PublishedMlaConfig
from wherefrom.encodings.rope import Rope, RopeConfig
from wherefrom.encodings.rotary import rope_frequencies, rotate
from wherefrom.encodings.scaling import DynamicNtkScaling
from wherefrom.encodings.t5 import T5, T5Config
from wherefrom.encodings.xpos import Xpos, XposConfig
from wherefrom.errors import CheckFailed
from wherefrom.testing import (
    check_cached,
    check_causality,
    check_norms,
    check_offsets,
    check_positions_per_row,
    check_reference,
    check_shared_state,
)

DIMENSIONS = Dimensions(d_model=24, heads=3, head_dim=8, max_length=40)


@dataclass(frozen=True, slots=True)
class BrokenConfig(EncodingConfig):
    name: ClassVar[str] = "broken"


def caught(check, factory, words):
    with pytest.raises(CheckFailed, match=words):
        check(factory)


def test_norms_catch_a_rotation_that_is_none():
    class Stretching(Xpos):
        rotation = True

    class Published(PublishedMla):
        rotation = True

    caught(check_norms, lambda: Stretching(XposConfig(), DIMENSIONS), "norms change with position")
    caught(check_norms, lambda: Published(PublishedMlaConfig(), DIMENSIONS), "norms change with position")


def test_offsets_catch_absolute_encodings_that_call_themselves_relative():
    class CallsItselfRelative(Learned):
        reference = "relative"

    class PublishedCallsItselfRelative(PublishedMla):
        reference = "relative"

    class RotatesQueriesTwiceAsFast(Rope):
        def transform(self, query, key, query_positions, key_positions):
            return super().transform(query, key, 2 * query_positions, key_positions)

    class UnboundedGrowth(Alibi):
        def bias(self, query, key, query_positions, key_positions):
            relative = super().bias(query, key, query_positions, key_positions)
            return relative * (1 + query_positions[:, None] / 100)

    for factory in (
        lambda: CallsItselfRelative(LearnedConfig(), DIMENSIONS),
        lambda: PublishedCallsItselfRelative(PublishedMlaConfig(), DIMENSIONS),
        lambda: RotatesQueriesTwiceAsFast(RopeConfig(), DIMENSIONS),
        lambda: UnboundedGrowth(AlibiConfig(), DIMENSIONS),
    ):
        caught(check_offsets, factory, "depends on absolute position")


def test_offsets_catch_relative_and_positional_encodings_that_call_themselves_otherwise():
    class CallsItselfAbsolute(Rope):
        reference = "absolute"

    class CallsItselfNothing(Alibi):
        reference = "none"

    caught(check_offsets, lambda: CallsItselfAbsolute(RopeConfig(), DIMENSIONS), "declare it relative")
    caught(check_offsets, lambda: CallsItselfNothing(AlibiConfig(), DIMENSIONS), "declares no position")


def test_causality_catches_looking_ahead_and_undeclared_length():
    class CountsAhead(Cope):
        def counts(self, query, key, query_positions, key_positions):
            gates = torch.sigmoid(query @ key.transpose(-1, -2))
            return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.max_count)

    class ScalesWithLength(Alibi):
        def bias(self, query, key, query_positions, key_positions):
            return super().bias(query, key, query_positions, key_positions) / key.shape[2]

    def undeclared_dynamic():
        encoding = Rope(RopeConfig(scaling=DynamicNtkScaling(2.0, 8)), DIMENSIONS)

        class Undeclared(Rope):
            def transform(self, query, key, query_positions, key_positions):
                return encoding.transform(query, key, query_positions, key_positions)

        return Undeclared(RopeConfig(), DIMENSIONS)

    caught(check_causality, lambda: CountsAhead(CopeConfig(), DIMENSIONS), "looks ahead")
    caught(check_causality, lambda: ScalesWithLength(AlibiConfig(), DIMENSIONS), "depends on the length")
    caught(check_causality, undeclared_dynamic, "depends on the length")


class QueryLengthBias(T5):
    """Case B2: the bias is built over the number of queries, and broadcasting hides it."""

    def bias(self, query, key, query_positions, key_positions):
        size = query.shape[2]
        return super().bias(query, key, torch.arange(size), torch.arange(size if size > 1 else key.shape[2]))


class KeepsBias(Alibi):
    """Case B2: the longest bias so far is kept, and cut to the wrong end for a shorter call."""

    kept = None

    def bias(self, query, key, query_positions, key_positions):
        if self.kept is None or self.kept.shape[-1] < key.shape[2]:
            self.kept = super().bias(query, key, query_positions, key_positions)
        return self.kept[..., : query.shape[2], -key.shape[2] :]


def test_cached_catches_biases_over_query_length_and_kept_biases():
    caught(check_cached, lambda: QueryLengthBias(T5Config(), DIMENSIONS), "use the key positions given")
    caught(check_cached, lambda: KeepsBias(AlibiConfig(), DIMENSIONS), "keeps a table from an earlier call")


def test_cached_catches_keys_that_turn_with_the_query():
    class TurnsKeysWithTheQuery(Rope):
        def transform(self, query, key, query_positions, key_positions):
            last = query_positions.max()
            return super().transform(query, key, query_positions - last, key_positions - last)

    caught(check_cached, lambda: TurnsKeysWithTheQuery(RopeConfig(), DIMENSIONS), "differ by")


class AnglesByLength(Encoding):
    """Cases B5: one global table of angles, keyed by length only (or by length and start, but not by theta)."""

    tables: ClassVar[dict[object, torch.Tensor]] = {}
    kind, reference, rotation = "multiplicative", "relative", True
    keyed_by_start = False

    def __init__(self, theta: float) -> None:
        super().__init__(BrokenConfig(), DIMENSIONS)
        self.theta = theta

    def transform(self, query, key, query_positions, key_positions):
        return self._turn(query, query_positions), self._turn(key, key_positions)

    def _turn(self, x, positions):
        start = int(positions[0]) if self.keyed_by_start else None
        kept = self.tables.setdefault((len(positions), start), (positions, rope_frequencies(8, self.theta)[0]))
        return rotate(x, *kept)


class AnglesByLengthAndStart(AnglesByLength):
    tables: ClassVar[dict[object, torch.Tensor]] = {}
    keyed_by_start = True


def test_shared_state_catches_tables_keyed_by_too_little():
    AnglesByLength.tables.clear()
    caught(check_shared_state, lambda: AnglesByLength(10000.0), "cached by something less than all it depends on")
    AnglesByLengthAndStart.tables.clear()
    check_shared_state(lambda: AnglesByLengthAndStart(10000.0))  # one setting alone shows nothing
    with pytest.raises(CheckFailed, match="the two share a table"):
        check_shared_state(lambda: AnglesByLengthAndStart(10000.0), other=lambda: AnglesByLengthAndStart(500000.0))


def test_shared_state_catches_an_encoding_that_remembers():
    class Remembers(Alibi):
        calls = 0

        def bias(self, query, key, query_positions, key_positions):
            self.calls += 1
            return super().bias(query, key, query_positions, key_positions) * self.calls

    caught(check_shared_state, lambda: Remembers(AlibiConfig(), DIMENSIONS), "calls in between")


def test_positions_per_row_catch_positions_shared_over_the_batch():
    class FirstRowOnly(Learned):
        def embed(self, x, positions):
            return super().embed(x, positions if positions.ndim == 1 else positions[0])

    caught(check_positions_per_row, lambda: FirstRowOnly(LearnedConfig(), DIMENSIONS), "positions must not be shared")


def test_reference_catches_wrong_pairing_wrong_scaling_and_wrong_slopes():
    def logits_of(specification):
        other = build(specification, d_model=24, heads=3, max_length=40).double()
        return lambda encoding, *arguments: other.logits(*arguments)

    for specification, reference in (
        ("rope", "rope:pairing=interleaved"),
        ("rope:rotary_dim=4", "rope:rotary_dim=4,partial=proportional"),
        ("rope:scaling=llama3,factor=32,original_max_length=32", "rope:scaling=llama3,factor=8,original_max_length=32"),
        ("alibi", "alibi:slopes=geometric"),
        ("mla", "published-mla"),
    ):
        made = build(specification, d_model=24, heads=3, max_length=40)
        check_reference(made, reference=logits_of(specification))
        with pytest.raises(CheckFailed, match="differs from the naive evaluation"):
            check_reference(made, reference=logits_of(reference))


def test_naive_references_catch_changed_settings():
    """The package's own references read the configuration, so a module that ignores it is caught."""

    def wrong(specification, actual):
        made = build(specification, d_model=24, heads=3, max_length=40)
        other = build(actual, d_model=24, heads=3, max_length=40)
        made.transform, made.bias, made.embed = other.transform, other.bias, other.embed
        return made

    for specification, actual in (
        ("rope:theta=500000", "rope"),
        ("t5:buckets=16", "t5:buckets=8"),
        ("sinusoidal", "sinusoidal:layout=concatenated"),
        ("xpos", "rope:pairing=interleaved"),
        ("alibi+rope", "rope"),
        ("mla:shared_key=false", "mla"),
    ):
        with pytest.raises(CheckFailed, match="naive evaluation"):
            check_reference(functools.partial(copy.copy, wrong(specification, actual)))

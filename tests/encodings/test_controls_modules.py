"""Controls for the checks of declarations and of encodings as modules: broken ones that must be caught."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from wherefrom.encodings import Dimensions, Encoding, EncodingConfig
from wherefrom.encodings.alibi import Alibi, AlibiConfig, alibi_slopes
from wherefrom.encodings.base import offsets
from wherefrom.encodings.learned import Learned, LearnedConfig
from wherefrom.encodings.published_mla import PublishedMla, PublishedMlaConfig
from wherefrom.encodings.rope import Rope, RopeConfig
from wherefrom.encodings.rotary import rope_frequencies, rotate
from wherefrom.encodings.t5 import T5, T5Config
from wherefrom.encodings.xpos import Xpos, XposConfig
from wherefrom.errors import CheckFailed
from wherefrom.testing import (
    check_declarations,
    check_encoding,
    check_gradients,
    check_half_precision,
    check_max_length,
    check_state_dict,
)

DIMENSIONS = Dimensions(d_model=24, heads=3, head_dim=8, max_length=40)


@dataclass(frozen=True, slots=True)
class BrokenConfig(EncodingConfig):
    name: ClassVar[str] = "broken"


def caught(check, factory, words):
    with pytest.raises(CheckFailed, match=words):
        check(factory)


def test_gradients_catch_detached_and_unused_parameters():
    class Detached(T5):
        def bias(self, query, key, query_positions, key_positions):
            return super().bias(query, key, query_positions, key_positions).detach()

    class Unused(T5):
        def __init__(self, config, dimensions):
            super().__init__(config, dimensions)
            self.spare = nn.Parameter(torch.ones(1))

    class RowConstant(T5):
        """Adds its parameters to whole rows, where softmax cannot see them."""

        def bias(self, query, key, query_positions, key_positions):
            return super().bias(query, key, query_positions, key_positions)[..., :1]

    caught(check_gradients, lambda: Detached(T5Config(), DIMENSIONS), "no usable gradient reaches")
    caught(check_gradients, lambda: Unused(T5Config(), DIMENSIONS), "`spare`")
    caught(check_gradients, lambda: RowConstant(T5Config(), DIMENSIONS), "`table`")


def test_state_dict_catches_state_outside_it():
    class Hidden(Alibi):
        def __init__(self, config, dimensions):
            super().__init__(config, dimensions)
            self.slopes = torch.rand(dimensions.heads)

        def bias(self, query, key, query_positions, key_positions):
            offset = offsets(query_positions, key_positions).to(query.dtype)
            return -self.slopes.to(query.dtype)[:, None, None] * offset

    caught(check_state_dict, lambda: Hidden(AlibiConfig(), DIMENSIONS), "some state is lost")


def test_half_precision_catches_rounded_frequencies_angles_and_biases():
    class FrequenciesInABuffer(Rope):
        def __init__(self, config, dimensions):
            super().__init__(config, dimensions)
            self.register_buffer("kept", rope_frequencies(dimensions.head_dim)[0])

        def transform(self, query, key, query_positions, key_positions):
            return rotate(query, query_positions, self.kept), rotate(key, key_positions, self.kept)

    class PositionsInHalf(Rope):
        def transform(self, query, key, query_positions, key_positions):
            rounded = (positions.to(query.dtype).double() for positions in (query_positions, key_positions))
            return super().transform(query, key, *rounded)

    class BiasInHalf(Alibi):
        def bias(self, query, key, query_positions, key_positions):
            slopes = alibi_slopes(self.dimensions.heads).to(query.dtype)[:, None, None]
            return -slopes * offsets(query_positions, key_positions).to(query.dtype)

    caught(check_half_precision, lambda: FrequenciesInABuffer(RopeConfig(), DIMENSIONS), "vectors are wrong")
    caught(check_half_precision, lambda: PositionsInHalf(RopeConfig(), DIMENSIONS), "vectors are wrong")
    caught(check_half_precision, lambda: BiasInHalf(AlibiConfig(), DIMENSIONS), "the bias is wrong")


def test_max_length_catches_wrapped_and_unexplained_positions():
    class Wraps(Learned):
        def embed(self, x, positions):
            return x + self.table[positions % self.table.shape[0]]

    class Crashes(Learned):
        def embed(self, x, positions):
            return x + self.table[positions]

    class Overflows(Xpos):
        max_length = None

        def transform(self, query, key, query_positions, key_positions):
            return query * torch.exp(query_positions.double())[:, None], key

    caught(check_max_length, lambda: Wraps(LearnedConfig(), DIMENSIONS), "accepts position 40")
    caught(check_max_length, lambda: Crashes(LearnedConfig(), DIMENSIONS), "raise BadInput with a sentence")
    caught(check_max_length, lambda: Overflows(XposConfig(), DIMENSIONS), "not finite")


def test_declarations_catch_wrong_and_missing_ones():
    class WrongKind(Encoding):
        """Some.

        Formula: a

        Source: b
        """

        kind = "rotary"

    class Undocumented(Encoding):
        """Nothing to read here."""

    class NotLearned(T5):
        learned = False

    caught(check_declarations, lambda: WrongKind(BrokenConfig(), DIMENSIONS), "kind is `rotary`")
    caught(check_declarations, lambda: Undocumented(BrokenConfig(), DIMENSIONS), "no paragraph beginning `Formula: `")
    caught(check_declarations, lambda: NotLearned(T5Config(), DIMENSIONS), "correct the declaration")


def test_the_suite_reports_every_failure_at_once():
    class DoublyBroken(PublishedMla):
        """Says it rotates and says it is relative."""

        rotation, reference = True, "relative"

    with pytest.raises(CheckFailed) as failure:
        check_encoding(lambda: DoublyBroken(PublishedMlaConfig(), DIMENSIONS))
    for words in ("norms change", "absolute position", "no paragraph"):
        assert words in str(failure.value)

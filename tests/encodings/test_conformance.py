"""Every encoding of the table passes the public conformance suite."""

from __future__ import annotations

import functools

import pytest
from encoding_specifications import BIDIRECTIONAL, SPECIFICATIONS, make

from wherefrom.encodings import ENCODINGS
from wherefrom.errors import BadInput, CheckFailed
from wherefrom.testing import CHECKS, check_encoding


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("specification", SPECIFICATIONS)
def test_encoding_conforms(specification, check):
    other = SPECIFICATIONS[specification]
    results = check_encoding(
        functools.partial(make, specification),
        other=functools.partial(make, other) if other else None,
        only=[check],
    )
    assert [result.check for result in results] == [check]


@pytest.mark.parametrize("specification", BIDIRECTIONAL)
def test_encoding_conforms_without_a_causal_mask(specification):
    results = check_encoding(functools.partial(make, specification, causal=False))
    assert {result.check for result in results if not result.applies} >= {"causality"}


def test_every_encoding_of_the_table_is_covered():
    covered = {part.partition(":")[0] for specification in SPECIFICATIONS for part in specification.split("+")}
    assert covered == set(ENCODINGS)


def test_checks_apply_where_they_should():
    def applying(specification):
        return {result.check for result in check_encoding(make(specification)) if result.applies}

    assert {"norms", "cached", "reference", "causality"} <= applying("rope")
    assert "norms" not in applying("xpos")
    assert "gradients" in applying("t5")
    assert "cached" not in applying("rope:scaling=dynamic,factor=2,original_max_length=16")


def test_unknown_check_and_wrong_object_are_refused():
    with pytest.raises(BadInput, match="did you mean `norms`"):
        check_encoding(make("rope"), only=["norm"])
    with pytest.raises(BadInput, match="got a int"):
        check_encoding(lambda: 3)
    assert issubclass(CheckFailed, RuntimeError)

"""All checks in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wherefrom.errors import BadInput, CheckFailed
from wherefrom.settings import suggestion
from wherefrom.testing.checks_exactness import (
    Reference,
    check_cached,
    check_causality,
    check_positions_per_row,
    check_reference,
    check_shared_state,
)
from wherefrom.testing.checks_nature import check_declarations, check_norms, check_offsets
from wherefrom.testing.checks_training import (
    check_gradients,
    check_half_precision,
    check_max_length,
    check_state_dict,
)
from wherefrom.testing.subject import CheckResult, EncodingOrFactory, Subject, make_subject

CHECKS: dict[str, Callable[[EncodingOrFactory | Subject], CheckResult]] = {
    "declarations": check_declarations,
    "norms": check_norms,
    "offsets": check_offsets,
    "causality": check_causality,
    "cached": check_cached,
    "positions_per_row": check_positions_per_row,
    "shared_state": check_shared_state,
    "reference": check_reference,
    "gradients": check_gradients,
    "state_dict": check_state_dict,
    "half_precision": check_half_precision,
    "max_length": check_max_length,
}
"""Every check by name."""


def check_encoding(
    encoding: EncodingOrFactory,
    *,
    other: EncodingOrFactory | None = None,
    reference: Reference | None = None,
    only: Iterable[str] | None = None,
    seed: int = 0,
) -> list[CheckResult]:
    """Run the conformance suite on an encoding, or on a factory that makes a new one at each call.

    `other`: the same encoding with another setting, to find state that two settings share. `reference`: a naive
    evaluation of the formula (see `check_reference`). `only`: names of checks to run; None: all.
    Returns the outcome of every check; raises CheckFailed with one sentence per check that does not hold, and BadInput
    for an unknown check.
    """
    chosen = list(CHECKS) if only is None else list(only)
    for name in chosen:
        if name not in CHECKS:
            raise BadInput(f"There is no check `{name}`; {suggestion(name, CHECKS)}")
    subject = make_subject(encoding, seed)
    results, failures = [], []
    for name in chosen:
        try:
            if name == "shared_state":
                results.append(check_shared_state(subject, other))
            elif name == "reference":
                results.append(check_reference(subject, reference))
            else:
                results.append(CHECKS[name](subject))
        except CheckFailed as failure:
            failures.append(str(failure))
    if failures:
        raise CheckFailed(" ".join(failures))
    return results

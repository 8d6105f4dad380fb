"""Public conformance suite for positional encodings.

    from wherefrom.testing import check_encoding
    check_encoding(lambda: MyEncoding(config, dimensions))

runs every check and raises CheckFailed with one sentence per check that does not hold; each check can also be called
alone (`check_norms(encoding)`). Every encoding of the package passes the same suite. All judgement is in float64, on
queries and keys whose logits have a standard deviation near 1.
"""

from wherefrom.testing.checks_exactness import (
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
from wherefrom.testing.naive import naive_embed, naive_logits
from wherefrom.testing.subject import CheckResult, Subject, make_subject
from wherefrom.testing.suite import CHECKS, check_encoding

__all__ = [
    "CHECKS",
    "CheckResult",
    "Subject",
    "check_cached",
    "check_causality",
    "check_declarations",
    "check_encoding",
    "check_gradients",
    "check_half_precision",
    "check_max_length",
    "check_norms",
    "check_offsets",
    "check_positions_per_row",
    "check_reference",
    "check_shared_state",
    "check_state_dict",
    "make_subject",
    "naive_embed",
    "naive_logits",
]

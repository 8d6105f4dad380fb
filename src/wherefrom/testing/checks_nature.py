"""Checks of what an encoding says it is: its declarations, its norms, and what its logits depend on."""

from __future__ import annotations

import torch
from torch import Tensor

from wherefrom.encodings import describe
from wherefrom.encodings.base import KINDS, REFERENCES
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

TOLERANCE = 1e-9
"""Largest relative difference in float64 at offsets up to 1000; angles there carry a rounding of about 1e-13."""
SENSITIVITY = 1e-6
"""Smallest difference that counts as a real dependence."""


def check_declarations(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """Kind, reference and learned are declared truthfully; the docstring has a formula and a source."""
    subject = make_subject(encoding)
    made = subject.prototype
    require(made.kind in KINDS, f"{subject.name}: kind is `{made.kind}`; declare one of {', '.join(KINDS)}.")
    require(
        made.reference in REFERENCES,
        f"{subject.name}: reference is `{made.reference}`; declare one of {', '.join(REFERENCES)}.",
    )
    count = sum(parameter.numel() for parameter in made.parameters())
    require(
        made.learned == (count > 0),
        f"{subject.name}: declares learned={made.learned} but has {count} parameters; correct the declaration.",
    )
    about = describe(type(made))
    for part in ("formula", "source"):
        label = part.capitalize()
        require(bool(about[part]), f"{subject.name}: the docstring has no paragraph beginning `{label}: `; add it.")
    return passed("declarations", f"{made.kind}, {made.reference}, {count} parameters.")


def check_norms(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """A declared rotation gives each query and key the same norm at every position."""
    subject = make_subject(encoding)
    if not subject.prototype.rotation:
        return not_applicable("norms", "The encoding does not declare itself a rotation.")
    length = subject.length(24)
    query, key = subject.queries_and_keys(length)
    here = torch.arange(length) + subject.shift(100, length)
    origin = torch.zeros_like(here)
    # A dynamic schedule may rescale with length; giving both calls the same longest position leaves position alone.
    origin[-1] = here[-1]
    moved = subject.make().transform(query, key, here, here)
    still = subject.make().transform(query, key, origin, origin)
    worst = max(gap(left.norm(dim=-1), right.norm(dim=-1)) for left, right in zip(moved, still, strict=True))
    require(
        worst <= TOLERANCE,
        f"{subject.name}: declares a rotation, but norms change with position by {worst:.1e}; it does not rotate.",
    )
    return passed("norms", f"Norms are the same at every position to {worst:.1e}.")


def check_offsets(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """Logits depend on position as declared, judged without row constants (softmax cannot see those).

    `relative` and `content`: equal logits at equal offsets, content held equal, and nothing changes when all positions
    shift. `absolute`: shifting must change something. `none`: no position changes anything.
    """
    subject = make_subject(encoding)
    made = subject.prototype
    length = subject.length(24, spare=1)
    positions = torch.arange(length)
    shift = subject.shift(1000, length)
    x = subject.tokens(length)
    base = row_free(subject, subject.layer_logits(subject.make(), x, positions))
    moved = row_free(subject, subject.layer_logits(subject.make(), x, positions + shift))
    change = gap(moved, base)
    if made.reference == "none":
        other = row_free(subject, subject.layer_logits(subject.make(), x, positions.flip(0)))
        change = max(change, gap(other, base))
        require(
            change <= TOLERANCE, f"{subject.name}: declares no position, but positions move logits by {change:.1e}."
        )
        return passed("offsets", f"Positions change no logit (to {change:.1e}).")
    if made.reference == "absolute":
        require(
            change > SENSITIVITY,
            f"{subject.name}: declares itself absolute, but shifting all positions by {shift} changes no logit; "
            "declare it relative.",
        )
        return passed("offsets", f"Shifting all positions by {shift} moves logits by {change:.1e}, as declared.")
    same = subject.tokens(1).expand(-1, length, -1)
    spread = offset_spread(subject, subject.layer_logits(subject.make(), same, positions))
    require(
        spread <= TOLERANCE,
        f"{subject.name}: declares itself {made.reference}, but equal tokens at equal offsets differ by {spread:.1e}; "
        "it depends on absolute position.",
    )
    if made.depends_on_length:
        return passed(
            "offsets", f"Equal offsets give equal logits to {spread:.1e}; shifts change the length, as declared."
        )
    require(
        change <= TOLERANCE,
        f"{subject.name}: declares itself {made.reference}, but shifting all positions by {shift} moves logits by "
        f"{change:.1e}; it depends on absolute position.",
    )
    return passed("offsets", f"Equal offsets give equal logits to {spread:.1e}, and to {change:.1e} {shift} tokens on.")


def row_free(subject: Subject, logits: Tensor) -> Tensor:
    """Logits of the visible keys minus that of the query's own position; 0 where a key is invisible."""
    own = logits - logits.diagonal(dim1=-2, dim2=-1)[..., None]
    return own.tril() if subject.dimensions.causal else own


def offset_spread(subject: Subject, logits: Tensor) -> float:
    """Largest difference between row-free logits on one diagonal, relative to the largest logit (at least 1)."""
    free = row_free(subject, logits)
    length = free.shape[-1]
    worst = 0.0
    for diagonal in range(1 - length, length):
        values = free.diagonal(offset=diagonal, dim1=-2, dim2=-1)
        worst = max(worst, float((values - values[..., :1]).detach().abs().max()))
    return worst / max(1.0, float(free.detach().abs().max()))

"""Checks of an encoding as a module: gradients, checkpoints, half precision, limits."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from wherefrom.encodings.base import Encoding
from wherefrom.errors import BadInput, CheckFailed
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

FAR = 4096
"""Position from which half precision is tried: neighbours there are one number in bfloat16."""
HALF_TOLERANCE = 2.0**-7
"""Two roundings to bfloat16, relative to the largest entry."""
SMALLEST_GRADIENT = 1e-9
"""Below this a gradient is rounding: a parameter that only moves whole rows of logits gets about 1e-16."""
BIAS_TOLERANCE = 1e-5
"""A bias is computed in float32 at least, also in a half-precision model."""


def check_gradients(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """A loss behind one attention layer sends a finite, non-zero gradient to every parameter."""
    subject = make_subject(encoding)
    if not subject.prototype.learned:
        return not_applicable("gradients", "The encoding has no parameters.")
    length = subject.length(24)
    made = subject.make()
    output = subject.layer_output(made, subject.tokens(length), torch.arange(length))
    # The zero keeps the graph alive where an encoding detaches everything; the sentence below then says so.
    alive = sum(parameter.sum() for parameter in made.parameters()) * 0.0
    ((output * subject.draw(*output.shape, seed=6)).sum() + alive).backward()
    names = []
    for name, parameter in made.named_parameters():
        names.append(name)
        gradient = parameter.grad
        require(
            gradient is not None
            and bool(gradient.isfinite().all())
            and float(gradient.abs().max()) > SMALLEST_GRADIENT,
            f"{subject.name}: no usable gradient reaches the parameter `{name}`; it cannot be trained.",
        )
    return passed("gradients", f"Gradients reach {', '.join(names)}.")


def check_state_dict(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """A saved and loaded state dict gives another instance the same results."""
    subject = make_subject(encoding)
    length = subject.length(12)
    x, positions = subject.tokens(length), torch.arange(length)
    file = io.BytesIO()
    torch.save(subject.make().state_dict(), file)
    file.seek(0)
    loaded = subject.make_different()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    worst = gap(subject.layer_logits(loaded, x, positions), subject.layer_logits(subject.make(), x, positions))
    require(
        worst == 0.0, f"{subject.name}: a loaded state dict gives other results, by {worst:.1e}; some state is lost."
    )
    return passed("state_dict", f"{len(loaded.state_dict())} saved tensors restore it exactly.")


def check_half_precision(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """Cast to bfloat16 as a whole, the encoding errs by the rounding of its results, not by that of its angles."""
    subject = make_subject(encoding)
    length = subject.length(24)
    start = subject.shift(FAR, length)
    positions = torch.arange(length) + start
    half = subject.make().to(torch.bfloat16)
    exact = subject.make()
    with torch.no_grad():
        # Parameters are rounded on both sides; buffers on one only, since constants belong in no cast at all.
        for parameter in exact.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    query, key = (part.to(torch.bfloat16) for part in subject.queries_and_keys(length))
    x = subject.tokens(length).to(torch.bfloat16)
    worst = gap(half.embed(x, positions).double(), exact.embed(x.double(), positions))
    turned = half.transform(query, key, positions, positions)
    truth = exact.transform(query.double(), key.double(), positions, positions)
    for left, right in zip(turned, truth, strict=True):
        worst = max(worst, _relative(left.double(), right))
    require(
        worst <= HALF_TOLERANCE,
        f"{subject.name}: in bfloat16 at position {start} vectors are wrong by {worst:.1e}; compute angles in float32 "
        "or float64, and keep frequencies out of buffers that a cast would round.",
    )
    near = length // 2
    # Half of the keys stand at the origin, so that the offsets are large too.
    key_positions = torch.cat((torch.arange(near), positions[near:]))
    bias = _bias_error(half, exact, query, key, (positions, key_positions))
    require(
        bias <= BIAS_TOLERANCE,
        f"{subject.name}: in bfloat16 at position {start} the bias is wrong by {bias:.1e}; compute and return it in "
        "float32 or above.",
    )
    return passed("half_precision", f"At position {start} in bfloat16: vectors to {worst:.1e}, bias to {bias:.1e}.")


def _relative(left: Tensor, right: Tensor) -> float:
    """Largest difference relative to the largest entry, however small that is."""
    scale = float(right.detach().abs().max())
    return gap(left / scale, right / scale) if scale else gap(left, right)


def _bias_error(half: Encoding, exact: Encoding, query: Tensor, key: Tensor, positions: tuple[Tensor, Tensor]) -> float:
    bias = half.bias(query, key, *positions)
    truth = exact.bias(query.double(), key.double(), *positions)
    if bias is None or truth is None:
        return 0.0 if bias is truth else float("inf")
    return _relative(bias.double(), truth)


def check_max_length(encoding: EncodingOrFactory | Subject) -> CheckResult:
    """Positions inside the limit work, the first one outside is refused by a sentence that names it."""
    subject = make_subject(encoding)
    limit = subject.prototype.max_length
    x = subject.tokens(1)
    if limit is None:
        output = subject.layer_output(subject.make(), x, torch.tensor([10_000]))
        require(bool(output.isfinite().all()), f"{subject.name}: declares no limit, but position 10000 is not finite.")
        return passed("max_length", "No limit; position 10000 is finite.")
    subject.layer_output(subject.make(), x, torch.tensor([limit - 1]))
    for position in (limit, -1):
        try:
            subject.layer_output(subject.make(), x, torch.tensor([position]))
        except BadInput as refusal:
            require(
                str(position) in str(refusal),
                f"{subject.name}: refuses position {position} without naming it: {refusal}",
            )
        except (IndexError, RuntimeError) as error:
            raise CheckFailed(
                f"{subject.name}: position {position} ends in a {type(error).__name__}; raise BadInput with a sentence."
            ) from error
        else:
            raise CheckFailed(
                f"{subject.name}: declares room for {limit} positions, but accepts position {position}; refuse it."
            )
    return passed("max_length", f"Positions 0 to {limit - 1} work, others are refused.")

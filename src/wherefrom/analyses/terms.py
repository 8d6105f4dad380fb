"""The logit split on given vectors and matrices, whole: for encodings by themselves, small models and tests.

What `analyses.split` gets from sums without an L x L matrix is written here from the definition; both give the same
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.capture.query_rows import OffsetFit, RowPlan
from wherefrom.encodings.base import Encoding, repeat_heads
from wherefrom.encodings.kernels import gram_terms
from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput

NAMES = {
    "qc,kc": "content_content",
    "qc,kp": "content_position",
    "qp,kc": "position_content",
    "qp,kp": "position_position",
}
"""Paper [G]'s name of a term to ours."""


@dataclass(frozen=True)
class EncodingTerms:
    """Logits of an encoding on given queries and keys, split into terms."""

    terms: dict[str, Tensor]
    """The four Gram terms, each turned, and `bias` where there is one: (input head query key), scaled. They add up to
    the encoding's logits."""
    whole_vectors: bool
    """The encoding's transform is not linear, so content and position were told apart behind it."""


def content_and_position(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Split vectors (input head index dim) so that content + position is the whole, exactly.

    Position is the mean of the other inputs at that index minus the grand mean; the grand mean counts as content.
    Raises BadInput for fewer than two inputs.
    """
    inputs = len(vectors)
    if inputs < 2:
        raise BadInput("Position is a mean over inputs and needs at least two; give vectors of more inputs.")
    others = (vectors.sum(0, keepdim=True) - vectors) / (inputs - 1)
    position = others - vectors.mean((0, 2), keepdim=True)
    return vectors - position, position


def encoding_terms(
    encoding: Encoding, query: Tensor, key: Tensor, positions: Tensor, scale: float | None = None
) -> EncodingTerms:
    """Split the logits of `encoding` on queries (input head index dim) and keys (input kv_head index dim).

    The vectors are those before the encoding's transform; where that is not linear (PoPE), those behind it. `scale`
    None: 1/sqrt(dim).
    """
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    whole = not _is_linear(encoding, query, key, positions)
    bias = encoding.bias(query, key, positions, positions)
    if whole:
        query, key = encoding.transform(query, key, positions, positions)
    parts = [content_and_position(vectors) for vectors in (query, key)]
    if not whole:
        turned = [encoding.transform(parts[0][i], parts[1][i], positions, positions) for i in (0, 1)]
        parts = [(turned[0][side], turned[1][side]) for side in (0, 1)]
    heads = query.shape[1]
    keys = [repeat_heads(part, heads) for part in parts[1]]
    terms = {NAMES[name]: value * factor for name, value in gram_terms(*parts[0], *keys).items()}
    if bias is not None:
        terms["bias"] = bias.expand_as(terms["content_content"])
    return EncodingTerms(terms, whole)


def _is_linear(encoding: Encoding, query: Tensor, key: Tensor, positions: Tensor) -> bool:
    """Whether turning a sum is the sum of the turned."""
    both = encoding.transform(query + query.flip(0), key + key.flip(0), positions, positions)
    one = encoding.transform(query, key, positions, positions)
    other = encoding.transform(query.flip(0), key.flip(0), positions, positions)
    return all(torch.allclose(b, x + y, rtol=1e-4, atol=1e-5) for b, x, y in zip(both, one, other, strict=True))


def whole_plan(length: int) -> RowPlan:
    """Every query row from position 1 on."""
    return RowPlan(length, 1, 1, length - 1)


def term_shares(terms: Mapping[str, Tensor], rule: MaskRule | None = None) -> dict[str, Tensor]:
    """Share of each term (input head query key) in the variance of their sum, (head,): covariances that add up to 1.

    Everything is row-centred first, so a constant added to a row of any term changes no share.
    """
    fit = OffsetFit(whole_plan(next(iter(terms.values())).shape[-1]), rule or MaskRule())
    centred = {name: fit.centred(term[..., 1:, :]) for name, term in terms.items()}
    total = torch.stack(list(centred.values())).sum(0)
    weighted = fit.weighted(total)
    variance = (total * weighted).sum((0, 2, 3))
    return {name: (term * weighted).sum((0, 2, 3)) / variance for name, term in centred.items()}


def mean_shares(logits: Tensor, rule: MaskRule | None = None) -> dict[str, Tensor]:
    """`toeplitz`, `absolute` and `content` share of logits (input head query key), (head,): they add up to 1.

    From pairs of different inputs, as in `analyses.split`.
    """
    fit = OffsetFit(whole_plan(logits.shape[-1]), rule or MaskRule())
    rows = fit.centred(logits[..., 1:, :])
    weighted = fit.weighted(rows)
    inputs = len(logits)
    pairs = inputs * (inputs - 1)
    squares = (rows * weighted).sum((2, 3))
    mean = ((rows.sum(0) * weighted.sum(0)).sum((1, 2)) - squares.sum(0)) / pairs
    offsets = torch.stack([fit.offset_sums(item) for item in weighted])
    own = (fit.profile(offsets) * offsets).sum((0, 2))
    toeplitz = ((fit.profile(offsets.sum(0)) * offsets.sum(0)).sum(-1) - own) / pairs
    variance = squares.mean(0)
    return {
        "toeplitz": toeplitz / variance,
        "absolute": (mean - toeplitz) / variance,
        "content": 1 - mean / variance,
    }

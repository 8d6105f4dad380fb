"""ALiBi: a linear bias per head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig, compute_dtype, offsets
from wherefrom.settings import check_choice, check_count, check_number

SlopeRule = Literal["interleaved", "geometric", "published"]
Form = Literal["auto", "causal", "symmetric", "key"]


@dataclass(frozen=True, slots=True)
class AlibiConfig(EncodingConfig):
    """Settings of ALiBi."""

    name: ClassVar[str] = "alibi"

    slopes: SlopeRule = "interleaved"
    """Slope rule: `interleaved` (the ALiBi paper's), `geometric` (one sequence) or `published` (paper [G]'s)."""
    max_exponent: float = 8.0
    """The smallest slope is 2^-max_exponent (`interleaved` and `geometric`)."""
    form: Form = "auto"
    """`causal` -m(i-j), `symmetric` -m|i-j|, `key` m·j (the softmax of `causal`); `auto`: as the mask needs."""

    def __post_init__(self) -> None:
        check_choice(self.name, "slopes", self.slopes, get_args(SlopeRule))
        check_number(self.name, "max_exponent", self.max_exponent)
        check_choice(self.name, "form", self.form, get_args(Form))


def alibi_slopes(heads: int, rule: str = "interleaved", max_exponent: float = 8.0) -> Tensor:
    """Slope of each head in nats per token, (head,), float64.

    - `geometric`: 2^(-max_exponent·h/heads) for h = 1 … heads.
    - `interleaved`: the same where `heads` is a power of two; otherwise the sequence of the next lower power of two,
      followed by every second slope of the next higher one. The rule of the ALiBi paper's code, of BLOOM and of MPT.
    - `published`: exp(-h/heads) for h = 0 … heads-1, what the code of paper [G] uses in place of ALiBi's slopes.

    Raises BadInput for an unknown rule. Source: Press et al., arXiv 2108.12409, section 3; [G] arXiv 2505.13027 (code).
    """
    check_count("alibi", "heads", heads)
    check_choice("alibi", "slopes", rule, get_args(SlopeRule))
    if rule == "published":
        return torch.exp(-torch.arange(heads, dtype=torch.float64) / heads)
    lower = heads if rule == "geometric" else 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-max_exponent * h / lower) for h in range(1, lower + 1)]
    slopes += [2.0 ** (-max_exponent * h / (2 * lower)) for h in range(1, 2 * (heads - lower), 2)]
    return torch.tensor(slopes, dtype=torch.float64)


class Alibi(Encoding):
    """A fixed penalty per token of distance, with a slope per head.

    Row constants: `causal` and `symmetric` are zero at offset 0. `key` differs from `causal` by m·i, constant in a row,
    which softmax cannot see.

    Formula: s(i,j) = q_i·k_j / √d − m_h (i−j)

    Source: Press et al., arXiv 2108.12409, section 3
    """

    kind = "additive"
    reference = "relative"
    config: AlibiConfig

    def __init__(self, config: AlibiConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.form = config.form
        if config.form == "auto":
            self.form = "causal" if dimensions.causal else "symmetric"

    def bias(self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        dtype = compute_dtype(query)
        slopes = alibi_slopes(self.dimensions.heads, self.config.slopes, self.config.max_exponent)
        slopes = slopes.to(device=query.device, dtype=dtype)[:, None, None]
        if self.form == "key":
            origin = torch.zeros(1, dtype=query_positions.dtype, device=query_positions.device)
            return -slopes * offsets(origin, key_positions).to(dtype)
        offset = offsets(query_positions, key_positions).to(dtype)
        return -slopes * (offset if self.form == "causal" else offset.abs())

    def facts(self) -> dict[str, object]:
        slopes = alibi_slopes(self.dimensions.heads, self.config.slopes, self.config.max_exponent)
        return {"slope_rule": self.config.slopes, "slopes": slopes.tolist(), "form": self.form}

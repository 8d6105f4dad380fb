"""The decoupled rotary part of multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig
from wherefrom.encodings.rotary import Pairing, rotate
from wherefrom.encodings.scaling import inverse_frequencies
from wherefrom.errors import BadInput
from wherefrom.settings import check_choice, check_count, check_number


@dataclass(frozen=True, slots=True)
class MlaConfig(EncodingConfig):
    """Settings of MLA's rotary part."""

    name: ClassVar[str] = "mla"

    rotary_dim: int | None = None
    """How many of the last dimensions of a head are the rotary part; None: half the head, rounded down to even."""
    theta: float = 10000.0
    """Base of the frequencies."""
    pairing: Pairing = "interleaved"
    """Which dimensions turn together."""
    shared_key: bool = True
    """Every head reads the first head's rotary key, as DeepSeek's models share one."""
    shared_query: bool = False
    """Every head reads the first head's rotary query too (code of paper [G]): position is then alike in all heads."""

    def __post_init__(self) -> None:
        if self.rotary_dim is not None:
            check_count(self.name, "rotary_dim", self.rotary_dim, least=2, even=True)
        check_number(self.name, "theta", self.theta)
        check_choice(self.name, "pairing", self.pairing, get_args(Pairing))


def decoupled_dim(owner: str, head_dim: int, rotary_dim: int | None) -> int:
    """Size of the rotary part of a head. Raises BadInput where the head is too small for two parts."""
    rotary_dim = head_dim // 4 * 2 if rotary_dim is None else rotary_dim
    if not 0 < rotary_dim < head_dim:
        raise BadInput(
            f"`{owner}` splits a head into a position-free and a rotary part, but {rotary_dim} of {head_dim} "
            "dimensions would rotate; use a larger head or a smaller `rotary_dim`."
        )
    return rotary_dim


def shared_part(x: Tensor, rotary_dim: int, shared: bool) -> Tensor:
    """The rotary part of every head, or of the first head alone where all share it. (batch head|1 length rotary_dim)"""
    return (x[:, :1] if shared else x)[..., -rotary_dim:]


def with_part(x: Tensor, part: Tensor) -> Tensor:
    """`x` with its last dimensions replaced by `part`, repeated over the heads where it has one."""
    part = part.expand(*x.shape[:-1], -1)
    return torch.cat((x[..., : -part.shape[-1]], part), dim=-1)


class Mla(Encoding):
    """A position-free part and a rotary part side by side in each head; their logits add.

    The last `rotary_dim` dimensions of a head are the rotary part. Sharing takes the first head's vectors for all,
    which is one shared projection; the rotary rows of the other heads' projections then have no effect.

    Formula: s(i,j) = ( qᶜ_i·kᶜ_j + Re Σ_m qʳ_i[m] conj(kʳ_j[m]) e^{iθ_m(i−j)} ) / √(d_c + d_r)

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.3, eqs. (14)–(18)
    """

    kind = "mixed"
    reference = "relative"
    rotation = True
    config: MlaConfig

    def __init__(self, config: MlaConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.rotary_dim = decoupled_dim(config.name, dimensions.head_dim, config.rotary_dim)

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        config = self.config
        frequencies = inverse_frequencies(self.rotary_dim, config.theta, query.device)
        turned = []
        for x, positions, shared in (
            (query, query_positions, config.shared_query),
            (key, key_positions, config.shared_key),
        ):
            part = shared_part(x, self.rotary_dim, shared)
            turned.append(with_part(x, rotate(part, positions, frequencies, config.pairing)))
        return turned[0], turned[1]

    def facts(self) -> dict[str, object]:
        return {
            "frequencies": inverse_frequencies(self.rotary_dim, self.config.theta).tolist(),
            "rotary_dim": self.rotary_dim,
            "pairing": self.config.pairing,
            "shared_key": self.config.shared_key,
            "shared_query": self.config.shared_query,
        }

"""RoPE: rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, get_args

import torch
from torch import Tensor

from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig
from wherefrom.encodings.rotary import (
    Pairing,
    Partial,
    check_rotary_dim,
    rope_frequencies,
    rotary_pairs,
    rotate,
)
from wherefrom.encodings.scaling import (
    DefaultScaling,
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    Scaling,
)
from wherefrom.encodings.scaling_bands import LongRopeScaling, YarnScaling
from wherefrom.errors import BadInput
from wherefrom.settings import Settings, check_choice, check_count, check_number, read_options, suggestion

SCALINGS: dict[str, type[Scaling]] = {
    "default": DefaultScaling,
    "linear": LinearScaling,
    "ntk": NtkScaling,
    "dynamic": DynamicNtkScaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
    "llama3": Llama3Scaling,
}
"""Every frequency schedule by name. The one that some models call `proportional` is `partial=proportional`."""


@dataclass(frozen=True, slots=True)
class RopeConfig(EncodingConfig):
    """Settings of RoPE. In a setting string `scaling=<name>` may be followed by the settings of that schedule."""

    name: ClassVar[str] = "rope"

    theta: float = 10000.0
    """Base of the frequencies."""
    rotary_dim: int | None = None
    """How many dimensions of a head rotate; None: all."""
    partial: Partial = "block"
    """Which those are: the first ones (`block`), or the fast pairs of the whole head (`proportional`)."""
    pairing: Pairing = "half"
    """Which dimensions turn together: m with m + half (`half`), or neighbours (`interleaved`)."""
    heads: tuple[int, ...] | None = None
    """Query heads that rotate, by index; None: all."""
    scaling: Scaling = field(default_factory=DefaultScaling)
    """Frequency schedule."""

    def __post_init__(self) -> None:
        check_number(self.name, "theta", self.theta)
        if self.rotary_dim is not None:
            check_count(self.name, "rotary_dim", self.rotary_dim, least=2, even=True)
        check_choice(self.name, "partial", self.partial, get_args(Partial))
        check_choice(self.name, "pairing", self.pairing, get_args(Pairing))
        for head in self.heads or ():
            check_count(self.name, "heads", head, least=0)
        if not isinstance(self.scaling, Scaling):
            raise BadInput(f"`scaling` of `rope` is {self.scaling!r}; pass a schedule such as LinearScaling(factor=4).")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> RopeConfig:
        own = {"theta", "rotary_dim", "partial", "pairing", "heads"}
        chosen = options.get("scaling", "default")
        if chosen not in SCALINGS:
            raise BadInput(f"`scaling` of `rope` is `{chosen}`; {suggestion(chosen, SCALINGS)}")
        rest = {key: text for key, text in options.items() if key not in own and key != "scaling"}
        if chosen == "default" and rest:
            key = next(iter(rest))
            raise BadInput(f"`rope` has no option `{key}`; {suggestion(key, own | {'scaling'})}")
        scaling = SCALINGS[chosen].from_options(rest)
        plain = read_options(cls, {key: text for key, text in options.items() if key in own})
        return cls(**plain, scaling=scaling)

    def options(self) -> dict[str, str]:
        own = Settings.options(self)
        if own.pop("scaling", None) is None:
            return own
        return {**own, "scaling": self.scaling.name, **self.scaling.options()}


class Rope(Encoding):
    """Rotary encoding: each pair of dimensions of query and key turns by position times frequency.

    Formula: s(i,j) = Re Σ_m q_i[m] conj(k_j[m]) e^{iθ_m(i−j)} / √d,  θ_m = theta^(−2m/d)

    Source: Su et al., arXiv 2104.09864, eqs. (13)–(16); partial in blocks as in GPT-NeoX, arXiv 2204.06745
    """

    kind = "multiplicative"
    reference = "relative"
    rotation = True
    config: RopeConfig

    def __init__(self, config: RopeConfig, dimensions: Dimensions) -> None:
        super().__init__(config, dimensions)
        self.depends_on_length = config.scaling.depends_on_length
        self.rotary_dim = check_rotary_dim(dimensions.head_dim, config.rotary_dim)
        self.width = self.rotary_dim if config.partial == "block" else dimensions.head_dim
        for head in config.heads or ():
            if head >= dimensions.heads:
                raise BadInput(f"`rope` is to rotate head {head}, but heads run from 0 to {dimensions.heads - 1}.")
        self.frequencies()  # a schedule that does not fit the head is refused here, not in the first forward pass

    def frequencies(self, length: int | None = None, device: torch.device | None = None) -> tuple[Tensor, float]:
        """Radians per token of each pair, (band,), and the factor on cosines and sines, for a call of `length`."""
        config, head_dim = self.config, self.dimensions.head_dim
        return rope_frequencies(
            head_dim, config.theta, config.rotary_dim, config.partial, config.scaling, length, device
        )

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Indices of the dimensions that turn together, in the order of `frequencies`."""
        return rotary_pairs(self.dimensions.head_dim, self.config.rotary_dim, self.config.pairing, self.config.partial)

    def transform(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        length = None
        if self.depends_on_length:
            length = int(max(query_positions.max(), key_positions.max())) + 1
        frequencies, magnitude = self.frequencies(length, query.device)
        return (
            self._turn(query, query_positions, frequencies, magnitude),
            self._turn(key, key_positions, frequencies, magnitude),
        )

    def _turn(self, x: Tensor, positions: Tensor, frequencies: Tensor, magnitude: float) -> Tensor:
        turned = rotate(x[..., : self.width], positions, frequencies, self.config.pairing, magnitude)
        if self.width < x.shape[-1]:
            turned = torch.cat((turned, x[..., self.width :]), dim=-1)
        if self.config.heads is None:
            return turned
        return torch.where(self._rotating(x.shape[1], x.device)[:, None, None], turned, x)

    def _rotating(self, heads: int, device: torch.device) -> Tensor:
        """Which of `heads` query or key heads rotate. Query heads that share a key head must agree."""
        chosen = torch.zeros(self.dimensions.heads, dtype=torch.bool, device=device)
        chosen[list(self.config.heads or ())] = True
        groups = chosen.view(heads, -1)
        if not bool((groups == groups[:, :1]).all()):
            raise BadInput(
                f"`rope` is to rotate heads {list(self.config.heads or ())}, but some share their key head with one "
                "that does not rotate; choose whole groups."
            )
        return groups[:, 0]

    def facts(self) -> dict[str, object]:
        frequencies, magnitude = self.frequencies()
        return {
            "frequencies": frequencies.tolist(),
            "attention_scale": magnitude,
            "pairing": self.config.pairing,
            "partial": self.config.partial,
            "rotary_dim": self.rotary_dim,
            "rotary_heads": list(range(self.dimensions.heads)) if self.config.heads is None else [*self.config.heads],
            "scaling": self.config.scaling.name,
        }

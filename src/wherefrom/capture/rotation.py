"""How one attention layer turns its queries and keys: a value read from the running model, which can be undone.

The rotation of position i is linear and acts on pairs of dimensions,

    x'[d] = cos(i, d) x[d] + ratio[d] sin(i, d) x[partner[d]],

with cosines and sines (attention scaling included) as the model's rotary module returned them, and pairs and ratios
(1 or -1, but for a norm behind the rotation) as `rotary_probe` found them. Dimensions that do not turn have cosine 1
and sine 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """The rotation of one layer's queries or keys at positions 0 ... length-1."""

    cosine: Tensor
    """(length dim)."""
    sine: Tensor
    """(length dim)."""
    partner: Tensor
    """(dim,): the other dimension of the pair; its own index where a dimension does not turn."""
    ratio: Tensor
    """(dim,)."""

    @classmethod
    def identity(cls, length: int, dim: int, device: torch.device | None = None) -> Rotation:
        """The rotation that leaves every vector alone."""
        cosine = torch.ones(length, dim, dtype=torch.float64, device=device)
        index = torch.arange(dim, device=device)
        return cls(cosine, torch.zeros_like(cosine), index, torch.ones_like(cosine[0]))

    @property
    def length(self) -> int:
        """Number of positions."""
        return self.cosine.shape[0]

    @property
    def dim(self) -> int:
        """Width of a head."""
        return self.cosine.shape[1]

    @cached_property
    def turns(self) -> Tensor:
        """(dim,) boolean: which dimensions take part in the rotation."""
        return self.partner != torch.arange(self.dim, device=self.partner.device)

    def apply(self, x: Tensor, positions: Tensor | slice = slice(None)) -> Tensor:
        """Turn `x` (... position dim); `positions` names the rows of the table that its position axis follows."""
        if not bool(self.turns.any()):
            return x
        cosine, sine = self.cosine[positions].to(x.dtype), self.sine[positions].to(x.dtype)
        return cosine * x + sine * self.ratio.to(x.dtype) * x[..., self.partner]

    def undo(self, x: Tensor, positions: Tensor | slice = slice(None)) -> Tensor:
        """The inverse of `apply`, by Cramer's rule on each pair."""
        if not bool(self.turns.any()):
            return x
        cosine, sine = self.cosine[positions].to(x.dtype), self.sine[positions].to(x.dtype)
        cross = sine * self.ratio.to(x.dtype)
        determinant = cosine * cosine[:, self.partner] - cross * cross[:, self.partner] * self.turns
        return (cosine[:, self.partner] * x - cross * x[..., self.partner]) / determinant

    @cached_property
    def pairs(self) -> Tensor:
        """(band, 2): the dimensions whose value is the real and the imaginary part of each band, fastest band first.

        Turning multiplies real + i imaginary by the scaled e^{i angle}.
        """
        real = torch.nonzero(self.turns & (self.ratio < 0))[:, 0]
        order = torch.argsort(self._frequencies(real), descending=True, stable=True)
        real = real[order]
        return torch.stack([real, self.partner[real]], 1)

    @cached_property
    def frequencies(self) -> Tensor:
        """(band,): radians per token, from the angles at positions 0 and 1, float64."""
        return self._frequencies(self.pairs[:, 0])

    def _frequencies(self, real: Tensor) -> Tensor:
        if self.length < 2:
            return torch.zeros(len(real), dtype=torch.float64, device=real.device)
        angle = torch.atan2(self.sine[:2, real].double(), self.cosine[:2, real].double())
        step = angle[1] - angle[0]
        return torch.remainder(step + torch.pi, 2 * torch.pi) - torch.pi

    def norms(self, x: Tensor) -> Tensor:
        """Length of each band's two-dimensional part: (... dim) to (... band)."""
        return torch.hypot(x[..., self.pairs[:, 0]], x[..., self.pairs[:, 1]])

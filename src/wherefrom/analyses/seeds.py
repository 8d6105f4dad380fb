"""Gradient seeds: what a loss asks of position, head by head, before any head carries it (DESIGN 4.7).

With Γ_b(i,j) = ∂ℓ_b/∂s_b(i,j), the gradient of example b's own loss with respect to a logit (nats per nat), and
A_m(i,j) = q_i[m] conj(k_j[m]) / √d the content Gram of frequency band m, before any rotation:

- additive signal, the gradient of a Toeplitz bias:              g_b(δ)   = Σ over i−j=δ of Γ_b(i,j)
- multiplicative signal, the gradient of a Toeplitz kernel e_m:  g_b(m,δ) = Σ over i−j=δ of Γ_b(i,j) A_m(i,j)

Both exist in every model: as the gradient of the bias or kernel that is there, or of one that could be put there. A
model without rotation is read with dimensions m and m + d/2 as a pair. Of each signal, over B examples:

- `norm` ‖Σ_b g_b‖ / B, and `signal`, the same squared without the bias from sampling:
  (‖Σ_b g_b‖² − Σ_b ‖g_b‖²) / (B(B−1)), which estimates ‖E g‖² and may be slightly negative;
- `signal_share`: `signal` over the mean of ‖g_b‖², the part of a gradient that all examples agree on;
- `cancellation` ‖Σ_b g_b‖ / Σ_b ‖g_b‖ (1: none, 0: total), and `cancellation_floor`, what examples that agree on
  nothing give: √(Σ_b ‖g_b‖²) / Σ_b ‖g_b‖, near 1/√B;
- `margin` of a layer: `signal` of the leading head less that of the second, over the layer's sum. Who leads is decided
  on one half of the examples and measured on the other, both ways, so that heads that are all alike have margin 0;
- `margin_growth` of a layer: its margin less that of the layer above it, from which the gradient comes.

Sources: Gu et al., arXiv 2505.13027, propositions 6.1 (multiplicative seeds) and 6.2 (additive ones cancel), theorem
6.1 (the margin grows on the way down); the estimators are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wherefrom.analyses.jackknife import standard_error
from wherefrom.encodings.base import repeat_heads
from wherefrom.encodings.rope import Rope
from wherefrom.encodings.rotary import rotary_pairs
from wherefrom.errors import BadInput
from wherefrom.models.toy import ToyTransformer
from wherefrom.rows import Row
from wherefrom.tasks.base import IGNORED, Examples

GROUPS = 8
"""Jackknife groups of examples; even, because margins compare halves."""
CHUNK = 32
"""Examples whose logits and gradients are held at once."""
KINDS = ("additive", "multiplicative")


@dataclass(frozen=True)
class SeedSums:
    """Sums of the signals of one layer and kind over sets of examples: the groups, or what replicates hold of them."""

    gradient: Tensor
    """(set head component) Σ_b g_b; components are offsets, or real and imaginary parts of bands times offsets."""
    length: Tensor
    """(set head) Σ_b ‖g_b‖."""
    square: Tensor
    """(set head) Σ_b ‖g_b‖²."""
    examples: Tensor
    """(set 1) number of examples."""

    def gathered(self, weights: Tensor) -> SeedSums:
        """Sums over sets of sets, by a 0/1 matrix (new set, set)."""
        parts = (self.gradient, self.length, self.square, self.examples)
        return SeedSums(*(torch.einsum("ns,s...->n...", weights.to(part), part) for part in parts))

    def norm(self) -> Tensor:
        """Norm of the mean signal, (set head)."""
        return self.gradient.norm(dim=-1) / self.examples

    def signal(self) -> Tensor:
        """Squared norm of the expected signal, unbiased, (set head)."""
        return (self.gradient.square().sum(-1) - self.square) / (self.examples * (self.examples - 1))

    def signal_share(self) -> Tensor:
        """Part of a signal that all examples agree on, (set head)."""
        return self.signal() * self.examples / self.square

    def cancellation(self) -> Tensor:
        """1: the examples' signals add up, 0: they cancel; (set head)."""
        return self.gradient.norm(dim=-1) / self.length

    def cancellation_floor(self) -> Tensor:
        """The same for signals of these lengths in unrelated directions, (set head)."""
        return self.square.sqrt() / self.length


UNITS = {
    "norm": "norm",
    "signal": "norm2",
    "signal_share": "share",
    "cancellation": "ratio",
    "cancellation_floor": "ratio",
}
"""What is reported of each signal: the method of `SeedSums` and its unit."""


def logit_gradients(model: ToyTransformer, data: Examples) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """(layer, Γ (batch head query key), query, key (batch head length dim)) of some examples, float64.

    Γ is the gradient of each example's own mean loss with respect to its logits, before the mask: 0 where the mask
    hides. Query and key are those that enter the encoding. The model is left as it was.
    """
    logits: dict[int, Tensor] = {}
    projected: dict[str, dict[int, Tensor]] = {"query": {}, "key": {}}

    def watch(layer: int, found: Tensor) -> Tensor:
        logits[layer] = found
        return found

    with _undisturbed(model), torch.enable_grad(), _projections(model, projected):
        output_logits = model(data.token_ids, data.lengths, watch=watch).logits
        layers = sorted(logits)
        gradients = torch.autograd.grad(_own_losses(output_logits, data).sum(), [logits[k] for k in layers])
    for layer, gradient in zip(layers, gradients, strict=True):
        query, key = (
            projected[name][layer].unflatten(-1, (-1, model.settings.head_dim)).transpose(1, 2).double()
            for name in ("query", "key")
        )
        yield layer, gradient.double(), query, repeat_heads(key, query.shape[1])


def signals(model: ToyTransformer, data: Examples, longest: int | None = None) -> dict[tuple[int, str], Tensor]:
    """Each example's g: (layer, kind) -> (batch head component), float64.

    Components are the 2 * longest − 1 offsets from −(longest−1) up (`longest`: by default that of the inputs, in
    tokens); of the multiplicative signal, per band, first the real part at all offsets, then the imaginary one.
    """
    first, second = band_pairs(model)
    found: dict[tuple[int, str], Tensor] = {}
    for layer, gradient, query, key in logit_gradients(model, data):
        found[layer, "additive"] = by_offset(gradient, longest)
        q = torch.complex(query[..., first], query[..., second])
        k = torch.complex(key[..., first], key[..., second])
        parts = []
        for band in range(len(first)):
            gram = q[..., :, None, band] * k[..., None, :, band].conj() * model.settings.head_dim**-0.5
            parts += [by_offset(gradient * gram.real, longest), by_offset(gradient * gram.imag, longest)]
        found[layer, "multiplicative"] = torch.cat(parts, -1)
    return found


def by_offset(x: Tensor, longest: int | None = None) -> Tensor:
    """Sums of (… length length) along i − j = δ: (… 2*longest−1), δ from −(longest−1) up."""
    length = x.shape[-1]
    longest = longest or length
    position = torch.arange(length, device=x.device)
    index = (position[:, None] - position + longest - 1).flatten()
    return x.new_zeros(*x.shape[:-2], 2 * longest - 1).index_add_(-1, index, x.flatten(-2))


def band_pairs(model: ToyTransformer) -> tuple[Tensor, Tensor]:
    """Dimensions of a head that make a frequency band: those that the model rotates together, else m and m + d/2."""
    for module in model.body.encoding.modules():
        if isinstance(module, Rope):
            return module.pairs()
    return rotary_pairs(model.settings.head_dim)


def seed_sums(model: ToyTransformer, data: Examples, groups: int = GROUPS) -> dict[tuple[int, str], SeedSums]:
    """Sums of the signals over `groups` equal groups of examples; examples that do not fill a group are left out."""
    each, longest = len(data) // groups, data.token_ids.shape[1]
    device = next(model.parameters()).device
    collected: dict[tuple[int, str], list[SeedSums]] = {}
    for group in range(groups):
        found: dict[tuple[int, str], list[Tensor]] = {}
        for index in torch.arange(group * each, (group + 1) * each).split(CHUNK):
            for where, g in signals(model, data.take(index).to(device), longest).items():
                norm = g.norm(dim=-1)
                new = [g.sum(0), norm.sum(0), norm.square().sum(0)]
                found[where] = [a + b for a, b in zip(found[where], new, strict=True)] if where in found else new
        for where, sums in found.items():
            count = torch.tensor([float(each)], dtype=torch.float64)
            gradient, length, square = (part.cpu() for part in sums)
            collected.setdefault(where, []).append(SeedSums(gradient, length, square, count))
    return {where: _stacked(parts) for where, parts in collected.items()}


def seed_rows(model: ToyTransformer, data: Examples, groups: int = GROUPS) -> list[Row]:
    """Rows of analysis `seeds`: both kinds of signal per layer and head, and the margins per layer.

    Standard errors by delete-one-group jackknife over examples. Raises BadInput below two examples per group.
    """
    if len(data) < 2 * groups:
        raise BadInput(f"Gradient seeds need at least {2 * groups} examples, not {len(data)}; ask for more.")
    found = seed_sums(model, data, groups)
    replicates = leave_one_out_weights(groups)
    rows: list[Row] = []
    n = len(data) // groups * groups
    for kind in KINDS:
        margins: dict[int, Tensor] = {}
        for layer in sorted(layer for layer, which in found if which == kind):
            sums = found[layer, kind]
            rows += _head_rows(kind, layer, sums.gathered(replicates), n)
            margins[layer] = margin(sums, replicates)
        rows += _margin_rows(kind, margins, n)
    return rows


def leave_one_out_weights(groups: int) -> Tensor:
    """(groups + 1, group) 0/1: all groups, then all but each."""
    return torch.cat([torch.ones(1, groups), 1 - torch.eye(groups)]).double()


def margin(sums: SeedSums, weights: Tensor) -> Tensor:
    """Lead of the leading head over the second, a share of the layer's signal; one number per row of `weights`.

    The order of heads is decided on one half of the groups and the lead measured on the other, both ways.
    """
    parity = torch.arange(weights.shape[1]) % 2
    strength = [sums.gathered(weights * (parity == half)).signal() for half in (0, 1)]
    if strength[0].shape[1] < 2:
        return torch.ones(len(weights), dtype=weights.dtype)
    leads = []
    for decides, measures in ((0, 1), (1, 0)):
        order = strength[decides].argsort(dim=1, descending=True)
        ordered = strength[measures].gather(1, order)
        leads.append((ordered[:, 0] - ordered[:, 1]) / ordered.sum(1))
    return (leads[0] + leads[1]) / 2


def _head_rows(kind: str, layer: int, replicates: SeedSums, n: int) -> Iterator[Row]:
    for name, unit in UNITS.items():
        values: Tensor = getattr(replicates, name)()
        errors = standard_error(values[1:])
        for head, (value, error) in enumerate(zip(values[0].tolist(), errors.tolist(), strict=True)):
            if math.isfinite(value):
                yield Row("seeds", f"{kind}_{name}", value, unit, n, error, layer=layer, head=head)


def _margin_rows(kind: str, margins: dict[int, Tensor], n: int) -> Iterator[Row]:
    for layer, values in margins.items():
        for name, found in (("margin", values), ("margin_growth", values - margins.get(layer + 1, values * math.nan))):
            if math.isfinite(float(found[0])):
                error = float(standard_error(found[1:]))
                yield Row("seeds", f"{kind}_{name}", float(found[0]), "share", n, error, layer=layer)


def _stacked(parts: list[SeedSums]) -> SeedSums:
    return SeedSums(
        *(torch.stack([getattr(part, name) for part in parts]) for name in ("gradient", "length", "square", "examples"))
    )


def _own_losses(output_logits: Tensor, data: Examples) -> Tensor:
    """Each example's own mean loss, differentiable: (batch,)."""
    losses = F.cross_entropy(output_logits.flatten(0, -2), data.labels.flatten(), reduction="none")
    if data.labels.ndim == 1:
        return losses
    asked = (data.labels != IGNORED).to(losses.dtype)
    return (losses.view_as(data.labels) * asked).sum(1) / asked.sum(1)


@contextmanager
def _undisturbed(model: ToyTransformer) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def _projections(model: ToyTransformer, into: dict[str, dict[int, Tensor]]) -> Iterator[None]:
    """Within the context `into` gets each layer's queries and keys, as they leave their projections."""

    def taking(name: str, layer: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_: nn.Module, __: Any, out: Tensor) -> None:
            into[name][layer] = out.detach()

        return hook

    with ExitStack() as stack:
        for layer, block in enumerate(model.body.blocks):
            for name in into:
                module: nn.Module = getattr(block.attention, name)
                stack.callback(module.register_forward_hook(taking(name, layer)).remove)
        yield

"""The rotation a layer really applies, read by feeding it one-hot vectors; nothing comes from the config.

For every dimension a, the layer is given vectors whose query (or key) is the unit vector of a before the rotation, the
same at each position. What reaches the attention function at position 1 is column a of the layer's own rotation matrix:
which dimension it is paired with, by which angle, in which sense, and how much longer it became. Source: ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wherefrom.capture.layer_probe import LayerProbe, Seen, capture_layers
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder

Pairing = Literal["half", "interleaved", "other", "none"]
TURNS = 1e-11
"""Off-diagonal entries above this are a rotation. One-hot probes keep rounding near 1e-16, whatever the frequency."""
EXACT = 1e-13
"""Probe vectors this close to one-hot are not corrected further."""
REFINEMENTS = 3
"""Times the probe vectors are corrected at most."""
AGREES = 1e-5
"""Relative tolerance of the checks: angles come from float32 tables."""


@dataclass(frozen=True)
class LayerRotation:
    """How one layer turns its queries and keys."""

    layer: int
    """Layer index."""
    head_dim: int
    """Size of the query and key vectors that enter the dot product."""
    first: Tensor
    """(pair,): first dimension of each rotating pair, by position of the vector that enters the dot product."""
    second: Tensor
    """(pair,): the dimension it rotates with."""
    frequencies: Tensor
    """(pair,), float64: radians per token, not negative; 0 where a pair inside the rotary block stands still."""
    sign: int
    """+1: `first` turns towards `second` as the position grows; -1: away from it."""
    magnitude: float
    """Factor of the rotation on rotating dimensions (YaRN's attention scaling); logits feel its square."""
    pairing: Pairing
    """`half` (a with a + width/2), `interleaved` (a with a + 1), `other`, or `none` where nothing rotates."""
    magnitude_read: bool = True
    """False where the layer takes no rotary table, so that `magnitude` could not be compared with no rotation."""

    @property
    def rotary_dims(self) -> int:
        """Number of dimensions inside the rotary block, those of pairs that stand still included."""
        return 2 * self.first.numel()

    @property
    def start(self) -> int:
        """First dimension of the rotary block (MLA's rotary part stands behind the position-free one)."""
        return int(torch.minimum(self.first, self.second).min()) if self.first.numel() else 0

    def turn(self, vectors: Tensor, positions: Tensor, inverse: bool = False) -> Tensor:
        """Vectors (… position dim) as the layer turns them at `positions` (position,), in float64.

        `inverse=True` undoes it: from what enters the dot product back to the vectors before rotation.
        """
        if vectors.shape[-1] != self.head_dim:
            raise BadInput(
                f"Layer {self.layer} turns vectors of {self.head_dim} dimensions, not of {vectors.shape[-1]}."
            )
        vectors = vectors.double()
        angle = self.sign * positions.double()[:, None] * self.frequencies
        scale = 1 / self.magnitude if inverse else self.magnitude
        cosine, sine = scale * angle.cos(), scale * (-angle.sin() if inverse else angle.sin())
        one, other = vectors[..., self.first], vectors[..., self.second]
        turned = vectors.clone()
        turned[..., self.first] = one * cosine - other * sine
        turned[..., self.second] = one * sine + other * cosine
        return turned


def read_rotations(decoder: Decoder, length: int | None = None) -> dict[int, LayerRotation]:
    """The rotation of every attention layer, for inputs of `length` tokens (None: short ones).

    `length` matters to tables that depend on it (dynamic, longrope) only. Raises BadInput, with the layer and the
    reason, for a layer whose treatment of q and k is not one rotation by position.
    """
    positions = [0, 1, 2] if length is None else [0, 1, max(length - 1, 2)]
    return {layer: read_layer(probe, positions) for layer, probe in capture_layers(decoder, positions).items()}


def read_layer(probe: LayerProbe, positions: list[int]) -> LayerRotation:
    """The rotation of one captured layer; the rules of `read_rotations`."""
    try:
        query_maps, key_maps, magnitude_read = _maps(probe)
    except BadInput:
        raise
    except (RuntimeError, TypeError, AttributeError, ValueError, IndexError, NotImplementedError) as error:
        text = " ".join(str(error).split())[:160].rstrip(".")
        raise _unreadable(probe.layer, f"its code does not run on probe vectors ({text})") from error
    head_dim = query_maps.shape[-1]
    if query_maps.shape != key_maps.shape or not _close(query_maps, key_maps):
        raise _unreadable(probe.layer, "it treats queries and keys differently")
    return _describe(probe.layer, head_dim, query_maps, positions, magnitude_read)


def _maps(probe: LayerProbe) -> tuple[Tensor, Tensor, bool]:
    """(position dim dim) for queries and for keys: row a is what becomes of the unit vector of dimension a."""
    swappable = bool(probe.tables)

    def base(seen: Seen, name: str) -> Tensor:
        vectors: Tensor = getattr(seen, name)
        return vectors[:, 0, 0]  # position 0 of head 0: not turned yet

    count = 2 * max(probe.seen.query.shape[-1], probe.seen.key.shape[-1])
    generator = torch.Generator().manual_seed(1)
    basis = torch.randn(count, probe.hidden_size, generator=generator, dtype=torch.float64)
    basis = basis.to(probe.seen.query.device)
    plain = probe.ask(basis, turned=not swappable)
    maps = []
    for name in ("query", "key"):
        # The layer is linear here, so the combination of basis vectors that gives a unit vector is one solve away. Some
        # layers round q and k to float32; what is left of the other dimensions is then solved away in turn, until only
        # rounding near 1e-16 remains (small numbers keep their relative precision).
        unit = torch.linalg.pinv(base(plain, name)) @ basis
        for _ in range(REFINEMENTS):
            landed = base(probe.ask(unit, turned=not swappable), name)
            off = float((landed - torch.eye(len(landed)).to(landed)).abs().max())
            if not off < 0.1:
                raise _unreadable(probe.layer, "its queries or keys are not a linear function of the residual stream")
            if off < EXACT:
                break
            unit = torch.linalg.solve(landed.double(), unit)
        seen: Tensor = getattr(probe.ask(unit, turned=True), name)
        maps.append(seen[:, 0].transpose(0, 1).double())
        _same_in_every_head(probe, getattr(plain, name), getattr(probe.ask(basis), name), maps[-1])
    return maps[0].cpu(), maps[1].cpu(), swappable


def _same_in_every_head(probe: LayerProbe, plain: Tensor, turned: Tensor, maps: Tensor) -> None:
    expected = torch.einsum("bhd,ide->bhie", plain[:, :, 0], maps)
    if not _close(expected, turned):
        raise _unreadable(probe.layer, "its heads turn by different angles")


def _describe(layer: int, head_dim: int, maps: Tensor, positions: list[int], magnitude_read: bool) -> LayerRotation:
    start, turn, later = maps[0], maps[1], maps[2]
    magnitudes = start.diagonal()
    off = (turn - torch.diag(turn.diagonal())).abs() > TURNS
    if bool((off.sum(-1) > 1).any()) or not torch.equal(off, off.T):
        raise _unreadable(layer, "it mixes more than two dimensions with each other")
    rotating = off.any(-1).nonzero()[:, 0]
    partner = off[rotating].long().argmax(-1)
    mine = rotating < partner
    first, second = rotating[mine], partner[mine]
    if not first.numel():
        empty = torch.zeros(0, dtype=torch.long)
        if not _close(turn, start) or not _close(later, start):
            raise _unreadable(layer, "it changes q and k with the position without rotating them")
        return LayerRotation(layer, head_dim, empty, empty, torch.zeros(0).double(), 1, 1.0, "none", magnitude_read)
    magnitude = float(magnitudes[first].median())
    if not _close(start, torch.diag(magnitudes)) or not _close(magnitudes[rotating], torch.tensor(magnitude).double()):
        raise _unreadable(layer, "its rotation stretches dimensions by different factors")
    # Row a is what becomes of unit vector a: (cosine at a, sine at its partner).
    angle = torch.atan2(turn[first, second], turn[first, first])
    if bool((angle > 0).any()) and bool((angle < 0).any()):
        raise _unreadable(layer, "its pairs turn in different senses")
    sign = 1 if bool((angle > 0).all()) else -1
    pairing, first, second = _whole_block(first, second, head_dim)
    frequencies = torch.zeros(first.numel(), dtype=torch.float64)
    frequencies[torch.isin(first, rotating)] = angle.abs()
    found = LayerRotation(layer, head_dim, first, second, frequencies, sign, magnitude, pairing, magnitude_read)
    _check(found, maps, positions)
    return found


def _whole_block(first: Tensor, second: Tensor, head_dim: int) -> tuple[Pairing, Tensor, Tensor]:
    """The name of the pairing, and all pairs of the block: half-split pairs that stand still are added."""
    strides = second - first
    if not bool((strides == strides[0]).all()):
        return "other", first, second
    stride, start = int(strides[0]), int(first[0])
    if stride == 1 and first.numel() > 1:
        return "interleaved", first, second
    whole = torch.arange(start, start + stride)
    if not bool(torch.isin(first, whole).all()) or start + 2 * stride > head_dim:
        return "other", first, second
    return "half", whole, whole + stride


def _check(found: LayerRotation, maps: Tensor, positions: list[int]) -> None:
    """What was read from position 1 must give the other positions too, or it is no rotation by position."""
    units = torch.eye(found.head_dim, dtype=torch.float64)[:, None].expand(-1, len(positions), -1)
    expected = found.turn(units, torch.tensor(positions)).transpose(0, 1)
    # Tables are float32: an angle of n radians is known to about n roundings of that type.
    allowed = AGREES + 4 * float(torch.finfo(torch.float32).eps) * max(positions) * float(found.frequencies.max())
    worst = float((expected - maps).abs().max()) / max(found.magnitude, 1e-30)
    if not worst <= allowed:
        raise _unreadable(
            found.layer, f"its angle is not proportional to the position (off by {worst:.2g} at {max(positions)})"
        )


def _close(one: Tensor, other: Tensor) -> bool:
    return bool(torch.allclose(one, other.to(one.device).expand_as(one), rtol=AGREES, atol=AGREES))


def _unreadable(layer: int, reason: str) -> BadInput:
    return BadInput(f"The rotation of layer {layer} cannot be read: {reason}.")

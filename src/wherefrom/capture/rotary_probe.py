"""Find out, by asking the running model, which dimensions rotate together and which cosines and sines turn them.

Nothing is derived from the config. Every attention module is fed fixed random hidden states, and the outputs of the
rotary modules are replaced by chosen ones: no turn, a quarter turn, and turns that spell out, digit by digit, which
column of the rotary output drives which pair. What reaches the attention function then names the pairing, also for
partial rotation, interleaved pairs, several rotary modules and a norm behind the rotation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits.base import Edit, RunInputs
from wherefrom.capture.kernels import widen
from wherefrom.capture.rotation import Rotation
from wherefrom.capture.session import run
from wherefrom.models.hf import Decoder

TOKENS = 8
"""Tokens of a probing pass; each carries hidden states of its own, so that no two dimensions look alike."""
BASE = 8
"""Columns are told apart by digits of this base, as turns of 0 to 7 sixteenths: wide enough apart for bfloat16."""
Table = tuple[Tensor, Tensor]
"""Cosines and sines as one rotary call returned them, (length column) each."""


class UnreadableRotation(Exception):
    """The layer turns its vectors in a way that pairs of dimensions, cosines and sines do not describe."""


@dataclass
class RotaryWatch:
    """Records what rotary modules return during a pass, and may hand on something else."""

    tables: list[Table] = field(default_factory=list)
    """One entry per call of a rotary module, in order of the calls."""
    substitute: Callable[[int, Table], Table] | None = None
    """From the number of a call and its true table to the table to hand on."""

    def hook(self, module: nn.Module, _: Any, output: Any) -> Any:
        """Forward hook of a rotary module."""
        try:
            cosine, sine, rebuild = _taken_apart(module, output)
        except UnreadableRotation:
            if self.substitute is None:  # nothing to replace, and the reading has said so already
                return output
            raise
        number = len(self.tables)
        self.tables.append((_rows(cosine), _rows(sine)))
        if self.substitute is None:
            return output
        changed = self.substitute(number, self.tables[-1])
        return rebuild(*(new.to(old).expand_as(old) for new, old in zip(changed, (cosine, sine), strict=True)))


def _taken_apart(module: nn.Module, output: Any) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], Any]]:
    if isinstance(output, Tensor) and output.is_complex():
        return output.real, output.imag, torch.complex
    if isinstance(output, tuple | list) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        cosine, sine = output
        if cosine.shape == sine.shape and cosine.ndim >= 2:
            return cosine, sine, lambda c, s: (c, s)
    raise UnreadableRotation(f"{type(module).__name__} returns neither a cosine and a sine nor complex numbers")


def _rows(table: Tensor) -> Tensor:
    """(length column) of a table that may have batch and section axes in front; all inputs share their positions."""
    while table.ndim > 2:
        table = table[0]
    return table.detach()


def rotary_modules(decoder: Decoder) -> list[nn.Module]:
    """Modules whose output turns queries and keys: those with frequencies, and those named after the rotation."""
    found = {id(module): module for module in decoder.rotary_modules()}
    found |= {id(m): m for m in decoder.body.modules() if "Rotary" in type(m).__name__}
    return list(found.values())


@contextmanager
def watched_rotation(decoder: Decoder, watch: RotaryWatch) -> Iterator[RotaryWatch]:
    """Hook every rotary module for the passes inside."""
    handles = [module.register_forward_hook(watch.hook) for module in rotary_modules(decoder)]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Pairing:
    """Which dimensions of one layer's queries or keys turn, with which table."""

    partner: Tensor
    ratio: Tensor
    call: Tensor
    """(dim,): number of the rotary call that turns the dimension; -1 where it does not turn."""
    column: Tensor
    """(dim,): column of that call's table."""

    def rotation(self, tables: Sequence[Table], length: int) -> Rotation:
        """The rotation under the tables of one pass."""
        still = Rotation.identity(length, len(self.partner), self.partner.device)
        cosine, sine = still.cosine, still.sine
        for call in set(self.call.tolist()) - {-1}:
            turned = self.call == call
            wave, other = tables[call]
            cosine[:, turned] = wave[:, self.column[turned]].double().to(cosine.device)
            sine[:, turned] = other[:, self.column[turned]].double().to(cosine.device)
        return Rotation(cosine, sine, self.partner, self.ratio)


@dataclass
class RotaryReading:
    """Pairings of every layer, and what could not be read."""

    queries: dict[int, Pairing]
    keys: dict[int, Pairing]
    unread: dict[int, str] = field(default_factory=dict)
    """Layer to the reason why its rotation is unknown; such layers are split as whole, turned vectors."""

    def notes(self) -> list[str]:
        """One sentence for each reason why layers could not be read."""
        layers: dict[str, list[str]] = {}
        for layer, reason in self.unread.items():
            layers.setdefault(reason, []).append(str(layer))
        return [
            f"The rotation of layer {', '.join(where)} cannot be read ({reason}); its turned vectors are split whole."
            for reason, where in layers.items()
        ]

    def rotations(self, layer: int, tables: Sequence[Table], call: AttentionCall) -> tuple[Rotation, Rotation]:
        """Query and key rotation of a layer in the pass that `tables` were recorded in."""
        length, device = call.length, call.query.device
        if layer in self.unread or layer not in self.queries:
            return (
                Rotation.identity(length, call.query.shape[-1], device),
                Rotation.identity(length, call.key.shape[-1], device),
            )
        return self.queries[layer].rotation(tables, length), self.keys[layer].rotation(tables, length)


def read_rotations(decoder: Decoder, edits: Sequence[Edit] = ()) -> RotaryReading:
    """Probe every layer of the model under `edits`. Layers that cannot be read are named in `unread`, never guessed."""
    layers = sorted(decoder.attention)
    if not rotary_modules(decoder):
        return RotaryReading({}, {})
    try:
        true, tables = _probe(decoder, edits, None)
        still, _ = _probe(decoder, edits, lambda _, t: (torch.ones_like(t[0]), torch.zeros_like(t[1])))
        quarter, _ = _probe(decoder, edits, lambda _, t: (torch.zeros_like(t[0]), torch.ones_like(t[1])))
        columns, members = _columns(tables)
        digits = max(1, math.ceil(math.log(max(members, 2), BASE)))
        spelt = [_probe(decoder, edits, _spelling(columns, digit))[0] for digit in range(digits)]
    except UnreadableRotation as reason:
        return RotaryReading({}, {}, dict.fromkeys(layers, str(reason)))
    where: dict[int, tuple[int, int]] = {}
    for call, classes in enumerate(columns):
        for column, number in enumerate(classes.tolist()):
            where.setdefault(number, (call, column))
    reading = RotaryReading({}, {})
    for layer in layers:
        try:
            for side, kept in ((0, reading.queries), (1, reading.keys)):
                found = _pairing(still[layer][side], quarter[layer][side], [s[layer][side] for s in spelt], where)
                kept[layer] = found
                turned = found.rotation(tables, TOKENS).apply(still[layer][side])
                if _relative(turned, true[layer][side]) > _tolerance(decoder):
                    raise UnreadableRotation("what its rotary module returns does not explain how its vectors turn")
            if not torch.equal(reading.queries[layer].partner, reading.keys[layer].partner):
                raise UnreadableRotation("its queries and keys pair different dimensions")
        except UnreadableRotation as reason:
            reading.unread[layer] = str(reason)
    return reading


def _tolerance(decoder: Decoder) -> float:
    """Relative error that rounding explains. Some models turn in float32 whatever their dtype."""
    return 30 * max(torch.finfo(decoder.dtype).eps, torch.finfo(torch.float32).eps)


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


Vectors = dict[int, tuple[Tensor, Tensor]]


def _probe(
    decoder: Decoder, edits: Sequence[Edit], substitute: Callable[[int, Table], Table] | None
) -> tuple[Vectors, list[Table]]:
    """One short pass on fixed hidden states: (query, key) per layer, (head position dim) in float64, and the tables."""
    ids = torch.arange(TOKENS)[None] % decoder.vocabulary
    found: Vectors = {}

    def observe(call: AttentionCall) -> None:
        found[call.layer] = (widen(call.query[0]).double(), widen(call.key[0]).double())

    with ExitStack() as stack:
        watch = stack.enter_context(watched_rotation(decoder, RotaryWatch(substitute=substitute)))
        stack.enter_context(_fed(decoder))
        run(decoder, RunInputs(ids, (0,), ids[:, 0].repeat(2)), observe, edits)
    return found, watch.tables


@contextmanager
def _fed(decoder: Decoder) -> Iterator[None]:
    """Attention modules get random hidden states, the same in every pass, whatever the blocks before them did."""

    def feeding(layer: int) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = args[0] if args else kwargs["hidden_states"]
            generator = torch.Generator().manual_seed(layer)
            hidden = torch.randn(given.shape, generator=generator, dtype=torch.float64).to(given)
            return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

        return hook

    handles = [m.register_forward_pre_hook(feeding(i), with_kwargs=True) for i, m in decoder.attention.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _columns(tables: Sequence[Table]) -> tuple[list[Tensor], int]:
    """Number the columns of every table so that equal columns share a number; also how many numbers there are.

    Equal columns (a table often holds each frequency twice) must turn alike in a probe, or a pair would be stretched
    and a norm behind the rotation would notice.
    """
    known: dict[bytes, int] = {}
    numbered = []
    for cosine, sine in tables:
        stacked = torch.cat([cosine, sine]).double().cpu().numpy()
        keys = [stacked[:, column].tobytes() for column in range(stacked.shape[1])]
        numbered.append(torch.tensor([known.setdefault(key, len(known)) for key in keys]))
    return numbered, len(known)


def _spelling(columns: Sequence[Tensor], digit: int) -> Callable[[int, Table], Table]:
    def substitute(call: int, table: Table) -> Table:
        angle = ((columns[call] // BASE**digit % BASE) * (math.pi / BASE)).double()
        return angle.cos().expand(len(table[0]), -1), angle.sin().expand(len(table[0]), -1)

    return substitute


def _pairing(still: Tensor, quarter: Tensor, spelt: Sequence[Tensor], where: dict[int, tuple[int, int]]) -> Pairing:
    """Read one layer's pairing from what no turn, a quarter turn and the spelling turns made of the same vectors."""
    dim = still.shape[-1]
    flat, turned = still.reshape(-1, dim), quarter.reshape(-1, dim)
    square = flat.square().sum(0)
    slope = turned.T @ flat / square  # (dim turned, dim still): least-squares factor of each candidate
    error = (turned.square().sum(0)[:, None] - slope.square() * square).clamp(min=0)
    error = (error / turned.square().sum(0)[:, None].clamp(min=1e-300)).sqrt()
    index = torch.arange(dim, device=still.device)
    stays = (turned - flat).abs().amax(0) <= 0.02 * flat.abs().amax(0)
    best, partner = error.min(1)
    partner = torch.where(stays, index, partner)
    ratio = torch.where(stays, 1.0, slope[index, partner])
    ratio = torch.where((ratio.abs() - 1).abs() < 0.01, ratio.sign(), ratio)
    if bool((best[~stays] > 0.02).any()) or not torch.equal(partner[partner], index):
        raise UnreadableRotation("its dimensions do not turn in pairs")
    if bool(((ratio * ratio[partner] + 1).abs() > 0.05)[~stays].any()):
        raise UnreadableRotation("its pairs are stretched, not turned")
    number = torch.zeros(dim, dtype=torch.long, device=still.device)
    for digit, vectors in enumerate(spelt):
        angle = _angles(flat, vectors.reshape(-1, dim), partner, ratio)
        number += torch.round(angle / (math.pi / BASE)).long().remainder(2 * BASE) * BASE**digit
    call, column = torch.full_like(number, -1), torch.zeros_like(number)
    for d in torch.nonzero(~stays)[:, 0].tolist():
        if int(number[d]) not in where:
            raise UnreadableRotation("a column of its rotary table could not be matched")
        call[d], column[d] = where[int(number[d])]
    return Pairing(partner, ratio, call, column)


def _angles(still: Tensor, turned: Tensor, partner: Tensor, ratio: Tensor) -> Tensor:
    """Least-squares angle of every dimension's pair, from vectors before and after a turn (sample dim)."""
    other = ratio * still[:, partner]
    cosine = (turned * still).sum(0) + (turned * still).sum(0)[partner]
    sine = (turned * other).sum(0) + (turned * other).sum(0)[partner]
    return torch.atan2(sine, cosine)

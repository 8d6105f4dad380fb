"""One edit's pass for the logit split: run batches with the rotary tables on record, and keep their sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits.base import Edit, RunInputs
from wherefrom.capture.position_sums import PositionSums
from wherefrom.capture.query_rows import OffsetFit, RowPlan
from wherefrom.capture.rotary_probe import RotaryReading, RotaryWatch, Table, read_rotations, watched_rotation
from wherefrom.capture.rotation import Rotation
from wherefrom.capture.session import run
from wherefrom.capture.split_sums import SplitSums
from wherefrom.encodings.masks import MaskRule
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder


class SplitPass:
    """What all batches of one edit share: pairings, rotary tables, and one OffsetFit per mask rule."""

    def __init__(self, decoder: Decoder, edits: Sequence[Edit], plan: RowPlan) -> None:
        self.decoder, self.edits, self.plan = decoder, edits, plan
        self.reading: RotaryReading = read_rotations(decoder, edits)
        self.tables: list[Table] | None = None
        self._turns: dict[bytes, Rotation] = {}
        self._fits: dict[MaskRule, OffsetFit] = {}
        self.turns: dict[int, tuple[Rotation, Rotation]] = {}
        """Query and key rotation per layer, once a batch has run."""

    def fit(self, rule: MaskRule, device: torch.device | None = None) -> OffsetFit:
        """The projection on functions of the offset under `rule`."""
        if rule not in self._fits:
            self._fits[rule] = OffsetFit(self.plan, rule, device)
        return self._fits[rule]

    def take(self, inputs: RunInputs, sums: SplitSums, positions: PositionSums | None = None) -> None:
        """Run one batch and add it to `sums`, and the residual stream to `positions`."""

        def observe(call: AttentionCall) -> None:
            if call.layer not in self.turns:
                self.turns[call.layer] = self._rotations(call, watch.tables)
            sums.observe(call, self.fit(call.rule, call.query.device), *self.turns[call.layer])

        def residual(depth: int, hidden: Tensor) -> None:
            if positions is not None:
                positions.observe(depth, hidden, inputs.indices)

        with watched_rotation(self.decoder, RotaryWatch()) as watch:
            run(self.decoder, inputs, observe, self.edits, residual)
        self._same_tables(watch.tables)
        sums.count(len(inputs.indices))
        if positions is not None:
            positions.count(inputs.indices)

    def _same_tables(self, tables: list[Table]) -> None:
        """Inputs of one length must turn alike, or their mean would be taken over different rotations."""
        if self.tables is None:
            self.tables = tables
        same = len(tables) == len(self.tables) and all(
            torch.equal(a, b)
            for one, other in zip(self.tables, tables, strict=True)
            for a, b in zip(one, other, strict=True)
        )
        if not same:
            raise BadInput(
                f"The rotary tables of '{self.decoder.source}' changed between inputs of one length: they depend on "
                "what the model ran before, so content and position cannot be told apart; use a fixed rope_type."
            )

    def _rotations(self, call: AttentionCall, tables: Sequence[Table]) -> tuple[Rotation, Rotation]:
        pair = self.reading.rotations(call.layer, tables, call)
        # Layers that turn alike share one table.
        found = []
        for turn in pair:
            parts = (
                turn.partner.double(),
                turn.ratio.double(),
                turn.cosine[1::97].flatten(),
                turn.sine[1::97].flatten(),
            )
            key = torch.cat(parts).cpu().numpy().tobytes()
            shared = self._turns.setdefault(key, turn)
            same = torch.equal(shared.cosine, turn.cosine) and torch.equal(shared.sine, turn.sine)
            found.append(shared if same else turn)
        return found[0], found[1]

"""What a split has summed so far: totals over finished groups, kept so that an interrupted run can continue."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wherefrom.capture.position_sums import PositionSums
from wherefrom.capture.query_rows import RowPlan
from wherefrom.capture.split_sums import SplitSums
from wherefrom.errors import BadInput
from wherefrom.results.folder import RunFolder


@dataclass
class SplitState:
    """Sums of one edit over its finished groups."""

    plan: RowPlan
    total: SplitSums
    positions: list[PositionSums] = field(default_factory=list)
    """Per finished group; the probe's moments are merged into the first group of each fold (see `analyses.readout`)."""

    @property
    def done(self) -> int:
        """Finished groups."""
        return len(self.positions)

    def add(self, sums: SplitSums, positions: PositionSums, folds: int) -> None:
        """Take in a finished group."""
        self.total.add(sums)
        number = len(self.positions)
        if number >= folds:
            first = self.positions[number % folds]
            for depth, kept in positions.depths.items():
                for name in ("moment", "feature", "cross"):
                    first.depths[depth][name] = first.depths[depth][name] + kept.pop(name)
        self.positions.append(positions)

    def to_bytes(self) -> bytes:
        """One safetensors blob."""
        from safetensors.torch import save

        flat, header = self.total.tensors()
        tensors: dict[str, Tensor] = {f"total\n{key}": value for key, value in flat.items()}
        headers = [header]
        for number, positions in enumerate(self.positions):
            flat, header = positions.tensors()
            tensors |= {f"{number}\n{key}": value for key, value in flat.items()}
            headers.append(header)
        tensors = {key: value.contiguous().cpu() for key, value in tensors.items()}
        return save(tensors, {"headers": json.dumps(headers)})

    @classmethod
    def restored(cls, plan: RowPlan, folder: RunFolder | None, name: str, device: torch.device) -> SplitState:
        """The state an earlier, interrupted run left in `folder`, or a new one. Raises BadInput for a damaged file."""
        path = None if folder is None else folder.path / name
        if path is None or not path.is_file():
            return cls(plan, SplitSums(plan))
        from safetensors import safe_open

        try:
            with safe_open(str(path), framework="pt", device=str(device)) as file:
                headers = json.loads((file.metadata() or {})["headers"])
                flat: dict[str, dict[str, Tensor]] = {}
                for key in file.keys():  # noqa: SIM118
                    owner, _, rest = key.partition("\n")
                    flat.setdefault(owner, {})[rest] = file.get_tensor(key)
            total = SplitSums.from_tensors(plan, flat["total"], headers[0])
            groups = [PositionSums.from_tensors(plan, flat[str(i)], h) for i, h in enumerate(headers[1:])]
        except Exception as error:
            raise BadInput(f"'{path}' is damaged; delete that file, and its inputs are run again.") from error
        return cls(plan, total, groups)

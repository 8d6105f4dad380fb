"""What a head ablation of a checkpoint has finished, input by input, kept so that an interrupted run can continue."""

from __future__ import annotations

import time
from types import TracebackType

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from wherefrom.analyses.heads import InputLosses
from wherefrom.errors import BadInput
from wherefrom.results.folder import RunFolder

WHERE = "state/group-inputs.safetensors"
SAVE_EVERY = 20.0
"""Seconds between saved states."""


class InputStore:
    """Keeps finished inputs in a run folder, or nowhere. As a context it also keeps those of an interrupted run."""

    def __init__(self, folder: RunFolder | None) -> None:
        self.folder = folder
        self.found: list[InputLosses] = []
        self.saved, self.when = 0, time.monotonic()

    def restored(self) -> list[InputLosses]:
        """What an earlier run finished. Raises BadInput for a damaged file."""
        path = None if self.folder is None else self.folder.path / WHERE
        if path is None or not path.is_file():
            return []
        try:
            flat = load(path.read_bytes())
            found: list[InputLosses] = [(float(loss), {}) for loss in flat.pop("base")]
            for name, table in flat.items():
                how, layer = name.split("/")
                for one, losses in zip(found, table, strict=True):
                    one[1].setdefault(how, {})[int(layer)] = losses
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise BadInput(f"'{path}' is damaged; delete that file, and its inputs are run again.") from error
        self.saved = len(found)
        return found

    def add(self, found: list[InputLosses]) -> None:
        """Take note of the inputs finished so far."""
        self.found = found
        if time.monotonic() - self.when > SAVE_EVERY:
            self._save()

    def _save(self) -> None:
        if self.folder is None or len(self.found) <= self.saved:
            return
        tensors = {"base": torch.tensor([loss for loss, _ in self.found], dtype=torch.float64)}
        for how, layers in self.found[0][1].items():
            for layer in layers:
                tensors[f"{how}/{layer}"] = torch.stack([one[1][how][layer] for one in self.found])
        self.folder.write(WHERE, save(tensors))
        self.saved, self.when = len(self.found), time.monotonic()

    def __enter__(self) -> InputStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._save()

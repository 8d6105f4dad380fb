"""What an unfinished training keeps on disk: weights, optimiser moments, and the rows so far, in one file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass, field

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from wherefrom.models.toy import ToyTransformer
from wherefrom.results.folder import STATE, RunFolder
from wherefrom.rows import Row

CHECKPOINT = "group-checkpoint.safetensors"


@dataclass
class TrainingState:
    """Where a run stands, beside weights and moments."""

    step: int = 0
    """Finished steps."""
    seconds: float = 0.0
    """Time spent, over all sessions."""
    losses: list[float] = field(default_factory=list)
    """Losses of the steps since the last point of the curve."""
    rows: list[Row] = field(default_factory=list)
    """Everything measured so far."""

    def keep(self, folder: RunFolder, model: ToyTransformer, optimizer: torch.optim.Optimizer) -> None:
        """Write a checkpoint, atomically."""
        tensors: dict[str, Tensor] = {f"model/{name}": value for name, value in model.state_dict().items()}
        for name, parameter in model.named_parameters():
            for key, value in optimizer.state[parameter].items():
                tensors[f"{key}/{name}"] = torch.as_tensor(value)
        header = {
            "step": self.step,
            "seconds": self.seconds,
            "losses": self.losses,
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }
        flat = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        folder.write(f"{STATE}/{CHECKPOINT}", save(flat, {"state": json.dumps(header)}))

    @classmethod
    def restored(
        cls, folder: RunFolder, model: ToyTransformer, optimizer: torch.optim.Optimizer
    ) -> TrainingState | None:
        """Put a checkpoint back in place; None where there is none, or a damaged one, which is then made anew."""
        path = folder.state / CHECKPOINT
        if not path.is_file():
            return None
        with contextlib.suppress(SafetensorError, OSError, ValueError, KeyError, TypeError):
            with safe_open(path, "pt") as file:
                header = json.loads(file.metadata()["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            rows = [Row(**row) for row in header["rows"]]
            state = cls(header["step"], header["seconds"], header["losses"], rows)
            _place(tensors, model, optimizer)
            return state
        return None


def _place(tensors: dict[str, Tensor], model: ToyTransformer, optimizer: torch.optim.Optimizer) -> None:
    weights = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    own = model.state_dict()
    if weights.keys() != own.keys() or any(weights[name].shape != own[name].shape for name in own):
        raise KeyError("other weights")
    moments = {
        name: {key: tensors[f"{key}/{name}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}/{name}" in tensors}
        for name, _ in model.named_parameters()
    }
    model.load_state_dict(weights)
    device = next(model.parameters()).device
    for name, parameter in model.named_parameters():
        if moments[name]:
            optimizer.state[parameter] = {key: value.to(device) for key, value in moments[name].items()}

"""Small Transformers on disk: settings as JSON, weights as safetensors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from wherefrom.errors import BadInput
from wherefrom.models.toy import ToyTransformer
from wherefrom.models.toy_config import ToyConfig

SETTINGS, WEIGHTS = "toy.json", "toy.safetensors"


def is_toy(folder: str | Path) -> bool:
    """Whether a folder holds a model of the lab."""
    return (Path(folder) / SETTINGS).is_file()


def toy_files(model: ToyTransformer) -> dict[str, bytes]:
    """The two files of a model: name to content."""
    settings = json.dumps(dataclasses.asdict(model.settings), indent=1)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return {SETTINGS: settings.encode(), WEIGHTS: save(weights)}


def load_toy(folder: str | Path) -> ToyTransformer:
    """A model of the lab from its folder, in evaluation mode. Raises BadInput for damaged files."""
    home = Path(folder)
    try:
        values: dict[str, Any] = json.loads((home / SETTINGS).read_text(encoding="utf-8"))
        config = ToyConfig(**values)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"'{home / SETTINGS}' is damaged and cannot be read; train the model again.") from error
    # The weights drawn here are replaced at once; the user's random state must not notice.
    with torch.random.fork_rng(devices=[]):
        model = ToyTransformer(config)
    try:
        weights = load_file(home / WEIGHTS)
        model.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise BadInput(f"'{home / WEIGHTS}' does not hold the weights of this model ({reason}).") from error
    dtype = next(iter(weights.values())).dtype
    return model.to(dtype).eval()

"""What is written beside the rows of a training: versions, settings, sizes, time."""

from __future__ import annotations

from typing import Any

import torch

from wherefrom.models.toy import ToyTransformer
from wherefrom.results.versions import versions
from wherefrom.tasks import Task
from wherefrom.training.config import TrainConfig


def training_manifest(
    config: TrainConfig, task: Task, model: ToyTransformer, seconds: float, device: torch.device
) -> dict[str, Any]:
    """Everything a reader needs to trust and repeat a training."""
    return {
        "kind": "training",
        **versions(),
        "training": config.to_dict(),
        "model": {
            "source": f"{config.encoding} on {config.task}",
            "name": f"{config.encoding} on {config.task.partition(':')[0]}",
            "family": model.config.model_type,
            "layers": config.layers,
            "heads": config.heads,
            "encoding": config.encoding,
            "parameters": sum(p.numel() for p in model.parameters()),
            "vocabulary": task.vocabulary,
        },
        "chance": task.chance(),
        "classes": task.classes,
        "threads": torch.get_num_threads(),
        "device": str(device),
        "dtype": config.precision,
        "seed": config.seed,
        "seconds": seconds,
        "edits": [],
        "query_ranges": [],
    }

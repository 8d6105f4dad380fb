"""Training of small models on synthetic tasks: an exact loop, held-out scores, resumable runs."""

from wherefrom.training.config import TrainConfig
from wherefrom.training.loop import Training, train

__all__ = ["TrainConfig", "Training", "train"]

"""Settings of a training run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from wherefrom.errors import BadInput
from wherefrom.models.toy_config import ToyConfig
from wherefrom.settings import Settings, check_choice, check_count, check_number
from wherefrom.tasks import build_task
from wherefrom.tasks.base import Task

Schedule = Literal["cosine", "constant"]
Precision = Literal["float32", "bfloat16", "float64"]
MODEL_FIELDS = tuple(
    field.name for field in fields(ToyConfig) if field.name not in {"vocabulary", "classes", "max_length", "bos"}
)


@dataclass(frozen=True, slots=True)
class TrainConfig(Settings):
    """What is trained, on what, and how. A run is a pure function of this (on one machine and thread count)."""

    name: ClassVar[str] = "train"

    task: str = "distance"
    """Task with its settings, as `wherefrom list tasks` names it."""
    encoding: str = "rope"
    """Positional encoding with its settings."""
    steps: int = 600
    """Optimiser steps; 0: the untrained model is measured."""
    batch: int = 64
    """Examples per step."""
    learning_rate: float = 2e-3
    """Peak learning rate of AdamW."""
    schedule: Schedule = "cosine"
    """What the learning rate does after the warm-up: falls to 0 along a cosine, or stays."""
    warmup: float = 0.06
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = 0.01
    """Decoupled weight decay of AdamW."""
    clip: float = 1.0
    """Largest gradient norm; 0: no limit."""
    examples: int | None = None
    """Size of a fixed training set, seen in epochs; None: fresh examples at every step."""
    test_examples: int = 2000
    """Held-out examples of the last score; those before it use the first 500 of them at most."""
    evaluations: int = 10
    """Held-out scores along the way, at equal distances; the last one is after the last step."""
    seed: int = 0
    """Seed of weights, order and training data. Held-out data are the same for every seed."""
    precision: Precision = "float32"
    """Arithmetic of the forward pass; weights and statistics are never below float32."""
    d_model: int = 64
    """Width of the residual stream."""
    heads: int = 8
    """Query heads per layer."""
    kv_heads: int | None = None
    """Key/value heads per layer; None: as many as query heads."""
    layers: int = 2
    """Number of blocks."""
    d_ff: int = 128
    """Width of the hidden layer of each feed-forward part."""
    attention: str = "mha"
    """`mha` or `mla`."""
    latent_dim: int | None = None
    """Width of MLA's latent vector; None: a quarter of the width."""
    causal: bool = False
    """Hide keys after the query."""
    window: int | None = None
    """Number of keys a query sees at most; needs `causal`."""
    readout: str = "mean"
    """What a sequence's answer is read from: `mean` over tokens or `last` token."""
    dropout: float = 0.0
    """Dropout on what each part adds."""
    head_dropout: float = 0.0
    """Probability that a whole head is zeroed in training."""
    memory_keys: bool = False
    """Published quirk: keys and values of every layer come from the input embedding."""
    published_padding: bool = False
    """Published quirk: padding takes part in attention and in the mean."""
    weights: str = "random"
    """How the blocks start: `random`, or `identity` for a stack without parameters (with `d_ff` and `steps` 0)."""

    def __post_init__(self) -> None:
        for key in ("batch", "test_examples", "evaluations"):
            check_count(self.name, key, getattr(self, key))
        check_count(self.name, "steps", self.steps, least=0)
        if self.examples is not None:
            check_count(self.name, "examples", self.examples)
            if self.examples < self.batch:
                raise BadInput(f"A training set of {self.examples} examples has no batch of {self.batch}; change one.")
        check_number(self.name, "learning_rate", self.learning_rate)
        for key in ("warmup", "weight_decay", "clip"):
            check_number(self.name, key, getattr(self, key), least=0.0)
        check_choice(self.name, "schedule", self.schedule, get_args(Schedule))
        check_choice(self.name, "precision", self.precision, get_args(Precision))
        if self.seed < 0:
            raise BadInput(f"The seed {self.seed} is negative; use 0 or more.")
        self.model(self.build_task())

    def build_task(self) -> Task:
        """The task of these settings."""
        return build_task(self.task)

    def model(self, task: Task) -> ToyConfig:
        """Settings of the model for `task`: its sizes come from the task."""
        chosen: dict[str, Any] = {key: getattr(self, key) for key in MODEL_FIELDS}
        if task.readout == "tokens":
            chosen["readout"] = "tokens"
        return ToyConfig(
            vocabulary=task.vocabulary, classes=task.classes, max_length=task.max_length, bos=task.bos, **chosen
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`. Raises BadInput for settings this version does not know."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise BadInput(f"The training setting '{unknown[0]}' is not known to this version of wherefrom.")
        return cls(**values)

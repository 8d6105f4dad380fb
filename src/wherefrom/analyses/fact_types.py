"""What a fact sheet holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from wherefrom.analyses.rotary_summary import RotarySummary
from wherefrom.capture.bias_reading import BiasFacts
from wherefrom.capture.mask_reading import MaskFacts
from wherefrom.capture.precision import AnglePrecision


@dataclass(frozen=True)
class LayerFacts:
    """What one attention layer does with position."""

    layer: int
    module: str
    """Class of the attention module."""
    query_heads: int | None
    kv_heads: int | None
    head_dim: int | None
    """Size of the query and key vectors of the dot product."""
    value_dim: int | None
    scale: float | None
    """Factor on the dot product."""
    softcap: float | None
    """Nats; None: no soft-cap."""
    mask: MaskFacts | None
    rotary: RotarySummary | None
    """None where it could not be read; `unread` says why."""
    precision: AnglePrecision | None
    sinks: tuple[float, ...] | None
    """Learned sink logits per query head, nats; None: the layer has none."""
    bias: BiasFacts | None
    """Linear bias on logits; None: none."""
    query_growth: float | None
    """How much longer a query is at position FAR than at 0 (logit temperatures that grow with the position); None: not
    read. 1 where the rotation is the only thing that depends on the position."""
    other: tuple[str, ...] = ()
    """Further keywords that the layer hands to its attention function and that change its result."""
    unread: tuple[str, ...] = ()
    """What could not be read, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        found = asdict(self)
        if self.sinks is not None:
            found["sinks"] = list(self.sinks)
        return found


@dataclass(frozen=True)
class TableFacts:
    """A learned (or stored) position table."""

    name: str
    """Where the module sits."""
    rows: int
    """Rows of the table."""
    positions: int
    """Positions it can serve."""


@dataclass(frozen=True)
class LengthFacts:
    """What a rotary table that depends on the input length does at one length."""

    length: int
    """Tokens of the input."""
    layer: int
    """The layer that was read."""
    base: float | None
    first_frequency: float | None
    longest_wavelength: float | None
    attention_scaling: float


@dataclass
class ModelFacts:
    """The fact sheet."""

    model: dict[str, Any]
    """Source, class, family, layers, dtype."""
    layers: list[LayerFacts]
    position_tables: list[TableFacts] = field(default_factory=list)
    length_dependent: list[str] = field(default_factory=list)
    """Schedules whose rotary table depends on the length of the input."""
    lengths: list[LengthFacts] = field(default_factory=list)
    tied_embeddings: bool | None = None
    config_keys: list[dict[str, Any]] = field(default_factory=list)
    """Config keys about position and whether they had an effect; filled by `config_keys.examine`."""
    config_note: str = ""
    """Why the config keys were not examined, if they were not."""
    warnings: list[str] = field(default_factory=list)

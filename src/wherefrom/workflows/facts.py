"""The fact sheet end to end: load, read, and hand on as tidy rows or plain values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
from torch import nn

from wherefrom.analyses.config_keys import examine
from wherefrom.analyses.facts import ModelFacts, read_facts, read_opaque_facts
from wherefrom.errors import Unobservable
from wherefrom.models.hf import Decoder, wrap
from wherefrom.models.loading import load_bare

SCHEMA = {
    "layer": pl.Int64,
    "head": pl.Int64,
    "fact": pl.String,
    "value": pl.Float64,
    "text": pl.String,
    "unit": pl.String,
}
"""Columns of the table: `layer` and `head` are null where a fact is not about one; `value` or `text` is null."""
UNITS = {
    "scale": "1", "softcap": "nats", "window": "keys", "base": "1", "first_frequency": "radians/token",
    "shortest_wavelength": "tokens", "longest_wavelength": "tokens", "sink": "nats", "slope": "nats/token",
    "error": "radians", "positions": "tokens", "length": "tokens",
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The fact sheet of one checkpoint."""

    found: ModelFacts

    def to_dict(self) -> dict[str, Any]:
        """Plain values: `model`, `layers`, `position_tables`, `lengths`, `config_keys`, `warnings` …"""
        values = asdict(self.found)
        values["layers"] = [layer.as_dict() for layer in self.found.layers]
        return values

    def table(self) -> pl.DataFrame:
        """Tidy rows, one per fact and layer (and head, for sinks and slopes); columns as in SCHEMA."""
        return pl.DataFrame(list(self._rows()), schema=SCHEMA, orient="row")

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for layer in self.found.layers:
            values = layer.as_dict()
            index = values.pop("layer")
            for name in ("sinks", "bias"):
                part = values.pop(name)
                listed = part if name == "sinks" else (part or {}).get("slopes")
                for head, value in enumerate(listed or ()):
                    yield _row(index, head, "sink" if name == "sinks" else "slope", value)
                if name == "bias" and part:
                    yield _row(index, None, "slope_rule", " or ".join(part["rules"]) or "unknown")
                    yield _row(index, None, "slope_factor", part["factor"])
            for fact, value in _flat(values):
                yield _row(index, None, fact, value)
        for table in self.found.position_tables:
            yield _row(None, None, "positions", table.positions)
        for at in self.found.lengths:
            yield _row(at.layer, None, f"base_at_length_{at.length}", at.base)
            yield _row(at.layer, None, f"longest_wavelength_at_length_{at.length}", at.longest_wavelength)
        if self.found.tied_embeddings is not None:
            yield _row(None, None, "tied_embeddings", self.found.tied_embeddings)
        for key in self.found.config_keys:
            yield _row(None, None, f"config:{key['key']}", f"effect {key['effect']}")


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            prefix = "distinct_positions_" if name == "distinct" else ""
            yield from ((f"{prefix}{inner}", found) for inner, found in _flat(value))
        elif isinstance(value, list | tuple):
            yield from ((name, item) for item in value)
        elif value is not None and value != "":
            yield str(name), value


def _row(layer: int | None, head: int | None, fact: str, value: Any) -> tuple[Any, ...]:
    number = None if value is None or isinstance(value, str) else float(value)
    return layer, head, fact, number, value if isinstance(value, str) else None, UNITS.get(fact)


def facts(model: Any, dtype: str = "float32", device: str = "auto", trust_remote_code: bool = False) -> Facts:
    """The fact sheet of a checkpoint: what each layer does with position, read from the modules that run.

    `model`: `smollm2`, a hub id, a folder, a GGUF file, a Hugging Face model object, or what `load` returned. Families
    that cannot be traced (BLOOM, MPT …) give what can be read of them, and say what cannot. The model is not changed.
    Raises BadInput for what cannot be loaded or is no decoder.
    """
    name = ""
    if isinstance(model, Decoder):
        return _of(model)
    if isinstance(model, nn.Module):
        bare, tokenizer, source = model, None, type(model).__name__
    else:
        source = os.fspath(model)
        bare, tokenizer, name = load_bare(source, dtype, device, trust_remote_code)
    try:
        decoder = wrap(bare, tokenizer, source)
    except Unobservable as error:
        found = read_opaque_facts(bare, source, name, str(error))
        found.config_note = "The config keys were not examined: that needs a model that can be observed."
        return Facts(found)
    decoder.name = name
    return _of(decoder)


def _of(decoder: Decoder) -> Facts:
    found = read_facts(decoder)
    examine(decoder, found)
    return Facts(found)

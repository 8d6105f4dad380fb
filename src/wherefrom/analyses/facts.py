"""The fact sheet of a checkpoint: what each layer does with position, read from the modules that run (DESIGN 4.9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.analyses.fact_types import LayerFacts, LengthFacts, ModelFacts, TableFacts
from wherefrom.analyses.rotary_summary import summarise
from wherefrom.capture.bias_reading import BiasFacts, attention_modules, read_bias
from wherefrom.capture.layer_probe import LayerProbe, capture_layers, table_modules
from wherefrom.capture.layer_rotation import LayerRotation, read_layer, read_rotations
from wherefrom.capture.mask_reading import read_mask
from wherefrom.capture.precision import AnglePrecision, read_precision
from wherefrom.capture.rotary_state import depends_on_length, rope_types
from wherefrom.errors import BadInput, Unobservable
from wherefrom.models.hf import Decoder

FAR = (1 << 17) - 1
"""A position far behind the lengths that models are trained on."""
PLAIN = {
    "attention_dropout", "cache", "cache_position", "dropout", "is_causal", "layer_idx", "output_attentions",
    "past_key_values", "position_embeddings", "position_ids", "s_aux", "scaling", "sliding_window", "softcap",
    "training", "use_cache",
}  # fmt: skip
"""Keywords of an attention call that have a line of their own, or do nothing in a whole-sequence pass."""


def read_facts(decoder: Decoder) -> ModelFacts:
    """The facts of a model that can be observed. Costs a few passes over three tokens; the model is not changed."""
    positions = [0, 1, 2]
    probes = capture_layers(decoder, positions)
    shared: dict[Any, Any] = {}
    growth = query_growth(decoder)
    layers = [_layer(decoder, probe, positions, shared, growth.get(layer)) for layer, probe in probes.items()]
    found = ModelFacts(
        _head(decoder.model, decoder.source, decoder.name) | {"layers": len(decoder.blocks), "observable": True},
        layers,
        position_tables(decoder.body),
        tied_embeddings=tied(decoder.model),
    )
    found.length_dependent = sorted(
        {kind for module in table_modules(decoder) if depends_on_length(module) for kind in rope_types(module)}
    )
    if found.length_dependent:
        found.lengths = _lengths(decoder)
    for layer in sorted(set(range(len(decoder.blocks))) - set(probes)):
        found.warnings.append(f"Layer {layer} has no softmax attention.")
    return found


def read_opaque_facts(model: nn.Module, source: str, name: str, reason: str) -> ModelFacts:
    """What can be read of a causal language model whose attention calls cannot be taken over (BLOOM, MPT, Falcon …)."""
    finder: Any = getattr(model, "get_decoder", None)
    body = finder() if finder is not None else None
    modules = attention_modules(body if isinstance(body, nn.Module) else model)
    unread = ["mask, scale, soft-cap, sinks and rotation, for that reason."]
    layers = []
    biases: list[BiasFacts | None] = [None] * len(modules)
    try:
        biases = read_bias(model, modules)
    except Unobservable as error:
        unread.append(f"bias: {error}")
    for layer, (module, bias) in enumerate(zip(modules, biases, strict=False)):
        sizes = [_number(module, names) for names in HEAD_ATTRIBUTES]
        unknown: dict[str, Any] = dict.fromkeys(("scale", "softcap", "mask", "rotary", "precision", "sinks"))
        heads: dict[str, Any] = {
            "query_heads": sizes[0],
            "kv_heads": sizes[1] or sizes[0],
            "head_dim": sizes[2],
            "value_dim": sizes[2],
        }
        layers.append(
            LayerFacts(
                layer,
                type(module).__name__,
                **heads,
                **unknown,
                bias=bias,
                query_growth=None,
                unread=tuple(unread),
            )
        )
    head = _head(model, source, name) | {"layers": len(layers), "observable": False}
    return ModelFacts(
        head, layers, position_tables(model), tied_embeddings=tied(model), warnings=[reason.partition(";")[0] + "."]
    )


HEAD_ATTRIBUTES = (
    ("num_heads", "n_heads", "num_attention_heads", "n_head"),
    ("num_kv_heads", "num_key_value_heads"),
    ("head_dim", "head_size"),
)
"""Names under which attention modules keep their head counts and head size."""


def _number(module: nn.Module, names: Sequence[str]) -> int | None:
    return next((int(getattr(module, name)) for name in names if isinstance(getattr(module, name, None), int)), None)


def query_growth(decoder: Decoder) -> dict[int, float]:
    """Length of a query at position FAR over its length at 0, by layer; empty where positions end before FAR."""
    found = {}
    try:
        for layer, probe in capture_layers(decoder, [0, 1, FAR]).items():
            generator = torch.Generator().manual_seed(2)
            hidden = torch.randn(4, probe.hidden_size, generator=generator, dtype=torch.float64)
            query = probe.ask(hidden.to(probe.seen.query.device)).query.double()
            found[layer] = float((query[:, :, 2].norm(dim=-1) / query[:, :, 0].norm(dim=-1)).mean())
    except (RuntimeError, TypeError, AttributeError, ValueError, IndexError, NotImplementedError):
        return {}  # a position table that ends earlier, or code that does not run on probe vectors
    return found


def _layer(
    decoder: Decoder, probe: LayerProbe, positions: list[int], shared: dict[Any, Any], growth: float | None
) -> LayerFacts:
    seen, settings, unread = probe.seen, probe.seen.settings, []
    # Layers are handed the same tables and the same mask, as objects: what was read of one is kept for the next.
    table = ("table", *(id(call) for call in probe.table_calls))
    if table not in shared:
        shared[table] = read_precision(decoder, probe)
    precision: AnglePrecision | None = shared[table]
    mask = ("mask", id(seen.mask), settings.get("sliding_window"))
    if mask not in shared:
        shared[mask] = read_mask(probe)
    rotary = None
    try:
        rotary = summarise(read_layer(probe, positions), _rounding(precision))
    except BadInput as error:
        unread.append(str(error))
    scaling, softcap, sinks = settings.get("scaling"), settings.get("softcap"), settings.get("s_aux")
    return LayerFacts(
        probe.layer,
        type(probe.module).__name__,
        seen.query.shape[1],
        seen.key.shape[1],
        seen.query.shape[-1],
        seen.value.shape[-1],
        float(scaling) if scaling is not None else seen.query.shape[-1] ** -0.5,
        None if softcap is None else float(softcap),
        shared[mask],
        rotary,
        precision,
        None if sinks is None else tuple(float(value) for value in sinks.detach().reshape(-1)),
        None,
        growth,
        tuple(sorted(name for name, value in settings.items() if value is not None and name not in PLAIN)),
        tuple(unread),
    )


def _rounding(precision: AnglePrecision | None) -> float:
    kind = getattr(torch, precision.frequency_dtype or "float32") if precision else torch.float32
    return float(torch.finfo(kind).eps)


def _lengths(decoder: Decoder) -> list[LengthFacts]:
    """Frequencies at, just behind and far behind each length at which a table says that it changes."""
    edges = set()
    for module in table_modules(decoder):
        if depends_on_length(module):
            edges |= {int(v) for v in (getattr(module, "original_max_seq_len", None), *_originals(module)) if v}
    wanted = sorted({n for edge in edges for n in (edge, edge + 1, 2 * edge, 4 * edge)})
    found: list[LengthFacts] = []
    last: dict[int, LayerRotation] = {}
    for length in wanted:
        try:
            rotations = read_rotations(decoder, length)
        except BadInput:
            continue  # the layer's own line says why it cannot be read
        for layer in _different(rotations):
            rotation = rotations[layer]
            before = last.get(layer)
            if before is not None and _equal(before, rotation):
                continue
            last[layer] = rotation
            summary = summarise(rotation)
            found.append(
                LengthFacts(
                    length, layer, summary.base, summary.first_frequency, summary.longest_wavelength, rotation.magnitude
                )
            )
    return found


def _originals(module: nn.Module) -> list[int]:
    parameters: Any = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    nested = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return [int(p["original_max_position_embeddings"]) for p in nested if p.get("original_max_position_embeddings")]


def _different(rotations: dict[int, LayerRotation]) -> list[int]:
    """One layer of each kind of table."""
    chosen: list[int] = []
    for layer, rotation in rotations.items():
        if rotation.pairing != "none" and not any(_equal(rotation, rotations[other]) for other in chosen):
            chosen.append(layer)
    return chosen


def _equal(one: LayerRotation, other: LayerRotation) -> bool:
    return torch.equal(one.frequencies, other.frequencies) and one.magnitude == other.magnitude


def position_tables(body: nn.Module) -> list[TableFacts]:
    """Tables with one row per position, by the names that transformers gives them."""
    names = {"wpe", "embed_positions", "position_embeddings", "position_embedding", "pos_emb"}
    found = []
    for name, module in body.named_modules():
        weight = getattr(module, "weight", None)
        if name.rpartition(".")[2] in names and isinstance(weight, Tensor) and weight.ndim == 2:
            offset = getattr(module, "offset", 0)
            found.append(TableFacts(name, len(weight), len(weight) - (offset if isinstance(offset, int) else 0)))
    return found


def tied(model: nn.Module) -> bool | None:
    """Whether input and output embeddings are one tensor; None without an output head."""
    finder: Any = getattr(model, "get_output_embeddings", None)
    head: Any = finder() if finder is not None else None
    if head is None or not isinstance(getattr(head, "weight", None), Tensor):
        return None
    getter: Any = model.get_input_embeddings
    inputs = getter()
    return bool(head.weight is inputs.weight)


def _head(model: nn.Module, source: str, name: str) -> dict[str, Any]:
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return {
        "source": source,
        "name": name or str(getattr(config, "_name_or_path", "") or source),
        "class": type(model).__name__,
        "family": str(text.model_type),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "stated_length": getattr(text, "max_position_embeddings", None),
    }

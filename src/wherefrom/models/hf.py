"""Any Hugging Face decoder as something that can be observed: its blocks, attention layers and rotary tables.

Nothing is re-derived from the config: layers, heads, windows and frequencies are read from the modules that run.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.errors import BadInput, Unobservable


@dataclass
class Decoder:
    """A decoder-only model, its tokenizer if there is one, and the handles that observation needs."""

    model: nn.Module
    """The user's model object. No run of ours changes it."""
    body: nn.Module
    """The stack without the output head: what a trace runs."""
    embedding: nn.Module
    """Token ids to input embeddings."""
    blocks: list[nn.Module]
    """Residual blocks, first to last."""
    attention: dict[int, nn.Module]
    """Attention module by layer index; layers without softmax attention are absent."""
    source: str
    """What the user asked for: `smollm2`, a path, a hub id, or the class of a model object."""
    name: str = ""
    """What the checkpoint calls itself."""
    tokenizer: Any = None
    """The checkpoint's tokenizer, or None."""
    windows: dict[int, int | None] = field(default_factory=dict)
    """Sliding window per attention layer as handed to the attention call, filled by the self-check."""
    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """(query heads, key/value heads, head size) per attention layer, filled by the self-check."""
    parity: dict[str, Any] = field(default_factory=dict)
    """Largest output-logit difference between our path and the stock path, filled by the self-check."""

    memo: dict[str, Any] = field(default_factory=dict)
    """Values derived from the weights, keyed by the weights' version."""

    @property
    def config(self) -> Any:
        """The text config of the model."""
        config: Any = self.model.config
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    @property
    def device(self) -> torch.device:
        """Device of the input embedding."""
        return next(self.embedding.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return next(self.embedding.parameters()).dtype

    @property
    def family(self) -> str:
        """`model_type` of the config, e.g. `llama`."""
        return str(self.config.model_type)

    @property
    def vocabulary(self) -> int:
        """Number of rows of the input embedding."""
        return int(self.embedding.weight.shape[0])  # type: ignore[index]

    @property
    def max_length(self) -> int | None:
        """Length of the learned position table, where the model has one; None: no hard limit."""
        declared = getattr(self.body, "max_length", None)
        if isinstance(declared, int):
            return declared
        tables = [
            int(module.num_embeddings) - int(getattr(module, "offset", 0))
            for name, module in self.body.named_modules()
            if isinstance(module, nn.Embedding)
            and name.split(".")[-1] in {"wpe", "embed_positions", "position_embeddings"}
        ]
        return min(tables) if tables else None

    @property
    def bos(self) -> int | None:
        """The token that starts a text: the tokenizer's BOS, else the config's."""
        token = getattr(self.tokenizer, "bos_token_id", None)
        return token if token is not None else getattr(self.config, "bos_token_id", None)

    @property
    def encoding(self) -> str:
        """Positional encoding as far as the modules tell: of a model of the lab, its setting string."""
        settings = getattr(self.config, "settings", None)
        if settings is not None:
            return str(settings.encoding)
        return "rope" if self.rotary_modules() else ("learned" if self.max_length else "unknown")

    @property
    def causal(self) -> bool:
        """Whether keys after the query are hidden; only a model of the lab may be made without."""
        return bool(getattr(getattr(self.config, "settings", None), "causal", True))

    def rotary_modules(self) -> list[nn.Module]:
        """Modules that hold rotary frequencies (a buffer whose name ends in `inv_freq`)."""
        return [
            m for m in self.model.modules() if any(n.endswith("inv_freq") for n, _ in m.named_buffers(recurse=False))
        ]

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest."""
        heads, kv_heads, head_dim = next(iter(self.shapes.values()), (None, None, None))
        return {
            "source": self.source,
            "name": self.name or str(getattr(self.model.config, "_name_or_path", "") or self.source),
            "class": type(self.model).__name__,
            "family": self.family,
            "layers": len(self.blocks),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "vocabulary": self.vocabulary,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "encoding": self.encoding,
            "windows": [self.windows.get(layer) for layer in sorted(self.attention)],
        }

    def fingerprint(self) -> str:
        """Short hash of the weights and the config, so that a resumed run cannot mix two models.

        Every weight counts: besides a probe, the sum of the bit patterns as integers, which no thread count changes.
        """
        settings = {key: value for key, value in self.config.to_dict().items() if key != "_name_or_path"}
        digest = hashlib.sha256(repr(sorted(settings.items(), key=lambda item: item[0])).encode())
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            flat = tensor.detach().contiguous().reshape(-1)
            raw = flat.view(torch.uint8)
            raw = raw if raw.storage_offset() % 8 == 0 else raw.clone()
            bits = (raw.view(torch.int64) if raw.numel() % 8 == 0 else raw).sum(dtype=torch.int64)
            probe = flat[:: max(1, flat.numel() // 64)][:64].double().cpu().contiguous()
            digest.update(f"{name}{tuple(tensor.shape)}{int(bits)}".encode() + probe.numpy().tobytes())
        return digest.hexdigest()[:16]

    def positions_embedded(self, token_ids: Tensor) -> Tensor:
        """Input embeddings of `token_ids` as the model computes them (scaled where the model scales)."""
        embedded: Tensor = self.embedding(token_ids.to(self.device))
        return embedded


def _dispatches(module: nn.Module) -> bool:
    return hasattr(sys.modules.get(type(module).__module__), "ALL_ATTENTION_FUNCTIONS")


def wrap(model: nn.Module, tokenizer: Any = None, source: str | None = None) -> Decoder:
    """Find the handles of an already loaded Hugging Face decoder.

    Raises BadInput, with the reason, for a model that cannot be observed.
    """
    name = type(model).__name__
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_input_embeddings"):
        raise BadInput(f"{name} is not a Hugging Face model; pass a transformers causal-LM object, a path or a hub id.")
    if getattr(config, "is_encoder_decoder", False):
        raise BadInput(f"{name} is an encoder-decoder; only decoder-only models can be traced.")
    finder: Any = getattr(model, "get_decoder", None)
    body = finder() if finder is not None else None
    body = body if isinstance(body, nn.Module) else getattr(model, "base_model", model)
    attention: dict[int, nn.Module] = {}
    opaque: list[str] = []
    for module in body.modules():
        kind = type(module).__name__
        if "Attention" not in kind or getattr(module, "layer_idx", None) is None:
            continue
        if _dispatches(module):
            attention[int(module.layer_idx)] = module  # type: ignore[arg-type]
        else:
            opaque.append(kind)
    family = getattr(config, "model_type", name)
    if opaque or not attention:
        what = f"its {opaque[0]} does" if opaque else "its layers do"
        raise Unobservable(
            f"The family '{family}' cannot be observed: {what} not dispatch through transformers' attention interface; "
            "choose a family that does (Llama, Mistral, Qwen, Gemma, GPT-2, GPT-NeoX, GPT-OSS and about 150 others)."
        )
    blocks = _blocks(body, attention)
    if not blocks:
        raise Unobservable(
            f"The family '{family}' cannot be observed: its attention layers do not sit in one list of blocks."
        )
    return Decoder(model, body, model.get_input_embeddings(), blocks, attention, source or name, tokenizer=tokenizer)  # type: ignore[operator]


def _blocks(body: nn.Module, attention: dict[int, nn.Module]) -> list[nn.Module]:
    wanted = {id(module) for module in attention.values()}
    for module in body.modules():
        if isinstance(module, nn.ModuleList):
            inside = {id(child) for block in module for child in block.modules()}
            if wanted <= inside:
                return list(module)
    return []

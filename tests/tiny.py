"""Tiny random checkpoints, built offline. Query and key weights are scaled so that logits have a deviation near 1:
with default initial weights logits are near 0.03, and a wrong rotary table would pass at 1e-5."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "vocab_size": 97,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT_OSS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "gemma2": ("Gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0}),
    "qwen3": ("Qwen3", {}),
    "gpt_oss": ("GptOss", GPT_OSS),
    "gpt2": ("GPT2", GPT2),
    "gpt_neox": (
        "GPTNeoX",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    ),
}
SHARPEN = 6.0
"""Factor on query and key projections of the 0.02 initialisation."""


def tiny(family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float64, **overrides: Any) -> Any:
    """A random model of `family` in evaluation mode; `overrides` go to its config."""
    torch.manual_seed(seed)
    name, extra = FAMILIES[family]
    settings = {**({} if family == "gpt2" else BASE), **extra, **overrides}
    config = getattr(transformers, f"{name}Config")(**settings)
    config._experts_implementation = "eager"  # the grouped kernel knows no float64
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    sharpen(model)
    return model


def sharpen(model: nn.Module, factor: float = SHARPEN) -> None:
    """Scale query and key projections (and give learned sinks and q/k norms some spread)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(factor)
            elif name.endswith("query_key_value.weight"):
                parameter.view(4, 3, -1, parameter.shape[-1])[:, :2] *= factor
            elif name.endswith("c_attn.weight"):
                parameter[:, : 2 * parameter.shape[0]] *= factor
            elif name.endswith("sinks"):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()))
            elif name.endswith(("embed_tokens.weight", "embed_in.weight")):
                parameter.normal_(0, 1)
            elif name.endswith(("wte.weight", "wpe.weight")):
                parameter.normal_(0, 0.5)

"""Tiny models of families that rotate in different ways, and each family's own rotation function."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import transformers
from tiny import BASE, sharpen
from torch import Tensor, nn

MLA: dict[str, Any] = {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "head_dim": 8,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "rope_parameters": YARN}
GEMMA4 = {
    "num_hidden_layers": 6,
    "global_head_dim": 32,
    "vocab_size_per_layer_input": 97,
    "hidden_size_per_layer_input": 8,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "gemma2": ("Gemma2", {"query_pre_attn_scalar": 16}),
    "gemma3_text": ("Gemma3Text", {"num_hidden_layers": 6, "query_pre_attn_scalar": 16}),
    "gemma4_text": ("Gemma4Text", GEMMA4),
    "phi": ("Phi", {}),
    "stablelm": ("StableLm", {}),
    "gpt_neox": ("GPTNeoX", {}),
    "gptj": ("GPTJ", {"rotary_dim": 8}),
    "cohere": ("Cohere", {}),
    "cohere2": ("Cohere2", {"num_hidden_layers": 4}),
    "glm": ("Glm", {}),
    "gpt_oss": ("GptOss", GPT_OSS),
    "deepseek_v3": ("DeepseekV3", MLA),
    "nanochat": ("NanoChat", {}),
}


def model_of(family: str, seed: int = 0, dtype: torch.dtype = torch.float64, **overrides: Any) -> Any:
    """A random model of `family` in evaluation mode, with logits of deviation near 1."""
    torch.manual_seed(seed)
    name, extra = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**BASE, **extra, **overrides})
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    sharpen(model)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("query_key_value.weight"):
                parameter.mul_(6.0)
    return model


def own_rotation(model: nn.Module, family: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The family's own function, as (vectors, cosine, sine) -> turned vectors."""
    code: Any = importlib.import_module(type(model).__module__)
    if family == "gemma4_text":
        return lambda x, cosine, sine: code.apply_rotary_pos_emb(x, cosine, sine)
    if family == "gptj":
        return lambda x, sine, cosine: code.apply_rotary_pos_emb(x.transpose(1, 2), sine, cosine).transpose(1, 2)
    if family == "deepseek_v3":
        return lambda x, cosine, sine: code.apply_rotary_pos_emb_interleave(x, x, cosine, sine)[0]
    return lambda x, cosine, sine: code.apply_rotary_pos_emb(x, x, cosine, sine)[0]

"""Small configurations of many decoder families, built offline, for checks that must hold for all of them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tiny import BASE, sharpen

MOE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {
    "head_dim": 8,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
DOTS = {k: v for k, v in MLA.items() if not k.startswith(("qk", "q_", "kv", "v_", "head", "num_key"))}
GPT = {"n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 97, "n_positions": 64, "bos_token_id": 1}
WINDOW = {"sliding_window": 8}
DECODERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Llama": ({}, (16, 16)),
    "Mistral": (WINDOW, (16, 16)),
    "Mixtral": (MOE, (16, 16)),
    "Ministral3": ({}, (16, 16)),
    "Gemma": ({}, (16, 16)),
    "Gemma2": (WINDOW | {"query_pre_attn_scalar": 16}, (16, 16)),
    "Gemma3Text": (WINDOW, (16, 16)),
    "Gemma4Text": (
        WINDOW | {"global_head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]},
        (16, 16),
    ),
    "Qwen2": ({}, (16, 16)),
    "Qwen3": ({}, (16, 16)),
    "Qwen3Moe": (MOE, (16, 16)),
    "GptOss": (MOE | WINDOW | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, (16, 16)),
    "GPT2": (GPT, (0, 0)),
    "GPTBigCode": (GPT, (0, 0)),
    "OPT": ({"ffn_dim": 96, "word_embed_proj_dim": 64}, (0, 0)),
    "GPTNeoX": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
        (4, 4),
    ),
    "Phi": ({"partial_rotary_factor": 0.5}, (8, 8)),
    "Phi3": ({}, (16, 16)),
    "Phimoe": (MOE, (16, 16)),
    "StableLm": ({"partial_rotary_factor": 0.25}, (4, 4)),
    "Nemotron": ({"partial_rotary_factor": 0.5}, (8, 8)),
    "Persimmon": ({}, (8, 8)),
    "Olmo": ({}, (16, 16)),
    "Olmo2": ({}, (16, 16)),
    "Olmo3": ({}, (16, 16)),
    "Olmoe": (MOE, (16, 16)),
    "Cohere": ({}, (16, 16)),
    "Cohere2": (WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}, (16, 0)),
    "Starcoder2": ({}, (16, 16)),
    "Granite": ({}, (16, 16)),
    "SmolLM3": ({"no_rope_layers": [1, 0]}, (16, 0)),
    "Glm": ({"partial_rotary_factor": 0.5}, (8, 8)),
    "Glm4": ({"partial_rotary_factor": 0.5}, (8, 8)),
    "NanoChat": ({}, (16, 16)),
    "HunYuanDenseV1": ({}, (16, 16)),
    "Exaone4": (WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}, (16, 0)),
    "DeepseekV2": (MLA, (8, 8)),
    "DeepseekV3": (MLA, (8, 8)),
    "Dots1": (DOTS, (16, 16)),
    "Ernie4_5": ({}, (16, 16)),
    "SeedOss": ({}, (16, 16)),
    "Helium": ({}, (16, 16)),
    "Apertus": ({}, (16, 16)),
    "Arcee": ({}, (16, 16)),
    "BitNet": ({}, (16, 16)),
}
"""Class prefix in transformers: (settings on top of `tiny.BASE`, rotating dimensions per layer of a head)."""
FLOAT32_ROTATION = {"DeepseekV2", "Ernie4_5", "HunYuanDenseV1", "NanoChat"}
"""Families that turn their vectors, or normalise the turned ones, in float32 also in a float64 model."""


def decoder(name: str, seed: int = 0) -> Any:
    """A random model of two layers in float64 whose logits have a deviation near 1."""
    settings = DECODERS[name][0]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**{**({} if settings is GPT else BASE), **settings})
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float64).eval()
    sharpen(model)
    return model

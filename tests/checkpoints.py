"""Tiny checkpoints on disk: folders of safetensors, and GGUF files written the way llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tiny import tiny
from torch import Tensor

import wherefrom as wf

LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def saved(folder: Path, family: str = "llama", **overrides: Any) -> Path:
    """A tiny float32 checkpoint of `family` as a folder of safetensors."""
    tiny(family, dtype=torch.float32, **overrides).save_pretrained(folder)
    return folder


def permuted(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head in llama.cpp's rotary order: pairs (i, i + half) become neighbours."""
    rows = weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.transpose(1, 2).reshape(weight.shape)


def write_gguf(
    model: Any, path: Path, quantisation: str | None = None, permute: bool | None = None, leave_out: str = ""
) -> Path:
    """Write a Llama or Qwen2 model as GGUF.

    `permute` None: as llama.cpp does (Llama yes, Qwen2 no). `quantisation`: a GGUF type for matrices, e.g. `Q8_0`.
    `leave_out`: GGUF name of a tensor that is not written.
    """
    config = model.config
    writer = gguf.GGUFWriter(str(path), config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    swap = config.model_type == "llama" if permute is None else permute
    for name, parameter in model.state_dict().items():
        weight = parameter.detach().float()
        if swap and name.endswith("q_proj.weight"):
            weight = permuted(weight, config.num_attention_heads)
        if swap and name.endswith("k_proj.weight"):
            weight = permuted(weight, config.num_key_value_heads)
        target = _gguf_name(name)
        if target == leave_out:
            continue
        data = weight.contiguous().numpy()
        if quantisation is not None and data.ndim == 2:
            kind = gguf.GGMLQuantizationType[quantisation]
            writer.add_tensor(target, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}"


def refusal(model: Any, **options: Any) -> str:
    """The sentence with which loading refuses."""
    with pytest.raises(wf.BadInput) as caught:
        wf.load(model, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text[-1] in ".?"
    return text

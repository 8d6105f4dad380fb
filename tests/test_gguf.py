"""GGUF files: every weight arrives as it was, the cache of converted weights never lies, damage is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import permuted, refusal, write_gguf
from tiny import BASE, FAMILIES, tiny

from wherefrom.capture.selfcheck import compare_weights
from wherefrom.models import loading

FAMILIES.setdefault("qwen2", ("Qwen2", {}))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("WHEREFROM_CACHE", str(folder))
    return folder


def source_model(family: str) -> Any:
    """A tiny float32 model with grouped queries, and biases where the family has them."""
    model = tiny(family, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 1)
    return model


# GGUF: rotary layout


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_every_weight_from_gguf_equals_the_source(family: str, tmp_path: Path) -> None:
    """Rows of q and k are stored in another order for Llama (grouped queries too) and as they are for Qwen2."""
    model = source_model(family)
    loaded = loading.load(write_gguf(model, tmp_path / "tiny.gguf"))
    ours, theirs = loaded.model.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name
    assert compare_weights(loaded.model, model)["verdict"] == "equal"
    ids = torch.arange(1, 33)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, model(ids).logits)


@pytest.mark.parametrize(("family", "permute"), [("llama", False), ("qwen2", True)])
def test_rows_in_the_wrong_order_are_called_a_rotary_layout(family: str, permute: bool, tmp_path: Path) -> None:
    """Control of the test above: with the other convention q and k alone are wrong, and the verdict says why."""
    model = source_model(family)
    found = compare_weights(loading.load(write_gguf(model, tmp_path / "tiny.gguf", permute=permute)).model, model)
    assert found["verdict"] == "rotary layout"
    weights = [cosine for name, cosine in found["cosine"].items() if name.endswith("weight")]
    assert len(weights) == 4
    assert all(abs(cosine) < 0.3 for cosine in weights)


def test_rows_swapped_by_hand_in_one_projection_are_a_rotary_layout() -> None:
    model, other = source_model("llama"), source_model("llama")
    key = other.model.layers[1].self_attn.k_proj
    with torch.no_grad():
        key.weight.copy_(permuted(key.weight, 2))
    found = compare_weights(other, model)
    assert (found["verdict"], found["tensor"]) == ("rotary layout", "model.layers.1.self_attn.k_proj.weight")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("quantisation", ["Q8_0", "Q4_0"])
def test_a_quantised_copy_is_noise_and_not_a_layout(family: str, quantisation: str, tmp_path: Path) -> None:
    model = tiny(family, dtype=torch.float32)  # biases of zero, as Qwen2 starts with, have no direction
    found = compare_weights(loading.load(write_gguf(model, tmp_path / "tiny.gguf", quantisation)).model, model)
    assert found["verdict"] == "quantisation noise"
    assert min(found["cosine"].values()) > 0.99


def test_other_weights_are_different() -> None:
    model = source_model("llama")
    assert compare_weights(tiny("llama", seed=1, dtype=torch.float32), model)["verdict"] == "different"
    assert compare_weights(tiny("llama", intermediate_size=64, dtype=torch.float32), model)["verdict"] == "different"
    scaled = source_model("llama")
    with torch.no_grad():
        scaled.model.layers[0].mlp.up_proj.weight.mul_(2)
    assert compare_weights(scaled, model)["verdict"] == "different", "a scale that direction alone would not show"


# GGUF: the cache of converted weights


def count_conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    calls: list[Path] = []
    convert = loading._convert_gguf

    def counted(path: Path, folder: Path) -> None:
        calls.append(path)
        convert(path, folder)

    monkeypatch.setattr(loading, "_convert_gguf", counted)
    return calls


def test_a_gguf_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, model = count_conversions(monkeypatch), source_model("llama")
    path = write_gguf(model, tmp_path / "tiny.gguf")
    for _ in range(2):
        assert compare_weights(loading.load(path).model, model)["verdict"] == "equal"
    assert len(calls) == 1
    other = tiny("llama", seed=1, dtype=torch.float32)
    assert compare_weights(loading.load(write_gguf(other, path)).model, other)["verdict"] == "equal"
    assert len(calls) == 2, "another file under the same name is another model"


def test_without_a_cache_nothing_is_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEREFROM_CACHE", "off")
    calls, model = count_conversions(monkeypatch), source_model("llama")
    path = write_gguf(model, tmp_path / "tiny.gguf")
    first, second = loading.load(path), loading.load(path)
    assert compare_weights(first.model, model)["verdict"] == "equal"
    assert first.fingerprint() == second.fingerprint(), "a run continues whatever the scratch folder was called"
    assert len(calls) == 2
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the folder should be")
    model = source_model("llama")
    path = write_gguf(model, tmp_path / "tiny.gguf")
    assert compare_weights(loading.load(path).model, model)["verdict"] == "equal"
    cache.unlink()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loading.shutil, "copytree", full)
    assert compare_weights(loading.load(path).model, model)["verdict"] == "equal"
    assert list((cache / "gguf").iterdir()) == [], "a full disk leaves no half copy"


@pytest.mark.parametrize("damage", ["no mark", "truncated", "gone"])
def test_a_half_written_cache_is_made_anew(damage: str, tmp_path: Path, cache: Path) -> None:
    model = source_model("llama")
    path = write_gguf(model, tmp_path / "tiny.gguf")
    loading.load(path)
    (home,) = (cache / "gguf").iterdir()
    weights = home / "model.safetensors"
    if damage == "no mark":
        (home / "complete").unlink()
    if damage == "gone":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:1000])
    assert compare_weights(loading.load(path).model, model)["verdict"] == "equal"
    assert (home / "complete").is_file()
    assert weights.stat().st_size > 1000


def test_a_damaged_gguf_is_refused(tmp_path: Path) -> None:
    path = write_gguf(source_model("llama"), tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    for name, data in {
        "truncated": whole[: len(whole) // 2],
        "header only": whole[:40],
        "magic alone": b"GGUF",
        "nonsense": b"GGUF" + b"\xff" * 200,
    }.items():
        path.write_bytes(data)
        assert str(path) in refusal(path), name
    path.write_bytes(b"FUGG" + whole[4:])
    assert "does not start with the letters GGUF" in refusal(path)
    path.write_bytes(b"")
    assert "not a GGUF file" in refusal(path)
    assert "no file" in refusal(tmp_path / "absent.gguf")


def test_a_gguf_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    """Missing weights would be filled with random numbers."""
    path = write_gguf(source_model("llama"), tmp_path / "tiny.gguf", leave_out="blk.1.attn_v.weight")
    assert "layers.1.self_attn.v_proj.weight" in refusal(path)


def test_loading_says_nothing_of_other_libraries(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(source_model("llama"), tmp_path / "tiny.gguf")
    capfd.readouterr()
    loading.load(path)
    assert capfd.readouterr() == ("", "")


def test_base_is_grouped() -> None:
    """The round trips above mean something for grouped queries only while the tiny model has them."""
    assert BASE["num_attention_heads"] > BASE["num_key_value_heads"] > 1

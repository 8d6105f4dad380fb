"""Head ablation on checkpoints: the right columns of the right map, and a fast map that is the plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import tiny
from wherefrom.analyses import heads_checkpoint
from wherefrom.analyses.ablation import HOWS, Ablation
from wherefrom.analyses.heads import checkpoint_map
from wherefrom.analyses.heads_checkpoint import CheckpointAblation
from wherefrom.capture.head_projection import replaced
from wherefrom.capture.output_projection import decoder_projections
from wherefrom.capture.prompts import Prompts, random_tokens
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.models.loading import load
from wherefrom.workflows.heads import checkpoint_heads

MARKER = 5
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, 6 query heads on 2": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2},
    "llama, 1 key head, wide": {"num_key_value_heads": 1, "head_dim": 24},
    "mistral": {},
    "gemma2": {},
    "gpt_oss": {},
    "gpt2": {},
    "gpt_neox": {},
}


def decoder(name: str, seed: int = 0, **more: Any) -> Decoder:
    return load(tiny(name.split(",")[0], seed, **{**SHAPES.get(name, {}), **more}))


def ids(count: int = 3, length: int = 12) -> torch.Tensor:
    return torch.randint(3, 97, (count, length), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("name", SHAPES)
def test_the_fast_map_is_the_plain_loop(name: str) -> None:
    model = decoder(name)
    before = {key: value.clone() for key, value in model.model.state_dict().items()}
    ablation = CheckpointAblation(model, ids(), HOWS, seed=1)
    assert ablation.cuts
    found = [ablation.one_input(index) for index in range(3)]
    base = ablation.scores()
    torch.testing.assert_close(torch.tensor([one[0] for one in found], dtype=torch.float64), base, rtol=0, atol=1e-6)
    for how in HOWS:
        for layer, projection in ablation.projections.items():
            for head in range(projection.heads):
                plain = ablation.scores([Ablation(layer, (head,), how)])
                fast = torch.stack([one[1][how][layer][head] for one in found])
                torch.testing.assert_close(fast, plain, rtol=0, atol=1e-6)  # eager attention is float32 inside
                assert float((plain - base).abs().max()) > 1e-5
    assert all(torch.equal(value, before[key]) for key, value in model.model.state_dict().items())
    assert "forward" not in model.body.__dict__
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_pieces_of_heads_and_of_the_vocabulary_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checkpoint_map(decoder("llama"), ids())
    monkeypatch.setattr(heads_checkpoint, "ROWS", 25)
    monkeypatch.setattr(heads_checkpoint, "OUTPUT_NUMBERS", 97 * 5)
    pieces = checkpoint_map(decoder("llama"), ids())
    for layer, losses in whole.loss.items():
        torch.testing.assert_close(pieces.loss[layer], losses, rtol=0, atol=1e-6)


def test_where_a_replay_would_differ_everything_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("llama")
    whole = checkpoint_map(model, ids())
    monkeypatch.setattr(CheckpointAblation, "_replays", lambda self: False)
    again = checkpoint_map(model, ids())
    torch.testing.assert_close(again.loss[1], whole.loss[1], rtol=0, atol=1e-6)


def attention_output(model: Decoder, layer: int, heads: tuple[int, ...]) -> torch.Tensor:
    """What a layer's output projection gives with some heads zeroed, (token dim)."""
    projection = decoder_projections(model)[layer]
    given: list[torch.Tensor] = []
    handle = projection.module.register_forward_hook(lambda _, __, output: given.append(output[0]))
    with torch.no_grad(), replaced({layer: projection}, {layer: dict.fromkeys(heads, 0.0)}):
        model.model(ids(1))
    handle.remove()
    return given[0]


def test_a_planted_head_is_the_one_that_writes_the_marker() -> None:
    model = decoder("llama, 6 query heads on 2")
    weight = decoder_projections(model)[1].module.weight
    with torch.no_grad():
        weight[MARKER] = 0  # type: ignore[index]
        weight[MARKER, 3 * 16 : 4 * 16] = 1  # type: ignore[index]
    whole = attention_output(model, 1, ())[:, MARKER]
    assert float(whole.abs().max()) > 0.01
    assert float(attention_output(model, 1, (3,))[:, MARKER].abs().max()) == 0
    for other in (0, 1, 2, 4, 5):
        torch.testing.assert_close(attention_output(model, 1, (other,))[:, MARKER], whole, rtol=0, atol=1e-6)


def test_without_any_head_the_bias_of_the_projection_is_left() -> None:
    model = decoder("gpt2")
    projection = decoder_projections(model)[0].module
    with torch.no_grad():
        projection.bias.normal_()  # type: ignore[operator,union-attr]
    left = attention_output(model, 0, (0, 1, 2, 3))
    torch.testing.assert_close(left, projection.bias.expand_as(left))  # type: ignore[operator,union-attr]


def test_a_family_that_gates_its_heads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("llama")
    attention = model.attention[1]
    projection = attention.o_proj

    class Gated(torch.nn.Module):
        def forward(self, mixed: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = projection(mixed * 0.5)  # type: ignore[operator]
            return found

    monkeypatch.setitem(attention._modules, "o_proj", Gated())
    with pytest.raises(BadInput, match="layer 1 .* gated, normalised or mixed"):
        decoder_projections(model)


def test_an_unknown_layer_is_named() -> None:
    with pytest.raises(BadInput, match="no attention layer 7; there are 0, 1"):
        CheckpointAblation(decoder("llama"), ids(), ["zero"], layers=[0, 7])


def prompts(model: Decoder) -> Prompts:
    return random_tokens(model, inputs=4, length=10)


def test_an_interrupted_run_continues_to_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("llama")
    whole = checkpoint_heads(model, prompts(model), ["zero", "mean"])
    real, ran = CheckpointAblation.one_input, list[int]()

    def stopping(self: CheckpointAblation, index: int) -> Any:
        if index == 2 and len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(index)
        return real(self, index)

    monkeypatch.setattr(CheckpointAblation, "one_input", stopping)
    with pytest.raises(KeyboardInterrupt):
        checkpoint_heads(model, prompts(model), ["zero", "mean"], out=tmp_path / "run")
    with pytest.raises(BadInput, match="another run"):
        checkpoint_heads(model, prompts(model), ["zero"], out=tmp_path / "run")
    ran.append(-1)
    continued = checkpoint_heads(model, prompts(model), ["zero", "mean"], out=tmp_path / "run")
    assert ran == [0, 1, -1, 2, 3]
    assert continued.rows.equals(whole.rows)
    assert not (tmp_path / "run" / "state").exists()

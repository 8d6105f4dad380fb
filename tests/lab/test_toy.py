"""The small Transformer: masks, padding, caches and encodings do what they say."""

from __future__ import annotations

import pytest
import torch
from toys import ENCODINGS, ids, logits_of, toy

from wherefrom.errors import BadInput
from wherefrom.models.toy import Cache, ToyTransformer
from wherefrom.models.toy_config import ToyConfig


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("causal", [True, False])
def test_the_fused_path_equals_the_explicit_one(encoding: str, causal: bool) -> None:
    model, tokens = toy(encoding, causal=causal, readout="tokens"), ids()
    lengths = torch.tensor([24, 17, 9])
    with torch.no_grad():
        fast = model(tokens, lengths).logits
        slow = model(tokens, lengths, watch=lambda _, logits: logits).logits
        moved = model(tokens, lengths, watch=lambda _, logits: logits * 1.01).logits
    real = torch.arange(24) < lengths[:, None]
    assert float((fast - slow).abs()[real].max()) < 1e-10
    assert float((fast - moved).abs()[real].max()) > 1e-6, "control: what the watch returns is used"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_causal_model_ignores_later_tokens(encoding: str) -> None:
    model, tokens = toy(encoding, readout="tokens"), ids()
    changed = tokens.clone()
    changed[:, 15:] = 50
    with torch.no_grad():
        before, after = model(tokens).logits, model(changed).logits
        loose = toy(encoding, readout="tokens", causal=False)
        control = loose(tokens).logits[:, :15] - loose(changed).logits[:, :15]
    assert float((before[:, :15] - after[:, :15]).abs().max()) < 1e-12
    assert float(control.abs().max()) > 1e-4


@pytest.mark.parametrize("encoding", ["rope", "alibi", "t5", "sinusoidal", "learned", "none", "mla"])
@pytest.mark.parametrize("readout", ["mean", "last", "tokens"])
def test_a_padded_input_gives_what_it_gives_alone(encoding: str, readout: str) -> None:
    model, tokens = toy(encoding, causal=False, readout=readout), ids()
    lengths = torch.tensor([24, 11, 1])
    with torch.no_grad():
        together = model(tokens, lengths).logits
        for row, length in enumerate(lengths.tolist()):
            alone = model(tokens[row : row + 1, :length]).logits[0]
            found = together[row, :length] if readout == "tokens" else together[row]
            assert float((found - alone).abs().max()) < 1e-10


def test_published_padding_takes_part() -> None:
    """published-code.md, row 2: control for the test above."""
    model, tokens = toy("rope", causal=False, readout="mean", published_padding=True), ids()
    with torch.no_grad():
        together = model(tokens, torch.tensor([24, 11, 1])).logits
        alone = model(tokens[1:2, :11]).logits
    assert float((together[1] - alone[0]).abs().max()) > 1e-2


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if "deberta" not in name])
def test_steps_with_a_cache_equal_one_pass(encoding: str) -> None:
    """B2: 24 tokens at once against 8 and 16 single steps; then other lengths through the same module."""
    model, tokens = toy(encoding, readout="tokens"), ids()
    with torch.no_grad():
        whole = model(tokens).logits
        cache = Cache()
        parts = [model(tokens[:, :8], cache=cache).logits]
        parts += [model(tokens[:, i : i + 1], cache=cache).logits for i in range(8, 24)]
        assert float((torch.cat(parts, 1) - whole).abs().max()) < 1e-10
        for length in (24, 23, 22):
            again = model(tokens[:, :length]).logits
            assert float((again - whole[:, :length]).abs().max()) < 1e-10


def test_heads_have_their_own_encodings() -> None:
    mixed, tokens = toy("rope@0-1;alibi@2"), ids()
    found = logits_of(mixed, tokens)[0]
    for encoding, heads in (("rope", [0, 1]), ("alibi", [2]), ("none", [3])):
        pure = toy(encoding)
        pure.load_state_dict(mixed.state_dict(), strict=False)
        expected = logits_of(pure, tokens)[0]
        assert float((found[:, heads] - expected[:, heads]).abs().max()) < 1e-12
        others = [head for head in range(4) if head not in heads]
        assert float((found[:, others] - expected[:, others]).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("rope@0-4", "not heads 0 to 3"),
        ("rope@0/0", "names a head twice"),
        ("rope@0;alibi@0", "and another encoding"),
        ("rope;alibi@1", "does not say which heads"),
        ("sinusoidal@0", "added to the embeddings"),
        ("rope@x", "names no heads"),
        ("roper@0", "There is no encoding"),
    ],
)
def test_impossible_head_encodings_are_refused(encoding: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        toy(encoding)


def test_memory_keys_come_from_the_input_embedding() -> None:
    """published-code.md, row 3: with it, what layer 0 writes does not reach the keys of layer 1."""
    differences = []
    for memory in (True, False):
        model, tokens = toy("none", memory_keys=memory), ids()
        keys: list[torch.Tensor] = []
        model.body.blocks[1].attention.key.register_forward_hook(lambda _, __, out, keys=keys: keys.append(out))
        with torch.no_grad():
            model(tokens)
            model.body.blocks[0].attention.output.weight *= 2
            model(tokens)
        differences.append(float((keys[0] - keys[1]).abs().max()))
    assert differences[0] == 0
    assert differences[1] > 1e-3


def test_latent_attention_makes_keys_from_few_dimensions() -> None:
    model, tokens = toy("mla", attention="mla", latent_dim=8), ids(8)
    found: list[torch.Tensor] = []
    model.body.blocks[0].attention.key.register_forward_hook(lambda _, __, out: found.append(out))
    with torch.no_grad():
        model(tokens)
    keys = found[0].flatten(0, 1)
    assert int(torch.linalg.matrix_rank(keys - keys.mean(0), rtol=1e-9)) <= 8
    assert keys.shape[1] == 64


def test_head_dropout_removes_whole_heads_and_only_in_training() -> None:
    model, tokens = toy("rope", head_dropout=0.5), ids(64)
    seen: list[torch.Tensor] = []
    model.body.blocks[0].attention.output.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model.train()(tokens)
        model.eval()(tokens)
    heads = seen[0].unflatten(-1, (4, -1)).abs().amax((1, 3)) == 0
    assert 0.3 < float(heads.double().mean()) < 0.7
    assert not bool((seen[1].unflatten(-1, (4, -1)).abs().amax((1, 3)) == 0).any())


def test_weights_are_stored_once() -> None:
    names = toy("t5").state_dict()
    assert sum("encoding" in name for name in names) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"d_model": 30}, "does not divide into 4 heads"),
        ({"kv_heads": 3}, "cannot share 3 key heads"),
        ({"window": 4, "causal": False}, "needs the causal mask"),
        ({"readout": "maen"}, "did you mean `mean`"),
        ({"dropout": 1.0}, "below 1"),
        ({"layers": 0}, "at least 1"),
        ({"encoding": "rop"}, "did you mean `rope`"),
    ],
)
def test_impossible_settings_are_one_sentence(settings: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        toy(**settings)  # type: ignore[arg-type]
    assert str(caught.value).count("\n") == 0


def test_too_long_an_input_is_refused() -> None:
    with pytest.raises(BadInput, match="longer than this model's `max_length` of 64"):
        toy()(ids(1, 65))


def test_settings_are_read_back_from_text() -> None:
    config = ToyConfig(vocabulary=9, classes=3, encoding="rope@0-3", causal=True, window=5)
    assert ToyConfig.from_options(config.options()) == config
    assert ToyTransformer(config).config.to_dict()["encoding"] == "rope@0-3"

"""Each edit changes what it says and nothing before it, judged by independently built models and masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from observed import observe, token_ids
from tiny import BASE, tiny
from torch import Tensor

import wherefrom as wf
from wherefrom.capture.edits import parse_edit

EXACT = 1e-10
"""Our path against another path in a float64 model whose rotary angles agree."""


def stock(model: Any, ids: Tensor, **options: Any) -> Tensor:
    """Output logits of the model's own path."""
    with torch.no_grad():
        return model(ids, use_cache=False, **options).logits


def largest(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def responsive(**overrides: Any) -> Any:
    """A tiny Llama whose output depends strongly on where it attends."""
    model = tiny(**overrides)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(40)
    return model


def with_mask(model: Any, ids: Tensor, visible: Tensor, **options: Any) -> Tensor:
    """Output logits of the stock model under an explicit (query key) boolean mask."""
    additive = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, float("-inf"))
    return stock(model, ids, attention_mask=additive.expand(len(ids), 1, *visible.shape), **options)


def grid(length: int) -> tuple[Tensor, Tensor]:
    position = torch.arange(length)
    return position[:, None], position[None]


# The first token


@pytest.mark.parametrize("edit", ["bos=mean", "bos=zero", "bos=random", "bos=noise", "bos=token:50"])
def test_a_bos_edit_replaces_one_embedding_and_nothing_else(edit: str) -> None:
    model, ids = tiny(), token_ids()
    decoder = wf.load(model)
    base, edited = observe(decoder, ids), observe(decoder, ids, edit)
    assert torch.equal(base.stream[0][:, 1:], edited.stream[0][:, 1:])
    table = model.model.embed_tokens.weight.detach()
    first = edited.stream[0][:, 0]
    if edit == "bos=mean":
        assert largest(first, table.mean(0)) < EXACT
    if edit == "bos=zero":
        assert float(first.abs().max()) == 0.0
    if edit == "bos=token:50":
        assert torch.equal(first, table[[50] * 3])
    if edit == "bos=random":
        assert all(any(torch.equal(row, known) for known in table) for row in first)
    assert torch.equal(base.logits(0)[..., 1:, 1:], edited.logits(0)[..., 1:, 1:]), "layer 0 among later keys"
    assert largest(base.logits(0)[..., 1:, 0], edited.logits(0)[..., 1:, 0]) > 0.01, "control: key 0 did change"
    assert largest(base.logits(1)[..., 1:, 1:], edited.logits(1)[..., 1:, 1:]) > 0.01, "control: layer 1 sees it"


@pytest.mark.parametrize("edit", ["bos=random", "bos=noise"])
def test_random_replacements_belong_to_the_input_and_the_seed(edit: str) -> None:
    """Not to the batch an input happens to be in."""
    decoder, ids = wf.load(tiny()), token_ids(6)
    options: dict[str, Any] = {"edits": [edit], "offsets": [1, 2], "query_ranges": [(6, 24)], "groups": 3}
    one, other = (wf.trace(decoder, wf.given_tokens(ids), batch=batch, **options).table() for batch in (1, 2))
    assert largest(torch.tensor(one["value"]), torch.tensor(other["value"])) < EXACT
    whole = observe(decoder, ids, edit).stream[0][:, 0]
    assert torch.equal(whole, observe(decoder, ids, edit).stream[0][:, 0])
    assert not torch.equal(whole, observe(decoder, ids, edit, seed=1).stream[0][:, 0])
    assert not torch.equal(whole[0], whole[1])


def test_noise_has_the_moments_of_the_embedding_table() -> None:
    model = tiny(hidden_size=256)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(3).add_(2)
    drawn = observe(wf.load(model), token_ids(64, 4), "bos=noise").stream[0][:, 0]
    table = model.model.embed_tokens.weight.detach()
    assert float((drawn.mean(0) - table.mean(0)).abs().mean()) < 0.5
    assert float(drawn.std(0).mean() / table.std(0).mean()) == pytest.approx(1.0, abs=0.05)


def test_the_mean_embedding_follows_a_change_of_the_table() -> None:
    """Moments are remembered, but not beyond the weights they came from."""
    model, ids = tiny(), token_ids()
    decoder = wf.load(model)
    observe(decoder, ids, "bos=mean")
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(1.0)
    first = observe(decoder, ids, "bos=mean").stream[0][0, 0]
    assert largest(first, model.model.embed_tokens.weight.detach().mean(0)) < EXACT


def test_freeze_first_is_every_input_starting_with_that_token() -> None:
    model, ids = tiny(), token_ids(4, bos=None)
    swapped = ids.clone()
    swapped[1:, 0] = ids[0, 0]
    swapped[0, 0] = ids[1, 0]
    frozen = observe(wf.load(model), ids, "freeze-first")
    assert torch.equal(frozen.output_logits, observe(wf.load(model), swapped).output_logits)
    assert largest(frozen.output_logits, stock(model, swapped)) < EXACT
    assert largest(frozen.output_logits, stock(model, ids)) > 0.01, "control"
    with pytest.raises(wf.BadInput, match="--bos off"):
        observe(wf.load(model), token_ids(), "freeze-first")


# Who sees whom


def test_hide_first_is_an_exact_zero_for_later_queries_alone() -> None:
    model, ids = tiny(), token_ids()
    decoder = wf.load(model)
    base, edited = observe(decoder, ids), observe(decoder, ids, "hide-first")
    for layer in range(2):
        weights = edited.attention(layer)
        assert float(weights[..., 1:, 0].abs().max()) == 0.0
        assert float((weights[..., 0, 0] - 1).abs().max()) < EXACT
        assert largest(weights.sum(-1), torch.ones(())) < EXACT
    assert torch.equal(base.logits(0), edited.logits(0)), "logits of layer 0 are those of the model"
    expected = base.attention(0)[..., 1:, 1:]
    assert largest(edited.attention(0)[..., 1:, 1:], expected / expected.sum(-1, keepdim=True)) < EXACT
    query, key = grid(ids.shape[1])
    visible = (key <= query) & ((key > 0) | (query == 0))
    assert largest(edited.output_logits, with_mask(model, ids, visible)) < EXACT
    assert largest(base.output_logits, with_mask(model, ids, visible)) > 0.01, "control"


def test_hide_first_from_a_layer_leaves_earlier_layers_alone() -> None:
    decoder, ids = wf.load(tiny(num_hidden_layers=3)), token_ids()
    base, edited = observe(decoder, ids), observe(decoder, ids, "hide-first:1")
    assert torch.equal(base.stream[1], edited.stream[1])
    assert torch.equal(base.calls[0].log_denominator, edited.calls[0].log_denominator)
    assert torch.equal(base.logits(1), edited.logits(1)), "layer 1 forms its logits before the edit acts"
    assert float(edited.attention(0)[..., 1:, 0].min()) > 0.0
    for layer in (1, 2):
        assert float(edited.attention(layer)[..., 1:, 0].abs().max()) == 0.0
    assert largest(base.stream[2][:, 1:], edited.stream[2][:, 1:]) > 1e-4
    assert torch.equal(observe(decoder, ids, "hide-first:0").stream[3], observe(decoder, ids, "hide-first").stream[3])


@pytest.mark.parametrize("keys", [7, 8, 9])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_window_is_its_number_of_visible_keys(family: str, keys: int) -> None:
    """Also on top of the model's own window of 8, which only a narrower one changes."""
    model, ids = tiny(family, num_hidden_layers=1), token_ids(1, 32)
    decoder = wf.load(model)
    if family == "mistral" and keys >= 8:
        with pytest.raises(wf.BadInput, match="own window is 8"):
            observe(decoder, ids, f"window={keys}")
        return
    found = observe(decoder, ids, f"window={keys}")
    weights = found.attention(0)
    visible = (weights > 0).sum(-1)
    assert visible.max() == keys
    assert torch.equal(visible[0, 0], torch.arange(1, 33).clamp(max=keys))
    assert torch.equal(torch.nonzero(weights[0, 0, -1])[:, 0], torch.arange(32 - keys, 32))
    query, key = grid(32)
    assert largest(found.output_logits, with_mask(model, ids, (key <= query) & (key > query - keys))) < EXACT
    for other in (keys - 1, keys + 1):
        wrong = with_mask(model, ids, (key <= query) & (key > query - other))
        first = int((found.output_logits - wrong)[0].abs().amax(-1).gt(1e-6).nonzero()[0])
        assert first == min(keys, other), "control: one key more or less first shows where the windows part"


@pytest.mark.parametrize("keys", [7, 8, 9])
def test_a_token_behind_the_window_is_not_read(keys: int) -> None:
    """Behaviour, without any mask: in one layer the last query reads a token exactly while it is in the window."""
    decoder, ids = wf.load(tiny(num_hidden_layers=1)), token_ids(1, 32)
    base = observe(decoder, ids, f"window={keys}").output_logits[0, -1]
    for position in range(32):
        changed = ids.clone()
        changed[0, position] = 3 + (int(ids[0, position]) + 5) % 90
        moved = largest(observe(decoder, changed, f"window={keys}").output_logits[0, -1], base) > 1e-9
        assert moved == (position >= 32 - keys), position


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_mask_off_lets_every_query_see_every_key(family: str) -> None:
    model, ids = tiny(family), token_ids()
    found = observe(wf.load(model), ids, "mask=off")
    everyone = torch.ones(24, 24, dtype=torch.bool)
    assert largest(found.output_logits, with_mask(model, ids, everyone)) < EXACT
    assert largest(found.output_logits, stock(model, ids)) > 0.01, "control"
    assert float(found.attention(0).min()) > 0.0


# Rotary frequencies: against a model built with that config


def rebuilt(model: Any, **rope: Any) -> Any:
    """A new model of the same weights under another rotary config."""
    config = type(model.config)(**{**BASE, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", **rope}})
    other = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("edit", ["rope=ntk:4", "rope=linear:4", "rope=theta:500"])
def test_rotary_edits_equal_a_model_built_that_way(edit: str) -> None:
    model, ids = responsive(), token_ids(2, 48)
    other = {
        "rope=ntk:4": lambda: rebuilt(model, rope_theta=10000.0 * 4 ** (16 / 14)),
        "rope=linear:4": lambda: rebuilt(model, rope_type="linear", factor=4.0),
        "rope=theta:500": lambda: rebuilt(model, rope_theta=500.0),
    }[edit]()
    found = observe(wf.load(model), ids, edit).output_logits
    assert largest(found, stock(other, ids)) < 2e-5, "angles are formed in float32 on both sides"
    assert largest(found, stock(model, ids)) > 0.02, "control: the unedited model is far off"


def test_rope_off_equals_every_token_at_position_zero() -> None:
    model, ids = responsive(), token_ids()
    found = observe(wf.load(model), ids, "rope=off").output_logits
    query, key = grid(24)  # an explicit mask, since equal position ids would be taken for packed documents
    assert largest(found, with_mask(model, ids, key <= query, position_ids=torch.zeros_like(ids))) < EXACT
    assert largest(found, stock(model, ids)) > 0.02, "control"


@pytest.mark.parametrize("edit", ["rope=linear:2", "rope=ntk:3"])
def test_rotary_edits_start_from_what_the_module_holds(edit: str) -> None:
    """A scaled checkpoint (llama3 type) is edited as it runs, not as its base alone would have it."""
    scaling = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}
    model = responsive(rope_parameters={**scaling, "low_freq_factor": 1.0, "high_freq_factor": 4.0})
    ids = token_ids(2, 48)
    found = observe(wf.load(model), ids, edit).output_logits
    held = model.model.rotary_emb.inv_freq
    kept = held.clone()
    bands = torch.arange(8, dtype=torch.float64)
    held.copy_(kept / 2 if edit == "rope=linear:2" else kept.double() * 3.0 ** (-bands / 7))
    assert largest(found, stock(model, ids)) < EXACT
    held.copy_(kept)
    plain = rebuilt(model, rope_type="linear", factor=2.0)
    assert largest(found, stock(plain, ids)) > 0.02, "control: the base alone gives other logits"


def test_rotary_edits_are_refused_where_they_cannot_act() -> None:
    with pytest.raises(wf.BadInput, match="no rotary frequencies"):
        observe(wf.load(tiny("gpt2")), token_ids(), "rope=off")
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    with pytest.raises(wf.BadInput, match="recomputes its rotary frequencies"):
        observe(wf.load(tiny(rope_parameters=dynamic)), token_ids(), "rope=ntk:2")


# Positions


def test_a_shift_leaves_rotary_attention_alone() -> None:
    model, ids = tiny(), token_ids()
    decoder = wf.load(model)
    base, shifted = observe(decoder, ids), observe(decoder, ids, "positions=+100")
    assert torch.equal(shifted.output_logits, observe(decoder, ids, "positions=100").output_logits)
    assert largest(shifted.output_logits, stock(model, ids, position_ids=torch.arange(24)[None] + 100)) < EXACT
    for layer in range(2):
        assert largest(base.attention(layer), shifted.attention(layer)) < 2e-5, "rounding of float32 angles"
        assert not torch.equal(base.calls[layer].key, shifted.calls[layer].key), "control: keys were turned"


def test_a_shift_moves_learned_positions_and_stops_at_their_table() -> None:
    model, ids = tiny("gpt2"), token_ids(2, 40)
    decoder = wf.load(model)
    found = observe(decoder, ids, "positions=+24").output_logits
    assert largest(found, stock(model, ids, position_ids=torch.arange(40)[None] + 24)) < EXACT
    assert largest(found, stock(model, ids)) > 0.01, "learned positions are not relative"
    with pytest.raises(wf.BadInput, match="table of 64"):
        observe(decoder, ids, "positions=+25")


# Together


def test_edits_joined_by_a_comma_act_together() -> None:
    model, ids = tiny(), token_ids()
    joined = observe(wf.load(model), ids, "bos=token:50, window=6,positions=+3")
    changed = ids.clone()
    changed[:, 0] = 50
    query, key = grid(24)
    additive = torch.zeros(24, 24, dtype=torch.float64).masked_fill((key > query) | (key <= query - 6), float("-inf"))
    expected = stock(
        model, changed, attention_mask=additive.expand(3, 1, 24, 24), position_ids=torch.arange(24)[None] + 3
    )
    assert largest(joined.output_logits, expected) < EXACT
    names = [edit.text for edit in parse_edit("bos=token:50, window=6,positions=+3")]
    assert names == ["bos=token:50", "window=6", "positions=+3"]


def test_an_edit_that_does_nothing_removes_nothing() -> None:
    """Paired inputs: replacing the first token by itself leaves every number, to the last bit."""
    decoder, ids = wf.load(tiny()), token_ids(6)
    trace = wf.trace(decoder, wf.given_tokens(ids), ["bos=token:1"], offsets=[1, 2], query_ranges=[(6, 24)])
    table = trace.table().filter(trace.table()["analysis"] == "leak")
    base, edited = (table.filter(table["edit"] == name)["value"] for name in ("none", "bos=token:1"))
    assert len(base) > 10
    assert base.equals(edited)
    assert all(row["value"] == 0.0 for row in trace.summary()["removed"])

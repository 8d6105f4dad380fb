"""The rotation is read from the running model, whatever its schedule, pairing or scale, and a wrong one is refused."""

from __future__ import annotations

from typing import Any

import naive_split
import pytest
import torch
from families import decoder
from tiny import tiny

import wherefrom as wf
from wherefrom.analyses.closure import check_closure, split_call
from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import RunInputs, parse_edit
from wherefrom.capture.query_rows import plan_rows
from wherefrom.capture.rotary_probe import RotaryWatch, read_rotations, watched_rotation
from wherefrom.capture.session import run
from wherefrom.capture.split_pass import SplitPass
from wherefrom.capture.split_sums import SplitSums
from wherefrom.errors import BadInput, CheckFailed

LENGTH = 40


def ids(length: int = LENGTH, inputs: int = 4) -> torch.Tensor:
    return torch.randint(3, 97, (inputs, length), generator=torch.Generator().manual_seed(2))


def batch(tokens: torch.Tensor) -> RunInputs:
    return RunInputs(tokens, tuple(range(len(tokens))), tokens[:, 0])


def scaled(kind: str, **settings: Any) -> Any:
    rope = {"rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 32, **settings}
    return tiny("llama", rope_parameters=rope, max_position_embeddings=512)


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCHEDULES = {
    "llama3, 8": ("llama3", LLAMA3 | {"factor": 8.0}),
    "llama3, 32": ("llama3", LLAMA3 | {"factor": 32.0}),
    "yarn": ("yarn", {"factor": 64.0}),
    "yarn, attention_factor 1.0": ("yarn", {"factor": 64.0, "attention_factor": 1.0}),
    "yarn, attention_factor 0.5": ("yarn", {"factor": 64.0, "attention_factor": 0.5}),
    "linear": ("linear", {"factor": 4.0}),
    "dynamic": ("dynamic", {"factor": 2.0}),
    "longrope": (
        "longrope",
        {"factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [1.0 + k for k in range(8)]},
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_read_as_it_runs(name: str) -> None:
    """R1, R4: the split rebuilds the model's own logits, the attention scale included."""
    kind, settings = SCHEDULES[name]
    model = scaled(kind, **settings)
    tokens = ids()
    found = wf.split(wf.load(model), wf.given_tokens(tokens), groups=1)
    assert found.manifest["closure_max_abs"] < 1e-10
    assert found.manifest["rotation_max_relative"] < 1e-12
    layers = naive_split.capture(model, tokens)
    the_pass = SplitPass(wf.load(model), (), plan_rows(LENGTH))
    the_pass.take(batch(tokens), SplitSums(plan_rows(LENGTH)))
    for number, layer in enumerate(layers):
        turns = the_pass.turns[number]
        rebuilt = turns[0].apply(layer.query) @ turns[1].apply(layer.key).transpose(-1, -2) * layer.scale
        assert float((rebuilt - torch.from_numpy(layer.logits)).abs().max()) < 1e-10


def test_the_scale_of_yarn_enters_squared() -> None:
    spread = {}
    for factor in (1.0, 0.5):
        model = scaled("yarn", factor=64.0, attention_factor=factor)
        the_pass = SplitPass(wf.load(model), (), plan_rows(LENGTH))
        the_pass.take(batch(ids()), SplitSums(plan_rows(LENGTH)))
        spread[factor] = the_pass.turns[0][0].apply(torch.eye(16, dtype=torch.float64)[:, None].expand(-1, LENGTH, -1))
    assert float((spread[1.0].square().sum(-1) - 4 * spread[0.5].square().sum(-1)).abs().max()) < 1e-6


def test_another_models_rotation_is_refused() -> None:
    """R1's control: decomposing the factor-32 model with the tables of factor 8 must fail."""
    right, wrong = (wf.load(scaled("llama3", factor=factor, **LLAMA3)) for factor in (32.0, 8.0))
    plan, tokens = plan_rows(LENGTH), batch(ids())
    passes = []
    for model in (right, wrong):
        the_pass, sums = SplitPass(model, (), plan), SplitSums(plan)
        the_pass.take(tokens, sums)
        passes.append((the_pass, sums))
    assert check_closure(*passes[0], tokens).rotation < 1e-12

    class Borrowed:
        unread: dict[int, str] = {}

        def rotations(self, layer: int, tables: Any, call: AttentionCall) -> Any:
            return passes[1][0].reading.rotations(layer, passes[1][0].tables or [], call)

    passes[0][0].reading = Borrowed()  # type: ignore[assignment]
    with pytest.raises(CheckFailed, match="is not the model's"):
        check_closure(*passes[0], tokens)


def test_a_wrong_pairing_is_refused() -> None:
    model, plan, tokens = wf.load(tiny("llama")), plan_rows(LENGTH), batch(ids())
    the_pass, sums = SplitPass(model, (), plan), SplitSums(plan)
    the_pass.take(tokens, sums)
    for kept in (the_pass.reading.queries, the_pass.reading.keys):
        for pairing in kept.values():
            pairing.partner.copy_(torch.arange(16) ^ 1)  # neighbours
            pairing.ratio.copy_(torch.tensor([-1.0, 1.0] * 8))
            pairing.column.copy_(torch.arange(16) // 2)
    with pytest.raises(CheckFailed, match="is not the model's"):
        check_closure(the_pass, sums, tokens)


PAIRINGS = {
    "GPTNeoX": {0: 2, 1: 3},
    "StableLm": {0: 2, 1: 3},
    "Phi": {0: 4, 1: 5, 2: 6, 3: 7},
    "Glm": {0: 1, 2: 3, 4: 5, 6: 7},
    "Llama": {d: d + 8 for d in range(8)},
    "Cohere": {d: d + 1 for d in range(0, 16, 2)},
    "DeepseekV2": {d: d + 1 for d in range(16, 24, 2)},
}


@pytest.mark.parametrize("name", PAIRINGS)
def test_the_pairs_found_are_the_modules(name: str) -> None:
    """R7: partial rotation and both pairings, on queries and on keys."""
    reading = read_rotations(wf.load(decoder(name)))
    expected = torch.arange(len(reading.queries[0].partner))
    for one, other in PAIRINGS[name].items():
        expected[one], expected[other] = other, one
    for pairing in (*reading.queries.values(), *reading.keys.values()):
        assert torch.equal(pairing.partner, expected)
        assert torch.equal(pairing.call >= 0, expected != torch.arange(len(expected)))


def test_frequencies_are_those_of_the_module() -> None:
    """R6: a base of 500000 is read from what runs."""
    model = tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    the_pass = SplitPass(wf.load(model), (), plan_rows(LENGTH))
    the_pass.take(batch(ids()), SplitSums(plan_rows(LENGTH)))
    expected = 500000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    assert torch.allclose(the_pass.turns[0][0].frequencies, expected, rtol=1e-5)


def test_short_long_short_gives_the_same_result() -> None:
    """R2: a short input after a long one must not keep the long one's frequencies."""
    model = wf.load(scaled("dynamic", factor=2.0))
    short, long = wf.given_tokens(ids(24)), wf.given_tokens(ids(80))
    one = wf.split(model, short, groups=2)
    wf.split(model, long, groups=2)
    other = wf.split(model, short, groups=2)
    assert one.table().equals(other.table())


def test_tables_that_change_between_batches_are_refused() -> None:
    model = wf.load(tiny("llama"))
    the_pass, sums = SplitPass(model, (), plan_rows(LENGTH)), SplitSums(plan_rows(LENGTH))
    the_pass.take(batch(ids()), sums)
    model.model.model.rotary_emb.inv_freq.mul_(0.5)
    with pytest.raises(BadInput, match="changed between inputs"):
        the_pass.take(batch(ids()), sums)


def test_an_edit_of_the_frequencies_is_read_too() -> None:
    found = wf.split(wf.load(tiny("llama")), wf.given_tokens(ids()), ["rope=ntk:4", "rope=off"], groups=1)
    assert found.manifest["rotation_max_relative"] < 1e-12
    rows = found.table()
    bands = {
        edit: rows.filter((rows["edit"] == edit) & (rows["metric"] == "band_frequency") & (rows["layer"] == 0))
        for edit in ("none", "rope=ntk:4", "rope=off")
    }
    ratio = bands["none"]["value"] / bands["rope=ntk:4"]["value"]
    assert ratio[0] == pytest.approx(1.0, rel=1e-5)
    assert ratio[-1] == pytest.approx(4.0, rel=1e-3)
    assert bands["rope=off"]["value"].to_list() == [0.0] * 8


def test_an_unreadable_rotation_is_said_and_split_whole() -> None:
    """A rotary module that hands on something else than cosines and sines: no guess, one sentence, still closed."""
    model = tiny("llama")
    original = model.model.rotary_emb.forward

    class Packed(tuple):  # three entries, of which the layers read two
        pass

    def odd(*args: Any, **kwargs: Any) -> Any:
        cosine, sine = original(*args, **kwargs)
        return Packed((cosine, sine, cosine))

    model.model.rotary_emb.forward = odd
    for layer in model.model.layers:
        forward = layer.self_attn.forward

        def unpacked(*args: Any, inner: Any = forward, **kwargs: Any) -> Any:
            kwargs["position_embeddings"] = tuple(kwargs["position_embeddings"])[:2]
            return inner(*args, **kwargs)

        layer.self_attn.forward = unpacked
    found = wf.split(wf.load(model), wf.given_tokens(ids()), groups=1)
    assert found.manifest["closure_max_abs"] < 1e-10
    notes = [note for note in found.manifest["warnings"] if "cannot be read" in note]
    assert len(notes) == 1
    assert "layer 0, 1" in notes[0]
    assert "bands" not in set(found.table().filter(found.table()["band"].is_not_null())["analysis"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_is_read_as_well(dtype: torch.dtype) -> None:
    wide = read_rotations(wf.load(tiny("llama")))
    narrow = read_rotations(wf.load(tiny("llama", dtype=dtype)))
    assert not narrow.unread
    for layer in (0, 1):
        assert torch.equal(wide.queries[layer].partner, narrow.queries[layer].partner)
        assert torch.equal(wide.queries[layer].column % 8, narrow.queries[layer].column % 8)


def test_the_terms_of_a_call_are_papers_four() -> None:
    """The captured call's terms close for any position part, also a made-up one."""
    model = wf.load(tiny("gemma2"))
    reading, found = read_rotations(model), []

    def observe(call: AttentionCall) -> None:
        turns = reading.rotations(call.layer, watch.tables, call)
        made_up = torch.randn(4, LENGTH, 16, dtype=torch.float64)
        terms, logits = split_call(call, range(LENGTH), made_up, made_up.flip(0), turns)
        assert set(terms) == {"qc,kc", "qc,kp", "qp,kc", "qp,kp"}
        found.append(float((torch.stack(list(terms.values())).sum(0) - logits).abs().max()))

    with watched_rotation(model, RotaryWatch()) as watch:
        run(model, batch(ids(inputs=1)), observe, parse_edit("window=6"))
    assert max(found) < 1e-10


def test_proportional_rotation_pairs_across_the_head_and_has_bands_that_stand_still() -> None:
    """R7's second convention, in a model with a rotary table per layer type (Gemma-4)."""
    found = wf.split(wf.load(decoder("Gemma4Text")), wf.given_tokens(ids()), groups=1)
    rows = found.table().filter(found.table()["metric"] == "band_frequency").sort("layer", "band")
    sliding, full = (rows.filter(rows["layer"] == layer)["value"].to_list() for layer in (0, 1))
    assert sliding == pytest.approx([10000.0 ** (-m / 8) for m in range(8)], rel=1e-5)
    assert full == pytest.approx([1.0, 1e6 ** (-1 / 8), *[0.0] * 6], rel=1e-5)

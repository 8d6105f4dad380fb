"""After any run, also one that raises half-way, the user's model is what it was; and bad edits are one sentence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from observed import observe, token_ids
from tiny import tiny
from torch import nn

import wherefrom as wf
from wherefrom.capture import session
from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import EDITS, RunInputs, parse_edit
from wherefrom.capture.edits.base import Edit
from wherefrom.capture.session import run

ALL = (
    "", "bos=mean", "bos=zero", "bos=random", "bos=noise", "bos=token:9", "freeze-first", "hide-first", "hide-first:1",
    "mask=off", "positions=+5", "rope=ntk:4", "rope=linear:2", "rope=theta:500", "rope=off", "window=6",
    "bos=mean,rope=off,window=6,positions=+5",
)  # fmt: skip


def test_every_kind_of_edit_is_tried_here() -> None:
    assert {edit.partition("=")[0].partition(":")[0] for edit in ALL if "," not in edit} - {""} == set(EDITS)


def state(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that a run could have changed."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "tensors": {name: (id(tensor), tensor._version, tensor.detach().clone()) for name, tensor in tensors.items()},
        "gradients": {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()},
        "training": {name: module.training for name, module in model.named_modules()},
        "hooks": {
            name: [
                list(hooks)
                for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
            ]
            for name, module in model.named_modules()
        },
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "forward": {name: "forward" in vars(module) for name, module in model.named_modules()},
        "config": copy.deepcopy(model.config.to_dict()),
        "attention": model.config._attn_implementation,
        "enabled": torch.is_grad_enabled(),
        "session": session._active.get(),
    }  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


class Planned(Exception):
    """An error in the middle of a run."""


def raise_at_layer_1(call: AttentionCall) -> None:
    if call.layer == 1:
        raise Planned


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("edit", ALL)
def test_the_model_is_what_it_was(edit: str, implementation: str) -> None:
    model = tiny(dtype=torch.float32)
    model.set_attn_implementation(implementation)
    model.train()
    model.model.layers[0].eval()  # a mixed state must come back mixed
    model.lm_head.weight.requires_grad_(False)
    handle = model.model.layers[1].register_forward_hook(lambda *_: None)
    decoder, ids = wf.load(model), token_ids(bos=None)
    before = state(model)
    first = observe(decoder, ids, edit)
    assert same(state(model), before)
    with pytest.raises(Planned):
        observe(decoder, ids, edit, on_call=raise_at_layer_1)
    assert same(state(model), before)
    with pytest.raises(KeyboardInterrupt):
        observe(decoder, ids, edit, on_call=interrupt)
    assert same(state(model), before)
    assert torch.equal(observe(decoder, ids, edit).output_logits, first.output_logits), "an error leaves nothing behind"
    assert model.config._attn_implementation == implementation
    handle.remove()
    assert not same(state(model), before), "control: a removed hook is seen"


def interrupt(_: AttentionCall) -> None:
    raise KeyboardInterrupt


def test_a_change_of_the_model_would_be_seen() -> None:
    """Controls for the comparison itself."""
    for change in (
        lambda m: m.model.layers[0].self_attn.q_proj.weight.data[0].add_(1e-3),
        lambda m: m.model.rotary_emb.inv_freq.mul_(1),
        lambda m: m.model.layers[1].mlp.train(),
        lambda m: setattr(m.config, "_attn_implementation_internal", "wherefrom"),
        lambda m: setattr(m.model.layers[0].mlp, "forward", m.model.layers[0].mlp.forward),
        lambda m: m.lm_head.register_forward_pre_hook(lambda *_: None),
    ):
        model = tiny()
        before = state(model)
        change(model)
        assert not same(state(model), before)


class Failing(Edit):
    """An edit that cannot be put in place."""

    def installed(self, decoder: Any, inputs: Any) -> Any:
        raise Planned


def test_an_edit_that_fails_undoes_the_edits_before_it() -> None:
    model, ids = tiny(), token_ids()
    decoder = wf.load(model)
    before = state(model)
    edits = [*parse_edit("rope=off,bos=mean"), Failing("failing")]
    with pytest.raises(Planned):
        run(decoder, RunInputs(ids, (0, 1, 2), ids[:, 0]), edits=edits)
    assert same(state(model), before)


def test_the_users_attention_outside_a_run_is_his_own() -> None:
    """Before, between and after runs the stock path gives the same bits."""
    model, ids = tiny(), token_ids()
    with torch.no_grad():
        before = model(ids).logits
    wf.trace(model, wf.given_tokens(ids), edits=list(ALL[1:6]) + list(ALL[7:8]), offsets=[1], query_ranges=[(6, 24)])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ("bos=maen", "did you mean bos=mean?"),
        ("rope=nkt:4", "did you mean rope=ntk?"),
        ("widnow=4", "did you mean window?"),
        ("hide_first", "did you mean hide-first?"),
        ("xyz", "wherefrom list edits"),
        ("none", "not known"),
        ("", "empty"),
        ("  ", "empty"),
        (",", "between its commas"),
        ("bos=mean,", "between its commas"),
        ("bos", "write bos="),
        ("bos:mean", "write bos="),
        ("bos=", "write bos="),
        ("bos=token", "bos=token:<id or text>"),
        ("bos=token:", "bos=token:<id or text>"),
        ("bos=mean:3", "alone"),
        ("bos=token:97", "0 to 96"),
        ("bos=token:the", "without a tokenizer"),
        ("rope=ntk", "positive number"),
        ("rope=ntk:nan", "positive number"),
        ("rope=linear:0", "positive number"),
        ("rope=theta:-1", "positive number"),
        ("rope=theta:inf", "positive number"),
        ("rope=off:3", "no value"),
        ("window", "write window="),
        ("window=1", "at least 2"),
        ("window=-4", "at least 2"),
        ("window=4.5", "at least 2"),
        ("window=²", "at least 2"),
        ("window=24", "hides nothing"),
        ("hide-first:two", "layer index"),
        ("hide-first:²", "layer index"),
        ("hide-first:2", "behind the last layer (1)"),
        ("hide-first=1", "write hide-first"),
        ("mask=on", "mask=off"),
        ("positions=-1", "0 or more"),
        ("positions=+²", "0 or more"),
        ("positions=+99999999999999999999", "no longer tells positions apart"),
        ("freeze-first=1", "write freeze-first"),
        ("freeze-first", "--bos off"),
        ("bos=mean,bos=zero", "more than once"),
        ("window=4,window=8", "more than once"),
        ("bos=mean,freeze-first", "exclude each other"),
        ("window=8,mask=off", "exclude each other"),
        ("mask=off,window=8", "exclude each other"),
    ],
)
def test_a_bad_edit_is_one_sentence(edit: str, expected: str) -> None:
    with pytest.raises(wf.BadInput) as caught:
        observe(wf.load(tiny()), token_ids(), edit) if edit else parse_edit(edit)
    text = str(caught.value)
    assert expected in text
    assert "\n" not in text
    assert "?." not in text
    assert text[-1] in ".?"


@pytest.mark.parametrize(
    "edits", [["bos=mean", "bos=mean"], ["bos=mean", " bos=mean"], ["bos=mean,window=8", "window=8,bos=mean"]]
)
def test_the_same_edit_twice_is_refused(edits: list[str]) -> None:
    with pytest.raises(wf.BadInput, match="given twice"):
        wf.trace(tiny(), wf.given_tokens(token_ids()), edits)

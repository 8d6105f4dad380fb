"""Head ablation on small models: only that head goes, and the fast map is the plain loop."""

from __future__ import annotations

import pytest
import torch

from tests.lab.toys import toy
from wherefrom.analyses.ablation import HOWS, Ablation, donors
from wherefrom.analyses.heads import ablation_map
from wherefrom.analyses.heads_toy import ablated_scores
from wherefrom.capture.head_projection import recorded, replaced, toy_projections
from wherefrom.errors import BadInput, CheckFailed
from wherefrom.models.toy import ToyTransformer
from wherefrom.tasks.base import IGNORED, Examples

MARKER = 5
SETTINGS = [
    {"readout": "mean", "causal": False},
    {"readout": "last"},
    {"readout": "tokens"},
    {"readout": "mean", "causal": False, "published_padding": True, "memory_keys": True},
    {"readout": "last", "attention": "mla", "encoding": "mla"},
    {"readout": "last", "encoding": "deberta", "kv_heads": 2},
    {"readout": "tokens", "layers": 1, "encoding": "alibi"},
]


def examples(count: int = 11, readout: str = "mean", seed: int = 3) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(6, 13, (count,), generator=generator)
    ids = torch.randint(3, 97, (count, 12), generator=generator)
    ids[torch.arange(12) >= lengths[:, None]] = 0
    if readout != "tokens":
        return Examples(ids, lengths, torch.randint(97, (count,), generator=generator))
    labels = torch.randint(97, (count, 12), generator=generator)
    labels[:, :3] = IGNORED
    labels[torch.arange(12) >= lengths[:, None]] = IGNORED
    return Examples(ids, lengths, labels)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_the_fast_map_is_the_plain_loop(settings: dict[str, object], how: str) -> None:
    model = toy(**{"encoding": "rope", **settings})  # type: ignore[arg-type]
    data = examples(readout=str(settings["readout"]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = ablation_map(model, data, how, seed=2, batch=16)
    base = ablated_scores(model, data)
    torch.testing.assert_close(found.base.loss, base.loss, rtol=0, atol=1e-10)
    for layer, losses in found.loss.items():
        for head, loss in enumerate(losses):
            plain = ablated_scores(model, data, [Ablation(layer, (head,), how)], seed=2)  # type: ignore[arg-type]
            torch.testing.assert_close(loss, plain.loss, rtol=0, atol=1e-10)
            assert found.correct is not None
            assert torch.equal(found.correct[layer][head], plain.correct)
            assert float((plain.loss - base.loss).abs().max()) > 1e-4  # the ablation did something
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def planted(head: int) -> ToyTransformer:
    """A model in whose first layer one head alone writes the direction MARKER of the stream."""
    model = toy(layers=1, d_ff=0, encoding="none")
    weight = model.body.blocks[0].attention.output.weight  # type: ignore[union-attr,index]
    dim = model.settings.head_dim
    with torch.no_grad():
        weight[MARKER] = 0  # type: ignore[index]
        weight[MARKER, head * dim : (head + 1) * dim] = 1  # type: ignore[index]
    return model


def marker(model: ToyTransformer, data: Examples, head: int | None) -> torch.Tensor:
    """What attention writes along MARKER, (example token)."""
    projections = toy_projections(model)
    written: list[torch.Tensor] = []
    handle = projections[0].module.register_forward_hook(lambda _, __, output: written.append(output[..., MARKER]))
    with torch.no_grad(), replaced(projections, {} if head is None else {0: {head: 0.0}}):
        model(data.token_ids, data.lengths)
    handle.remove()
    return written[0]


def test_a_planted_head_is_the_one_that_writes_the_marker() -> None:
    model, data = planted(2), examples()
    whole = marker(model, data, None)
    assert float(whole.abs().max()) > 0.1
    bias = float(model.body.blocks[0].attention.output.bias[MARKER].detach())  # type: ignore[union-attr,index]
    assert bias != 0  # what belongs to no head stays
    assert float((marker(model, data, 2) - bias).abs().max()) < 1e-12
    for other in (0, 1, 3):
        torch.testing.assert_close(marker(model, data, other), whole, rtol=0, atol=1e-12)


def test_ablating_behind_the_projection_would_be_caught() -> None:
    """The published fault: a slice of the projected output is zeroed, where every head is mixed (case H1)."""
    model, data = planted(2), examples()
    dim = model.settings.head_dim
    written: list[torch.Tensor] = []

    def faulty(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[..., 2 * dim : 3 * dim] = 0
        written.append(output[..., MARKER])
        return output

    handle = model.body.blocks[0].attention.output.register_forward_hook(faulty)  # type: ignore[union-attr,operator]
    with torch.no_grad():
        model(data.token_ids, data.lengths)
    handle.remove()
    torch.testing.assert_close(written[0], marker(model, data, None))  # the marker is still there


def test_several_ablations_do_not_depend_on_their_order() -> None:
    model, data = toy(readout="last"), examples()
    ablations = [Ablation(0, (1,)), Ablation(1, (0, 3), "mean"), Ablation(0, (2,), "resample")]
    forth, back = ablated_scores(model, data, ablations), ablated_scores(model, data, ablations[::-1])
    assert torch.equal(forth.loss, back.loss)
    alone = ablated_scores(model, data, ablations[:1])
    assert not torch.equal(forth.loss, alone.loss)


def test_resampling_leaves_nobody_with_its_own_output() -> None:
    lengths = torch.tensor([7, 7, 9, 7, 9, 12])
    found = donors(lengths, 0)
    assert sorted(found.tolist()) == list(range(6))
    assert not bool((found == torch.arange(6)).any())
    assert lengths[found[:2]].tolist() == [7, 7]
    with pytest.raises(BadInput, match="at least two"):
        donors(torch.tensor([4]), 0)


def test_bad_ablations_are_named() -> None:
    model, data = toy(), examples()
    for wrong, words in (
        (Ablation(4, (0,)), "layer 4"),
        (Ablation(0, (9,)), "no head 9"),
        (Ablation(0, (1, 1)), "twice"),
    ):
        with pytest.raises(BadInput, match=words):
            ablated_scores(model, data, [wrong])
    with pytest.raises(BadInput, match="no ablation 'none'"):
        ablation_map(model, data, "none")


def test_an_ablation_without_effect_is_an_error() -> None:
    model, data = toy(), examples()
    projections = toy_projections(model)
    other = toy_projections(toy(seed=1))
    with pytest.raises(CheckFailed, match="never ran"), replaced(other, {0: {0: 0.0}}):
        model(data.token_ids, data.lengths)
    found: dict[int, torch.Tensor] = {}
    with torch.no_grad(), recorded(projections, found):
        model(data.token_ids, data.lengths)
    assert found[0].shape == (11, 12, 64)

"""Gradient seeds: the signals are the gradients they say they are, and the estimators see what is planted."""

from __future__ import annotations

import copy

import pytest
import torch
from toys import toy

from wherefrom.analyses.seeds import (
    KINDS,
    SeedSums,
    band_pairs,
    by_offset,
    leave_one_out_weights,
    logit_gradients,
    margin,
    seed_rows,
    seed_sums,
    signals,
)
from wherefrom.errors import BadInput
from wherefrom.models.toy import ToyTransformer, loss
from wherefrom.tasks import build_task
from wherefrom.tasks.base import examples

TASK = build_task("distance:vocabulary=24,max_between=8,side=3")
COPY = build_task("copy:symbols=20,shortest=2,longest=6")


def model_for(task=TASK, encoding="rope", **settings) -> ToyTransformer:
    readout = "tokens" if task is COPY else "mean"
    chosen = {"d_model": 32, "heads": 4, "layers": 2, "d_ff": 48, "causal": False, "readout": readout, **settings}
    return toy(encoding, vocabulary=task.vocabulary, classes=task.classes, **chosen)


@pytest.mark.parametrize("causal", [False, True])
def test_the_additive_signal_is_the_gradient_of_a_toeplitz_bias(causal):
    """The gradient of a learned table of one number per offset and head, by autograd alone."""
    model = model_for(encoding="relative-table:max_distance=31", causal=causal)
    data = examples(TASK, 6, 0)
    (table,) = model.body.encoding.parameters()
    total = loss(model(data.token_ids, data.lengths).logits, data.labels) * len(data)
    (truth,) = torch.autograd.grad(total, [table])
    both = sum(g.sum(0) for (_, kind), g in signals(model, data, longest=32).items() if kind == "additive")
    truth = truth if truth.shape == both.shape else truth.T  # one table serves all layers
    torch.testing.assert_close(both, truth, atol=1e-12, rtol=1e-10)
    assert truth.abs().max() > 1e-4


@pytest.mark.parametrize("encoding", ["rope", "rope:pairing=interleaved", "none"])
def test_the_multiplicative_signal_is_the_gradient_of_a_toeplitz_kernel(encoding):
    """A kernel e_m(δ) = 1 multiplied into band m of the logits of one layer; its gradient by finite differences."""
    model = model_for(encoding=encoding)
    data = examples(TASK, 5, 0)
    longest = data.token_ids.shape[1]
    first, second = band_pairs(model)
    layer, head, band, offset = 1, 2, 1, 3
    found = signals(model, data)[layer, "multiplicative"].sum(0)[head]
    place = 2 * band * (2 * longest - 1) + offset + longest - 1
    projected = {k: (q, key) for k, _, q, key in logit_gradients(model, data)}
    query, key = projected[layer]
    q = torch.complex(query[..., first[band]], query[..., second[band]])
    k = torch.complex(key[..., first[band]], key[..., second[band]])
    gram = q[..., :, None] * k[..., None, :].conj() * model.settings.head_dim**-0.5
    position = torch.arange(longest)
    here = (position[:, None] - position) == offset

    def shifted(by: complex) -> float:
        def watch(at: int, logits: torch.Tensor) -> torch.Tensor:
            if at != layer:
                return logits
            added = torch.zeros_like(logits)
            added[:, head] = (gram[:, head] * by).real * here
            return logits + added

        with torch.no_grad():
            output_logits = model(data.token_ids, data.lengths, watch=watch).logits
        return float(loss(output_logits, data.labels)) * len(data)

    step = 1e-5
    real = (shifted(step) - shifted(-step)) / (2 * step)
    imaginary = (shifted(step * 1j) - shifted(-step * 1j)) / (2 * step)
    assert float(found[place]) == pytest.approx(real, rel=1e-5, abs=1e-9)
    # Re(A e) with e = i y is −y Im A: the signal keeps Im A itself.
    assert float(found[place + 2 * longest - 1]) == pytest.approx(-imaginary, rel=1e-5, abs=1e-9)
    assert abs(real) > 1e-6


@pytest.mark.parametrize("task", [TASK, COPY])
def test_a_row_of_gradients_sums_to_nothing(task):
    """Softmax cannot see a constant added to a row, so the loss cannot pull at one; Γ is 0 where the mask hides."""
    model = model_for(task, causal=True)
    data = examples(task, 4, 0)
    for _, gradient, _, _ in logit_gradients(model, data):
        assert gradient.abs().max() > 1e-6
        torch.testing.assert_close(gradient.sum(-1), torch.zeros(gradient.shape[:-1]).double(), atol=1e-12, rtol=0)
        assert (gradient.triu(1) == 0).all()


def test_examples_do_not_touch_each_other_and_the_model_is_left_alone():
    model = model_for().train()
    before = copy.deepcopy(model.state_dict())
    data = examples(TASK, 6, 0)
    longest = data.token_ids.shape[1]
    together = signals(model, data, longest)
    alone = signals(model, data.take(torch.tensor([4])), longest)
    for where, g in alone.items():
        torch.testing.assert_close(g[0], together[where][4], atol=1e-12, rtol=1e-9)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_sums_over_diagonals():
    x = torch.arange(9.0).view(3, 3)
    assert by_offset(x).tolist() == [2, 6, 12, 10, 6]
    assert by_offset(x, 4).tolist() == [0, 2, 6, 12, 10, 6, 0]


def sums_of(g: torch.Tensor, groups: int = 8) -> SeedSums:
    """Sums of given signals (example head component)."""
    parts = g.view(groups, -1, *g.shape[1:])
    norm = parts.norm(dim=-1)
    count = torch.full((groups, 1), parts.shape[1]).double()
    return SeedSums(parts.sum(1), norm.sum(1), norm.square().sum(1), count)


def test_estimators_on_planted_signals():
    """Unrelated examples: no signal and the floor; a common direction: its squared norm; a lead: its size."""
    generator = torch.Generator().manual_seed(3)
    strength = torch.tensor([3.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    direction = torch.randn(4, 40, generator=generator, dtype=torch.float64)
    direction = direction / direction.norm(dim=-1, keepdim=True) * strength[:, None]
    signal, margins, shares = [], [], []
    weights = torch.ones(1, 8).double()
    for _ in range(200):
        noise = torch.randn(64, 4, 40, generator=generator, dtype=torch.float64)
        sums = sums_of(direction + noise)
        whole = sums.gathered(weights)
        signal.append(whole.signal()[0])
        margins.append(margin(sums, weights))
        shares.append(whole.cancellation()[0] / whole.cancellation_floor()[0])
    found = torch.stack(signal)
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - strength.square()).abs() < 4 * error).all()
    ratio = torch.stack(shares).mean(0)
    assert ratio[0] > 3
    assert abs(float(ratio[2]) - 1) < 0.05
    lead = torch.stack(margins)
    assert abs(float(lead.mean()) - 5 / 13) < 4 * float(lead.std()) / len(lead) ** 0.5
    biased = (sums_of(direction + noise).gathered(weights).norm() ** 2)[0]
    assert biased[2] > 0.3  # the control: without the correction nothing looks like something


def test_heads_that_are_alike_have_no_leader():
    generator = torch.Generator().manual_seed(4)
    direction = torch.randn(1, 40, generator=generator, dtype=torch.float64)
    weights = torch.ones(1, 8).double()
    lead, naive = [], []
    for _ in range(300):
        g = direction + torch.randn(32, 6, 40, generator=generator, dtype=torch.float64)
        sums = sums_of(g)
        lead.append(margin(sums, weights))
        ordered = sums.gathered(weights).signal()[0].sort(descending=True).values
        naive.append((ordered[0] - ordered[1]) / ordered.sum())
    lead, naive = torch.stack(lead), torch.stack(naive)
    assert abs(float(lead.mean())) < 4 * float(lead.std()) / len(lead) ** 0.5
    assert float(naive.mean()) > 10 * float(naive.std()) / len(naive) ** 0.5  # picked and measured on the same examples


def test_rows_and_their_errors():
    model = model_for()
    data = examples(TASK, 64, 0)
    rows = seed_rows(model, data)
    assert {row.metric.split("_")[0] for row in rows} == set(KINDS)
    per_head = [row for row in rows if row.metric == "multiplicative_signal"]
    assert {(row.layer, row.head) for row in per_head} == {(layer, head) for layer in range(2) for head in range(4)}
    assert all(row.stderr is not None and row.stderr > 0 and row.n == 64 for row in rows)
    growth = [row for row in rows if row.metric == "additive_margin_growth"]
    margins = {row.layer: row.value for row in rows if row.metric == "additive_margin"}
    assert [row.layer for row in growth] == [0]
    assert growth[0].value == pytest.approx(margins[0] - margins[1])
    whole = seed_sums(model, data)[0, "additive"].gathered(leave_one_out_weights(8)[:1]).signal()
    found = [row.value for row in rows if row.metric == "additive_signal" and row.layer == 0]
    assert found == pytest.approx(whole[0].tolist())


def test_too_few_examples_are_refused():
    with pytest.raises(BadInput, match="at least 16 examples"):
        seed_rows(model_for(), examples(TASK, 15, 0))


def test_padding_gets_no_gradient():
    data = examples(TASK, 8, 0)
    assert int(data.lengths.min()) < data.token_ids.shape[1]
    for _, gradient, _, _ in logit_gradients(model_for(), data):
        for row, length in enumerate(data.lengths.tolist()):
            assert (gradient[row, :, :, length:] == 0).all()
            assert (gradient[row, :, length:] == 0).all()

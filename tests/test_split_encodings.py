"""The split of every encoding's logits closes, and shares do not see a constant added to a row."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "encodings"))
from encoding_specifications import SPECIFICATIONS, make

from wherefrom.analyses.terms import content_and_position, encoding_terms, mean_shares, term_shares
from wherefrom.encodings import ENCODINGS, build
from wherefrom.errors import BadInput

LENGTH = 24
POSITIONS = torch.arange(LENGTH)


def vectors(inputs: int = 6, heads: int = 3, dim: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random queries and keys with a constant, a position part and content, logits of deviation near 1."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(2):
        constant = torch.randn(1, heads, 1, dim, generator=generator, dtype=torch.float64)
        position = torch.randn(1, heads, LENGTH, dim, generator=generator, dtype=torch.float64)
        content = torch.randn(inputs, heads, LENGTH, dim, generator=generator, dtype=torch.float64)
        made.append((constant + position + content) / 3**0.5)
    return made[0], made[1]


def test_every_encoding_of_the_table_is_among_the_settings() -> None:
    named = {part.split(":")[0] for text in SPECIFICATIONS for part in text.split("+")}
    assert set(ENCODINGS) <= named


@pytest.mark.parametrize("specification", SPECIFICATIONS)
def test_the_terms_of_every_encoding_add_up_to_its_logits(specification: str) -> None:
    encoding = make(specification).double()
    query, key = vectors()
    with torch.no_grad():
        found = encoding_terms(encoding, query, key, POSITIONS)
        logits = encoding.logits(query, key, POSITIONS, POSITIONS)
    closure = (torch.stack(list(found.terms.values())).sum(0) - logits).abs().max()
    assert float(closure) < 1e-10
    assert found.whole_vectors == ("pope" in specification), "PoPE alone passes vectors through a nonlinearity"
    assert float(sum(share.sum() for share in term_shares(found.terms).values())) == pytest.approx(3.0)


def test_the_wrong_pairing_does_not_close() -> None:
    """Control: interleaved pairs do not give the logits of half-split ones, though both agree on the diagonal."""
    query, key = vectors()
    other = encoding_terms(make("rope:pairing=interleaved").double(), query, key, POSITIONS)
    logits = make("rope").double().logits(query, key, POSITIONS, POSITIONS)
    gap = (torch.stack(list(other.terms.values())).sum(0) - logits).abs()
    assert float(gap.diagonal(dim1=-2, dim2=-1).max()) < 1e-10
    assert float(gap.max()) > 0.5


def test_position_is_what_other_inputs_share() -> None:
    query, _ = vectors()
    content, position = content_and_position(query)
    assert torch.equal(content + position, query) or float((content + position - query).abs().max()) < 1e-15
    changed = query.clone()
    changed[0] += 5 * torch.randn(LENGTH, 8, dtype=torch.float64)
    moved = content_and_position(changed)[1]
    deviation = (moved[0] - moved[0].mean(-2, keepdim=True)) - (position[0] - position[0].mean(-2, keepdim=True))
    assert float(deviation.abs().max()) < 1e-12, "an input's own vectors are no part of its position"
    with pytest.raises(BadInput, match="at least two"):
        content_and_position(query[:1])


@pytest.mark.parametrize("term", ["content_content", "position_position", "bias"])
def test_a_constant_added_to_one_row_of_any_term_changes_no_share(term: str) -> None:
    """B1: softmax cannot see a row constant."""
    query, key = vectors()
    found = encoding_terms(make("alibi+rope").double(), query, key, POSITIONS).terms
    before = {**term_shares(found), **mean_shares(sum(found.values()))}  # type: ignore[arg-type]
    moved = dict(found)
    moved[term] = moved[term].clone()
    moved[term][:, :, 7] += 50.0
    moved[term][2, 1, 12] -= 3.0
    after = {**term_shares(moved), **mean_shares(sum(moved.values()))}  # type: ignore[arg-type]
    for name, share in before.items():
        assert float((after[name] - share).abs().max()) < 1e-12
    raw = torch.stack([sum(t.values()).var() for t in (found, moved)])  # type: ignore[union-attr]
    assert float(raw[1] / raw[0]) > 2, "control: the raw variance does see it"


def test_both_forms_of_alibi_have_the_same_shares() -> None:
    """B1: a bias on the key index and its relative form differ by a constant per row."""
    query, key = vectors()
    shares = []
    for form in ("key", "causal"):
        encoding = build(f"alibi:form={form}", d_model=24, heads=3, head_dim=8).double()
        found = encoding_terms(encoding, query, key, POSITIONS).terms
        shares.append({**term_shares(found), **mean_shares(sum(found.values()))})  # type: ignore[arg-type]
    assert float((shares[0]["bias"] - shares[1]["bias"]).abs().max()) < 1e-12
    for name in shares[0]:
        assert float((shares[0][name] - shares[1][name]).abs().max()) < 1e-12
    assert float(shares[0]["bias"].max()) > 0.5, "control: there is a bias to disagree about"


def test_a_toeplitz_bias_alone_is_all_toeplitz() -> None:
    encoding = build("alibi", d_model=24, heads=3, head_dim=8).double()
    zeros = torch.zeros(4, 3, LENGTH, 8, dtype=torch.float64)
    shares = mean_shares(encoding.logits(zeros, zeros, POSITIONS, POSITIONS).expand(4, -1, -1, -1))
    assert float((shares["toeplitz"] - 1).abs().max()) < 1e-10
    assert float(shares["content"].abs().max()) < 1e-10

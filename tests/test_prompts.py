"""Inputs: what was asked for runs, nothing is added, padding never counts, and the draw is repeatable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from observed import token_ids
from tiny import tiny
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

import wherefrom as wf
from wherefrom.capture.prompts import given_tokens, ordinary_tokens, random_tokens, text_windows
from wherefrom.models.hf import Decoder, wrap


def tokenizer(adds_bos: bool, bos: str | None = "<s>") -> PreTrainedTokenizerFast:
    """Words w3 ... w89, three special tokens, and one added token that is not special (90)."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 90)}}
    inner = Tokenizer(WordLevel(words, unk_token="</s>"))
    inner.pre_tokenizer = WhitespaceSplit()
    if adds_bos:
        inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=bos, eos_token="</s>", pad_token="<pad>", model_max_length=16
    )
    fast.add_tokens([AddedToken("<tool>", special=False)])
    return fast


def decoder(adds_bos: bool | None = True, bos: str | None = "<s>", **overrides: Any) -> Decoder:
    return wrap(tiny(**overrides), None if adds_bos is None else tokenizer(adds_bos, bos))


def refusal(call: Any) -> str:
    with pytest.raises(wf.BadInput) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Ids are ids


def test_given_ids_do_not_depend_on_the_tokenizer() -> None:
    ids = token_ids()
    for which in (decoder(True), decoder(False), decoder(None), decoder(True, bos=None)):
        assert torch.equal(given_tokens(which, ids).token_ids, ids)
        assert torch.equal(given_tokens(which, ids.tolist()).token_ids, ids)
    traces = [
        wf.trace(wf.load(tiny(), tokenizer=t), wf.given_tokens(ids), offsets=[1, 2], query_ranges=[(6, 24)])
        for t in (tokenizer(True), tokenizer(False), None)
    ]
    leak = [t.table().filter(t.table()["analysis"] == "leak")["value"] for t in traces]
    assert leak[0].equals(leak[1])
    assert leak[0].equals(leak[2])
    assert all(t.manifest["input_token_ids"] == ids.tolist() for t in traces), "the report shows the real ids"
    with_text = traces[0].manifest["first_token"]
    assert (with_text["id"], with_text["is_bos"], with_text["text"]) == (1, True, "<s>")


def test_no_bos_or_two_are_said() -> None:
    once, none, twice = token_ids(), token_ids(bos=None), token_ids()
    twice[:2, 1] = 1
    assert given_tokens(decoder(), once).warnings == ()
    assert given_tokens(decoder(), none).warnings == ("3 of 3 inputs do not start with the BOS token 1.",)
    assert given_tokens(decoder(), twice).warnings == ("2 of 3 inputs start with two BOS tokens.",)
    assert wf.trace(tiny(), wf.given_tokens(twice)).manifest["warnings"] == ["2 of 3 inputs start with two BOS tokens."]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([[1, 2, 3], [1, 2]], "rows of equal length"),
        ([["w3", "w4"]], "numbers"),
        ([1, 2, 3, 4], "table of whole numbers"),
        ([[1.0, 2.0, 3.0, 4.0]] * 2, "table of whole numbers"),
        ([[True, False, True, True]] * 2, "table of whole numbers"),
        ([[1, 3, 4, 97]] * 2, "0 to 96"),
        ([[1, 3, 4, -1]] * 2, "0 to 96"),
        ([[1, 3, 4, 5]], "at least 2"),
        ([[1, 3, 4]] * 2, "too short"),
        ([[1]] * 2, "too short"),
        ([[]] * 2, "whole numbers"),
    ],
)
def test_ids_that_cannot_be_run_are_refused(ids: Any, expected: str) -> None:
    assert expected in refusal(lambda: given_tokens(decoder(), ids))


# Padding


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_never_reaches_the_model_and_is_counted(side: str) -> None:
    """Real tokens give what they give alone, whichever attention the model was loaded with."""
    alone = token_ids(2, 24)
    pads = torch.zeros(1, 5, dtype=torch.long)
    short, mask = alone[1:, :19], torch.ones(2, 24, dtype=torch.long)
    if side == "left":
        padded = torch.cat([alone[:1], torch.cat([pads, short], 1)])
        mask[1, :5] = 0
    else:
        padded = torch.cat([alone[:1], torch.cat([short, pads], 1)])
        mask[1, 19:] = 0
    tables = []
    for implementation in ("eager", "sdpa"):
        model = tiny(dtype=torch.float32)
        model.set_attn_implementation(implementation)
        loaded = wf.load(model)
        options: dict[str, Any] = {"offsets": [1, 2, 4], "query_ranges": [(5, 19)]}
        found = wf.trace(loaded, wf.given_tokens(padded, mask), **options)
        assert found.manifest["excluded_rows"] == 5
        assert found.manifest["length"] == 19
        assert any("5 real tokens" in warning for warning in found.manifest["warnings"])
        solo = wf.trace(loaded, wf.given_tokens(alone[:, :19]), **options)
        assert found.table().equals(solo.table()), "the rows are those of the tokens without padding"
        assert found.table()["value"].is_finite().all()
        tables.append(found.table()["value"].to_torch())
        with torch.no_grad():
            real = model(padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[1]
            ours = model(short).logits[0]
        assert float((real[mask[1].bool()] - ours).abs().max()) < 1e-5, "what a solo run is, the padded batch is too"
    assert float((tables[0] - tables[1]).abs().max()) < 1e-5


def test_equal_padding_cuts_no_real_token() -> None:
    ids, mask = token_ids(2, 24), torch.ones(2, 24, dtype=torch.bool)
    mask[0, :5], mask[1, -5:] = False, False
    found = given_tokens(decoder(), ids, mask)
    assert (found.inputs, found.length, found.excluded_rows) == (2, 19, 10)
    assert torch.equal(found.token_ids, torch.stack([ids[0, 5:], ids[1, :19]]))
    assert not any("real tokens" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([[1] * 24, [1] * 9 + [0] + [1] * 14], "gap between real tokens"),
        ([[1] * 24, [0] * 24], "Input 1 is all padding"),
        ([[1] * 23] * 2, "(2, 23)"),
        ([[0] * 24, [-10000] * 24], "1 for real tokens"),
        ([[0.0] * 24, [float("-inf")] * 24], "whole numbers"),
        ("left", "numbers"),
    ],
)
def test_masks_that_are_no_padding_are_refused(mask: Any, expected: str) -> None:
    assert expected in refusal(lambda: given_tokens(decoder(), token_ids(2, 24), mask))


# Random tokens


def test_special_tokens_are_never_drawn() -> None:
    """Neither special ones nor added ones, nor rows of the embedding that no token uses; BOS only at the start."""
    drawn = random_tokens(decoder(), 40, 200).token_ids
    assert set(drawn[:, 1:].unique().tolist()) == set(range(3, 90))
    assert set(drawn[:, 0].tolist()) == {1}
    assert set(ordinary_tokens(decoder(None)).tolist()) == set(range(3, 97)), (
        "without a tokenizer the config names them"
    )
    assert set(ordinary_tokens(decoder(None, eos_token_id=[5, 6])).tolist()) == set(range(2, 97)) - {5, 6}


def test_ordinary_tokens_are_drawn_uniformly_at_every_position() -> None:
    drawn = random_tokens(decoder(), 2000, 8).token_ids[:, 1:]
    expected = 2000 / 87
    for position in range(7):
        counts = torch.bincount(drawn[:, position], minlength=90)[3:].double()
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert 40 < chi_square < 150, "86 degrees of freedom: mean 86, deviation 13"


def test_bos_on_off_and_auto() -> None:
    with_bos = decoder()
    assert set(random_tokens(with_bos, 30, 8, "auto").token_ids[:, 0].tolist()) == {1}
    assert set(random_tokens(with_bos, 30, 8, "on").token_ids[:, 0].tolist()) == {1}
    off = random_tokens(with_bos, 30, 8, "off")
    assert 1 not in off.token_ids
    assert len(set(off.token_ids[:, 0].tolist())) > 5
    assert torch.equal(off.token_ids[:, 1:], random_tokens(with_bos, 30, 8, "on").token_ids[:, 1:])
    nameless = decoder(None, bos_token_id=None)
    assert "names no BOS" in random_tokens(nameless, 2, 8, "auto").warnings[0]
    assert "--bos off" in refusal(lambda: random_tokens(nameless, 2, 8, "on"))
    assert "not 'maybe'" in refusal(lambda: random_tokens(with_bos, 2, 8, "maybe"))


def test_the_draw_is_a_function_of_the_seed() -> None:
    one = random_tokens(decoder(), 6, 40, seed=5).token_ids
    torch.manual_seed(99)
    assert torch.equal(random_tokens(decoder(), 6, 40, seed=5).token_ids, one)
    assert not torch.equal(random_tokens(decoder(), 6, 40, seed=6).token_ids, one)
    for seed in (-1, 1 << 32):
        assert str(seed) in refusal(lambda seed=seed: random_tokens(decoder(), 6, 40, seed=seed))
    random_tokens(decoder(), 6, 40, seed=(1 << 32) - 1)


def test_sizes_that_cannot_be_traced_are_refused() -> None:
    assert "at least 2" in refusal(lambda: random_tokens(decoder(), 1, 40))
    for length in (3, 0, -5):
        assert str(length) in refusal(lambda length=length: random_tokens(decoder(), 4, length))
    learned = wrap(tiny("gpt2"))
    assert "at most 64" in refusal(lambda: random_tokens(learned, 4, 65))
    assert random_tokens(learned, 4, 64).length == 64


@pytest.mark.parametrize("length", [*range(4, 12), 33, 63, 64, 65, 66, 129])
def test_every_length_has_default_ranges(length: int) -> None:
    """Also where an octave would end one position before the end."""
    from wherefrom.capture.plan import default_ranges, plan_leak

    ranges = default_ranges(length)
    assert ranges[-1][1] == length
    assert all(one[1] == other[0] for one, other in zip(ranges, ranges[1:], strict=False))
    assert all(stop - start >= 2 for start, stop in ranges)
    assert plan_leak(length).ranges


# Text


def words(count: int) -> str:
    return " ".join(f"w{3 + i % 87}" for i in range(count))


def test_windows_are_stretches_of_the_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.txt"
    book.write_text(words(500))
    found = text_windows(decoder(), book, 20, 24)
    assert capfd.readouterr().err == "", "a text longer than the tokenizer's limit is no news"
    assert set(found.token_ids[:, 0].tolist()) == {1}
    steps = (found.token_ids[:, 2:] - found.token_ids[:, 1:-1]) % 87
    assert set(steps.unique().tolist()) == {1}
    starts = set(found.token_ids[:, 1].tolist())
    assert len(starts) > 10
    assert torch.equal(found.token_ids, text_windows(decoder(False), book, 20, 24).token_ids), "no token is added"
    assert not torch.equal(found.token_ids, text_windows(decoder(), book, 20, 24, seed=1).token_ids)
    plain = text_windows(decoder(), book, 20, 24, bos="off")
    assert torch.equal(plain.token_ids[:, 1:], found.token_ids[:, 1:])
    assert 1 not in plain.token_ids
    book.write_bytes(b"\xef\xbb\xbf" + words(500).encode())
    assert torch.equal(text_windows(decoder(), book, 20, 24).token_ids, found.token_ids), "a byte-order mark is nothing"


def test_overlapping_windows_are_said(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(words(60))
    assert "overlap in a text of 60" in text_windows(decoder(), book, 20, 24).warnings[0]


def test_texts_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(words(24))
    assert "has 24 tokens" in refusal(lambda: text_windows(decoder(), book, 4, 24))
    assert text_windows(decoder(), book, 4, 23).length == 23
    book.write_bytes(b"w3 w4 \xff\xfe w5")
    assert "not UTF-8 (byte 6)" in refusal(lambda: text_windows(decoder(), book, 4, 24))
    book.write_text("")
    assert "has 0 tokens" in refusal(lambda: text_windows(decoder(), book, 4, 24))
    assert "cannot be read" in refusal(lambda: text_windows(decoder(), tmp_path / "absent.txt", 4, 24))
    assert "cannot be read" in refusal(lambda: text_windows(decoder(), tmp_path, 4, 24))
    assert "without a tokenizer" in refusal(lambda: text_windows(decoder(None), book, 4, 24))

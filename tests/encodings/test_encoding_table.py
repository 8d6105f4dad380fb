"""The table of encodings, its listing, and the setting strings."""

from __future__ import annotations

import importlib
import json
import pkgutil

import pytest
import torch
from encoding_specifications import SPECIFICATIONS, make
from hypothesis import given
from hypothesis import strategies as st

import wherefrom.encodings as package
from wherefrom.encodings import ENCODINGS, Dimensions, Encoding, build, list_encodings, parse
from wherefrom.encodings.alibi import AlibiConfig
from wherefrom.encodings.base import KINDS, REFERENCES, EncodingConfig
from wherefrom.encodings.composite import Composite, CompositeConfig
from wherefrom.encodings.per_head import PerHead
from wherefrom.encodings.rope import RopeConfig
from wherefrom.encodings.scaling import LinearScaling
from wherefrom.errors import BadInput


def test_folder_and_table_agree():
    """Every file that defines an encoding is in the table, and the table names nothing else."""
    defined = set()
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for value in vars(loaded).values():
            if isinstance(value, type) and issubclass(value, Encoding) and value.__module__ == loaded.__name__:
                defined.add(value)
    assert defined - {Encoding, Composite, PerHead} == {entry.encoding for entry in ENCODINGS.values()}
    for name, entry in ENCODINGS.items():
        assert entry.config.name == name
        assert entry.config.__module__ == entry.encoding.__module__
        assert entry.encoding.__module__.rpartition(".")[2] == name.replace("-", "_")


def test_listing_is_plain_and_complete():
    rows = list_encodings()
    assert [row["name"] for row in rows] == list(ENCODINGS)
    assert json.loads(json.dumps(rows)) == rows
    for row in rows:
        assert row["kind"] in KINDS
        assert row["reference"] in REFERENCES
        assert row["summary"]
        assert row["formula"]
        assert row["source"]
    by_name = {row["name"]: row for row in rows}
    assert by_name["learned"]["max_length"] == "as built"
    assert by_name["rope"]["max_length"] is None
    assert by_name["rope"]["options"]["theta"] == "10000.0"


def test_facts_of_every_encoding_are_plain():
    for specification in SPECIFICATIONS:
        json.dumps(make(specification).facts())


@pytest.mark.parametrize("specification", SPECIFICATIONS)
def test_spelling_builds_the_same_configuration_again(specification):
    config = parse(specification)
    assert parse(config.spelling()) == config


@given(
    st.floats(1.1, 1e9),
    st.sampled_from([None, 2, 4, 8]),
    st.sampled_from(["half", "interleaved"]),
    st.sampled_from([None, (0,), (0, 2)]),
    st.floats(1.0, 100.0),
)
def test_spelling_round_trips_for_any_rope(theta, rotary_dim, pairing, heads, factor):
    config = RopeConfig(theta, rotary_dim, "block", pairing, heads, LinearScaling(factor))
    assert parse(config.spelling()) == config
    both = CompositeConfig((config, AlibiConfig(max_exponent=theta)))
    assert parse(both.spelling()) == both


def test_names_and_sums_are_read_as_written():
    assert parse("published_mla") == parse("published-mla")
    assert parse("ROPE: theta = 1e+6 , rotary_dim=8") == RopeConfig(theta=1e6, rotary_dim=8)
    summed = parse("rope:theta=1e+6 + sinusoidal")
    assert [part.name for part in summed.parts] == ["rope", "sinusoidal"]
    encoding = build("rope:theta=500000,rotary_dim=4+learned+alibi", d_model=16, heads=2, max_length=9)
    assert isinstance(encoding, Composite)
    assert (encoding.kind, encoding.reference, encoding.learned, encoding.max_length) == ("mixed", "absolute", True, 9)
    assert build("none+alibi", d_model=16, heads=2).kind == "additive"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ropee", "There is no encoding `ropee`; did you mean `rope`"),
        ("zzz", "use one of `alibi`, `cope`"),
        ("rope:thet=3", "no option `thet`; did you mean `theta`"),
        ("none:theta=3", "takes no options"),
        ("rope:theta=abc", "must be a number"),
        ("rope:rotary_dim=4.5", "must be a whole number"),
        ("rope:theta", "write `field=value`"),
        ("rope:theta=1,theta=2", "twice"),
        ("rope:theta=-1", "greater than 0"),
        ("rope:theta=nan", "finite"),
        ("rope:scaling=yran", "did you mean `yarn`"),
        ("rope:factor=2", "no option `factor`"),
        ("rope:scaling=yarn,factor=2", "needs a value for `original_max_length`"),
        ("rope:scaling=linear,factor=2,theat=3", "no option `theat`"),
        ("mla:shared_key=yes", "write `true` or `false`"),
        ("alibi:slopes=geometrical", "did you mean `geometric`"),
        ("t5:buckets=5", "even number of at least 4"),
        ("learned", "say how many with `max_length`"),
        ("rope+xpos", "keep one of them"),
        ("", "There is no encoding ``"),
        ("rope+", "There is no encoding"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(text, words):
    with pytest.raises(BadInput, match=words) as refusal:
        build(text, d_model=16, heads=2)
    assert "\n" not in str(refusal.value)


def test_bad_sizes_and_configurations_are_refused():
    with pytest.raises(BadInput, match="does not divide into 3 heads"):
        build("rope", d_model=16, heads=3)
    with pytest.raises(BadInput, match="`heads` of `the model` is 0"):
        Dimensions(16, 0, 8)
    with pytest.raises(BadInput, match="must be even, not 15"):
        build("sinusoidal", d_model=15, heads=3)
    with pytest.raises(BadInput, match="configures no encoding"):
        build(EncodingConfig(), d_model=16, heads=2)
    with pytest.raises(BadInput, match="pass a schedule"):
        RopeConfig(scaling="linear")
    with pytest.raises(BadInput, match="at least two"):
        CompositeConfig((RopeConfig(),))
    with pytest.raises(BadInput, match="cannot hold another sum"):
        CompositeConfig((RopeConfig(), CompositeConfig((RopeConfig(), RopeConfig()))))


def test_positions_outside_a_learned_table_are_named():
    encoding = build("learned", d_model=16, heads=2, max_length=8)
    x = torch.zeros(1, 3, 16)
    with pytest.raises(BadInput, match="Position 9 is outside the learned table of 8 positions"):
        encoding.embed(x, torch.arange(7, 10))
    with pytest.raises(BadInput, match="Position -1"):
        encoding.embed(x, torch.arange(-1, 2))


def test_building_draws_the_same_parameters_from_the_same_seed():
    tables = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        tables.append(build("t5", d_model=16, heads=2).table.detach())
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])

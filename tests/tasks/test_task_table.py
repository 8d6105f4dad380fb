"""The table of tasks, its listing, the setting strings and their checks."""

from __future__ import annotations

import importlib
import json
import pkgutil

import pytest
from task_oracles import ORACLES, VARIANTS

import wherefrom.tasks as package
from wherefrom.errors import BadInput
from wherefrom.tasks import TASKS, Task, TaskConfig, build_task, list_tasks, parse_task
from wherefrom.tasks.distance import DistanceConfig


def test_folder_and_table_agree():
    """Every file that defines a task is in the table, and the table names nothing else."""
    defined = set()
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for value in vars(loaded).values():
            if isinstance(value, type) and issubclass(value, Task) and value.__module__ == loaded.__name__:
                defined.add(value)
    assert defined - {Task} == {entry.task for entry in TASKS.values()}
    for name, entry in TASKS.items():
        assert entry.config.name == name
        assert entry.config.__module__ == entry.task.__module__
        assert entry.task.__module__.rpartition(".")[2] == name.replace("-", "_")


def test_every_task_is_put_through_the_tests():
    # What `text` draws is a file's: test_task_text.py.
    assert set(ORACLES) == set(TASKS) - {"text"} == {variant.partition(":")[0] for variant in VARIANTS}


def test_listing_is_plain_and_complete():
    rows = list_tasks()
    assert [row["name"] for row in rows] == list(TASKS)
    assert json.loads(json.dumps(rows)) == rows
    for row in rows:
        assert all(row[key] for key in ("summary", "input", "answer", "source", "options"))
    by_name = {row["name"]: row for row in rows}
    assert by_name["distance"]["options"]["vocabulary"] == "574"
    assert by_name["distance"]["options"]["long_side"] == "none"
    assert by_name["copy"]["readout"] == "tokens"
    assert [row["name"] for row in rows if not row["positional"]] == ["count", "recall", "parity"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_spelling_builds_the_same_configuration_again(variant):
    config = parse_task(variant)
    assert parse_task(config.spelling()) == config
    assert build_task(config).config == build_task(variant).config


def test_published_sizes_are_the_defaults():
    distance, count = build_task("distance"), build_task("count")
    assert (distance.vocabulary, distance.classes, distance.trained_length) == (574, 71, 122)
    assert (count.vocabulary, count.classes, count.trained_length) == (574, 31, 120)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("distanse", "no task `distanse`; did you mean `distance`"),
        ("distance:sides=3", "no option `sides`; did you mean `side`"),
        ("distance:side", "`side` in `distance:side` is not a setting"),
        ("distance:side=3,side=4", "sets `side` twice"),
        ("distance:side=three", "`side` of `distance` is `three`"),
        ("distance:same_length=maybe", "write `true` or `false`"),
        ("distance:vocabulary=3", "`vocabulary` of `distance` is 3, .* at least 4"),
        ("distance:max_between=0", "`max_between` of `distance` is 0"),
        ("distance:side=-1", "`side` of `distance` is -1"),
        ("distance:shift=-1", "`shift` of `distance` is -1"),
        ("distance:long_side=60", "`long_side` of `distance` is 60.* at least 61"),
        ("count:vocabulary=31", "`vocabulary` of `count` is 31.* at least 32"),
        ("count:length=20", "`max_count` of `count` is 30.* at most 20"),
        ("count:max_count=0", "`max_count` of `count` is 0"),
        ("count:triggers=0", "`triggers` of `count` is 0"),
        ("count:long_length=120", "`long_length` of `count` is 120.* at least 121"),
        ("recall:keys=15", "`keys` of `recall` is 15.* at least 16"),
        ("recall:values=1", "`values` of `recall` is 1"),
        ("recall:long_pairs=8", "`long_pairs` of `recall` is 8.* at least 9"),
        ("index:symbols=1", "`symbols` of `index` is 1"),
        ("index:pointer=lost", "`pointer` of `index` is `lost`; did you mean `last`"),
        ("index:copies=2,long_copies=2", "`long_copies` of `index` is 2.* at least 3"),
        ("copy:longest=7", "`longest` of `copy` is 7, less than `shortest`, 8"),
        ("copy:long_longest=16", "`long_longest` of `copy` is 16.* at least 17"),
        ("parity:longest=7", "`longest` of `parity` is 7, less than `shortest`, 8"),
        ("parity:shortest=0", "`shortest` of `parity` is 0"),
        ("parity:long_longest=16", "`long_longest` of `parity` is 16.* at least 17"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(BadInput, match=sentence) as caught:
        build_task(text)
    assert "\n" not in str(caught.value)


def test_the_nearest_settings_that_fit_are_taken():
    """Control: the checks above refuse no more than they must."""
    for text in (
        "distance:vocabulary=4,max_between=1,side=0,shift=0",
        "distance:long_side=61",
        "count:vocabulary=32",
        "count:length=30",
        "recall:keys=15,long_pairs=9",
        "copy:longest=8",
        "parity:shortest=1,longest=1",
    ):
        build_task(text)


def test_configurations_of_something_else_are_refused():
    for other in (TaskConfig(), 3):
        with pytest.raises(BadInput, match="configures no task"):
            build_task(other)
    assert build_task(DistanceConfig(side=3)).config.side == 3

"""Which config keys about position had an effect: change each in a copy, rebuild a small model, see whether anything
observable changes. A key that is present and changes nothing was not read: misspelt, switched off, or overruled."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from wherefrom.analyses.facts import ModelFacts
from wherefrom.analyses.small_copy import observe, same, shrunk, text_part
from wherefrom.errors import WherefromError
from wherefrom.models.hf import Decoder
from wherefrom.suggest import suggestion

ABOUT_POSITION = re.compile(
    r"rope|rotary|window|alibi|position|layer_types|softcap|query_pre_attn|temperature_tuning|floor_scale|attn_scale"
    r"|chunk|relative_attention|mscale|yarn"
)
NOT_ABOUT = re.compile(
    r"^(architectures|model_type|torch_dtype|dtype|mamba|ssm|conv).*|chunk_size_(feed_forward|lm_head)"
)
BY_LAYER = re.compile(r"layer|pattern|interval|use_sliding")
"""Keys whose effect may fall on late layers only: watched in a copy of full depth."""
LENGTH_KEY = "max_position_embeddings"
Path_ = tuple[str, ...]


def examine(decoder: Decoder, facts: ModelFacts) -> None:
    """Fill `config_keys` (key, value, effect, note), `config_note` and warnings of conflicts.

    `effect` is `yes`, `no`, or `only checked` (every other value that was tried is refused, so it is read at least).
    """
    raw = text_part(raw_config(decoder))
    examiner = _Examiner(decoder, facts, raw)
    try:
        examiner.base(deep=False)
        examiner.base(deep=True)
    except Exception as error:  # whatever a family's code says to a config of ours
        text = " ".join(str(error).split())[:120]
        facts.config_note = f"The config keys could not be examined: a small copy of the model does not build ({text})."
        return
    for path, value in _keys(raw):
        facts.config_keys.append(examiner.record(path, value))
    facts.warnings += _conflicts(facts.config_keys)


def raw_config(decoder: Decoder) -> dict[str, Any]:
    """The config as it was written, from the checkpoint's folder where there is one, else as the model holds it.

    A loaded config has lost keys that its class moved or dropped.
    """
    for folder in (decoder.source, str(getattr(decoder.model.config, "_name_or_path", "") or "")):
        file = Path(folder) / "config.json"
        if folder and file.is_file():
            try:
                written = json.loads(file.read_text())
            except (OSError, ValueError):
                continue
            if isinstance(written, dict) and text_part(written).get("model_type") == decoder.config.model_type:
                return written
    held: dict[str, Any] = decoder.config.to_dict()
    set_by_hand = decoder.config.to_diff_dict()  # without a file, defaults cannot be told from what somebody wrote
    return {key: value for key, value in held.items() if key in set_by_hand or not ABOUT_POSITION.search(key)}


def _keys(raw: dict[str, Any], inside: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Keys about position with their values; those of nested dictionaries one by one."""
    for key, value in raw.items():
        if value is None or (
            not inside and (key.startswith("_") or not ABOUT_POSITION.search(key) or NOT_ABOUT.search(key))
        ):
            continue
        if isinstance(value, dict):
            yield from _keys(value, (*inside, key))
        elif not isinstance(value, str):  # another word would be another model: names are taken as read
            yield (*inside, key), value


class _Examiner:
    """Small copies of one model, with one key changed at a time."""

    def __init__(self, decoder: Decoder, facts: ModelFacts, raw: dict[str, Any]) -> None:
        self.config, self.raw = decoder.config, raw
        owner = decoder.model if decoder.config is decoder.model.config else decoder.body
        self.kind: type[nn.Module] = type(owner)
        self.positions = min((table.positions for table in facts.position_tables), default=None)
        self.depth = {True: int(decoder.config.num_hidden_layers), False: _shallow(facts)}
        self.bases: dict[bool, list[Any]] = {}

    def base(self, deep: bool) -> list[Any]:
        """What the unchanged config shows."""
        if deep not in self.bases:
            self.bases[deep] = self.watch(self.raw, deep)
        return self.bases[deep]

    def watch(self, raw: dict[str, Any], deep: bool) -> list[Any]:
        small = shrunk(raw, self.config, self.depth[deep])
        config = type(self.config).from_dict(small)
        config._experts_implementation = "eager"
        return observe(lambda c: self.kind(c), config, self.positions)

    def record(self, path: Path_, value: Any) -> dict[str, Any]:
        effect = self.effect(path, value, self.raw, deep=bool(BY_LAYER.search(path[0])))
        record = {"key": ".".join(path), "value": value, "effect": effect, "note": ""}
        if effect == "no":
            record["note"] = self.reason(path, value)
        return record

    def effect(self, path: Path_, value: Any, raw: dict[str, Any], deep: bool) -> str:
        base = self.base(deep) if raw is self.raw else self.watch(raw, deep)
        accepted = 0
        for other in _alternatives(value):
            changed = _with(raw, path, other)
            try:
                if not same(self.watch(changed, deep), base):
                    return "yes"
                accepted += other is not _GONE  # without the key its default may say the same
            except WherefromError:
                return "yes"  # it made another model, one that cannot be observed
            except Exception:  # noqa: S112 - refused by the config class or the model's code, each in its own way
                continue
        return "no" if accepted else "only checked"

    def reason(self, path: Path_, value: Any) -> str:
        if path[-1] == LENGTH_KEY:
            return "states a length; nothing in the model enforces it"
        for switch, state in self.raw.items():
            if isinstance(state, bool) and ABOUT_POSITION.search(switch) and (switch,) != path:
                try:
                    if self.effect(path, value, _with(self.raw, (switch,), not state), deep=True) == "yes":
                        return f"switched off by {switch}={str(state).lower()}"
                except Exception:  # noqa: S112 - the other state of the switch does not build, so it explains nothing
                    continue
        return "not read" + (suggestion(path[-1], _rotary_names() - {path[-1]}) if _unknown(path) else "")


def _shallow(facts: ModelFacts) -> int:
    """Layers until every kind of layer has been met."""
    kinds: list[Any] = []
    deepest = 0
    for entry in facts.layers:
        kind = (entry.module, entry.mask, entry.rotary, entry.softcap, entry.scale, entry.sinks is None)
        if kind not in kinds:
            kinds.append(kind)
            deepest = entry.layer
    return deepest + 1


def _rotary_names() -> set[str]:
    from transformers.modeling_rope_utils import RopeParameters

    return set(RopeParameters.__annotations__)


def _unknown(path: Path_) -> bool:
    return len(path) > 1 and path[-1] not in _rotary_names()


def _with(raw: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """A copy of `raw` with one value changed, or taken out (`_GONE`)."""
    changed = copy.deepcopy(raw)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value is _GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


_GONE = object()


def _alternatives(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value * 2
        yield value // 2 if isinstance(value, int) else value / 2
        yield value + 1
    elif isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
        yield [item * 2 for item in value]
        yield [0 if item else 1 for item in value]
    elif isinstance(value, list) and value:
        yield from ([kind] * len(value) for kind in ("full_attention", "sliding_attention") if [kind] != value[:1])
        yield value[::-1]
    yield _GONE


def _conflicts(records: list[dict[str, Any]]) -> list[str]:
    """A key without effect beside one of the same name that has one, with another value."""
    found = []
    for record in records:
        leaf = record["key"].rpartition(".")[2]
        for other in records:
            if (
                record["effect"] == "no"
                and other["effect"] == "yes"
                and other is not record
                and other["key"].rpartition(".")[2] == leaf
                and other["value"] != record["value"]
            ):
                found.append(
                    f"The config says {record['key']} = {record['value']} and {other['key']} = {other['value']}; "
                    f"the model uses {other['key']}."
                )
    return found

"""Positional encodings as pure maths, one file each, and masks as index rules.

`build("rope:theta=500000,rotary_dim=8+sinusoidal", d_model=64, heads=4)` gives an `Encoding`; `list_encodings()` says
what there is. `ENCODINGS` is the one table: a new encoding is a file here and a line there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from wherefrom.encodings.alibi import Alibi, AlibiConfig, alibi_slopes
from wherefrom.encodings.base import Dimensions, Encoding, EncodingConfig
from wherefrom.encodings.composite import Composite, CompositeConfig
from wherefrom.encodings.cope import Cope, CopeConfig
from wherefrom.encodings.deberta import Deberta, DebertaConfig
from wherefrom.encodings.fire import Fire, FireConfig
from wherefrom.encodings.kerple import Kerple, KerpleConfig
from wherefrom.encodings.learned import Learned, LearnedConfig
from wherefrom.encodings.mla import Mla, MlaConfig
from wherefrom.encodings.none import NoEncoding, NoneConfig
from wherefrom.encodings.per_head import PerHead, PerHeadConfig
from wherefrom.encodings.pope import Pope, PopeConfig
from wherefrom.encodings.published_mla import PublishedMla, PublishedMlaConfig
from wherefrom.encodings.relative_table import RelativeTable, RelativeTableConfig
from wherefrom.encodings.rope import SCALINGS, Rope, RopeConfig
from wherefrom.encodings.rotary import rope_frequencies, rotary_pairs, rotate
from wherefrom.encodings.sinusoidal import Sinusoidal, SinusoidalConfig, sinusoidal_table
from wherefrom.encodings.t5 import T5, T5Config, t5_bucket
from wherefrom.encodings.xpos import Xpos, XposConfig
from wherefrom.errors import BadInput
from wherefrom.settings import Settings, labelled_paragraphs, split_text, suggestion

__all__ = [
    "ENCODINGS",
    "SCALINGS",
    "Dimensions",
    "Encoding",
    "EncodingConfig",
    "Entry",
    "alibi_slopes",
    "build",
    "list_encodings",
    "list_scalings",
    "parse",
    "parse_per_head",
    "rope_frequencies",
    "rotary_pairs",
    "rotate",
    "sinusoidal_table",
    "t5_bucket",
]


class Entry(NamedTuple):
    """One line of the table."""

    config: type[EncodingConfig]
    encoding: type[Encoding]


ENCODINGS: dict[str, Entry] = {
    "none": Entry(NoneConfig, NoEncoding),
    "sinusoidal": Entry(SinusoidalConfig, Sinusoidal),
    "learned": Entry(LearnedConfig, Learned),
    "relative-table": Entry(RelativeTableConfig, RelativeTable),
    "t5": Entry(T5Config, T5),
    "alibi": Entry(AlibiConfig, Alibi),
    "kerple": Entry(KerpleConfig, Kerple),
    "fire": Entry(FireConfig, Fire),
    "cope": Entry(CopeConfig, Cope),
    "deberta": Entry(DebertaConfig, Deberta),
    "rope": Entry(RopeConfig, Rope),
    "xpos": Entry(XposConfig, Xpos),
    "pope": Entry(PopeConfig, Pope),
    "mla": Entry(MlaConfig, Mla),
    "published-mla": Entry(PublishedMlaConfig, PublishedMla),
}


def parse(text: str) -> EncodingConfig:
    """Read a setting string: `name`, `name:field=value,field=value`, or a sum `a+b` of those.

    Names may be written with `_` for `-`. Raises BadInput for an unknown name or option, with the nearest one there is.
    """
    # A plus sign joins two encodings only before a letter, so that `theta=1e+6` stays one number.
    parts = tuple(_parse_one(part.strip()) for part in re.split(r"\+(?=\s*[A-Za-z])", text))
    return parts[0] if len(parts) == 1 else CompositeConfig(parts)


def parse_per_head(text: str, heads: int) -> EncodingConfig:
    """Read a setting string of `parse`, or one that gives heads different encodings: `rope@0-3;none@4/5`.

    Heads are single numbers and ranges, joined by slashes; those not named have no encoding. Raises BadInput for a head
    that a model of `heads` heads has not, or that is named twice.
    """
    if "@" not in text:
        return parse(text)
    parts = []
    for piece in text.split(";"):
        name, at, where = piece.rpartition("@")
        if not at:
            raise BadInput(f"`{piece}` in `{text}` does not say which heads have it; write `{piece}@0-{heads - 1}`.")
        parts.append((parse(name.strip()), _head_numbers(where, text, heads)))
    return PerHeadConfig(tuple(parts))


def _head_numbers(where: str, text: str, heads: int) -> tuple[int, ...]:
    found: list[int] = []
    for item in where.split("/"):
        bounds = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", item)
        if bounds is None:
            raise BadInput(f"`{where}` in `{text}` names no heads; write numbers and ranges such as `0-3/6`.")
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last >= heads or first > last:
            raise BadInput(f"Heads {item} in `{text}` are not heads 0 to {heads - 1}; change them.")
        found.extend(range(first, last + 1))
    if len(set(found)) < len(found):
        raise BadInput(f"`{where}` in `{text}` names a head twice; keep one of them.")
    return tuple(found)


def _parse_one(text: str) -> EncodingConfig:
    key, options = split_text(text)
    if key not in ENCODINGS:
        raise BadInput(f"There is no encoding `{key}`; {suggestion(key, ENCODINGS)}")
    return ENCODINGS[key].config.from_options(options)


def build(
    encoding: str | EncodingConfig,
    *,
    d_model: int,
    heads: int,
    head_dim: int | None = None,
    max_length: int | None = None,
    causal: bool = True,
) -> Encoding:
    """Build an encoding from a setting string or a configuration, for a model of the given sizes.

    `head_dim` is d_model / heads unless given; `max_length` is needed by encodings with one row per position; `causal`
    says whether the model masks later keys, for encodings that have a form for either. Learned tables are drawn from
    torch's global generator. Raises BadInput for anything that does not fit.
    """
    config = parse_per_head(encoding, heads) if isinstance(encoding, str) else encoding
    if head_dim is None:
        if heads < 1 or d_model % heads:
            raise BadInput(f"A width of {d_model} does not divide into {heads} heads; change one, or give `head_dim`.")
        head_dim = d_model // heads
    return _build(config, Dimensions(d_model, heads, head_dim, max_length, causal))


def _build(config: EncodingConfig, dimensions: Dimensions) -> Encoding:
    if isinstance(config, CompositeConfig):
        return Composite(config, dimensions, [_build(part, dimensions) for part in config.parts])
    if isinstance(config, PerHeadConfig):
        return PerHead(config, dimensions, [_build(part, dimensions) for part, _ in config.parts])
    entry = ENCODINGS.get(config.name)
    if entry is None or not isinstance(config, entry.config):
        raise BadInput(f"{config!r} configures no encoding of the table; pass a name or one of its configurations.")
    return entry.encoding(config, dimensions)


def describe(cls: type[Encoding] | type[Settings]) -> dict[str, str]:
    """Summary, formula and source of a class, read from its docstring."""
    return labelled_paragraphs(cls, ("Formula", "Source"))


def list_encodings() -> list[dict[str, object]]:
    """Every encoding as a plain dict: name, kind, reference, learned, max_length, summary, formula, source, options.

    `max_length` is None where there is no limit and "as built" where the encoding keeps one row per position. `options`
    maps each setting to its default, as text.
    """
    rows: list[dict[str, object]] = []
    for name, (config, encoding) in ENCODINGS.items():
        about = describe(encoding)
        rows.append(
            {
                "name": name,
                "kind": encoding.kind,
                "reference": encoding.reference,
                "learned": encoding.learned,
                "max_length": "as built" if encoding.limited else None,
                "summary": about["summary"],
                "formula": about["formula"],
                "source": about["source"],
                "options": config.defaults(),
            }
        )
    return rows


def list_scalings() -> list[dict[str, object]]:
    """Every rotary schedule (`rope:scaling=name`) as a plain dict: name, summary, formula, source, options."""
    return [{"name": name, **describe(cls), "options": cls.defaults()} for name, cls in SCALINGS.items()]

"""Checks and spelling of settings (encodings, tasks): small frozen dataclasses, readable from and written as text.

A setting string is `name:field=value,field=value`; lists are written with slashes (`heads=0/3`), flags as
`true`/`false`, and "not set" as `none`. Everything here raises BadInput with one sentence.
"""

from __future__ import annotations

import difflib
import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from wherefrom.errors import BadInput

ConfigType = TypeVar("ConfigType", bound="Settings")


@dataclass(frozen=True, slots=True)
class Settings:
    """Base of every configuration in this package: frozen, checked on construction, with a name in a table."""

    name: ClassVar[str] = ""
    """The name under which the table of its kind knows it."""

    @classmethod
    def from_options(cls: type[ConfigType], options: Mapping[str, str]) -> ConfigType:
        """Build from `field -> text`. Raises BadInput for an unknown field or a value of the wrong kind."""
        values = read_options(cls, options)
        missing = [field.name for field in fields(cls) if _is_required(field) and field.name not in values]
        if missing:
            raise BadInput(f"`{cls.name}` needs a value for {', '.join(f'`{field}`' for field in missing)}; add it.")
        return cls(**values)

    @classmethod
    def defaults(cls) -> dict[str, str | None]:
        """Every setting with its default as text; None where a value must be given."""
        return {field.name: None if _is_required(field) else write_value(_default(field)) for field in fields(cls)}

    def options(self) -> dict[str, str]:
        """The settings that differ from their defaults, as text that `from_options` reads back."""
        changed = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if _is_required(field) or value != _default(field):
                changed[field.name] = write_value(value)
        return changed

    def spelling(self) -> str:
        """The shortest setting string that builds this configuration again."""
        options = ",".join(f"{key}={text}" for key, text in self.options().items())
        return f"{self.name}:{options}" if options else self.name


def split_text(text: str) -> tuple[str, dict[str, str]]:
    """The name in a setting string (lower case, `-` for `_`) and its options as text.

    Raises BadInput for an option that is not `field=value`, or is given twice.
    """
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in rest.split(","))):
        field, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not field or not value:
            raise BadInput(f"`{item}` in `{text}` is not a setting; write `field=value`.")
        if field in options:
            raise BadInput(f"`{text}` sets `{field}` twice; keep one of them.")
        options[field] = value
    return name.strip().lower().replace("_", "-"), options


def labelled_paragraphs(cls: type, labels: Iterable[str]) -> dict[str, str]:
    """The `summary` of a class, and the paragraphs of its docstring that begin with `<label>:`, keyed in lower case."""
    paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(cls) or "").split("\n\n")]
    found = {"summary": paragraphs[0]}
    for label in labels:
        matching = [part for part in paragraphs if part.startswith(f"{label}: ")]
        found[label.lower()] = matching[0].removeprefix(f"{label}: ") if matching else ""
    return found


def read_options(cls: type[Settings], options: Mapping[str, str]) -> dict[str, Any]:
    """The values of `field -> text` in the types that the fields of `cls` declare."""
    hints = typing.get_type_hints(cls)
    known = [field.name for field in fields(cls)]
    for key in options:
        if key not in known:
            raise BadInput(unknown_option(cls.name, key, known))
    return {key: read_value(cls.name, key, text, hints[key]) for key, text in options.items()}


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def unknown_option(owner: str, key: str, known: Iterable[str]) -> str:
    """The sentence for an option that does not exist, with the nearest one that does."""
    known = list(known)
    if not known:
        return f"`{owner}` takes no options, so `{key}` cannot be set; leave it out."
    return f"`{owner}` has no option `{key}`; {suggestion(key, known)}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` where something is near, the whole list where nothing is."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean `{near[0]}`?" if near else f"use one of {', '.join(f'`{name}`' for name in known)}."


def read_value(owner: str, key: str, text: str, hint: Any) -> Any:
    """Read one value of the type `hint` (int, float, bool, str, a Literal, a tuple of numbers, or None of them)."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if text.lower() == "none":
            return None
        return read_value(owner, key, text, next(kind for kind in get_args(hint) if kind is not type(None)))
    if origin is Literal:
        return text
    if origin is tuple:
        return tuple(read_value(owner, key, part, get_args(hint)[0]) for part in text.split("/"))
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise BadInput(f"`{key}` of `{owner}` is `{text}`, but it is a switch; write `true` or `false`.")
        return text.lower() == "true"
    try:
        return hint(text)
    except ValueError:
        wanted = "a whole number" if hint is int else "a number"
        raise BadInput(f"`{key}` of `{owner}` is `{text}`, but it must be {wanted}; change it.") from None


def write_value(value: Any) -> str:
    """The text that `read_value` turns back into `value`."""
    if isinstance(value, Settings):
        return value.name
    if isinstance(value, tuple):
        return "/".join(write_value(part) for part in value)
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def check_choice(owner: str, key: str, value: object, choices: Iterable[str]) -> None:
    """Raise BadInput unless `value` is one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise BadInput(f"`{key}` of `{owner}` is `{value}`; {suggestion(str(value), choices)}")


def check_count(owner: str, key: str, value: object, least: int = 1, even: bool = False) -> None:
    """Raise BadInput unless `value` is a whole number of at least `least` (and even, where asked)."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not good or (even and value % 2):  # type: ignore[operator]
        wanted = f"an even number of at least {least}" if even else f"a whole number of at least {least}"
        raise BadInput(f"`{key}` of `{owner}` is {value}, but it must be {wanted}; change it.")


def check_number(owner: str, key: str, value: object, above: float = 0.0, least: float | None = None) -> None:
    """Raise BadInput unless `value` is finite and greater than `above` (or at least `least`, where given)."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if good and least is not None:
        good = value >= least  # type: ignore[operator]
    elif good:
        good = value > above  # type: ignore[operator]
    if not good:
        wanted = f"at least {least:g}" if least is not None else f"greater than {above:g}"
        raise BadInput(f"`{key}` of `{owner}` is {value}, but it must be a finite number {wanted}; change it.")

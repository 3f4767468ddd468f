"""Typed settings from YAML and `key.path=value` overrides: strict, with the nearest valid name in every error. No
interpolation, no look-ups in the environment, no imports by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from unmask.errors import SettingsError
from unmask.yaml_text import dump_yaml, parse_yaml, show


class Settings(BaseModel):
    """Base of a recipe's settings classes: immutable, numbers finite, and an unknown key is an error. (The sizes of a
    model have another base, so that a model opens without what reads YAML.)"""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    def as_written(self) -> dict[str, Any]:
        """What a file of these settings says, as values of JSON: every key."""
        return self.model_dump(mode="json")

    def as_compared(self) -> dict[str, Any]:
        """What decides a run, as values of JSON: every key that has an effect."""
        return self.model_dump(mode="json")


AnySettings = TypeVar("AnySettings", bound=Settings)


@dataclass(frozen=True)
class OneOf:
    """Marks a field whose settings are of one of several classes, which its key `name` distinguishes.

    Attributes:
        members: gives the classes by name, whenever settings are built; the first is meant where there is no name.
        what: they are of, for messages.
        called_otherwise: what people also write for a name, in lower case -> the settings that are meant.
    """

    members: Callable[[], Mapping[str, type[BaseModel]]]
    what: str
    called_otherwise: Mapping[str, str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._build, handler(source))

    def _build(self, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        members = self.members()
        name = values.get("name", next(iter(members)))
        if not isinstance(name, str) or name not in members:
            meant = self.called_otherwise.get(str(name).lower())
            hint = f"; did you mean {meant}?" if meant else nearest(str(name), list(members))
            raise ValueError(f"there is no {self.what} {name!r}{hint}")
        return members[name].model_validate(values)


_MOST_BYTES = 10_000_000
"""Of a file of settings: parsed, YAML takes a hundred times that of memory."""


def read_settings_file(path: Path) -> dict[str, Any]:
    """Reads a YAML file of settings as nested dictionaries of text.

    Raises:
        SettingsError: the file is missing, is not UTF-8, is not YAML (line and column named), or is not a mapping.
    """
    try:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise SettingsError(f"{path}: {size:,} bytes; expected a recipe, of at most {_MOST_BYTES:,}")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 at byte {error.start}: save the recipe as UTF-8") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}): expected a recipe in YAML") from error
    values = parse_yaml(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected `key: value` lines, found {type(values).__name__}")
    return values


Overrides = Sequence[str] | Mapping[str, Any]
"""Settings over those of a recipe: `key.path=value` words, or a dictionary of such paths, whose values may be nested
dictionaries."""


def parse_overrides(overrides: Overrides) -> dict[str, Any]:
    """Turns `key.path=value` words, or a dictionary whose own keys may be such paths, into nested dictionaries.

    The value of a word is taken as text, unless it is empty or `null`, or is a list, a mapping or quoted text in YAML's
    syntax. A part of the path that is a whole number may mean an element of a list; `merge` decides.

    Raises:
        SettingsError: a word has no `=`, or contradicts another word.
    """
    if isinstance(overrides, str | bytes) or not isinstance(overrides, Iterable):
        raise SettingsError(f"{overrides!r}: expected a list of key=value, or a dictionary")
    values: dict[str, Any] = {}
    words = list(overrides)
    pairs = _flat(overrides) if isinstance(overrides, Mapping) else map(_read_word, words, ["", *words])
    for keys, value in pairs:
        path, *parents, last = ".".join(keys), *keys
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise SettingsError(f"'{path}={value}': {parent} was given a value of its own before")
        if last in place:
            raise SettingsError(f"{path} is given twice: keep one")
        place[last] = value
    return values


def _read_word(word: str, before: str) -> tuple[Sequence[str], Any]:
    path, equals, text = word.partition("=") if isinstance(word, str) else ("", "", "")
    if not equals or not path:
        hint = f"; quotes are for a value with blanks ('{before} {word}'), brackets for several ('key=[a, b]')"
        raise SettingsError(f"{word!r}: expected key=value, such as train.steps=1000{hint if before else ''}")
    text = text.strip()
    is_yaml = text in ("", "~", "null", "Null", "NULL") or text[0] in "[{\"'"
    return path.split("."), parse_yaml(text, word) if is_yaml else text


def _flat(values: Mapping[str, Any], above: Sequence[str] = ()) -> Iterator[tuple[Sequence[str], Any]]:
    """Every value that is no dictionary, with the keys that lead to it. Only the outermost are paths: further in, a key
    may be a label, which has dots of its own."""
    for key, value in values.items():
        keys = [*above, str(key)] if above else str(key).split(".")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, keys)
        else:
            yield keys, _paths_as_text(value)


def _paths_as_text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_paths_as_text(element) for element in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def merge(
    under: Mapping[str, Any], over: Mapping[str, Any], alternatives: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Lays `over` on `under`, key by key.

    Args:
        under: nested dictionaries.
        over: nested dictionaries whose values win. Where a list lies under a dictionary, its keys are the numbers of
            elements, from 0: `phases.0.max_length=64` on a command line changes the first of the recipe's phases.
        alternatives: groups of dotted keys that exclude each other: one in `over` removes the others from `under`, so
            that `train.tokens=...` on a command line replaces the recipe's `train.steps`.

    Raises:
        SettingsError: a list has no such element.
    """
    merged = _copy(under)
    for group in alternatives:
        if any(_get(over, key) is not None for key in group):
            for key in group:
                _remove(merged, key)
    _lay(merged, over)
    return merged


def build_settings(cls: type[AnySettings], values: Mapping[str, Any], origin: str) -> AnySettings:
    """Builds typed settings from nested dictionaries.

    Args:
        cls: the settings class.
        values: nested dictionaries of text.
        origin: where the values came from, named first in an error message.

    Raises:
        SettingsError: an unknown key (the nearest valid one is named), a value of another type or outside its range, or
            a contradiction; all of them at once.
    """
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise SettingsError(f"{origin}: " + "\n  ".join(_complaints(error, cls))) from error


def as_settings(cls: type[AnySettings], values: AnySettings | Mapping[str, Any], origin: str) -> AnySettings:
    """The settings, built where they are a dictionary; see `build_settings`."""
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise SettingsError(f"{origin}: {values!r} is no {cls.__name__}: expected one, or a dictionary")
    return build_settings(cls, values, origin)


def dump_settings(settings: Settings) -> str:
    """The settings as YAML that `build_settings` reads back equal."""
    return dump_yaml(settings.as_written())


def as_given(part: Any) -> Any:
    """Settings read from a resolved recipe, which writes every key out: keys at their default are marked as not given,
    since the user may never have chosen them. Anything else is returned unchanged."""
    if not isinstance(part, BaseModel) or part.model_fields_set != type(part).model_fields.keys():
        return part
    return type(part).model_validate(part.model_dump(exclude_defaults=True))


def valid_keys(cls: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key that a settings class knows, those of inner classes included."""
    for name, field in cls.model_fields.items():
        yield prefix + name
        for inner in _settings_of(field):
            yield from valid_keys(inner, f"{prefix}{name}.")


def changed_keys(before: Settings, after: Settings) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, in the order of the settings class, each with both values."""
    return dict(_differences(before.as_compared(), after.as_compared(), ""))


KEYS_ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("mask_prob", "masking_prob", "mask_probability", "masked_lm_prob"), "target_prob"),
    **dict.fromkeys(("mlm_prob", "mlm_probability"), "target_prob"),
    "lr": "learning_rate",
    "warmup_proportion": "warmup_ratio",
    "seq_length": "max_length",
    **dict.fromkeys(("entities", "spans"), "tags"),
}
"""The last part of a key as other programs call it -> what it is called here."""


def nearest(name: str, valid: Sequence[str]) -> str:
    """Suggests what was probably meant by a key or name, as the end of a message.

    In this order: as other programs call it, the same word elsewhere (`train.eval_every` for `eval.every`), one like
    it here, a longer one here or in the one place that has any, a very similar one elsewhere, all keys here.
    """
    place, _, leaf = name.rpartition(".")
    parent = ".".join(part for part in place.split(".") if not part.isdigit())  # elements of a list have the same keys
    parts = {key: key.rpartition(".")[::2] for key in valid}
    theirs = [key for key, (_, last) in parts.items() if last == KEYS_ELSEWHERE.get(leaf)]
    same = [key for key, (_, last) in parts.items() if last in (leaf, name.replace(".", "_"))]
    beside = {last: f"{place}.{last}" if place else last for its, last in parts.values() if its == parent}
    anywhere = {last: key for key, (_, last) in reversed(parts.items())}
    places = ((beside, 0.6), (anywhere, 0.8 if place else 0.6))
    similar = [[keys[match] for match in difflib.get_close_matches(leaf, keys, 1, cutoff)] for keys, cutoff in places]
    longer = [key for key, (_, last) in parts.items() if {*leaf.split("_")} <= {*last.split("_")}]
    if len({parts[key][0] for key in longer}) > 1:
        longer = [beside[parts[key][1]] for key in longer if parts[key][0] == parent]
    meant = list(dict.fromkeys(theirs[:1] + (same + similar[0] + longer + similar[1])[:1]))
    others = f"; expected one of {', '.join(beside.values())}" if beside else ""
    return f"; did you mean {' or '.join(meant)}?" if meant else others


_EXPECTED = {
    **dict.fromkeys(("int_parsing", "int_parsing_size", "int_type", "int_from_float"), "a whole number, such as 1000"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("list_type", "tuple_type"), "a list, such as [a, b]"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "`key: value` lines under it"),
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} values",
    "too_long": "at most {max_length} values",
}
"""What was expected, by pydantic's name for the problem, to be filled in with its figures."""


def _complaints(error: ValidationError, cls: type[BaseModel]) -> list[str]:
    """One line for each key at fault: its name, its value, and what was expected."""
    valid = sorted(valid_keys(cls))
    problems = [(_dotted(problem["loc"], problem["type"]), problem) for problem in error.errors()]
    lines: list[str] = []
    expected: dict[str, list[str]] = {}  # a value that may be of several types is refused by each of them
    for key, problem in problems:
        kind = problem["type"]
        if kind == "extra_forbidden":
            if key in valid and "." in str(problem["loc"][-1]):
                nested = key.replace(".", ": {") + ": ..." + "}" * key.count(".")
                lines.append(f"{key}: one key with dots in it: write `{nested}`")
            elif key in valid:  # a key of another member of a union
                choice, values = _choice_of(cls, key)
                lines.append(f"{key} belongs to {choice}={' or '.join(values)}: leave it out, or change {choice}")
            else:
                lines.append(f"unknown key {key}{nearest(key, valid)}")
        elif kind == "value_error":
            lines.append(f"{key}: {problem['ctx']['error']}" if key else str(problem["ctx"]["error"]))
        elif kind == "missing":
            in_list = isinstance(problem["loc"][-1], int)
            lines.append(f"{key} is missing: expected more values in the list" if in_list else f"{key} is required")
        elif not any(other.startswith(f"{key}.") for other, _ in problems):
            wanted = _EXPECTED.get(kind, problem["msg"]).format(**problem.get("ctx", {})).replace("'", "")
            expected.setdefault(f"{key}={show(problem['input'])}", []).append(wanted)
    return lines + [f"{value}: expected {' or '.join(wanted)}" for value, wanted in expected.items()]


def _dotted(parts: Sequence[str | int], kind: str) -> str:
    """The key of a problem, without the names of union members that pydantic puts in between (keys are lower case)."""
    given = [parts[-1]] if kind == "extra_forbidden" else []  # an unknown key may be spelt in any way
    known = [part for part in parts[: len(parts) - len(given)] if isinstance(part, int) or _is_key(part)]
    return ".".join(map(str, known + given))


def _is_key(part: str) -> bool:
    return part.replace("_", "").isalnum() and part.islower() and part not in ("str", "int", "float")


def _choice_of(cls: type[BaseModel], key: str) -> tuple[str, list[str]]:
    """For a key that only some members of a union have: the key that distinguishes members, and its values in these."""
    *parents, leaf = key.split(".")
    members = [cls]
    for parent in parents:
        fields = [member.model_fields[parent] for member in members if parent in member.model_fields]
        members = [inner for field in fields for inner in _settings_of(field)]
    owners = [member for member in members if leaf in member.model_fields]
    for name in owners[0].model_fields:
        fields_of = {member: member.model_fields[name] for member in members if name in member.model_fields}
        choices = {of: field.examples or get_args(field.annotation) for of, field in fields_of.items()}
        values = [value for of_member in choices.values() for value in of_member]
        if len(choices) == len(members) and all(choices.values()) and len(values) == len(set(values)):
            return ".".join([*parents, name]), [value for owner in owners for value in choices[owner]]
    raise AssertionError(f"nothing distinguishes the settings that {key} may belong to")


def _settings_of(field: FieldInfo) -> Iterator[type[BaseModel]]:
    """The classes that a field's settings may be of."""
    choices = [mark for mark in field.metadata if isinstance(mark, OneOf)]
    yield from choices[0].members().values() if choices else _settings_inside(field.annotation)


def _settings_inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _settings_inside(argument)


def _differences(first: Any, second: Any, key: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in {**first, **second}:
            yield from _differences(first.get(name), second.get(name), f"{key}.{name}" if key else name)
    elif first != second:
        yield key, (first, second)


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _lay(under: dict[str, Any], over: Mapping[str, Any], prefix: str = "") -> None:
    for key, value in over.items():
        below = under.get(key)
        if isinstance(value, Mapping) and isinstance(below, dict):
            _lay(below, value, f"{prefix}{key}.")
        elif isinstance(value, Mapping) and isinstance(below, list) and value:
            under[key] = _lay_on_elements(below, value, prefix + key)
        else:
            under[key] = _copy(value) if isinstance(value, Mapping) else value


def _lay_on_elements(under: list[Any], over: Mapping[str, Any], key: str) -> list[Any]:
    """The list with some of its elements, by number, overridden."""
    elements = _copy({str(number): element for number, element in enumerate(under)})
    if beyond := [number for number in over if number not in elements]:
        last = len(under) - 1
        held = {0: "no values", 1: f"1 value, {key}.0"}.get(len(under), f"{last + 1} values, {key}.0 to {key}.{last}")
        more = " to add one" if under else ""
        raise SettingsError(f"{key}.{beyond[0]}: {key} holds {held}; give all of them{more}, {key}=[...]")
    _lay(elements, over, f"{key}.")
    return list(elements.values())


def _get(values: Mapping[str, Any], key: str) -> Any:
    place: Any = values
    for part in key.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return None
        place = place[part]
    return place


def _remove(values: dict[str, Any], key: str) -> None:
    parents, _, last = key.rpartition(".")
    place = _get(values, parents) if parents else values
    if isinstance(place, dict):
        place.pop(last, None)

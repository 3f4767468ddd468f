"""Typed settings from YAML and `key.path=value` overrides: strict, with the nearest valid name in every refusal.

YAML's own typing is not used, since it reads `1e-4` as a string and `no` as false: every scalar but null stays text
until the declared type of its field builds it. No interpolation, no look-ups in the environment, no imports by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import SettingsError


class Settings(BaseModel):
    """Base of every settings class: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


AnySettings = TypeVar("AnySettings", bound=Settings)


class _TextLoader(yaml.SafeLoader):
    """Reads every scalar as text but null, and refuses a key given twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012  PyYAML's own name
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_settings_file(path: Path) -> dict[str, Any]:
    """Reads a YAML file of settings as nested dictionaries of text.

    Raises:
        SettingsError: the file is missing, is not UTF-8, is not YAML (line and column named), or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 at byte {error.start}: save the recipe as UTF-8") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}): expected a recipe in YAML") from error
    values = _parse_yaml(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected `key: value` lines, found {type(values).__name__}")
    return values


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Turns `key.path=value` words into nested dictionaries; a value may be YAML, such as `[0.9, 0.98]` or `null`.

    Raises:
        SettingsError: a word has no `=`, or contradicts another one.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise SettingsError(f"{override!r}: expected key=value, such as train.steps=1000")
        *parents, last = path.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise SettingsError(f"{override!r}: {parent} was given a value of its own before")
        if last in place:
            raise SettingsError(f"{path} is given twice on the command line: keep one")
        place[last] = _parse_yaml(text, override)
    return values


def merge(
    under: Mapping[str, Any], over: Mapping[str, Any], alternatives: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Lays `over` on `under`, key by key.

    Args:
        under: nested dictionaries.
        over: nested dictionaries whose values win.
        alternatives: groups of dotted keys of which one is given: a member in `over` removes the others from `under`,
            so that `train.tokens=...` on a command line takes the place of the recipe's `train.steps`.
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
        origin: what the values came from, named first in a refusal.

    Raises:
        SettingsError: an unknown key (the nearest valid one is named), a value of another type or outside its range, or
            a contradiction; all of them at once.
    """
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        valid = sorted(valid_keys(cls))
        complaints = [_describe(dict(problem), valid) for problem in error.errors()]
        raise SettingsError(f"{origin}: " + "\n  ".join(dict.fromkeys(complaints))) from error


def dump_settings(settings: Settings) -> str:
    """The settings as YAML that `build_settings` reads back equal."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def valid_keys(cls: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key that a settings class knows, inner ones too."""
    for name, field in cls.model_fields.items():
        yield prefix + name
        for inner in _settings_inside(field.annotation):
            yield from valid_keys(inner, f"{prefix}{name}.")


def changed_keys(before: Settings, after: Settings) -> list[str]:
    """The dotted keys whose values differ, in the order of the settings class."""
    first, second = before.model_dump(mode="json"), after.model_dump(mode="json")
    return list(_differences(first, second, ""))


def nearest(name: str, valid: Sequence[str]) -> str:
    """`; did you mean ...?`, or nothing where no valid name is near."""
    leaf_matches = [key for key in valid if key.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    matches = leaf_matches or difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if not matches:
        leaves: dict[str, str] = {key.rsplit(".", 1)[-1]: key for key in reversed(valid)}
        matches = [leaves[leaf] for leaf in difflib.get_close_matches(name.rsplit(".", 1)[-1], leaves, n=1, cutoff=0.6)]
    return f"; did you mean {matches[0]}?" if matches else ""


def _parse_yaml(text: str, origin: str) -> Any:
    try:
        return yaml.load(text, Loader=_TextLoader)
    except yaml.YAMLError as error:
        raise SettingsError(f"{origin}: not valid YAML: {' '.join(str(error).split())}") from error


def _describe(problem: dict[str, Any], valid: Sequence[str]) -> str:
    key = ".".join(str(part) for part in problem["loc"] if _is_key(part))
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key}{nearest(key, valid)}"
    if problem["type"] == "missing":
        return f"{key} is required"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}={problem['input']!r}: {message[0].lower()}{message[1:]}"


def _is_key(part: str | int) -> bool:
    """Pydantic puts the names of a union's members between the keys; ours are never capitalised or bracketed."""
    return isinstance(part, int) or (
        part.replace("_", "").isalnum() and part.islower() and part not in ("str", "int", "float")
    )


def _settings_inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _settings_inside(argument)


def _differences(first: Any, second: Any, key: str) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in {**first, **second}:
            yield from _differences(first.get(name), second.get(name), f"{key}.{name}" if key else name)
    elif first != second:
        yield key


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _lay(under: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(under.get(key), dict):
            _lay(under[key], value)
        else:
            under[key] = _copy(value) if isinstance(value, Mapping) else value


def _get(values: Mapping[str, Any], key: str) -> Any:
    place: Any = values
    for part in key.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return None
        place = place[part]
    return place


def _remove(values: dict[str, Any], key: str) -> None:
    *parents, last = key.split(".")
    place: Any = values
    for parent in parents:
        place = place.get(parent)
        if not isinstance(place, dict):
            return
    place.pop(last, None)

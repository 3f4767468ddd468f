"""YAML whose scalars stay text.

YAML's own typing is not used, since it reads `1e-4` as a string and `no` as false: every scalar but null stays text
until the declared type of its field builds it. No aliases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from unmask.errors import SettingsError


class _TextLoader(yaml.SafeLoader):
    """Reads every scalar but null as text, and refuses aliases, keys that are not names, and a key given twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012  PyYAML's own name
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012  as above
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(f"tag:yaml.org,2002:{kind}" for kind in ("null", "str", "seq", "map")))
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not read: write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or not key:
                problem = f"{show(key)} cannot be a key: expected a name"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _TextDumper(yaml.SafeDumper):
    """Writes line breaks of every kind as escapes: some would come back changed in YAML's other styles."""

    def represent_text(self, text: str) -> yaml.Node:
        has_breaks = any(character in "\n\r\x85\u2028\u2029" for character in text)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if has_breaks else None)


_TextDumper.add_representer(str, _TextDumper.represent_text)


def parse_yaml(text: str, origin: str) -> Any:
    """The content of a YAML document, every scalar but null as text.

    Args:
        origin: where it came from, named first in an error message.

    Raises:
        SettingsError: it is not valid YAML; the place is named.
    """
    try:
        return yaml.load(text, Loader=_TextLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(f"{origin}{place}: not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingsError(f"{origin}, line {line}: not valid YAML: a character that it does not allow") from error
    except RecursionError as error:
        raise SettingsError(f"{origin}: brackets within brackets, too deep to be settings") from error
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{origin}: not valid YAML: a number in it is out of range ({error})") from error


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Values of JSON as YAML that `parse_yaml` reads back, as text."""
    return yaml.dump(values, Dumper=_TextDumper, sort_keys=False, allow_unicode=True)


def show(value: Any) -> str:
    """A value as one would write it on a command line."""
    if value is None or value == "":
        return "null" if value is None else "''"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(show, value)) + "]"
    return str(value)

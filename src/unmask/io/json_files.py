"""JSON files, read whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import InputError, UserError
from unmask.io.encodings import LFS_POINTER
from unmask.io.writing import refuse_special

if TYPE_CHECKING:
    from unmask.io.encodings import NumberedLines
    from unmask.io.input_files import InputFiles

MOST_BYTES = 100_000_000
"""Of a small JSON file: a tokenizer of 256,000 entries has 35 MB. Parsed, it takes several times that."""


def load_json(lines: NumberedLines, name: str) -> Any:
    """The value that a JSON file of examples holds.

    Raises:
        InputError: it is not JSON; names the place. Or as the lines do.
    """
    try:
        return json.loads("".join(line for _, line in lines))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: not JSON ({error}): expected a whole JSON file; repair it, or fetch or make it again"
        ) from error


def load_list(file: InputFiles, key: str) -> list[Any]:
    """The list under a key of the object that a published file holds.

    Raises:
        InputError: as `load_json`, or there is no such list.
    """
    value = load_json(file.lines(), str(file))
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise InputError(f"{file}: no list under the key {key!r}: expected a published data set; found {shown(value)}")
    return found


def begins_as_list(lines: NumberedLines) -> bool:
    """Whether JSON holds a list rather than an object; raises InputError as the lines do."""
    return next((line.lstrip() for _, line in lines if not line.isspace()), "").startswith("[")


def shown(value: Any) -> str:
    """The beginning of a value as JSON, for messages."""
    return json.dumps(value, ensure_ascii=False, default=str)[:60]


def no_object(value: Any) -> str:
    """What is wrong with a JSON value that is no row."""
    return f'expected a JSON object, such as {{"text": "..."}}; found {shown(value)}'


def check_size(path: Path, error: type[UserError]) -> None:
    """Raises `error` if a file that is to be read whole has over `MOST_BYTES`, or is a device, a pipe or a socket."""
    refuse_special(path, error)
    if (size := path.stat().st_size) > MOST_BYTES:
        raise error(
            f"{path}: {size:,} bytes; expected at most {MOST_BYTES:,}: read whole, it would take several times that of "
            "memory; get it again from where it came"
        )


def read_object(path: Path, error: type[UserError] = InputError) -> dict[str, Any]:
    """The object that a small JSON file holds.

    Raises:
        error: the file cannot be read, has over `MOST_BYTES`, is not JSON, or holds something else.
    """
    try:
        check_size(path, error)
        content = path.read_bytes()
        value = json.loads(content)
    except OSError as cause:
        raise error(f"{path}: cannot be read ({cause.strerror})") from cause
    except (ValueError, RecursionError) as cause:
        if content.startswith(LFS_POINTER.encode()):
            message = f"{path} is a pointer of Git LFS, not the file: fetch it with `git lfs pull` in that clone"
            raise error(message) from cause
        raise error(f"{path}: not JSON ({cause}); is the file complete?") from cause
    if not isinstance(value, dict):
        raise error(f"{path}: expected a JSON object, found a {type(value).__name__}")
    return value

"""JSON files read only as far as needed: the elements of an array need not fit in memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from unmask.errors import InputError, UserError
from unmask.io.encodings import LFS_POINTER
from unmask.io.rows import Row
from unmask.io.writing import refuse_special

if TYPE_CHECKING:
    from unmask.io.input_files import InputFiles

_CHUNK_BYTES = 2**20
MOST_BYTES = 100_000_000
"""Of a JSON file that is read whole: a tokenizer of 256,000 entries has 35 MB. Parsed, it takes several times that."""
_BLANK = re.compile(r"[ \t\r\n]*")
_DELIMITERS = frozenset(" \t\r\n,:]}")
_DECODER = json.JSONDecoder()


class JsonText:
    """A text that is read only as far as needed.

    Args:
        file: UTF-8.
        by_line: True: messages name lines, for files of many lines; False: characters.

    Raises (when read):
        InputError: it is not UTF-8 or not JSON; names the place.
    """

    def __init__(self, file: IO[bytes], name: str, by_line: bool = False) -> None:
        self._file = file
        self._name = name
        self._by_line = by_line
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._held = ""
        self._at = 0  # characters of `_held` already consumed
        self._dropped = 0  # characters before `_held`
        self._line, self._counted = 1, 0  # the line of `_held[_counted]`
        self._ended = False

    @property
    def line(self) -> int:
        """The line of what comes next."""
        self.peek()
        return self._line_of(self._at)

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            self._at = _BLANK.match(self._held, self._at).end()  # type: ignore[union-attr]  # matches everywhere
            if self._at < len(self._held) or self._ended:
                return self._held[self._at : self._at + 1]
            self._read()

    def expect(self, character: str, what: str) -> None:
        """Consumes one character, which has to be `character`."""
        if self.peek() != character:
            found = self._held[self._at : self._at + 20]
            raise self._fault(self._at, f"expected {what}, found {found!r}" if found else f"it ends before {what}")
        self._at += 1

    def value(self) -> Any:
        """Consumes and returns one JSON value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self._at)
                if self._ended or self._held[end : end + 1] in _DELIMITERS:  # else a number may continue
                    self._at = end
                    return value
            except (ValueError, RecursionError) as error:
                if self._ended:
                    place = self._at if self._by_line else getattr(error, "pos", self._at)
                    where = " in what begins here" if self._by_line else ""
                    raise self._fault(place, f"not JSON{where} ({getattr(error, 'msg', error)})") from error
            self._read()

    def elements(self, what: str) -> Iterator[Any]:
        """The elements of an array."""
        self.expect("[", what)
        if self.peek() != "]":
            yield self.value()
            while self.peek() != "]":
                self.expect(",", "a comma or the end of the array")
                yield self.value()
        self._at += 1

    def _read(self) -> None:
        """Reads at least as much again as is held, so that parsing a long value is retried only a few times."""
        self._line_of(self._at)
        self._counted = 0
        self._held, self._dropped, self._at = self._held[self._at :], self._dropped + self._at, 0
        piece = self._file.read(max(_CHUNK_BYTES, len(self._held)))
        self._ended = not piece
        try:
            self._held += self._decoder.decode(piece, final=self._ended)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise self._fault(len(self._held) + error.start, f"not UTF-8 near here (0x{byte:02x})") from error

    def _line_of(self, place: int) -> int:
        self._line += self._held.count("\n", self._counted, place)
        self._counted = place
        return self._line

    def _fault(self, place: int, what: str) -> InputError:
        where = f":{self._line_of(place)}" if self._by_line else f": at character {self._dropped + place + 1:,}"
        return InputError(
            f"{self._name}{where}: {what}: expected a whole JSON file in UTF-8; repair it, or fetch it again"
        )


def read_elements(file: InputFiles, keys: Sequence[str]) -> Iterator[Any]:
    """Streams the elements of the array under one of some keys of a file's single top-level object.

    Args:
        keys: the first one in the file is read.

    Raises:
        InputError: the file is not UTF-8, not JSON, or has no such array; names the character.
    """
    with file.open() as stream:
        text = JsonText(stream, str(file))
        text.expect("{", "a JSON object")
        while text.peek() != "}":
            key = text.value()
            text.expect(":", "a colon after a key")
            if key in keys:
                yield from text.elements(f"an array under {key!r}")
                return
            text.value()
            if text.peek() != ",":
                break
            text.expect(",", "a comma")
    raise InputError(f"{file}: no array under the key {' or '.join(map(repr, keys))}: expected a published data set")


def begins_as_list(file: InputFiles) -> bool:
    """Whether a JSON file holds a list rather than an object; raises InputError if it is not UTF-8."""
    with file.open() as stream:
        return JsonText(stream, str(file)).peek() == "["


def read_json(file: IO[bytes], name: str) -> Iterator[Row]:
    """The objects of a JSON list; also consecutive objects, since some JSON Lines files are called `.json`.

    Raises:
        InputError: as `read_rows`.
    """
    text = JsonText(file, name, by_line=True)
    in_list = text.peek() == "["
    if in_list:
        text.expect("[", "a list")
    while text.peek() and not (in_list and text.peek() == "]"):
        place = f"{name}:{text.line}"
        value = text.value()
        if not isinstance(value, dict):
            raise InputError(f"{place}: {no_object(value)}")
        yield Row(value, place)
        if in_list and text.peek() not in ("]", ""):
            text.expect(",", "a comma or the end of the list behind the object")
    if in_list:
        is_ended = text.peek() == "]"
        if is_ended:
            text.expect("]", "the end")
        if not is_ended or text.peek():
            raise InputError(f"{name}: not JSON: the list does not end where the file does; fetch or make it again")


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

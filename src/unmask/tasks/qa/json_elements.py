"""Streams the elements of one array in a JSON file: a data set that is one JSON object need not fit in memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from unmask.errors import InputError
from unmask.io.reading import open_input

_CHUNK_BYTES = 2**20
_BLANK = re.compile(r"[ \t\r\n]*")
_DELIMITERS = frozenset(" \t\r\n,:]}")
_DECODER = json.JSONDecoder()


def read_elements(path: Path, keys: Sequence[str]) -> Iterator[Any]:
    """Streams the elements of the array under one of some keys of the file's single top-level object.

    Args:
        path: JSON, plain or compressed.
        keys: the first one in the file is read.

    Raises:
        InputError: the file is missing, not UTF-8, not JSON, or has no such array; names the character position.
    """
    with open_input(path) as file:
        text = _Text(file, path)
        text.expect("{", "a JSON object")
        if text.peek() != "}":
            while True:
                key = text.value()
                text.expect(":", "a colon after a key")
                if key in keys:
                    yield from _array(text, f"an array under {key!r}")
                    return
                text.value()
                if text.peek() != ",":
                    break
                text.expect(",", "a comma")
    raise InputError(f"{path}: no array under the key {' or '.join(map(repr, keys))}: expected a published data set")


def begins_as_list(path: Path) -> bool:
    """Whether a JSON file holds a list rather than an object.

    Raises:
        InputError: the file is missing, or not UTF-8.
    """
    with open_input(path) as file:
        return _Text(file, path).peek() == "["


def _array(text: _Text, what: str) -> Iterator[Any]:
    text.expect("[", what)
    if text.peek() == "]":
        return
    while True:
        yield text.value()
        if text.peek() == "]":
            return
        text.expect(",", "a comma or the end of the array")


class _Text:
    """A text that is read only as far as needed."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._held = ""
        self._at = 0  # characters of `_held` already consumed
        self._dropped = 0  # characters before `_held`
        self._ended = False

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
                if self._ended or self._held[end : end + 1] in _DELIMITERS:  # else a number may go on
                    self._at = end
                    return value
            except (ValueError, RecursionError) as error:
                if self._ended:
                    place = getattr(error, "pos", self._at)
                    raise self._fault(place, f"not JSON ({getattr(error, 'msg', error)})") from error
            self._read()

    def _read(self) -> None:
        """Reads at least as much again as is held, so that parsing a long value is retried only a few times."""
        self._held, self._dropped, self._at = self._held[self._at :], self._dropped + self._at, 0
        piece = self._file.read(max(_CHUNK_BYTES, len(self._held)))
        self._ended = not piece
        try:
            self._held += self._decoder.decode(piece, final=self._ended)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise self._fault(len(self._held) + error.start, f"not UTF-8 near here (0x{byte:02x})") from error

    def _fault(self, place: int, what: str) -> InputError:
        return InputError(
            f"{self._path}: at character {self._dropped + place + 1:,}: {what}: expected a whole JSON file in UTF-8; "
            "repair it, or fetch it again"
        )

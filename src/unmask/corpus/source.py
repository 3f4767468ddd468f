"""One corpus file while it is read: its bytes, its name, and how records that cannot be read are handled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO

from unmask.corpus.documents import CorpusCounts
from unmask.corpus.settings import ReadingSettings
from unmask.errors import InputError
from unmask.io.encodings import lines_of, read_utf8_lines
from unmask.io.input_files import STANDARD_INPUT

LONG_LINE_BYTES = 1_000_000
"""Lines longer than this many bytes are counted as long: they are read, but are rarely intended."""


def name_of(path: Path) -> str:
    """The name of a file, before the `:line` in the places of its documents."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def names_of(files: Sequence[Path]) -> str:
    """Files as a message names them: the first, and how many more."""
    more = f" and {len(files) - 1} more file(s)" if len(files) > 1 else ""
    return f"{name_of(files[0])}{more}"


@dataclass
class CorpusFile:
    """A corpus file that is being read."""

    path: Path  # `-` for standard input
    settings: ReadingSettings  # how it becomes documents
    counts: CorpusCounts  # the statistics to keep
    stream: IO[bytes] = field(init=False)  # its bytes, decompressed, once it is open
    compressed: bool = False  # True if the file is compressed
    head: Iterable[bytes] = ()  # the first lines, already read from the stream to inspect them
    # the numbers of lines that do not decode, as far as `lines` has passed over them
    undecoded: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the file in places and messages."""
        return name_of(self.path)

    def refuse(self, place: str, reason: str, problem: str) -> None:
        """Handles a record that cannot be read: stops, or skips it, depending on the settings.

        Args:
            place: of the record, as `path:line`.
            reason: a fixed short phrase, to count it under.
            problem: what is wrong, what was expected, and what to do.

        Raises:
            InputError: with `on_error: stop`.
        """
        if self.settings.on_error == "stop":
            raise InputError(
                f"{place}: {problem}; or pass over what cannot be read with {self.settings.option('on_error', 'skip')}"
            )
        self.counts.skip(place, reason)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their numbers from 1 and their line ends; a byte order mark before the first is removed.

        A line that is not UTF-8 stops the reading; or, with `on_error: skip`, is yielded with surrogates in place of
        its invalid bytes, by which `read_files` recognises the document to skip. A file that is no text, or has a line
        of over `MOST_LINE_BYTES`, is read no further with `on_error: skip`.

        Raises:
            InputError: any of these, with `on_error: stop`; names the first byte that is not UTF-8.
        """
        stream = "decompressed text" if self.compressed else "file"
        undecoded = None if self.settings.on_error == "stop" else self.undecoded
        try:
            yield from read_utf8_lines(
                self._counted_lines(), self.name, self.settings, stream=stream, undecoded=undecoded
            )
        except InputError as error:
            place, _, problem = str(error).removeprefix(f"{self.name}:").partition(": ")
            self.refuse(f"{self.name}:{place}", "unreadable file", problem)

    def _counted_lines(self) -> Iterator[bytes]:
        for line in chain(self.head, lines_of(self.stream)):
            if len(line) > LONG_LINE_BYTES:
                self.counts.long_lines += 1
            yield line


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))

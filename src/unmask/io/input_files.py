"""The files of examples that a user names: paths, globs and folders of shards, and how they are written."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from unmask.errors import InputError
from unmask.io.encodings import as_utf8, read_utf8_lines
from unmask.io.paths import as_path
from unmask.io.reading import check_library, open_input, split_suffixes
from unmask.io.settings import TableSettings

STANDARD_INPUT = Path("-")
NEEDS_NAME = "a name says what kind of file it is: write it to a file, such as examples.csv"
"""What is said of standard input where only the suffix of a file says what is in it."""

_A_FILE = "the path of a file; what is in memory is written to one, such as a .jsonl"
_SHARDS = (".parquet", ".jsonl", ".csv", ".tsv")
_SPLIT = re.compile(r"(train|dev|valid|validation|eval|test)(?![a-z])")


@dataclass(frozen=True)
class InputFiles:
    """Files that are read one after another as if they were one."""

    paths: tuple[Path, ...]  # at least one; `-` is standard input
    settings: TableSettings = TableSettings()  # noqa: RUF009  frozen

    def __str__(self) -> str:
        more = len(self.paths) - 1
        name = "standard input" if self.path == STANDARD_INPUT else str(self.path)
        return f"{name} and {more} more" if more else name

    @property
    def path(self) -> Path:
        """The first file."""
        return self.paths[0]

    @property
    def suffixes(self) -> tuple[str, str]:
        """Those of the first file; see `split_suffixes`."""
        return split_suffixes(self.path)

    @property
    def can_be_read_again(self) -> bool:
        """Whether they are files on a disk, not standard input or a pipe."""
        return all(path.is_file() for path in self.paths)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The decompressed bytes of the first file as UTF-8; raises InputError as `open_input`."""
        if self.path == STANDARD_INPUT:
            try:
                yield as_utf8(sys.stdin.buffer, self.settings.encoding)
            except OSError as error:
                raise InputError(f"{self}: cannot be read: {error.strerror or error}") from error
        else:
            with open_input(self.path, self.settings.encoding) as file:
                yield file

    def lines(self) -> Iterator[tuple[int, str]]:
        """The lines of the first file; raises InputError as `open_input` and `read_utf8_lines`."""
        with self.open() as file:
            yield from read_utf8_lines(file, str(self), self.settings)


DataPath = Path | InputFiles
"""What a task reads examples from; a path is a single file in UTF-8, as usual."""


def as_files(path: str | DataPath) -> InputFiles:
    """The one file that a path names.

    Raises:
        InputError: this is no path.
    """
    if isinstance(path, InputFiles):
        return path
    return InputFiles((as_path(path, _A_FILE),))


def files_of(path: str | DataPath) -> Iterator[InputFiles]:
    """Each of the files."""
    whole = as_files(path)
    for each in whole.paths:
        yield replace(whole, paths=(each,))


def find_inputs(given: str | Path | Sequence[str], settings: TableSettings) -> InputFiles:
    """The files that paths, globs and folders of shards name; a folder that holds no tables is returned itself, since
    some data sets are folders.

    Raises:
        InputError: a glob matches nothing, a folder holds shards of several splits or kinds, or the library that reads
            them is not installed.
    """
    names = [given] if isinstance(given, str | Path) else given
    paths = dict.fromkeys(path for name in names for path in _paths_of(str(name)))
    if not paths:
        raise InputError("no file was named: expected files of examples, or a glob")
    for path in paths:
        check_library(split_suffixes(path)[0].removeprefix("."), path)
    return InputFiles(tuple(paths), settings)


def _paths_of(name: str) -> list[Path]:
    path = as_path(name, _A_FILE)
    if path.is_dir():
        return _shards_in(path) or [path]
    if path.exists() or not glob.has_magic(name):
        return [path]
    found = sorted(match for match in map(Path, glob.glob(name, recursive=True)) if match.is_file())
    if not found:
        raise InputError(f"{name}: this pattern matches no file: expected files of examples")
    return found


def _shards_in(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if split_suffixes(file)[0] in _SHARDS and file.is_file())
    kinds = sorted({split_suffixes(file)[0] for file in files})
    splits = sorted({found[1] for file in files if (found := _SPLIT.match(file.name.lower()))})
    if len(kinds) > 1 or len(splits) > 1:
        raise InputError(
            f"{folder}: files of {' and '.join(splits if len(splits) > 1 else kinds)} in one folder: name those that "
            f"belong together with a glob, such as '{folder}/{files[0].name[:5]}*{kinds[0]}'"
        )
    return files

"""Finding the files of a corpus: files, folders, globs and standard input."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from unmask.errors import InputError
from unmask.io.input_files import STANDARD_INPUT
from unmask.io.paths import MANIFEST, looks_the_same, where_samples_are
from unmask.io.reading import COMPRESSIONS, check_library, split_suffixes

FORMAT_OF_SUFFIX: dict[str, str] = {
    ".txt": "txt",
    ".md": "md",
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".xml": "wikipedia",
}
"""A `.txt` may turn out to be a Project Gutenberg book: `unmask.corpus.reading` looks into it."""


def format_of(path: Path) -> str | None:
    """The format that a file's name indicates, or None: `a.jsonl.zst` is `jsonl`.

    The parts of a Wikipedia dump are named `...-pages-articles1.xml-p1p41242.bz2`.
    """
    suffix = split_suffixes(path)[0]
    return FORMAT_OF_SUFFIX.get(".xml" if suffix.startswith(".xml-p") else suffix)


def known_suffixes() -> str:
    """What can be read, for messages."""
    *most, last = FORMAT_OF_SUFFIX
    *compressions, last_compression = filter(None, COMPRESSIONS)
    return f"{', '.join(most)} or {last}, each plain or with {', '.join(compressions)} or {last_compression} behind it"


def find_files(paths: Sequence[str | Path], format: str = "auto", left_out: list[Path] | None = None) -> list[Path]:
    """Lists the corpus files that paths, folders and globs name; `-` is standard input.

    Folders are searched recursively; in them, and among the matches of a glob, hidden files and files of other formats
    are left out. The order of the arguments is kept, each argument's files are sorted, and a file named twice is
    listed once.

    Args:
        format: as in `ReadingSettings.format`. If it is not `auto`, named files and files that a glob matches are
            taken whatever their suffix, and those in folders by that format's suffixes.
        left_out: gets the files in folders that are not read, except hidden ones: of other formats, or links that lead
            nowhere.

    Raises:
        InputError: a path is missing, a glob or folder holds no usable file, a named file has an unknown suffix, or the
            library that reads one is not installed.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not str(path):  # as a Path it would be the current folder
            raise InputError(
                f"an empty name among the corpus files: expected files, folders or globs of {known_suffixes()}"
            )
        try:
            for file in _files_of(path, format, [] if left_out is None else left_out):
                found.setdefault(file if file == STANDARD_INPUT else file.resolve(), file)
        except OSError as error:  # such as no permission for a parent folder, or too long a name
            name = f"{str(path)[:80]}..." if error.errno == errno.ENAMETOOLONG else path  # it may be a whole text
            raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error
    if not found:
        raise InputError(f"no corpus was named: expected files, folders or globs of {known_suffixes()}")
    files = list(found.values())
    for file in files:
        check_library(format_of(file) if format == "auto" else format, file)
    return files


def _files_of(argument: str | Path, format: str, left_out: list[Path]) -> Iterable[Path]:
    path = Path(argument)
    if path == STANDARD_INPUT:
        return [path]
    if path.is_dir():
        if (path / MANIFEST).is_file() and any(path.glob("documents-*.bin")):
            raise InputError(f"{path} is a token store, not text: a recipe takes it as store={path}")
        files = sorted(_files_under(path, format, left_out))
        if not files:
            raise InputError(f"{path}: no file in this folder can be read{_as(format)}: expected {known_suffixes()}")
        return files
    if path.exists():
        if format == "auto" and not format_of(path):
            raise InputError(
                f"{path}: unknown kind of file: expected {known_suffixes()}; convert or rename it, or name its format "
                "with --format"
            )
        return [path]
    if not glob.has_magic(str(path)):
        expected = f"expected one, or a glob, of {known_suffixes()}{where_samples_are(path)}"
        raise InputError(f"{path}: no such file or folder{looks_the_same(path)}: {expected}")
    files = []
    for match in map(Path, glob.glob(str(path), recursive=True)):
        if match.is_dir():
            files.extend(_files_under(match, format, left_out))
        elif format != "auto" or format_of(match):
            files.append(match)
    if not files:
        raise InputError(
            f"{path}: this pattern matches no file that can be read{_as(format)}: expected {known_suffixes()}"
        )
    return sorted(files)


def _files_under(folder: Path, format: str, left_out: list[Path]) -> Iterator[Path]:
    """Files of known formats anywhere under a folder, except hidden ones; links are followed, each folder once."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: this folder cannot be read: {error.strerror}") from error

    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            file = Path(parent, name)
            if name.startswith("."):
                continue
            if _is_of_format(file, format) and file.is_file():
                yield file
            else:
                left_out.append(file)


def _is_of_format(path: Path, format: str) -> bool:
    found = format_of(path)
    return found is not None and (format == "auto" or found == ("txt" if format == "gutenberg" else format))


def _as(format: str) -> str:
    return "" if format == "auto" else f" as {format}"

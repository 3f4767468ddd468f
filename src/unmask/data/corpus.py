"""Finding corpus files and reading them into documents: `.txt` and `.jsonl`, plain, gzip- or Zstandard-compressed.

Files are streamed: memory holds one line or one document at a time, whatever the size of the file. What is removed or
skipped on the way is counted, so that a program can tell of it; what cannot be read as it should is refused, by name
and place.

Cleaning keeps what can be meant and removes what cannot be seen. Departures from BERT's own `clean_text`, which drops
every control and format character: form feeds and other line breaks become newlines (dropping them would glue words
together); the joiners U+200C and U+200D stay where a script or an emoji sequence uses them (Persian, Indic scripts);
private and unassigned characters stay, since the tokenizer decides about them.
"""

from __future__ import annotations

import glob
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from unmask.errors import InputError
from unmask.input_files import COMPRESSIONS

LONG_LINE_BYTES = 1_000_000
"""Lines of a file longer than this many bytes are counted as long: they are read, but are rarely what was meant."""


@dataclass(frozen=True)
class Document:
    """A text and where it begins, as `path:line`."""

    text: str
    source: str


@dataclass(frozen=True)
class ReaderSettings:
    """How files become documents.

    Attributes:
        txt_documents: `blank_line`: documents of a `.txt` file are separated by one or more blank lines.
            `file`: each `.txt` file is one document, its blank lines kept.
        text_field: the field of a `.jsonl` object that holds the text.
    """

    txt_documents: Literal["blank_line", "file"] = "blank_line"
    text_field: str = "text"


@dataclass
class CorpusCounts:
    """What was read so far, and what was mended or skipped on the way.

    Attributes:
        files: files begun.
        empty_files: files without any text.
        documents: documents handed on.
        empty_documents: documents skipped because nothing but whitespace was left of them.
        characters: Unicode characters of the documents handed on.
        utf8_bytes: the same documents in UTF-8 bytes.
        control_characters: removed control characters (category Cc but for tab and line breaks).
        zero_width_characters: removed characters that take no room and mean nothing where they stood.
        long_lines: lines of more than `LONG_LINE_BYTES` bytes; they are kept whole.
        file_bytes: bytes taken from the files as they lie on the disk, compressed or not, to show progress with.
    """

    files: int = 0
    empty_files: int = 0
    documents: int = 0
    empty_documents: int = 0
    characters: int = 0
    utf8_bytes: int = 0
    control_characters: int = 0
    zero_width_characters: int = 0
    long_lines: int = 0
    file_bytes: int = 0


def read_lines(file: IO[bytes], path: Path, counts: CorpusCounts) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers from 1, line ends and a leading byte order mark removed.

    Raises:
        InputError: the bytes are not UTF-8; names the first byte that is not.
    """
    offset = 0
    for number, line in enumerate(file, start=1):
        if len(line) > LONG_LINE_BYTES:
            counts.long_lines += 1
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            place = offset + error.start
            stream = "decompressed text" if format_of(path)[1] else "file"
            raise InputError(
                f"{path}:{number}: not UTF-8 at byte {place} of the {stream} (0x{line[error.start]:02x}): "
                "expected text in UTF-8; convert the file (for example with iconv) or repair that line"
            ) from error
        if number == 1 and text.startswith("\ufeff"):
            counts.zero_width_characters += 1
            text = text[1:]
        offset += len(line)
        yield number, text.rstrip("\r\n")


def read_txt(file: IO[bytes], path: Path, settings: ReaderSettings, counts: CorpusCounts) -> Iterator[Document]:
    """Plain text; `ReaderSettings.txt_documents` says what separates documents."""
    by_file = settings.txt_documents == "file"
    lines: list[str] = []
    begin = 1
    for number, line in read_lines(file, path, counts):
        if by_file or (line and not line.isspace()):
            if not lines:
                begin = number
            lines.append(line)
        elif lines:
            yield Document("\n".join(lines), f"{path}:{begin}")
            lines = []
    if lines:
        yield Document("\n".join(lines), f"{path}:{begin}")


def read_jsonl(file: IO[bytes], path: Path, settings: ReaderSettings, counts: CorpusCounts) -> Iterator[Document]:
    """One JSON object a line, the document in one of its fields; blank lines are passed over.

    Raises:
        InputError: a line is not a JSON object with that field, or the field is not a string.
    """
    field = settings.text_field
    expected = f'expected one JSON object a line with a string field "{field}"'
    for number, line in read_lines(file, path, counts):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON ({error}): {expected}; mend or remove the line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: a JSON {_json_type(row)}, not an object: {expected}")
        if field not in row:
            names = ", ".join(map(repr, row)) or "none at all"
            raise InputError(
                f"{path}:{number}: no field {field!r} (there is {names}): {expected}, or name another field"
            )
        text = row[field]
        if not isinstance(text, str):
            raise InputError(f"{path}:{number}: field {field!r} is {_json_type(text)}, not a string: {expected}")
        yield Document(text, f"{path}:{number}")


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


CorpusReader = Callable[[IO[bytes], Path, ReaderSettings, CorpusCounts], Iterator[Document]]
"""Reads a stream of decompressed bytes into documents as they stand; `read_documents` cleans them."""

CORPUS_READERS: dict[str, CorpusReader] = {
    ".txt": read_txt,
    ".jsonl": read_jsonl,
}


def known_suffixes() -> str:
    """Every combination of format and compression that can be read, for messages."""
    return ", ".join(form + compression for form in CORPUS_READERS for compression in COMPRESSIONS)


def format_of(path: Path) -> tuple[str, str]:
    """The format and compression suffixes of a file: `a.jsonl.zst` gives `.jsonl` and `.zst`.

    The format is empty where it is not a known one, the compression where there is none.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    form = suffixes[-1] if suffixes and suffixes[-1] in CORPUS_READERS else ""
    return form, compression


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """Lists the corpus files that paths, folders and globs stand for.

    Folders are searched to the bottom; in them, and among what a glob matches, hidden files and files of other formats
    are left out. The order of the arguments is kept, each argument's files are sorted, and a file named twice comes
    once.

    Raises:
        InputError: a path is missing, a glob or folder holds no usable file, or a named file has an unknown suffix.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        for file in _files_of(path):
            found.setdefault(file.resolve(), file)
    if not found:
        raise InputError(f"no corpus was named: expected files, folders or globs of {known_suffixes()}")
    return list(found.values())


def _files_of(argument: str | Path) -> Iterable[Path]:
    path = Path(argument)
    if path.is_dir():
        files = sorted(_files_under(path))
        if not files:
            raise InputError(f"{path}: no file in this folder can be read: expected {known_suffixes()}")
        return files
    if path.exists():
        if not format_of(path)[0]:
            raise InputError(f"{path}: unknown kind of file: expected {known_suffixes()}; convert or rename it")
        return [path]
    if not glob.has_magic(str(path)):
        raise InputError(f"{path}: no such file or folder: expected one, or a glob, of {known_suffixes()}")
    files = []
    for match in map(Path, glob.glob(str(path), recursive=True)):
        if match.is_dir():
            files.extend(_files_under(match))
        elif format_of(match)[0]:
            files.append(match)
    if not files:
        raise InputError(f"{path}: this pattern matches no file that can be read: expected {known_suffixes()}")
    return sorted(files)


def _files_under(folder: Path) -> Iterator[Path]:
    """Files of known formats anywhere under a folder, links followed, each folder once; hidden ones left out."""

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
            if not name.startswith(".") and format_of(file)[0] and file.is_file():
                yield file


def read_documents(
    files: Iterable[Path], counts: CorpusCounts, settings: ReaderSettings | None = None
) -> Iterator[Document]:
    """Streams the documents of files, cleaned and NFC-normalised; documents without text are skipped and counted.

    Args:
        files: as `find_files` gives them.
        counts: is added to while reading.
        settings: how files become documents.

    Raises:
        InputError: a file cannot be opened, is damaged or cut short, is not UTF-8 (the byte is named), or does not hold
            what its format asks for (the line is named).
    """
    settings = settings or ReaderSettings()
    for path in files:
        documents_before = counts.documents
        for document in _read_file(path, counts, settings):
            text = clean_text(document.text, counts)
            if not text or text.isspace():
                counts.empty_documents += 1
                continue
            counts.documents += 1
            counts.characters += len(text)
            counts.utf8_bytes += _utf8_size(text, document.source)
            yield Document(text, document.source)
        if counts.documents == documents_before:
            counts.empty_files += 1


def _read_file(path: Path, counts: CorpusCounts, settings: ReaderSettings) -> Iterator[Document]:
    form, suffix = format_of(path)
    compression = COMPRESSIONS[suffix]
    bytes_before = counts.file_bytes
    counts.files += 1
    try:
        with open(path, "rb") as file:
            for document in CORPUS_READERS[form](compression.open(file), path, settings, counts):
                counts.file_bytes = bytes_before + file.tell()
                yield document
            counts.file_bytes = bytes_before + file.tell()
    except compression.errors as error:
        raise InputError(
            f"{path}: the compressed data are damaged or cut short ({error}): fetch or make the file again"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _utf8_size(text: str, source: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InputError(
            f"{source}: half of a surrogate pair, \\u{ord(text[error.start]):04x}, which is no character: "
            "mend the JSON escape, or the program that wrote it"
        ) from error


_LINE_BREAKS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
# Soft hyphen, Mongolian vowel separator, zero-width space, direction marks and overrides, word joiner and invisible
# operators, deprecated format characters, byte order mark, interlinear annotations. And the joiners U+200C and U+200D
# unless they follow something that can be joined: not at the beginning, nor after Latin, Greek, Cyrillic, punctuation,
# Han, kana or Hangul.
_ZERO_WIDTH = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
    "|[\u200c\u200d](?<![^\u0000-\u058f\u1100-\u11ff\u2000-\u206f\u3000-\u9fff\uac00-\ud7ff\ufeff\ufff9-\ufffb].)"
)
# Text in which none of the above can occur, found in one fast scan: nearly all text.
_NOTHING_TO_MEND = re.compile(
    "[^\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*+"
)


def clean_text(text: str, counts: CorpusCounts) -> str:
    """NFC-normalised text without control and needless zero-width characters, every line break a newline.

    Args:
        text: any text.
        counts: the removed characters are added to it.
    """
    text = unicodedata.normalize("NFC", text)
    if _NOTHING_TO_MEND.fullmatch(text):
        return text
    text = _LINE_BREAKS.sub("\n", text)
    text, num_control = _CONTROL.subn("", text)
    text, num_zero_width = _ZERO_WIDTH.subn("", text)
    counts.control_characters += num_control
    counts.zero_width_characters += num_zero_width
    return unicodedata.normalize("NFC", text)

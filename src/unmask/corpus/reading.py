"""Reads corpus files into documents, unchanged: a function and a line of `CORPUS_READERS` for each format.

Files are streamed: memory holds a line, a document or a batch of a table's rows at a time, whatever the size of the
file. What cannot be read is refused, naming its place, or skipped and counted.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.files import format_of
from unmask.corpus.formats.gutenberg import is_gutenberg, read_gutenberg
from unmask.corpus.formats.markdown import read_markdown
from unmask.corpus.formats.plain_text import read_txt
from unmask.corpus.formats.tables import read_documents_of_jsonl, read_parquet, read_table
from unmask.corpus.formats.wikipedia import read_wikipedia
from unmask.corpus.settings import ReadingSettings
from unmask.corpus.source import CorpusFile
from unmask.io.encodings import PieceReader, as_utf8, lines_of
from unmask.io.input_files import STANDARD_INPUT
from unmask.io.reading import (
    BUFFER_BYTES,
    COMPRESSIONS,
    DamagedData,
    describe_damage,
    detect_compression,
    split_suffixes,
)

GUTENBERG_HEADER_BYTES = 64 * 1024
"""A book's licence begins within this many bytes."""


def read_files(
    files: Iterable[Path],
    counts: CorpusCounts,
    settings: ReadingSettings = ReadingSettings(),  # noqa: B008  frozen
) -> Iterator[Document]:
    """Streams the documents of files unchanged, except that a byte order mark at the beginning of a file is removed.

    Args:
        counts: updated while reading: files, their bytes, records skipped, and what a format leaves out, as Gutenberg's
            licence, which is booked as read and removed. Documents yielded are booked by the caller.

    Raises:
        InputError: with `on_error: stop`, a file cannot be opened, is damaged or cut short, is not UTF-8 (the byte is
            named), or does not match its format (the line is named).
    """
    for path in files:
        yield from _read_file(path, counts, settings)


def _read_file(path: Path, counts: CorpusCounts, settings: ReadingSettings) -> Iterator[Document]:
    counts.files += 1
    is_empty = True
    source = CorpusFile(path, settings, counts)
    try:
        with ExitStack() as stack:
            raw = sys.stdin.buffer if path == STANDARD_INPUT else stack.enter_context(open(path, "rb", buffering=0))
            counted = io.BufferedReader(PieceReader(_counted(raw, counts)), BUFFER_BYTES)
            if path == STANDARD_INPUT:
                compression = detect_compression(counted.peek(6))
            else:
                compression = COMPRESSIONS[split_suffixes(path)[1]]
            source.stream = compression.open(counted)
            if not CORPUS_READERS[format_read(path, settings)].is_binary:
                source.stream = as_utf8(source.stream, settings.encoding)
            source.compressed = compression.new_frame is not None
            for document in CORPUS_READERS[_choose_format(source)].read(source):
                try:
                    document.text.encode()
                except UnicodeEncodeError as error:
                    _refuse_surrogate(source, document.source, document.text[error.start])
                    continue
                is_empty = False
                yield document
    except DamagedData as error:
        source.refuse(source.name, "damaged file", describe_damage(error))
    except OSError as error:
        source.refuse(source.name, "unreadable file", f"cannot be read: {error.strerror or error}")
    counts.empty_files += is_empty


def _refuse_surrogate(source: CorpusFile, place: str, surrogate: str) -> None:
    if source.undecoded and "\udc80" <= surrogate <= "\udcff":  # in place of a byte
        encoding = "UTF-8" if source.settings.encoding == "utf-8" else source.settings.encoding
        source.refuse(place, f"not {encoding}", f"not {encoding}: expected text in {encoding}")
    else:
        source.refuse(
            place,
            "half a surrogate pair",
            f"half of a surrogate pair, \\u{ord(surrogate):04x}, which is no character: fix the JSON escape, or the "
            "program that wrote it",
        )


def _counted(file: IO[bytes], counts: CorpusCounts) -> Iterator[bytes]:
    """A file piece by piece, whose bytes are counted as they are read."""
    while piece := file.read(BUFFER_BYTES):
        counts.file_bytes += len(piece)
        yield piece


def _choose_format(source: CorpusFile) -> str:
    form = format_read(source.path, source.settings)
    is_found = source.settings.format == "auto" and source.path != STANDARD_INPUT
    return "gutenberg" if is_found and form == "txt" and is_gutenberg(_look_ahead(source)) else form


def format_read(path: Path, settings: ReadingSettings) -> str:
    """How a file is read by its settings and its name: a `.txt`, and standard input, as text, or as a table where a
    separator is given."""
    if settings.format != "auto":
        return settings.format
    form = "txt" if path == STANDARD_INPUT else format_of(path)
    assert form is not None, f"{path}: `find_files` lets no unknown suffix pass"
    if form == "txt" and settings.separator is not None:
        return "tsv" if settings.separator == "\t" else "csv"
    return form


def _look_ahead(source: CorpusFile) -> list[bytes]:
    """The first lines of a file, which will be read again later, as will any damage among them."""
    lines: list[bytes] = []
    size = 0
    try:
        for line in lines_of(source.stream):
            lines.append(line)
            size += len(line)
            if size >= GUTENBERG_HEADER_BYTES:
                break
        source.head = lines
    except (DamagedData, OSError) as error:
        source.head = _lines_before(lines, error)
    return lines


def _lines_before(lines: list[bytes], error: Exception) -> Iterator[bytes]:
    yield from lines
    raise error


class CorpusReader(NamedTuple):
    """How files of a format are read.

    Attributes:
        read: reads an opened file into documents, unchanged.
        has_columns: whether `ReadingSettings.column` names one of them.
        is_binary: whether they are read as they are; other files come as UTF-8, whatever their encoding.
    """

    read: Callable[[CorpusFile], Iterator[Document]]
    has_columns: bool = False
    is_binary: bool = False


CORPUS_READERS: dict[str, CorpusReader] = {
    "txt": CorpusReader(read_txt),
    "md": CorpusReader(read_markdown),
    "jsonl": CorpusReader(read_documents_of_jsonl, has_columns=True),
    "csv": CorpusReader(partial(read_table, form=".csv"), has_columns=True),
    "tsv": CorpusReader(partial(read_table, form=".tsv"), has_columns=True),
    "parquet": CorpusReader(read_parquet, has_columns=True, is_binary=True),
    "wikipedia": CorpusReader(read_wikipedia),
    "gutenberg": CorpusReader(read_gutenberg),
}

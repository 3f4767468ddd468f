"""Project Gutenberg books: the text between the licence's header and footer, one document per book."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from unmask.corpus.documents import Document
from unmask.corpus.source import CorpusFile, utf8_size

_START = re.compile(r"\s*(\*\*\* ?START OF TH(E|IS) PROJECT GUTENBERG E|\*END[* ]*THE SMALL PRINT!)", re.IGNORECASE)
_END = re.compile(
    r"\s*(\*\*\* ?END OF TH(E|IS) PROJECT GUTENBERG E|End of (the |this )?Project Gutenberg\b)", re.IGNORECASE
)
_CREDITS = re.compile(
    r"[\[\s]*(Produced by|(This )?e-?(book|text) (was )?(produced|prepared)|Credits?:|Scanned by|Transcribed (by|from)"
    r"|Transcriber['’]?s?['’]? notes?\b|(HTML|PDF) version by)",
    re.IGNORECASE,
)

WRAPPED_LINE_CHARACTERS = 45
"""Lines shorter than this were not wrapped because the line was full: verse, addresses, headings, lists."""


def is_gutenberg(head: Iterable[bytes]) -> bool:
    """True if the first lines of a file hold the start mark of a book."""
    return any(_START.match(line.decode("ascii", "replace")) for line in head)


def read_gutenberg(source: CorpusFile) -> Iterator[Document]:
    """The books of a file, usually one, each from below the start mark and the credits under it to the end mark.

    Marks of all years are known: `*** START OF THIS PROJECT GUTENBERG EBOOK`, `***START OF THE ...`, and the
    `*END*THE SMALL PRINT!` of the nineties. A file without an end mark is read to its end. Paragraphs, which are
    wrapped at some 70 characters, become one line each: a newline for a space, so bytes stay the same.

    All bytes of the file are counted as read, line ends as one byte; those outside a book are booked as removed
    ("Gutenberg licence lines").
    """
    lines: list[str] = []  # of the book, from its start mark; empty outside a book
    begin = unbooked_bytes = unbooked_lines = 0
    found = False
    for number, raw_line in source.lines():
        line = raw_line.rstrip("\r\n")
        unbooked_bytes += utf8_size(line) + (line != raw_line)
        unbooked_lines += 1
        is_start = _START.match(line)
        is_end = lines and _END.match(line)
        if lines and (is_end or (is_start and "SMALL PRINT" not in line.upper())):
            yield from _finish(source, lines, begin, unbooked_lines, unbooked_bytes)
            unbooked_bytes = unbooked_lines = 0
            lines = []
        if is_start:  # if small print comes within a book's bounds, all before it was licence
            lines, begin, found = [line], number, True
        elif lines and not is_end:
            lines.append(line)
    if not found:
        source.refuse(
            source.name,
            "no Gutenberg book",
            "no line that begins with '*** START OF THE PROJECT GUTENBERG EBOOK': expected a book with its licence; "
            "for plain text, choose --format txt",
        )
    else:
        yield from _finish(source, lines, begin, unbooked_lines, unbooked_bytes)


def _finish(source: CorpusFile, lines: Sequence[str], begin: int, num_lines: int, num_bytes: int) -> Iterator[Document]:
    """A book's document, unless only blank lines are left of it; books the rest as removed.

    Args:
        lines: of the book, from its start mark.
        begin: the line number of the first of them.
        num_lines: lines since the last book, including these.
        num_bytes: their bytes.
    """
    first, last = _first_line(lines), len(lines)
    while last > first and _is_blank(lines[last - 1]):
        last -= 1
    text = _unwrap(lines[first:last])
    size = utf8_size(text)
    source.counts.bytes_read += num_bytes - size
    source.counts.remove("Gutenberg licence lines", num_lines - (last - first), num_bytes - size)
    if text:
        yield Document(text, f"{source.name}:{begin + first}")


def _first_line(lines: Sequence[str]) -> int:
    """Where a book's own text begins: below the start mark, which may take several lines, and the credits."""
    first = 0
    while first < len(lines) and not _is_blank(lines[first]) and not lines[first].rstrip().endswith("*"):
        first += 1
    first += 1
    while True:
        while first < len(lines) and _is_blank(lines[first]):
            first += 1
        if first >= len(lines) or not _CREDITS.match(lines[first]):
            return min(first, len(lines))
        while first < len(lines) and not _is_blank(lines[first]):
            first += 1


def _unwrap(lines: Sequence[str]) -> str:
    """Joins lines so that each paragraph is one line.

    A line break stays where the line is short or the next one is blank or indented.
    """
    pieces: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        is_wrapped = len(line) >= WRAPPED_LINE_CHARACTERS and following[:1].strip()
        pieces += (line, " " if is_wrapped else "\n")
    return "".join(pieces[:-1])


def _is_blank(line: str) -> bool:
    return not line.strip()

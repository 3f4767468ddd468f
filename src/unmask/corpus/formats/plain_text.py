"""Plain text: the simplest corpus reader. Every reader is a function from an opened file to its documents."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache

from unmask.corpus.documents import Document
from unmask.corpus.source import CorpusFile

LARGE_DOCUMENT = 100_000_000
"""Characters of a document that is rarely intended: it is held in memory several times over."""

logger = logging.getLogger("unmask")


def read_txt(source: CorpusFile) -> Iterator[Document]:
    """Plain text; `ReadingSettings.txt_documents` says what separates documents. A lone carriage return ends a line
    too, as in files of old Macs, and the places of documents count none of these. Warns once of a large
    document without a blank line."""
    by_file = source.settings.txt_documents == "file"
    lines: list[str] = []
    begin, size, warns = 1, 0, not by_file
    for number, ended in source.lines():
        for line in ended.rstrip("\r\n").split("\r"):
            if by_file or (line and not line.isspace()):
                if not lines:
                    begin, size = number, 0
                lines.append(line)
                size += len(line)
                if warns and size > LARGE_DOCUMENT:
                    warns = False
                    _warn_of_large(f"{source.name}:{begin}")
            elif lines:
                yield Document(_take(lines), f"{source.name}:{begin}")
    if lines:
        yield Document(_take(lines), f"{source.name}:{begin}")


def _take(lines: list[str]) -> str:
    """The lines as a text, which alone stays in memory."""
    text = "\n".join(lines)
    lines.clear()
    return text


@cache  # a corpus is read several times: counted, learnt from, encoded
def _warn_of_large(place: str) -> None:
    logger.warning(
        "%s: over %s characters without a blank line, which is what separates the documents of a .txt: they are one "
        "document, which takes several times its size in memory. If there are several, put a blank line between them "
        "(sed G makes each line one); if not, set reading.txt_documents=file",
        place,
        f"{LARGE_DOCUMENT:,}",
    )

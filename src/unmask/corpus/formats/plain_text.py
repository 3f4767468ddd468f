"""Plain text: the simplest corpus reader. Every reader is a function from an opened file to its documents."""

from __future__ import annotations

from collections.abc import Iterator

from unmask.corpus.documents import Document
from unmask.corpus.source import CorpusFile


def read_txt(source: CorpusFile) -> Iterator[Document]:
    """Plain text; `ReadingSettings.txt_documents` says what separates documents. A lone carriage return ends a line
    too, as in files of old Macs, and the places of documents count none of these."""
    by_file = source.settings.txt_documents == "file"
    lines: list[str] = []
    begin = 1
    for number, ended in source.lines():
        for line in ended.rstrip("\r\n").split("\r"):
            if by_file or (line and not line.isspace()):
                if not lines:
                    begin = number
                lines.append(line)
            elif lines:
                yield Document("\n".join(lines), f"{source.name}:{begin}")
                lines = []
    if lines:
        yield Document("\n".join(lines), f"{source.name}:{begin}")

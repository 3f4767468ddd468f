"""A corpus's documents, and their statistics: what came in, what was removed or dropped and why, what went out.

    documents read = documents handed on + documents dropped (`dropped`, by reason)
    bytes read     = bytes handed on + bytes of documents dropped + bytes removed from those handed on (`removed`)

Both hold at every moment. A record that cannot be read at all (`skipped`) has no text, and is counted separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from unmask.corpus.annotations import Annotation


@dataclass(frozen=True)
class Document:
    """A text, where it begins, as `path:line`, and its annotations."""

    text: str
    source: str
    annotations: tuple[Annotation, ...] = ()


@dataclass
class Amount:
    """How much of something.

    Attributes:
        count: of documents, lines, paragraphs or characters, whichever the key of the amount says.
        utf8_bytes: of text in UTF-8; negative if a change made the text longer (NFC can).
    """

    count: int = 0
    utf8_bytes: int = 0

    def add(self, count: int, utf8_bytes: int) -> None:
        self.count += count
        self.utf8_bytes += utf8_bytes


@dataclass
class CorpusCounts:
    """The statistics of a corpus so far.

    Attributes:
        files: files begun.
        empty_files: files without any document.
        file_bytes: bytes read from the files as they are on disk, compressed or not, to show progress.
        long_lines: lines of more than a megabyte: read whole, but rarely intended.
        documents_read: documents as the readers found them.
        bytes_read: their UTF-8 bytes.
        skipped: records that could not be read and were skipped, by reason ("not JSON", "not UTF-8" ...).
        removed: what was removed from documents that were handed on, by kind ("control characters",
            "boilerplate lines", "duplicate paragraphs" ...); the key says what is counted.
        dropped: whole documents that were not handed on, by reason ("empty", "too short", "duplicate" ...).
        documents: documents handed on.
        characters: their Unicode characters.
        utf8_bytes: their UTF-8 bytes.
        annotations: annotations of the documents handed on.
        annotations_removed: further annotations of the same documents, whose text was removed by cleaning.
        on_skip: called with the place (`path:line`) and the reason of each skipped record, to list it.
    """

    files: int = 0
    empty_files: int = 0
    file_bytes: int = 0
    long_lines: int = 0
    documents_read: int = 0
    bytes_read: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    removed: dict[str, Amount] = field(default_factory=dict)
    dropped: dict[str, Amount] = field(default_factory=dict)
    documents: int = 0
    characters: int = 0
    utf8_bytes: int = 0
    annotations: int = 0
    annotations_removed: int = 0
    on_skip: Callable[[str, str], None] | None = field(default=None, repr=False, compare=False)

    def remove(self, what: str, count: int, utf8_bytes: int) -> None:
        """Books something removed from a document; does nothing if nothing was removed."""
        if count or utf8_bytes:
            self.removed.setdefault(what, Amount()).add(count, utf8_bytes)

    def drop(self, reason: str, utf8_bytes: int) -> None:
        """Books a whole document that is not handed on."""
        self.dropped.setdefault(reason, Amount()).add(1, utf8_bytes)

    def skip(self, source: str, reason: str) -> None:
        """Books a record that could not be read."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        if self.on_skip is not None:
            self.on_skip(source, reason)

    def as_dict(self) -> dict[str, object]:
        """The numbers, for a JSON file."""
        amounts = {
            name: {key: vars(amount).copy() for key, amount in sorted(getattr(self, name).items())}
            for name in ("removed", "dropped")
        }
        plain = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        return {**plain, "skipped": dict(sorted(self.skipped.items())), **amounts}

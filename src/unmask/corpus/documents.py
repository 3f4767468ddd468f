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
    """How much of something."""

    count: int = 0  # of documents, lines, paragraphs or characters, whichever the key of the amount says
    utf8_bytes: int = 0  # of text in UTF-8; negative if a change made the text longer (NFC can)

    def add(self, count: int, utf8_bytes: int) -> None:
        self.count += count
        self.utf8_bytes += utf8_bytes


@dataclass
class CorpusCounts:
    """The statistics of a corpus so far."""

    files: int = 0  # files begun
    empty_files: int = 0  # files without any document
    file_bytes: int = 0  # bytes read from the files as they are on disk, compressed or not, to show progress
    long_lines: int = 0  # lines of more than a megabyte: read whole, but rarely intended
    documents_read: int = 0  # documents as the readers found them
    bytes_read: int = 0  # their UTF-8 bytes: of mostly markup (Wikipedia, Markdown) only the text extracted
    # records that could not be read and were skipped, by reason ("not JSON", "not UTF-8" ...)
    skipped: dict[str, int] = field(default_factory=dict)
    # what was removed from documents that were handed on, by kind ("control characters", "boilerplate lines",
    # "duplicate paragraphs" ...); the key says what is counted
    removed: dict[str, Amount] = field(default_factory=dict)
    # whole documents that were not handed on, by reason ("empty", "too short", "duplicate" ...)
    dropped: dict[str, Amount] = field(default_factory=dict)
    documents: int = 0  # documents handed on
    characters: int = 0  # their Unicode characters
    utf8_bytes: int = 0  # their UTF-8 bytes
    annotations: int = 0  # annotations of the documents handed on
    annotations_removed: int = 0  # further annotations of the same documents, whose text was removed by cleaning
    # called with the place (`path:line`) and the reason of each skipped record, to list it
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

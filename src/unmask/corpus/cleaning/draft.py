"""A document between its reader and its consumer, with the statistics of what was done to it so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from unmask.corpus.annotations import Annotation, Edit, follow, removed_lines
from unmask.corpus.documents import CorpusCounts
from unmask.corpus.source import utf8_size

NOTHING_LEFT = "nothing left"
"""The reason for dropping a document from which cleaning removed every line."""


@dataclass(slots=True)
class Draft:
    """A document that cleaning changes, or drops.

    Removals are booked only when the document is done, since a dropped one counts as a whole.
    """

    text: str  # the current text
    source: str  # where the document begins, as `path:line`
    bytes_read: int  # UTF-8 bytes of the text as it was read
    utf8_bytes: int  # of the current text
    annotations: tuple[Annotation, ...] = ()  # of the current text
    num_annotations_removed: int = 0  # how many lost their text
    removed: list[tuple[str, int, int]] = field(default_factory=list)  # what was removed, how many, and the UTF-8 bytes
    dropped: str | None = None  # the reason for dropping the document; None while it stays

    def change(self, text: str, what: str, count: int, edits: Iterable[Edit]) -> None:
        """Replaces the text by what the removal of `count` of `what` leaves of it.

        `edits` lists the changes; it is not read if the text has no annotations.
        """
        if self.annotations:
            followed = follow(self.annotations, edits, len(text))
            self.num_annotations_removed += len(self.annotations) - len(followed)
            self.annotations = followed
        bytes_before, self.utf8_bytes = self.utf8_bytes, utf8_size(text)
        self.text = text
        self.removed.append((what, count, bytes_before - self.utf8_bytes))

    def keep_lines(self, lines: Sequence[str], keep: Sequence[bool], what: str) -> None:
        """Removes lines, each with a line break; `lines` are all lines of the text."""
        kept = [line for line, stays in zip(lines, keep, strict=True) if stays]
        self.change("\n".join(kept), what, len(lines) - len(kept), removed_lines(lines, keep))

    def drop(self, reason: str) -> None:
        """Marks the document as dropped."""
        self.dropped = reason

    def book(self, counts: CorpusCounts) -> None:
        """Enters the document into the statistics: handed on, or dropped."""
        counts.documents_read += 1
        counts.bytes_read += self.bytes_read
        if self.dropped is not None:
            counts.drop(self.dropped, self.bytes_read)
            return
        for what, count, num_bytes in self.removed:
            counts.remove(what, count, num_bytes)
        counts.documents += 1
        counts.characters += len(self.text)
        counts.utf8_bytes += self.utf8_bytes
        if self.annotations or self.num_annotations_removed:
            counts.annotations += len(self.annotations)
            counts.annotations_removed += self.num_annotations_removed

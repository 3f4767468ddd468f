"""Exact duplicates, found in one pass and in bounded memory: 128-bit hashes, sorted, in files.

Of equal documents, and of equal paragraphs, the first in the order of the corpus stays. White space is ignored: texts
that differ only in it are equal. Hashes are BLAKE2b's; the probability that any two of n different texts have the same
hash is below n^2 / 2^129, which is 1.5e-19 for 10^10 texts.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.cleaning.draft import NOTHING_LEFT, Draft
from unmask.io.writing import UNFINISHED, as_output_error, temporary_directory

MIN_PARAGRAPH_CHARACTERS = 40
"""Shorter paragraphs stay however often they occur: headings and lines of dialogue ("Yes, sir.") are useful each time.
98 % of the repeated lines of Wikipedia, English and Korean, and of classic books are shorter; notices and quotations
are longer."""

_BATCH_BYTES = 8 << 20
_BATCH_DOCUMENTS = 8192
_WHITE_SPACE = b" \t\n\r"
_PIECE_HASHES = 1 << 16
"""Most hashes in memory of each of two runs that are merged."""


def drop_duplicates(drafts: Iterable[Draft], paragraphs: bool, work_directory: Path | None) -> Iterator[Draft]:
    """Drops documents that equal an earlier one, and removes paragraphs that do.

    Documents are processed in batches of about eight megabytes, and yielded in order. A paragraph is a line. It counts
    as seen even if its document is dropped later.

    Args:
        work_directory: where a temporary folder for the hashes is made, 16 bytes each; None takes the system's.

    Raises:
        OutputError: the disk is full, or the folder cannot be made.
    """
    place = work_directory or Path(tempfile.gettempdir())
    with ExitStack() as stack:
        with as_output_error(place):
            seen = SeenHashes(stack.enter_context(temporary_directory(f"{UNFINISHED}hashes", place)))
        for batch in _batches(drafts):
            _decide_documents(batch, seen)
            if paragraphs:
                _remove_paragraphs(batch, seen)
            yield from batch


def _batches(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    batch: list[Draft] = []
    num_bytes = 0
    for draft in drafts:
        batch.append(draft)
        num_bytes += draft.utf8_bytes
        if num_bytes >= _BATCH_BYTES or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _decide_documents(batch: list[Draft], seen: SeenHashes) -> None:
    drafts = [draft for draft in batch if draft.dropped is None]
    are_new = seen.add([duplicate_key(draft.text, b"document") for draft in drafts])
    for draft, is_new in zip(drafts, are_new, strict=True):
        if not is_new:
            draft.drop("duplicate")


def _remove_paragraphs(batch: list[Draft], seen: SeenHashes) -> None:
    drafts = [draft for draft in batch if draft.dropped is None]
    lines_of = [draft.text.split("\n") for draft in drafts]
    are_long = [[len(line.strip()) >= MIN_PARAGRAPH_CHARACTERS for line in lines] for lines in lines_of]
    long_lines = (
        line
        for lines, long in zip(lines_of, are_long, strict=True)
        for line, is_long in zip(lines, long, strict=True)
        if is_long
    )
    are_new = iter(seen.add([duplicate_key(line, b"paragraph") for line in long_lines]))
    for draft, lines, long in zip(drafts, lines_of, are_long, strict=True):
        keep = [not is_long or bool(next(are_new)) for is_long in long]
        if not all(keep):
            draft.keep_lines(lines, keep, "duplicate paragraphs")
            if not draft.text or draft.text.isspace():
                draft.drop(NOTHING_LEFT)


def duplicate_key(text: str, kind: bytes) -> bytes:
    """16 bytes of BLAKE2b over the text in UTF-8 without its spaces, tabs and line breaks.

    Args:
        kind: at most 16 bytes; texts of different kinds never have equal hashes.
    """
    return hashlib.blake2b(text.encode("utf-8").translate(None, _WHITE_SPACE), digest_size=16, person=kind).digest()


@dataclass(frozen=True)
class _Run:
    """Hashes sorted by their first half, in two arrays; a stored run's are memory-mapped from its files."""

    first: NDArray[np.uint64]  # (hashes,)
    second: NDArray[np.uint64]  # (hashes,)

    def __len__(self) -> int:
        return len(self.first)

    def contains(self, first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of some hashes, sorted like the run, are in it."""
        found = np.zeros(len(first), dtype=np.bool_)
        position = np.searchsorted(self.first, first)
        asked = np.arange(len(first))
        while len(asked):  # repeats only if two hashes have equal first halves
            asked = asked[position[asked] < len(self)]
            asked = asked[self.first[position[asked]] == first[asked]]
            found[asked] = self.second[position[asked]] == second[asked]
            asked = asked[~found[asked]]
            position[asked] += 1
        return found


@dataclass(frozen=True)
class _StoredRun:
    """A run in two files of little-endian 64-bit numbers."""

    path: Path
    size: int

    def open(self) -> _Run:
        """The run, memory-mapped: the system loads and evicts its pages as needed."""
        first, second = (
            np.memmap(self.path.with_suffix(suffix), dtype="<u8", mode="r", shape=(self.size,))
            for suffix in (".first", ".second")
        )
        return _Run(first, second)

    def remove(self) -> None:
        for suffix in (".first", ".second"):
            self.path.with_suffix(suffix).unlink()


class SeenHashes:
    """A set of 128-bit hashes that grows on disk.

    New hashes become sorted runs in memory; once there are enough, these are merged into a stored run, and stored runs
    are merged so that each is at least twice as long as the next. So n hashes lie in O(log n) runs, each hash is
    rewritten O(log n) times, and a look-up is a binary search in every run.

    Args:
        directory: for the files; holds nothing else.
        memory_hashes: from this many on, hashes in memory go to disk; 16 bytes each.
    """

    def __init__(self, directory: Path, memory_hashes: int = 1 << 18) -> None:
        self._directory = directory
        self._memory_hashes = memory_hashes
        self._recent: list[_Run] = []
        self._stored: list[_StoredRun] = []
        self._num_written = 0

    @property
    def num_in_memory(self) -> int:
        """Hashes held in memory: fewer than `memory_hashes` after every `add`."""
        return sum(len(run) for run in self._recent)

    def add(self, hashes: list[bytes]) -> list[bool]:
        """Adds hashes and returns for each whether it was new: neither in the set before nor earlier in the list.

        Raises:
            OutputError: the disk is full.
        """
        if not hashes:
            return []
        pairs = np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # stable: of equal hashes the first comes first
        first, second = pairs[order, 0], pairs[order, 1]
        is_new = np.ones(len(order), dtype=np.bool_)
        is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        for run in chain(self._recent, (stored.open() for stored in self._stored)):
            is_new &= ~run.contains(first, second)
        self._keep(_Run(first[is_new], second[is_new]))
        answers = np.empty(len(order), dtype=np.bool_)
        answers[order] = is_new
        return answers.tolist()

    def _keep(self, run: _Run) -> None:
        if not len(run):
            return
        self._recent.append(run)
        is_full = self.num_in_memory >= self._memory_hashes
        while len(self._recent) > 1 and (is_full or len(self._recent[-2]) < 2 * len(self._recent[-1])):
            right, left = self._recent.pop(), self._recent.pop()
            self._recent.append(_in_memory(_merge(left, right)))
        if is_full:
            with as_output_error(self._directory.parent):
                self._spill()

    def _spill(self) -> None:
        self._stored.append(self._store(self._recent))
        self._recent.clear()
        while len(self._stored) > 1 and self._stored[-2].size < 2 * self._stored[-1].size:
            right, left = self._stored.pop(), self._stored.pop()
            self._stored.append(self._store(_merge(left.open(), right.open())))
            left.remove()
            right.remove()

    def _store(self, pieces: Iterable[_Run]) -> _StoredRun:
        path = self._directory / f"run-{self._num_written:05d}"
        self._num_written += 1
        size = 0
        with open(path.with_suffix(".first"), "wb") as firsts, open(path.with_suffix(".second"), "wb") as seconds:
            for piece in pieces:
                firsts.write(piece.first.astype("<u8", copy=False).tobytes())
                seconds.write(piece.second.astype("<u8", copy=False).tobytes())
                size += len(piece)
        return _StoredRun(path, size)


def _merge(left: _Run, right: _Run) -> Iterator[_Run]:
    """Two runs as one, piece by piece."""
    i = j = 0
    while i < len(left) or j < len(right):
        ends = [
            run.first[start : start + _PIECE_HASHES][-1] for run, start in ((left, i), (right, j)) if start < len(run)
        ]
        last = min(ends)
        next_i = i + int(np.searchsorted(left.first[i : i + _PIECE_HASHES], last, side="right"))
        next_j = j + int(np.searchsorted(right.first[j : j + _PIECE_HASHES], last, side="right"))
        first = np.concatenate([left.first[i:next_i], right.first[j:next_j]])
        second = np.concatenate([left.second[i:next_i], right.second[j:next_j]])
        order = np.argsort(first, kind="stable")
        yield _Run(first[order], second[order])
        i, j = next_i, next_j


def _in_memory(pieces: Iterable[_Run]) -> _Run:
    runs = list(pieces)
    return _Run(np.concatenate([run.first for run in runs]), np.concatenate([run.second for run in runs]))

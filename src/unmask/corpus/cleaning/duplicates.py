"""Exact duplicates, found in one pass and in bounded memory: 128-bit hashes, sorted, in files.

Of equal documents, and of equal paragraphs, the first in the order of the corpus stays. White space is ignored: texts
that differ only in it are equal. Hashes are BLAKE2b's; the probability that any two of n different texts have the same
hash is below n^2 / 2^129, which is 1.5e-19 for 10^10 texts.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
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
_Run = NDArray[np.uint64]
"""(2, hashes): the first halves, ascending, and the second ones."""


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


class SeenHashes:
    """A set of 128-bit hashes that grows on disk.

    New hashes are a set in memory; once there are enough, they become a sorted run, a file, and runs are merged so that
    each is at least twice as long as the next. So n hashes lie in O(log n) runs, each hash is rewritten O(log n) times,
    and a look-up is a binary search in every run.

    Args:
        directory: for the files; holds nothing else.
        memory_hashes: from this many on, hashes in memory go to disk; about 100 bytes each.
    """

    def __init__(self, directory: Path, memory_hashes: int = 1 << 18) -> None:
        self._directory = directory
        self._memory_hashes = memory_hashes
        self._recent: set[bytes] = set()
        self._runs: list[Path] = []
        self._num_written = 0

    @property
    def num_in_memory(self) -> int:
        """Hashes held in memory: fewer than `memory_hashes` after every `add`."""
        return len(self._recent)

    def add(self, hashes: list[bytes]) -> list[bool]:
        """Adds hashes and returns for each whether it was new: neither in the set before nor earlier in the list.

        Raises:
            OutputError: the disk is full.
        """
        answers = []
        for each, is_stored in zip(hashes, self._are_stored(hashes), strict=True):
            answers.append(not is_stored and each not in self._recent)
            if answers[-1]:
                self._recent.add(each)
        if len(self._recent) >= self._memory_hashes:
            with as_output_error(self._directory.parent):
                self._spill()
        return answers

    def _are_stored(self, hashes: list[bytes]) -> list[bool]:
        are_stored = np.zeros(len(hashes), dtype=np.bool_)
        if self._runs:
            given = _halves(hashes)
            order = np.argsort(given[0])  # near each other in a run, they are found many times faster
            for run in map(_open, self._runs):
                are_stored[order] |= _contains(run, given[:, order])
        return are_stored.tolist()

    def _spill(self) -> None:
        run = _halves(self._recent)
        self._store([run[:, np.argsort(run[0])]], run.shape[1])
        self._recent.clear()
        while len(self._runs) > 1:
            left, right = map(_open, self._runs[-2:])
            if left.size >= 2 * right.size:
                return
            merged = [self._runs.pop(), self._runs.pop()]
            self._store(_merge(left, right), left.shape[1] + right.shape[1])
            for path in merged:
                path.unlink()

    def _store(self, pieces: Iterable[_Run], size: int) -> None:
        path = self._directory / f"run-{self._num_written:05d}"
        self._num_written += 1
        done = 0
        with open(path, "wb") as file:
            for piece in pieces:
                for half, values in enumerate(piece):
                    file.seek(8 * (half * size + done))
                    file.write(values.tobytes())
                done += piece.shape[1]
        self._runs.append(path)


def _halves(hashes: Collection[bytes]) -> _Run:
    return np.ascontiguousarray(np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2).T)


def _open(path: Path) -> _Run:
    """A stored run, memory-mapped: the system loads and evicts its pages as needed."""
    return np.memmap(path, dtype="<u8", mode="r").reshape(2, -1)


def _contains(run: _Run, asked: _Run) -> NDArray[np.bool_]:
    """Which of some hashes are in a run."""
    places = np.searchsorted(run[0], asked[0])
    are_equal = run[:, np.minimum(places, run.shape[1] - 1)] == asked
    found: NDArray[np.bool_] = are_equal.all(axis=0)
    for each in np.flatnonzero(are_equal[0] & ~found):  # only if two hashes have equal first halves
        end = np.searchsorted(run[0], asked[0, each], side="right")
        found[each] = asked[1, each] in run[1, places[each] : end]
    return found


def _merge(left: _Run, right: _Run) -> Iterator[_Run]:
    """Two runs as one, piece by piece."""
    i = j = 0
    while i < left.shape[1] or j < right.shape[1]:
        pieces = left[:, i : i + _PIECE_HASHES], right[:, j : j + _PIECE_HASHES]
        last = min(piece[0, -1] for piece in pieces if piece.size)
        ends = [int(np.searchsorted(piece[0], last, side="right")) for piece in pieces]
        both = np.concatenate([piece[:, :end] for piece, end in zip(pieces, ends, strict=True)], axis=1)
        yield both[:, np.argsort(both[0], kind="stable")]
        i, j = i + ends[0], j + ends[1]

"""The disk space that a store will need, estimated from a sample beforehand, and whether there is enough."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.corpus.documents import CorpusCounts
from unmask.corpus.pipeline import read_documents
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.errors import OutputError
from unmask.io.paths import free_space
from unmask.io.progress import human_bytes, human_count
from unmask.store.encoding import Chunk, ChunkEncoder
from unmask.store.manifest import DOCUMENT, SENTENCE, WORD_END

_SAMPLED_FILES = 4
_ENCODED_BYTES = 1 << 18
"""Bytes of text that are encoded from the beginning of each of a few files."""
_READ_BYTES = 32 << 20
_READ_S = 0.3
"""Most text and time to read of a file to learn how much text its bytes give; reading ahead distorts small samples."""


@dataclass(frozen=True)
class Estimate:
    """What a corpus will give, to within some tens of per cent."""

    text_bytes: int  # of cleaned text in UTF-8
    documents: int  # how many
    tokens: int  # how many
    store_bytes: int  # of the finished store

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(*(value + more for value, more in zip(vars(self).values(), vars(other).values(), strict=True)))

    def times(self, factor: float) -> Estimate:
        return Estimate(*(round(value * factor) for value in vars(self).values()))

    def __str__(self) -> str:
        return (
            f"about {human_bytes(self.text_bytes)} of text, {human_count(self.tokens)} tokens; "
            f"the store will need about {human_bytes(self.store_bytes)}"
        )


def estimate_store(
    files: Sequence[Path], encoder: ChunkEncoder, reading: ReadingSettings, cleaning: CleaningSettings
) -> Estimate | None:
    """Encodes the beginnings of a few files, and assumes that the rest is like them. Duplicates count, even if they are
    to be left out: how many there are is known only once all is read.

    Returns:
        None if one of them can be read only once: standard input, a pipe.

    Raises:
        InputError: a beginning cannot be read.
    """
    if not all(path.is_file() for path in files):
        return None
    sizes = {path: path.stat().st_size for path in files}
    cleaning = cleaning.model_copy(update={"duplicates": "keep", "near_duplicates": None})
    sample = Chunk(0)
    documents = text_bytes = file_bytes = 0
    for path in sorted(files, key=sizes.__getitem__, reverse=True)[:_SAMPLED_FILES]:
        counts = CorpusCounts()
        sampled_before = sample.bytes
        stop_at = math.inf
        for document in read_documents([path], counts, reading, cleaning):
            if stop_at == math.inf:  # opening it may have taken seconds
                stop_at = time.monotonic() + _READ_S
            if sample.bytes - sampled_before < _ENCODED_BYTES:
                sample.add(document.text[:_ENCODED_BYTES])
            if counts.utf8_bytes >= _READ_BYTES or time.monotonic() >= stop_at:
                break
        documents += counts.documents
        text_bytes += counts.utf8_bytes
        file_bytes += counts.file_bytes
    encoded = encoder.encode(sample)
    whole_bytes = sum(sizes.values()) * text_bytes / max(1, file_bytes)
    per_byte = whole_bytes / max(1, sample.bytes)
    num_documents = round(documents * whole_bytes / max(1, text_bytes))
    sentence_bytes = len(encoded.sentence_lengths) * SENTENCE.itemsize
    word_bytes = 0 if encoded.words is None else encoded.words.utf8.nbytes + len(encoded.tokens) * WORD_END.itemsize
    sample_bytes = encoded.tokens.nbytes + sentence_bytes + word_bytes
    store_bytes = round(sample_bytes * per_byte) + num_documents * DOCUMENT.itemsize
    return Estimate(round(whole_bytes), num_documents, round(len(encoded.tokens) * per_byte), store_bytes)


def check_free_space(out: Path, estimate: Estimate, *, with_duplicates: bool = False) -> str:
    """Describes how much space a store needs and how much there is.

    Args:
        out: the store's directory, which may hold finished shards.
        with_duplicates: whether the estimate counts texts that will be left out.

    Raises:
        OutputError: the rest of the store will not fit, and the estimate counts only what it will hold.
    """
    written = sum(path.stat().st_size for path in out.iterdir()) if out.is_dir() else 0
    needed = f"{estimate}{', duplicates included' * with_duplicates}"
    if written:
        needed += f", {human_bytes(written)} of which are there"
    free = free_space(out)
    if estimate.store_bytes - written > free:
        if with_duplicates:
            return f"{needed}; {human_bytes(free)} are free, which may be too little"
        raise OutputError(
            f"{needed}, but only {human_bytes(free)} are free in {out.parent}: free some space, or write elsewhere"
        )
    return f"{needed}; {human_bytes(free)} are free"

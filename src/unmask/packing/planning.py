"""From documents to planned sequences: which spans of tokens are shown together, and in which order.

The corpus is permuted by a keyed bijection and taken in blocks of at most 4,096 documents. The plan of a block, which
is its sequences and their order, is a pure function of (seed, copy, block), so a resumed run plans one block again and
continues. The copy is the number of the epoch, unless copies return (static masking).

A `SequenceFormat` turns documents into sequences: those of two segments are in `unmask.packing.pair_formats`, those of
one in `unmask.packing.single_formats`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.chance import Draws, Permutation, Purpose, key, uniform
from unmask.packing.split import Split

BLOCK_DOCUMENTS = 4096


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `end` of one document; `document` is its number in the store."""

    document: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


Segment = tuple[Span, ...]
"""One span; or, for a segment that runs over several documents, one span of each, with separators between them."""


@dataclass(frozen=True, slots=True)
class PlannedSequence:
    """A sequence before it has tokens.

    Attributes:
        segments: one, or A and B.
        label: for the sentence objective; None if there is none.
    """

    segments: tuple[Segment, ...]
    label: int | None = None

    def __len__(self) -> int:
        """In tokens of text."""
        return sum(len(span) for segment in self.segments for span in segment)


class SequenceFormat(Protocol):
    """How documents become sequences."""

    def plan(self, split: Split, documents: Iterable[int], draws: Draws) -> Iterator[PlannedSequence]:
        """The sequences of some documents.

        Args:
            split: contains the documents; random other documents are drawn from it.
            documents: their numbers in the store, in reading order.
            draws: the only source of randomness.
        """


@dataclass(frozen=True)
class Planner:
    """Plans the blocks of a split: which sequences of its format they have, and in which order."""

    split: Split
    format: SequenceFormat
    seed: int

    @property
    def num_blocks(self) -> int:
        return -(-self.split.store.num_documents // BLOCK_DOCUMENTS)

    def places(self, block: int) -> range:
        """The places of a block's documents in the order of an epoch; `Permutation` gives the document at a place."""
        return range(block * BLOCK_DOCUMENTS, min((block + 1) * BLOCK_DOCUMENTS, self.split.store.num_documents))

    def plan_block(self, copy: int, block: int) -> list[PlannedSequence]:
        """All sequences of a block, in the order in which they are shown.

        Args:
            copy: the epoch, or the epoch modulo the number of copies.
            block: 0 <= block < num_blocks.
        """
        sequences = list(self._sequences(copy, block))
        keys = torch.full((len(sequences),), key(self.seed, copy, block, Purpose.SHUFFLE))
        # One draw for each sequence: they are shown by ascending draw.
        shuffled = torch.argsort(uniform(keys, torch.arange(len(sequences)), stream=0), stable=True)
        return [sequences[place] for place in shuffled.tolist()]

    def count_block(self, copy: int, block: int) -> int:
        """How many sequences `plan_block` would give, without keeping them: of long documents there are millions."""
        return sum(1 for _ in self._sequences(copy, block))

    def _sequences(self, copy: int, block: int) -> Iterator[PlannedSequence]:
        """The sequences of a block in the order of its documents."""
        order = Permutation(self.split.store.num_documents, self.seed, copy, Purpose.DOCUMENTS)
        documents = (order[place] for place in self.places(block))
        members = (document for document in documents if document in self.split)
        return self.format.plan(self.split, members, Draws(self.seed, copy, block, Purpose.PLAN))

    def plan_sample(self, most: int) -> list[PlannedSequence]:
        """At most `most` sequences, drawn evenly over the documents of the split: the same ones every time.

        Groups of 4,096 documents are taken in a random order until they have `most` sequences; of all these every n-th
        is taken. Where there are no more documents than that, all take part.
        """
        documents = self.split.documents()
        order = Permutation(len(documents), self.seed, 0, Purpose.DOCUMENTS)
        sequences: list[PlannedSequence] = []
        for start in range(0, len(documents), BLOCK_DOCUMENTS):
            places = range(start, min(start + BLOCK_DOCUMENTS, len(documents)))
            members = (int(documents[order[place]]) for place in places)
            sequences += self.format.plan(self.split, members, Draws(self.seed, 0, start, Purpose.PLAN))
            if len(sequences) >= most:
                break
        number = min(most, len(sequences))
        return [sequences[place * len(sequences) // number] for place in range(number)]


def fitting_ends(sentence_ends: NDArray[np.int64], longest: int) -> list[int]:
    """The ends of sentences, with extra ends inside each sentence of over `longest` tokens so that every piece fits.

    Sentences that end at tokens 3, 13 and 15 have ends 3, 7, 11, 13 and 15 where `longest` is 4.
    """
    lengths = np.diff(sentence_ends, prepend=0)
    ends: list[int] = sentence_ends.tolist()
    if lengths.max() > longest:
        starts = sentence_ends - lengths
        cuts = [np.arange(starts[n] + longest, sentence_ends[n], longest) for n in np.flatnonzero(lengths > longest)]
        ends = np.sort(np.concatenate([sentence_ends, *cuts])).tolist()
    return ends

"""Documents as streams of words, in as many lanes as a batch has sequences: what ELMo's language models read (Peters et
al. 2018, section 3; `packing.format: stream`).

In an epoch the documents follow one another in an order drawn from (seed, epoch), and each lane reads an equal
share of that text, window after window: the next window of a lane begins where the last one ended, in the next epoch
too. What is left over at the end of an epoch, less than a window per lane, is not shown in it. A window is a pure
function of (seed, epoch, window), so a run can resume at any of them.

As in the released code, the forward model reads a sentence as `<S> w1 ... wn` and predicts w1 ... wn `</S>`, and the
backward model reads `</S> wn ... w1` and predicts wn ... w1 `<S>`: sentences keep the order of the text, each one is
reversed. So where a window ends within a sentence, the two models read different words of it. Departures: the released
code deals sentences out to the lanes in a random order, different for each direction; here a lane reads whole
documents in order, since the memory carried from one window to the next is only useful for text that follows.

It needs 32 bytes of memory per document; other formats need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.batch import Batch, StepBatches
from unmask.chance import Purpose, key, uniform
from unmask.errors import InputError, StoreError
from unmask.packing.loader import Position
from unmask.packing.sharing import WHOLE, Share
from unmask.packing.split import Split
from unmask.store.shard import StoredWords
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.word_characters import (
    BEGIN_SENTENCE,
    BEGIN_WORD,
    END_SENTENCE,
    END_WORD,
    PADDING,
    WordTokenizer,
)

_BEGIN, _END = -1, -2
"""In place of a word's number: the marks at the ends of a sentence."""


class _Plan(NamedTuple):
    """The documents of an epoch in reading order.

    Attributes:
        documents: (documents,) int64, their places in the store.
        ends: (documents,) int64, where each ends in the epoch's text, in steps: one per word and one per sentence.
    """

    documents: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True)
class StreamLoader:
    """Makes the batches of streams.

    Args:
        split: the documents, of a store of words.
        tokenizer: the store's.
        window: words that a lane reads in a step (20 in the paper).
        batch_size: lanes.
        micro_batch_size: lanes in a batch, at most.
        share: of the lanes, which the batches are of.

    Raises:
        StoreError: the store is not one of words.
    """

    split: Split
    tokenizer: WordTokenizer
    window: int
    batch_size: int
    micro_batch_size: int
    seed: int
    share: Share = WHOLE

    def __post_init__(self) -> None:
        if not self.split.store.has_words:
            raise StoreError(
                f"{self.split.store.directory}: a store without the words' characters, which packing.format=stream "
                "reads: prepare it with a tokenizer of words (`unmask tokenizer train --kind word`)"
            )

    @cached_property
    def _members(self) -> NDArray[np.int64]:
        """(documents,) int64: the documents of the split."""
        return self.split.documents()

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """(documents,) int64: the steps it takes to read each document, one per word and one per sentence."""
        words, sentences = self.split.store.sizes()
        steps: NDArray[np.int64] = (words + sentences)[self._members]
        return steps

    def num_windows(self, num_lanes: int) -> int:
        """Windows of an epoch in each of `num_lanes` lanes."""
        return int(self._sizes.sum()) // num_lanes // self.window

    def steps(self, start: Position = Position()) -> Iterator[StepBatches[Position]]:  # noqa: B008  frozen
        """Endless steps from `start`, of which only `epoch` and `sequence` (the window) are used. Raises InputError if
        there are too few words for a window in each lane."""
        num_windows = self.num_windows(self.batch_size)
        if not num_windows:
            raise InputError(
                f"{self.split.store.directory}: its {self.split.num_documents} {self.split.name} document(s) have "
                f"{int(self._sizes.sum())} words and sentences, fewer than train.batch_size {self.batch_size} x "
                f"packing.max_length {self.window}: lower one of them, or give more text"
            )
        epoch, window = start.epoch, start.sequence
        while True:
            plan = self._plan(epoch)
            for number in range(window, num_windows):
                batches = [
                    self._batch(plan, epoch, number, lanes, num_windows)
                    for lanes in self.share.lanes(self.batch_size, self.micro_batch_size)
                ]
                is_last = number + 1 == num_windows
                after = Position(epoch + is_last, 0, 0 if is_last else number + 1, start.phase, start.passed_over)
                yield StepBatches(batches, after, epoch + (number + 1) / num_windows)
            epoch, window = epoch + 1, 0

    def sample(self, most: int) -> Iterator[Batch]:
        """The first windows of the first epoch in order, at most `most` over all lanes, for evaluation.

        There are `micro_batch_size` lanes, or fewer if the text is too short for them. A text shorter than a window
        gives nothing.
        """
        num_lanes = min(self.micro_batch_size, int(self._sizes.sum()) // self.window, most)
        if not num_lanes:
            return
        plan, num_windows = self._plan(0), self.num_windows(num_lanes)
        for number in range(min(num_windows, -(-most // num_lanes))):
            yield self._batch(plan, 0, number, range(num_lanes), num_windows)

    def _plan(self, epoch: int) -> _Plan:
        members = torch.from_numpy(self._members)
        keys = torch.full((len(members),), key(self.seed, epoch, Purpose.LANES))
        order = torch.argsort(uniform(keys, members, stream=0), stable=True).numpy()
        return _Plan(self._members[order], np.cumsum(self._sizes[order]))

    def _batch(self, plan: _Plan, epoch: int, window: int, lanes: Sequence[int], num_windows: int) -> Batch:
        starts = [(lane * num_windows + window) * self.window for lane in lanes]
        pieces = [piece for start in starts for piece in _read(self.split.store, plan, start, start + self.window)]
        inputs, labels, characters = self._columns([forward for forward, _ in pieces])
        _, backward_labels, backward_characters = self._columns([backward for _, backward in pieces])
        num_lanes, total = len(lanes), len(lanes) * self.window
        return Batch(
            input_ids=inputs,
            token_type_ids=torch.zeros(total, dtype=torch.int64),
            position_ids=torch.arange(self.window).repeat(num_lanes),
            bounds=torch.arange(0, total + 1, self.window, dtype=torch.int32),
            lengths=(self.window,) * num_lanes,
            keys=torch.full((num_lanes,), key(self.seed, epoch, window, Purpose.WINDOW)),
            columns={
                "special_tokens_mask": inputs == self.tokenizer.bos_id,
                "characters": characters,
                "labels": labels,
                "backward_characters": backward_characters,
                "backward_labels": backward_labels,
                "lane": torch.tensor(list(lanes)),
                "window": torch.full((num_lanes,), window),
            },
        )

    def _columns(self, readings: list[_Reading]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What one direction reads and predicts in a batch, (tokens,) int64 each, and the characters of what it reads,
        (tokens, characters) int64."""

        def ids(words: NDArray[np.int64], stored: NDArray[np.int64]) -> NDArray[np.int64]:
            marks = np.where(words == _BEGIN, self.tokenizer.bos_id, self.tokenizer.eos_id)
            return np.where(words >= 0, stored[np.maximum(words, 0)], marks)

        inputs = [ids(each.inputs, each.ids) for each in readings]
        labels = [ids(each.labels, each.ids) for each in readings]
        rows = [character_rows(each.inputs, each.words, self.tokenizer.max_characters) for each in readings]
        return (
            torch.from_numpy(np.concatenate(inputs)),
            torch.from_numpy(np.concatenate(labels)),
            torch.from_numpy(np.concatenate(rows)),
        )


class _Reading(NamedTuple):
    """Some steps of one direction in one document.

    Attributes:
        inputs, labels: (steps,) int64, numbers of words among `ids` and `words`, or `_BEGIN` or `_END`.
        ids: (words,) int64, in the output vocabulary.
        words: the same words in writing.
    """

    inputs: NDArray[np.int64]
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]
    words: StoredWords


def _read(store: TokenStore, plan: _Plan, begin: int, end: int) -> Iterator[tuple[_Reading, _Reading]]:
    """Steps `begin` to `end` of an epoch's text, forwards and backwards, document by document."""
    place = int(np.searchsorted(plan.ends, begin, "right"))
    while begin < end:
        document = int(plan.documents[place])
        first = int(plan.ends[place - 1]) if place else 0
        stop = min(end, int(plan.ends[place]))
        yield _read_document(store, document, np.arange(begin - first, stop - first))
        begin, place = stop, place + 1


def _read_document(store: TokenStore, document: int, steps: NDArray[np.int64]) -> tuple[_Reading, _Reading]:
    stored = store.document(document)
    lengths = np.diff(stored.sentence_ends, prepend=0)
    ends = stored.sentence_ends + np.arange(1, len(lengths) + 1)  # one more step per sentence
    sentence = np.searchsorted(ends, steps, "right")
    length = lengths[sentence]
    done = steps - (ends[sentence] - length - 1)  # words of the sentence that have been read before
    low = int(stored.sentence_ends[sentence[0]] - length[0])
    high = int(stored.sentence_ends[sentence[-1]])
    first = stored.sentence_ends[sentence] - length - low
    ids, words = stored.tokens[low:high].astype(np.int64), store.words(document, low, high)
    forward = _Reading(
        np.where(done == 0, _BEGIN, first + done - 1), np.where(done == length, _END, first + done), ids, words
    )
    backward = _Reading(
        np.where(done == 0, _END, first + length - done),
        np.where(done == length, _BEGIN, first + length - 1 - done),
        ids,
        words,
    )
    return forward, backward


def character_rows(numbers: NDArray[np.int64], words: StoredWords, max_characters: int) -> NDArray[np.int64]:
    """The characters of words, in the layout of `WordTokenizer.table`.

    Args:
        numbers: (n,) int64, of words, or -1 and -2 for the begin and the end of a sentence.
        max_characters: the width of a row, marks included.

    Returns:
        (n, max_characters) int64.
    """
    is_word = numbers >= 0
    ends = words.ends[np.maximum(numbers, 0)]
    starts = np.where(numbers > 0, words.ends[np.maximum(numbers - 1, 0)], 0)
    lengths = np.where(is_word, np.minimum(ends - starts, max_characters - 2), 1)
    rows = np.full((len(numbers), max_characters), PADDING, dtype=np.int64)
    rows[:, 0] = BEGIN_WORD
    row, column = np.nonzero(np.arange(max_characters - 2) < (lengths * is_word)[:, None])
    rows[row, column + 1] = words.utf8[starts[row] + column]
    rows[~is_word, 1] = np.where(numbers[~is_word] == _BEGIN, BEGIN_SENTENCE, END_SENTENCE)
    rows[np.arange(len(rows)), lengths + 1] = END_WORD
    return rows


def target_counts(store: TokenStore, tokenizer: WordTokenizer) -> NDArray[np.int64]:
    """(vocabulary,) int64: how often each entry is a target. The marks of sentences, which are not in the store, are
    targets once per sentence: `</S>` forwards, `<S>` backwards."""
    counts = store.token_counts()
    counts[[tokenizer.bos_id, tokenizer.eos_id]] = int(store.manifest["sentences"])
    return counts

"""Questions with their passages as rows that a model reads: windows over each passage, and where they hold its answer.

A row is `[CLS] question [SEP] a window of the passage [SEP]`, with the tokenizer's special tokens for pairs. Windows
begin every `doc_stride` tokens, as in Google's run_squad. A token in several windows counts in the one where it has the
most context: the smaller of its left and right contexts, plus a hundredth of the window's length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unmask.batch import IGNORE_INDEX
from unmask.errors import SettingsError
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.qa.examples import QaExample
from unmask.tokenization.offsets import PairFrame, align, pair_frame
from unmask.tokenization.opening import Tokenizer

LONG_QUESTIONS = "questions longer than task.max_question_length: cut"
NO_TOKENS = "answers that no token of the tokenizer stands for: not learned"

NOT_PASSAGE = -1
"""The place of tokens that are not in the passage."""


@dataclass(frozen=True)
class WindowSizes:
    """The settings of the same names, in tokens."""

    max_length: int
    doc_stride: int
    max_question_length: int


@dataclass(frozen=True)
class _Passage:
    """A passage's tokens: their ids, and the characters that each covers; all (tokens,) int32."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]


def window_bounds(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Where the windows over a passage begin and end.

    Args:
        num_tokens: of the passage; 0 gives one empty window.
        room: most tokens of a window, at least 1.
        stride: from one beginning to the next; if it exceeds the window, windows are adjacent.
    """
    bounds = [(0, min(room, num_tokens))]
    while bounds[-1][1] < num_tokens:
        start = bounds[-1][0] + min(room, stride)
        bounds.append((start, min(start + room, num_tokens)))
    return bounds


def max_context_window(num_tokens: int, bounds: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The number of the window in which each token of a passage has the most context, the first if two are equal.

    Of each two neighbouring windows, the later gives more context from some token on. These turning points ascend from
    pair to pair, so the number of a token's window is the number of turning points at or before it.

    Args:
        bounds: of windows of one length, from `window_bounds`; the last may be shorter.

    Returns:
        (num_tokens,) int64.
    """
    starts, ends = np.array(bounds, dtype=np.int64).T
    # Everything below is per pair of neighbours. The later window loses a hundredth of how much shorter it is.
    shortened = -np.diff(ends - starts)
    # In hundredths, as integers. Left of both middles the difference is constant; between the middles the later window
    # has more where 100 (place - its start) > 100 (the earlier's last - place) + shortened.
    overtaken = (100 * (starts[1:] + ends[:-1] - 1) + shortened) // 200 + 1
    ever_overtaken = 100 * np.diff(ends) > shortened  # right of both middles
    firsts = np.where(ever_overtaken, np.minimum(overtaken, ends[:-1]), ends[:-1])
    windows: NDArray[np.int64] = np.searchsorted(firsts, np.arange(num_tokens), side="right")
    return windows


def encode_questions(
    examples: Sequence[QaExample],
    tokenizer: Tokenizer,
    sizes: WindowSizes,
    counts: ExampleCounts,
    num_segments: int = 2,
) -> EncodedExamples:
    """Windows as units, in the order of the examples.

    Unit columns `start_positions` and `end_positions` (units,) int64 are places in the row: of the first and the last
    token of the first answer if the window holds all of it, else of the token that represents the whole text ([CLS]);
    -100 if the answer is not known. The alignment of each token: `starts`, `ends` int32 (characters of the passage,
    -1 for other tokens), `max_context` bool (False for other tokens), `is_cls` bool.

    Args:
        counts: updated.
        num_segments: below 2 every token is segment 0.

    Raises:
        SettingsError: a question leaves no room for its passage.
        ModelError: the tokenizer adds no special tokens.
    """
    frame = pair_frame(tokenizer)
    passages = _encode_passages([example.context for example in examples], tokenizer)
    questions = tokenizer.encode_batch([example.question for example in examples], specials_in_text=True)
    rows = _Rows(frame)
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        passage = passages[example.context]
        counts.empty += not question or not len(passage.ids)
        counts.note(LONG_QUESTIONS, len(question) > sizes.max_question_length)
        question = question[: sizes.max_question_length]
        room = sizes.max_length - frame.num_special - len(question)
        if room < 1:
            raise SettingsError(
                f"task.max_length {sizes.max_length} has no room for a passage beside the question of {len(question)} "
                f"tokens at {example.source} and {frame.num_special} special tokens: raise task.max_length, or lower "
                f"task.max_question_length ({sizes.max_question_length})"
            )
        span = _answer_tokens(example, passage)
        counts.note(NO_TOKENS, bool(example.answers) and span is None)
        bounds = window_bounds(len(passage.ids), room, sizes.doc_stride)
        best = max_context_window(len(passage.ids), bounds)
        for window, (start, end) in enumerate(bounds):
            rows.add(number, question, passage, slice(start, end), best[start:end] == window, span)
    counts.examples += len(examples)
    return rows.encoded(num_segments)


def _encode_passages(contexts: Sequence[str], tokenizer: Tokenizer) -> dict[str, _Passage]:
    distinct = list(dict.fromkeys(contexts))
    return {
        context: _Passage(*(np.array(column, dtype=np.int32) for column in (text.ids, text.starts, text.ends)))
        for context, text in zip(distinct, align(tokenizer, distinct), strict=True)
    }


def _answer_tokens(example: QaExample, passage: _Passage) -> tuple[int, int] | None:
    """The first and the last token of the first answer; (-1, -1) if there is no answer, None if it is not known or no
    token covers any character of it."""
    if example.answers is None:
        return None
    if not example.answers:
        return -1, -1
    answer = example.answers[0]
    first = int(np.searchsorted(passage.ends, answer.start, side="right"))
    last = int(np.searchsorted(passage.starts, answer.end, side="left")) - 1
    return (first, last) if first <= last else None


class _Rows:
    """Collects rows."""

    def __init__(self, frame: PairFrame) -> None:
        self._frame = frame
        self._examples: list[int] = []
        self._question_lengths: list[int] = []
        self._ids: list[Sequence[int] | NDArray[np.int32]] = []  # three pieces a row
        self._starts: list[NDArray[np.int32]] = []  # only of tokens in windows, as are the lists below
        self._ends: list[NDArray[np.int32]] = []
        self._max_context: list[NDArray[np.bool_]] = []
        self._targets: list[tuple[int, int]] = []

    def add(
        self,
        example: int,
        question: list[int],
        passage: _Passage,
        window: slice,
        max_context: NDArray[np.bool_],
        span: tuple[int, int] | None,
    ) -> None:
        """Adds a window of a passage."""
        frame = self._frame
        ahead = [*frame.before, *question, *frame.between]
        self._examples.append(example)
        self._question_lengths.append(len(question))
        self._ids += (ahead, passage.ids[window], frame.after)
        self._starts.append(passage.starts[window])
        self._ends.append(passage.ends[window])
        self._max_context.append(max_context)
        length = len(ahead) + (window.stop - window.start) + len(frame.after)
        if span is None:
            self._targets.append((IGNORE_INDEX, IGNORE_INDEX))
        elif window.start <= span[0] and span[1] < window.stop:
            self._targets.append((span[0] - window.start + len(ahead), span[1] - window.start + len(ahead)))
        else:
            self._targets.append((length - 1, length - 1) if frame.cls_is_last else (0, 0))

    def encoded(self, num_segments: int) -> EncodedExamples:
        """All rows as flat arrays."""
        frame = self._frame
        questions = np.array(self._question_lengths, dtype=np.int64)
        windows = np.array([len(window) for window in self._starts], dtype=np.int64)
        ahead = questions + len(frame.before) + len(frame.between)
        lengths = ahead + windows + len(frame.after)
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        has_segments = num_segments > 1 and frame.first_of_segment_b is not None
        places = _spread(bounds[:-1] + ahead, windows)  # of the windows' tokens among all tokens
        is_cls = np.zeros(bounds[-1], dtype=np.bool_)
        is_cls[bounds[1:] - 1 if frame.cls_is_last else bounds[:-1]] = True
        targets = np.array(self._targets, dtype=np.int64)
        return EncodedExamples(
            input_ids=np.concatenate([np.asarray(piece, dtype=np.int32) for piece in self._ids]),
            bounds=bounds,
            second_starts=questions + (frame.first_of_segment_b or 0) if has_segments else lengths,
            unit_bounds=np.arange(len(lengths) + 1, dtype=np.int64),
            examples=np.array(self._examples, dtype=np.int64),
            unit_columns={
                "start_positions": np.ascontiguousarray(targets[:, 0]),
                "end_positions": np.ascontiguousarray(targets[:, 1]),
            },
            alignment={
                "starts": _scattered(places, self._starts, is_cls.shape[0]),
                "ends": _scattered(places, self._ends, is_cls.shape[0]),
                "max_context": _scattered(places, self._max_context, is_cls.shape[0]) > 0,
                "is_cls": is_cls,
            },
        )


def _spread(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """`starts[i] ... starts[i] + sizes[i] - 1` for each i, concatenated."""
    ends = np.cumsum(sizes)
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1])


def _scattered(
    places: NDArray[np.int64], columns: Sequence[NDArray[np.int32] | NDArray[np.bool_]], size: int
) -> NDArray[np.int32]:
    """(size,) int32: the concatenated columns at `places`, `NOT_PASSAGE` elsewhere."""
    values = np.full(size, NOT_PASSAGE, dtype=np.int32)
    values[places] = np.concatenate(columns)
    return values


def windows_of_examples(encoded: EncodedExamples, num_examples: int) -> Iterator[range]:
    """The units of each example."""
    firsts = np.searchsorted(encoded.examples, np.arange(num_examples + 1)).tolist()
    return (range(first, end) for first, end in pairwise(firsts))


def holds_answer(encoded: EncodedExamples) -> NDArray[np.bool_]:
    """(units,): whether the answer is known to be in the window. The first and last tokens of a row are never the
    passage's."""
    starts = encoded.unit_columns["start_positions"].astype(np.int64)
    return (starts > 0) & (starts < encoded.lengths - 1)

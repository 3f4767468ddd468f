"""Questions with their passages as rows that a model reads: windows over each passage, and where they hold its answer.

A row is `[CLS] question [SEP] a window of the passage [SEP]`, with the tokenizer's special tokens for pairs. Windows
begin every `doc_stride` tokens, as in Google's run_squad. A token in several windows counts in the one where it has the
most context: the smaller of its left and right contexts, plus a hundredth of the window's length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from unmask.batch import IGNORE_INDEX
from unmask.errors import SettingsError
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples, WindowRow, collect_windows, window_bounds
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.settings import TaskSettings
from unmask.tokenization.offsets import AlignedText, align
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import assemble

LONG_QUESTIONS = "questions longer than task.max_question_length: cut"
NO_TOKENS = "answers that no token of the tokenizer represents: not learned"

NOT_PASSAGE = -1
"""The place of tokens that are not in the passage."""


def max_context_window(num_tokens: int, bounds: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The number of the window in which each token of a passage has the most context, the first if two are equal.

    Args:
        bounds: of windows.

    Returns:
        (num_tokens,) int64.
    """
    most, windows = np.full(num_tokens, -1), np.zeros(num_tokens, dtype=np.int64)
    for number, (start, end) in enumerate(bounds):
        left = np.arange(end - start)
        context = 100 * np.minimum(left, left[::-1]) + (end - start)  # in hundredths, as integers
        is_more = context > most[start:end]
        most[start:end][is_more] = context[is_more]
        windows[start:end][is_more] = number
    return windows


def encode_questions(
    examples: Sequence[QaExample],
    tokenizer: Tokenizer,
    settings: TaskSettings,
    counts: ExampleCounts,
    num_segments: int = 2,
) -> EncodedExamples:
    """Windows as units, in the order of the examples.

    Unit columns `start_positions` and `end_positions` (units,) int64 are places in the row: of the first and the last
    token of the first answer if the window holds all of it, else of the token that represents the whole text ([CLS]);
    -100 if the answer is not known. The alignment of each token: `starts`, `ends` int32 (characters of the passage,
    -1 for other tokens), `max_context` bool (False for other tokens), `is_cls` bool.

    Args:
        settings: `max_length`, `doc_stride` and `max_question_length`.
        counts: updated.
        num_segments: below 2 every token is segment 0.

    Raises:
        SettingsError: a question leaves no room for its passage.
        ModelError: no token represents the whole text.
    """
    cls_id, pair = tokenizer.cls_id, tokenizer.template.pair
    cls_is_last = cls_id in pair[-1].ids and cls_id not in pair[0].ids
    num_special = sum(len(piece.ids) for piece in pair)
    num_before = sum(len(piece.ids) for piece in takewhile(lambda piece: piece.text != "B", pair))
    contexts = list(dict.fromkeys(example.context for example in examples))
    passages = dict(zip(contexts, align(tokenizer, contexts), strict=True))
    characters = {
        context: np.array([passage.starts, passage.ends], dtype=np.int32) for context, passage in passages.items()
    }
    questions = tokenizer.encode_batch([example.question for example in examples], specials_in_text=True)
    rows = []
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        passage = passages[example.context]
        counts.empty += not question or not len(passage)
        counts.note(LONG_QUESTIONS, len(question) > settings.max_question_length)
        counts.num_cut += max(0, len(question) - settings.max_question_length)
        question = question[: settings.max_question_length]
        capacity = settings.max_length - num_special - len(question)
        if capacity < 1:
            raise SettingsError(
                f"task.max_length {settings.max_length} has no room for a passage beside the question of "
                f"{len(question)} tokens at {example.source} and {num_special} special tokens: raise task.max_length, "
                f"or lower task.max_question_length ({settings.max_question_length})"
            )
        answer = _answer_tokens(example, passage)
        counts.note(NO_TOKENS, bool(example.answers) and answer is None)
        bounds = window_bounds(len(passage), capacity, settings.doc_stride)
        best = max_context_window(len(passage), bounds)
        for window, (start, end) in enumerate(bounds):
            row = assemble(tokenizer.template, question, passage.ids[start:end], None)
            length, first_place = len(row.input_ids), num_before + len(question)
            of_passage = slice(first_place, first_place + end - start)
            starts, ends = table = np.full((2, length), NOT_PASSAGE, dtype=np.int32)
            table[:, of_passage] = characters[example.context][:, start:end]
            max_context, is_cls = np.zeros((2, length), dtype=np.bool_)
            max_context[of_passage] = best[start:end] == window
            cls_place = length - 1 if cls_is_last else 0
            is_cls[cls_place] = True
            if answer is None:
                first = last = IGNORE_INDEX
            elif start <= answer[0] and answer[1] < end:
                first, last = (place - start + first_place for place in answer)
            else:
                first = last = cls_place
            second_start = row.token_type_ids.count(0) if num_segments > 1 else length
            targets = {"start_positions": first, "end_positions": last}
            alignment = {"starts": starts, "ends": ends, "max_context": max_context, "is_cls": is_cls}
            rows.append(WindowRow(row.input_ids, second_start, number, targets, alignment=alignment))
    counts.examples += len(examples)
    return collect_windows(rows)


def _answer_tokens(example: QaExample, passage: AlignedText) -> tuple[int, int] | None:
    """The first and the last token of the first answer; (-1, -1) if there is no answer, None if it is not known or no
    token covers any character of it."""
    if example.answers is None:
        return None
    if not example.answers:
        return -1, -1
    start, end = example.answers[0]
    first = bisect_right(passage.ends, start)
    last = bisect_left(passage.starts, end) - 1
    return (first, last) if first <= last else None


def windows_of_examples(encoded: EncodedExamples, num_examples: int) -> Iterator[range]:
    """The units of each example."""
    firsts = np.searchsorted(encoded.examples, np.arange(num_examples + 1)).tolist()
    return (range(first, end) for first, end in pairwise(firsts))


def holds_answer(encoded: EncodedExamples) -> NDArray[np.bool_]:
    """(units,): whether the answer is known to be in the window. The first and last tokens of a row are never the
    passage's."""
    starts = encoded.unit_columns["start_positions"].astype(np.int64)
    return (starts > 0) & (starts < encoded.lengths - 1)

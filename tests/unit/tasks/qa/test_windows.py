"""Windows over a passage: where they begin, which token counts in which, and where the answer is in them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.questions import TOKENIZERS, WORDS
from unmask.batch import IGNORE_INDEX
from unmask.errors import SettingsError
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.qa.windows import (
    LONG_QUESTIONS,
    NO_TOKENS,
    encode_questions,
    holds_answer,
    max_context_window,
    window_bounds,
)
from unmask.tasks.settings import ColumnSettings, TaskSettings


def example(context: str, *answers: str, question: str = "who?", known: bool = True) -> QaExample:
    placed = tuple((context.index(text), context.index(text) + len(text)) for text in answers)
    return QaExample("1", question, context, placed if known else None, (), {}, "x:1")


def sizes(max_length: int, doc_stride: int, max_question_length: int) -> TaskSettings:
    named = {"max_length": max_length, "doc_stride": doc_stride, "max_question_length": max_question_length}
    return TaskSettings.model_validate({"name": "qa", **named})


def encode(
    examples: list[QaExample], settings: TaskSettings, kind: str = "wordpiece", num_segments: int = 2
) -> tuple[EncodedExamples, ExampleCounts]:
    counts = ExampleCounts()
    return encode_questions(examples, TOKENIZERS[kind], settings, counts, num_segments), counts


def targets(encoded: EncodedExamples) -> list[tuple[int, int]]:
    columns = encoded.unit_columns
    return [*zip(columns["start_positions"].tolist(), columns["end_positions"].tolist(), strict=True)]


@pytest.mark.parametrize(
    ("num_tokens", "room", "stride", "bounds"),
    [
        (0, 5, 2, [(0, 0)]),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (2, 6)]),
        (7, 5, 2, [(0, 5), (2, 7)]),
        (8, 5, 2, [(0, 5), (2, 7), (4, 8)]),
        (8, 5, 99, [(0, 5), (5, 8)]),
        (3, 1, 1, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_windows(num_tokens: int, room: int, stride: int, bounds: list[tuple[int, int]]) -> None:
    assert window_bounds(num_tokens, room, stride) == bounds


def test_a_token_counts_where_it_has_the_most_context() -> None:
    # Contexts of tokens 2..6: in the first window 2 3 2 1 0, in the second 0 1 2 1 0 plus .01 x (7 - 5) less.
    assert max_context_window(7, [(0, 7), (2, 7)]).tolist() == [0, 0, 0, 0, 0, 0, 0]
    # In windows of five: token 3 has 1 beside it in the first and 1 in the second; the first is taken.
    assert max_context_window(7, [(0, 5), (2, 7)]).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert max_context_window(0, [(0, 0)]).tolist() == []


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 25))
def test_windows_leave_nothing_out(num_tokens: int, room: int, stride: int) -> None:
    bounds = window_bounds(num_tokens, room, stride)
    assert {place for start, end in bounds for place in range(start, end)} == set(range(num_tokens))
    assert all(end - start <= room for start, end in bounds)
    best = max_context_window(num_tokens, bounds)
    assert all(bounds[window][0] <= place < bounds[window][1] for place, window in enumerate(best))


def most_context(num_tokens: int, bounds: list[tuple[int, int]]) -> list[int]:
    """Every token compared in every window, in whole hundredths; `max` takes the first of equal ones."""
    return [
        max(
            (window for window, (start, end) in enumerate(bounds) if start <= place < end),
            key=lambda w: 100 * min(place - bounds[w][0], bounds[w][1] - 1 - place) + bounds[w][1] - bounds[w][0],
        )
        for place in range(num_tokens)
    ]


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(1, 300), st.integers(1, 350))
def test_the_most_context_is_that_of_all_windows(num_tokens: int, room: int, stride: int) -> None:
    bounds = window_bounds(num_tokens, room, max(stride, num_tokens // 40))
    assert max_context_window(num_tokens, bounds).tolist() == most_context(num_tokens, bounds)


def test_a_long_passage_takes_no_more_memory_than_its_tokens() -> None:
    tracemalloc.start()
    bounds = window_bounds(60_000, 300, 128)
    windows = max_context_window(60_000, bounds)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert windows[-1] == len(bounds) - 1
    assert peak < 40 * 60_000  # bytes: a few numbers for each token, where a table of all windows takes 670 MB


def test_rows_are_framed_as_pairs() -> None:
    for kind, tokenizer in TOKENIZERS.items():
        encoded, _ = encode([example(WORDS, "two three")], sizes(64, 16, 64), kind)
        (expected,) = tokenizer.encode_inputs([("who?", WORDS)])
        batch = encoded.batch([0])
        assert batch.input_ids.tolist() == expected.input_ids
        assert batch.token_type_ids.tolist() == expected.token_type_ids


def test_one_segment_for_models_with_one() -> None:
    encoded, _ = encode([example(WORDS, "two")], sizes(10, 3, 64), num_segments=1)
    assert encoded.batch(range(len(encoded))).token_type_ids.sum() == 0


def test_answers_in_windows() -> None:
    # [CLS] who ? [SEP] and [SEP] leave room for 4 of the 10 words: windows from 0, 2, 4, 6.
    encoded, counts = encode([example(WORDS, "three four"), example("zero one", "zero one")], sizes(9, 2, 64))
    assert encoded.examples.tolist() == [0, 0, 0, 0, 1]
    assert targets(encoded) == [(0, 0), (5, 6), (0, 0), (0, 0), (4, 5)]
    assert holds_answer(encoded).tolist() == [False, True, False, False, True]
    assert encoded.lengths.tolist() == [9, 9, 9, 9, 7]
    assert (counts.examples, counts.empty, counts.notes) == (2, 0, {})


def test_tokens_that_only_touch_an_answer_are_none_of_it() -> None:
    # [CLS] who ? [SEP] one ? two ? three [SEP]
    encoded, _ = encode([example("one ?two? three", "two")], sizes(32, 8, 64))
    assert targets(encoded) == [(6, 6)]


def test_an_answer_that_no_window_holds_whole_is_in_none() -> None:
    encoded, _ = encode([example(WORDS, "two three four five six")], sizes(9, 2, 64))
    assert targets(encoded) == [(0, 0)] * 4


def test_unanswerable_unknown_and_nothing() -> None:
    examples = [example(WORDS), example(WORDS, known=False), example(""), example("\u200b \ufeff", question="")]
    encoded, counts = encode(examples, sizes(32, 8, 64))
    assert targets(encoded) == [(0, 0), (IGNORE_INDEX, IGNORE_INDEX), (0, 0), (0, 0)]
    assert (encoded.alignment["starts"] >= 0).sum() == 20
    assert counts.empty == 2


def test_answers_that_no_token_stands_for_are_told() -> None:
    encoded, counts = encode([example("one \u200b two", "\u200b")], sizes(32, 8, 64))
    assert targets(encoded) == [(IGNORE_INDEX, IGNORE_INDEX)]
    assert counts.notes == {NO_TOKENS: 1}


def test_no_answer_is_the_last_token_where_that_stands_for_the_whole() -> None:
    encoded, _ = encode([example(WORDS), example(WORDS, "one")], sizes(64, 8, 64), "bpe")
    last = encoded.lengths.tolist()[0] - 1
    assert targets(encoded)[0] == (last, last)
    assert holds_answer(encoded).tolist() == [False, True]
    assert np.flatnonzero(encoded.alignment["is_cls"]).tolist() == [last, 2 * last + 1]


def test_long_questions_are_cut_and_told() -> None:
    encoded, counts = encode([example("one", "one", question=WORDS)], sizes(32, 8, 4))
    assert encoded.lengths.tolist() == [3 + 4 + 1]
    assert (counts.notes, counts.num_cut) == ({LONG_QUESTIONS: 1}, 10 - 4)


def test_a_question_needs_room_for_its_passage() -> None:
    long = example(WORDS, "one", question=WORDS)
    assert len(encode([long], sizes(14, 8, 64))[0]) == 10  # windows of one token
    told = r"max_length 13 has no room .* question of 10 tokens at x:1 and 3 special tokens: raise task\.max_length"
    with pytest.raises(SettingsError, match=told):
        encode([long], sizes(13, 8, 64))


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_targets_say_the_answer(kind: str, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from([*WORDS.split(), "값을", "각각", "é", "🙂"]), min_size=1, max_size=30))
    context = " ".join(words)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(len(words), first + 3) - 1))
    start = len(" ".join(words[:first])) + (first > 0)
    text = " ".join(words[first : last + 1])
    one = QaExample("1", "who?", context, ((start, start + len(text)),), (), {}, "x:1")
    encoded, counts = encode([one], sizes(128, 64, 64), kind)
    assert not counts.notes
    for unit, (begin, end) in enumerate(targets(encoded)):
        if begin and holds_answer(encoded)[unit]:
            at = encoded.tokens_of(unit).start
            starts, ends = encoded.alignment["starts"], encoded.alignment["ends"]
            assert context[starts[at + begin] : ends[at + end]] == text
    assert holds_answer(encoded).any()


def test_every_answer_of_published_files_has_tokens(data_dir: Path) -> None:
    from unmask.tasks.qa.task import open_task

    task = open_task(TaskSettings(name="korquad1"), ColumnSettings())
    path = data_dir / "tasks" / "korquad1" / "KorQuAD_v1.0_dev.json"
    examples = [one for one, _ in zip(task.load(path, ExampleCounts()), range(500), strict=False)]
    encoded, counts = encode(examples, sizes(384, 128, 64))
    assert not counts.notes
    assert holds_answer(encoded).sum() >= 500

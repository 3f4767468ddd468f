"""Sentences as rows: which token answers for which unit, in which window, with what around it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import InputError
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.settings import TaskSettings
from unmask.tasks.tagging.examples import Span, TaggingExample, split_words
from unmask.tasks.tagging.windows import (
    Lead,
    SentenceWindow,
    cut_windows,
    encode_sentences,
    find_leads,
    predicate_ids,
    take_context,
)
from unmask.tokenization.offsets import AlignedText, align
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

LABELS = ("O", "B-X", "I-X")


def example(
    text: str,
    tags: str | None = None,
    *,
    units: Sequence[Span] | None = None,
    predicate: int | None = None,
    left: tuple[str, ...] = (),
    right: tuple[str, ...] = (),
) -> TaggingExample:
    spans = tuple(split_words(text, punctuation=False) if units is None else units)
    its_tags = None if tags is None else tuple(tags.split())
    return TaggingExample(text, spans, its_tags, predicate, None, {}, "x:1", left, right)


def encode(
    examples: list[TaggingExample], tokenizer: TextTokenizer, max_length: int = 32, stride: int = 16, segments: int = 2
) -> EncodedExamples:
    settings = TaskSettings(name="tagging", max_length=max_length, doc_stride=stride)
    return encode_sentences(examples, LABELS, tokenizer, settings, ExampleCounts(), segments)


def test_first_tokens_answer() -> None:
    # "un##mask ed ##it": words at 0-6 and 7-11.
    aligned = AlignedText([1, 2, 3, 4], [0, 2, 7, 9], [2, 6, 9, 11])
    assert find_leads(aligned, [(0, 6), (7, 11)]) == [Lead(0, 0, 1), Lead(2, 1, 1)]
    # Characters: each token answers for those that it covers; the blank has none.
    leads = find_leads(aligned, [(place, place + 1) for place in range(11)])
    assert leads == [Lead(0, 0, 2), Lead(1, 2, 4), Lead(2, 7, 2), Lead(3, 9, 2)]


def test_tokens_that_share_a_character_and_units_without_any() -> None:
    # The bytes of an emoji, then a token over two words.
    aligned = AlignedText([1, 2, 3, 4], [0, 0, 0, 3], [1, 1, 1, 5])
    assert find_leads(aligned, [(0, 1), (1, 2), (2, 4), (4, 5)]) == [Lead(0, 0, 1), Lead(3, 2, 2)]
    assert find_leads(AlignedText([1, 2], [2, 2], [2, 4]), [(0, 2), (2, 4)]) == [Lead(1, 1, 1)]  # one without place


@given(st.integers(0, 200), st.integers(1, 40), st.integers(1, 60))
def test_every_token_answers_in_the_window_where_it_has_the_most_context(length: int, room: int, stride: int) -> None:
    windows = list(cut_windows(length, room, stride))
    assert [token for window in windows for token in window.answers] == list(range(length))
    assert all(window.end - window.first <= room for window in windows)
    assert (windows[0].first, windows[-1].end) == (0, length)

    def context(window: SentenceWindow, token: int) -> int:
        return min(token - window.first, window.end - 1 - token)

    for window in windows:
        for token in window.answers:
            shown = [other for other in windows if other.first <= token < other.end]
            assert window in shown
            assert context(window, token) == max(context(other, token) for other in shown)


def test_windows_worked_by_hand() -> None:
    assert list(cut_windows(5, 5, 2)) == [SentenceWindow(0, 5, range(5))]
    assert list(cut_windows(0, 5, 2)) == [SentenceWindow(0, 0, range(0))]
    # 0 1 2 3 | 2 3 4 5 | 4 5 6: 2 has a context of 1 in the first, of 0 in the second.
    assert list(cut_windows(7, 4, 2)) == [
        SentenceWindow(0, 4, range(3)),
        SentenceWindow(2, 6, range(3, 5)),
        SentenceWindow(4, 7, range(5, 7)),
    ]
    # 0 1 2 | 2 3 4: 2 has none in either; the left one is taken.
    assert list(cut_windows(5, 3, 2)) == [SentenceWindow(0, 3, range(3)), SentenceWindow(2, 5, range(3, 5))]
    assert [window.first for window in cut_windows(9, 4, 128)] == [0, 2, 4, 6]  # 128 would leave tokens out


def test_short_sentences_are_encoded_as_texts_are(tokenizer: TextTokenizer) -> None:
    texts = ["a man is walking", "two dogs", "", "women"]
    encoded = encode([example(text) for text in texts], tokenizer)
    for unit, whole in enumerate(tokenizer.encode_inputs([(text, None) for text in texts])):
        assert encoded.input_ids[encoded.tokens_of(unit)].tolist() == whole.input_ids
    assert encoded.second_starts.tolist() == encoded.lengths.tolist()
    assert (encoded.token_columns["labels"] == -100).all()


def test_labels_stand_at_first_tokens(tokenizer: TextTokenizer) -> None:
    text = "zzz man walking"
    (aligned,) = align(tokenizer, [text])
    encoded = encode([example(text, "O B-X I-X")], tokenizer)
    firsts = [1 + aligned.starts.index(start) for start in (0, 4, 8)]
    labels = encoded.token_columns["labels"]
    found = {int(place): int(labels[place]) for place in np.flatnonzero(labels != -100)}
    assert found == dict(zip(firsts, (0, 1, 2), strict=True))
    assert encoded.alignment["units"][firsts].tolist() == [0, 1, 2]
    assert encoded.alignment["num_units"].sum() == 3
    assert encoded.alignment["num_outside"].sum() == 1


words = st.lists(st.sampled_from(["a", "man", "walking", "zzz", "qqqq", "\u200b", "가나다", "X."]), max_size=30)


@given(st.lists(words, min_size=1, max_size=4), st.integers(4, 20), st.integers(1, 20))
def test_every_unit_with_a_token_is_answered_for_once(
    tokenizer: TextTokenizer, sentences: list[list[str]], max_length: int, stride: int
) -> None:
    examples = [example(" ".join(sentence), " ".join(["B-X"] * len(sentence))) for sentence in sentences]
    encoded = encode(examples, tokenizer, max_length, stride)
    assert (encoded.lengths <= max_length).all()
    numbers = np.repeat(encoded.examples, encoded.lengths)
    answering = np.flatnonzero(encoded.alignment["num_units"])
    answered = list(zip(numbers[answering].tolist(), encoded.alignment["units"][answering].tolist(), strict=True))
    silent = [(n, u) for n, one in enumerate(examples) for u, word in enumerate(one.words) if word == "\u200b"]
    assert len(set(answered)) == len(answered)
    everything = [(number, unit) for number, one in enumerate(examples) for unit in range(len(one.units))]
    assert sorted([*answered, *silent]) == everything
    # Labels count exactly where a token answers.
    assert np.flatnonzero(encoded.token_columns["labels"] != -100).tolist() == answering.tolist()


def test_units_without_token_are_counted(tokenizer: TextTokenizer) -> None:
    counts = ExampleCounts()
    examples = [example("a \u200b man"), example("\u200b"), example("a b", units=[(0, 1), (1, 2), (2, 3)])]
    encode_sentences(examples, LABELS, tokenizer, TaskSettings(name="tagging"), counts, 2)
    assert counts == ExampleCounts(3, empty=1, notes={"words that encode to nothing": 2})


def test_context_fills_rows_and_has_no_labels(tokenizer: TextTokenizer) -> None:
    left, right = ("a a a", "man man"), ("is is", "the the the")
    (one,) = [example("dog dog", "B-X I-X", left=left, right=right)]
    ids = {word: tokenizer.encode_batch([word])[0] for word in ("a", "man", "dog", "is", "the")}
    assert all(len(word) == 1 for word in ids.values())

    def row(*names: str) -> list[int]:
        return [tokenizer.cls_id, *(ids[name][0] for name in names), tokenizer.sep_id]

    encoded = encode([one], tokenizer, max_length=8)
    assert encoded.input_ids.tolist() == row("man", "man", "dog", "dog", "is", "is")
    assert encoded.token_columns["labels"].tolist() == [-100, -100, -100, 1, 2, -100, -100, -100]
    encoded = encode([one], tokenizer, max_length=32)
    assert encoded.input_ids.tolist() == row(*" ".join([*left, "dog dog", *right]).split())
    assert encode([one], tokenizer, max_length=4).input_ids.tolist() == row("dog", "dog")
    assert encode([one], tokenizer, max_length=5).input_ids.tolist() == row("dog", "dog", "is")


def test_a_sentence_longer_than_a_row_has_no_context(tokenizer: TextTokenizer) -> None:
    before, behind = (" ".join([word] * 40) for word in ("a", "is"))
    alone, between = example(" ".join(["man"] * 40)), example(" ".join(["man"] * 40), left=(before,), right=(behind,))
    encoded = encode([between], tokenizer, max_length=12, stride=4)
    assert encoded.lengths.max() == 12
    assert encoded.input_ids.tolist() == encode([alone], tokenizer, max_length=12, stride=4).input_ids.tolist()


@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(0, 9), max_size=9), st.integers(0, 20))
def test_context_takes_what_is_next(left: list[int], right: list[int], room: int) -> None:
    before, behind = take_context([left[:4], left[4:]], [right[:4], right[4:]], room)
    assert left[len(left) - len(before) :] == before
    assert right[: len(behind)] == behind
    assert len(before) + len(behind) == min(room, len(left) + len(right))
    assert abs(len(before) - len(behind)) <= 1 or before == left or behind == right


def test_a_predicate_is_named_behind_its_sentence(tokenizer: TextTokenizer) -> None:
    text = "a man walking and walking"
    (walking,) = tokenizer.encode_batch(["walking"])
    (sentence,) = tokenizer.encode_batch([text])
    encoded = encode([example(text, predicate=2), example(text, predicate=4)], tokenizer)
    template = [tokenizer.cls_id, *sentence, tokenizer.sep_id]
    first, second = (encoded.input_ids[encoded.tokens_of(unit)].tolist() for unit in (0, 1))
    assert first == [*template, *walking, tokenizer.sep_id]
    assert second == [*template, *walking, *walking, tokenizer.sep_id]  # the second of that name
    assert encoded.second_starts.tolist() == [len(template), len(template)]
    assert encode([example(text, predicate=2)], tokenizer, segments=1).second_starts.tolist() == [len(first)]
    with pytest.raises(InputError, match=r"x:1: its predicate and the special tokens are \d+ tokens, and task\.max_le"):
        encode([example(text, predicate=4)], tokenizer, max_length=4)


def test_windows_of_a_long_sentence_all_name_the_predicate(tokenizer: TextTokenizer) -> None:
    (man,) = tokenizer.encode_batch(["man"])
    encoded = encode([example(" ".join(["man"] * 40), predicate=0)], tokenizer, max_length=12, stride=4)
    assert len(encoded) > 4
    for unit in range(len(encoded)):
        assert encoded.input_ids[encoded.tokens_of(unit)].tolist()[-2:] == [*man, tokenizer.sep_id]


@pytest.mark.parametrize("uncased", [True, False])
def test_words_joined_by_blanks_have_the_ids_of_words(uncased: bool, data_dir: Path, tmp_path: Path) -> None:
    """As `transformers` encodes with `is_split_into_words=True`, every sentence of WNUT-17's dev file."""
    from transformers import BertTokenizerFast

    from unmask.tasks.tagging.conll import read_single_sentences

    vocabulary = data_dir / "reference" / "vocab" / "bert-base-uncased-vocab.txt"
    (tmp_path / "vocab.txt").write_bytes(vocabulary.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": uncased}))
    ours = load_tokenizer(tmp_path)
    theirs = BertTokenizerFast(vocab=str(vocabulary), do_lower_case=uncased)
    rows = list(read_single_sentences(data_dir / "tasks" / "wnut17" / "dev.conll", lambda what, count: None))
    tokens = [row.fields["tokens"] for row in rows]
    expected = theirs(tokens, is_split_into_words=True, add_special_tokens=False)["input_ids"]
    aligned = align(ours, [" ".join(words) for words in tokens])
    assert [one.ids for one in aligned] == expected
    # The first token of each word is theirs too.
    batch = theirs(tokens, is_split_into_words=True, add_special_tokens=False)
    for number, (one, words) in enumerate(zip(aligned, tokens, strict=True)):
        starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
        units = [(start, start + len(word)) for start, word in zip(starts, words, strict=False)]
        word_ids = batch.word_ids(number)
        firsts = {word: word_ids.index(word) for word in set(word_ids)}
        assert {lead.unit: lead.token for lead in find_leads(one, units)} == firsts


def test_predicates_of_several_tokens() -> None:
    aligned = AlignedText([5, 6, 7, 5, 6], [0, 2, 6, 8, 10], [2, 5, 7, 10, 13])
    units = [(0, 5), (6, 7), (8, 13)]
    assert predicate_ids(aligned, units, 0) == [5, 6]
    assert predicate_ids(aligned, units, 1) == [7]
    assert predicate_ids(aligned, units, 2) == [5, 6, 5, 6]

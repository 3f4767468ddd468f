"""Texts as rows: every token has one vector, from the window with the most context."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.trained import ENGLISH, trained
from unmask.errors import InputError
from unmask.inference.features.rows import (
    PLACE,
    FeatureInput,
    RowMaker,
    describe_tokens,
    feature_layouts,
    read_feature_input,
    tokenize,
)
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.settings import ColumnSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> TextTokenizer:
    return load_tokenizer(tiny_model)


def read(**fields: object) -> FeatureInput:
    return read_feature_input(Row(fields, "file:1"))


@given(st.integers(1, 60), st.integers(3, 20), st.booleans())
def test_rows_hold_every_token_once(tokenizer: TextTokenizer, words: int, max_length: int, first_only: bool) -> None:
    inputs = [read(text="a man " * words), read(text=""), read(text_a="a", text_b="b")]
    counts = ExampleCounts()
    maker = RowMaker(tokenizer, max(max_length, 5), num_segments=2, first_window_only=first_only)
    kept, rows = maker.rows(inputs, tokenize(inputs, tokenizer), counts)
    for number, its in enumerate(kept):
        found = {
            int(place): int(token)
            for unit in range(len(rows))
            if rows.examples[unit] == number
            for place, token in zip(
                rows.alignment[PLACE][rows.tokens_of(unit)], rows.input_ids[rows.tokens_of(unit)], strict=True
            )
            if place >= 0
        }
        assert found == dict(enumerate(its.ids))
    assert sum(rows.alignment[PLACE] >= 0) == sum(len(its.ids) for its in kept)
    assert rows.lengths.max() <= maker.max_length
    assert (counts.examples, counts.empty) == (3, 1)
    is_long = len(tokenize(inputs[:1], tokenizer)[0].ids) > maker.capacity(is_pair=False)
    what = "cut" if first_only else "read in windows"
    assert counts.notes == ({f"longer than {maker.max_length} tokens and {what}": 1} if is_long else {})


def test_rows_are_those_of_the_tokenizer(tokenizer: TextTokenizer) -> None:
    pair = read(text_a="a man", text_b="two dogs and a ball")
    inputs = [read(text="a man, outside"), pair, read(tokens=["a", "ball"])]
    _, rows = RowMaker(tokenizer, 64, 2).rows(inputs, tokenize(inputs, tokenizer), ExampleCounts())
    expected = tokenizer.encode_inputs([("a man, outside", None), ("a man", "two dogs and a ball"), ("a ball", None)])
    batch = rows.batch(range(3))
    assert batch.input_ids.tolist() == [token for one in expected for token in one.input_ids]
    assert batch.token_type_ids.tolist() == [segment for one in expected for segment in one.token_type_ids]
    _, without = RowMaker(tokenizer, 64, 1).rows(inputs, tokenize(inputs, tokenizer), ExampleCounts())
    assert not without.batch(range(3)).token_type_ids.any()


def test_a_long_pair_is_cut_the_longer_text_first(tokenizer: TextTokenizer) -> None:
    inputs = [read(text_a="a " * 30, text_b="man man")]
    counts = ExampleCounts()
    (its,), rows = RowMaker(tokenizer, 16, 2).rows(inputs, tokenize(inputs, tokenizer), counts)
    (expected,) = tokenizer.encode_inputs([("a " * 30, "man man")], 16)
    assert rows.input_ids.tolist() == expected.input_ids
    assert (its.num_first, len(its.ids)) == (11, 13)
    assert counts.notes == {"longer than 16 tokens and cut": 1}


def test_windows_begin_half_of_one_apart(tokenizer: TextTokenizer) -> None:
    inputs = [read(text="a man " * 6)]
    _, rows = RowMaker(tokenizer, 8, 2).rows(inputs, tokenize(inputs, tokenizer), ExampleCounts())
    assert rows.lengths.tolist() == [8, 8, 8]  # tokens 0 to 6, 3 to 9 and 6 to 12


def test_what_an_index_tells(tokenizer: TextTokenizer) -> None:
    given = read(tokens=["Outside", "", "men."])
    (its,) = tokenize([given], tokenizer)
    described = describe_tokens(given, its, tokenizer)
    assert "".join(token.removeprefix("##") for token in described["tokens"]) == "outsidemen."
    assert [given.text_a[start:end].lower() for start, end in described["offsets"]] == [
        token.removeprefix("##") for token in described["tokens"]
    ]
    assert {number: described["words"].count(number) > 0 for number in range(3)} == {0: True, 1: False, 2: True}
    pair = read(text_a="a man", text_b="a")
    assert describe_tokens(pair, *tokenize([pair], tokenizer), tokenizer)["num_tokens_a"] == 2
    assert "words" not in describe_tokens(pair, *tokenize([pair], tokenizer), tokenizer)


@pytest.mark.parametrize("text", ["a\nb\t\tc", "\u00a0 a  b \n", "e\u0301 \n c"])
def test_a_token_of_white_space_has_its_place(text: str) -> None:
    tokenizer = trained(ENGLISH, kind="byte_bpe", vocab_size=300)
    (its,) = tokenize([read(text=text)], tokenizer)
    shown = [text[start:end] for start, end in its.offsets]
    assert "" not in shown
    assert "".join(shown).split() == text.split()
    assert [piece for piece in shown if piece.isspace()]


def test_words_and_places_of_segmented_text() -> None:
    tokenizer = trained(["국민은 학교에 갔습니다."] * 6, vocab_size=60, segmenter="kiwi")
    given = read(tokens=["국민은", "학교에"])
    described = describe_tokens(given, *tokenize([given], tokenizer), tokenizer)
    assert [given.text_a[start:end] for start, end in described["offsets"]] == ["국민", "은", "학교", "에"]
    assert described["words"] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"sentence": "a"}, "no column 'tokens': expected tokens, or text, or text_a and text_b; there is sentence"),
        ({"text_a": "a"}, "no column 'text_b'"),
        ({"text": None}, "text is null: expected a text"),
        ({"tokens": 3}, "tokens is 3: expected a list of words"),
        ({"tokens": ["a", 3]}, "tokens is 3: expected a text"),
        ({"text": "\ud83d"}, "text holds half of a surrogate pair"),
    ],
)
def test_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=f"file:1: .*{told}"):
        read(**fields)


def test_words_in_one_text_are_parted_by_blanks() -> None:
    assert read(tokens="a  man ").words == ("a", "man")
    assert read(tokens=["New York", "!"]).text_a == "New York !"


NONE = ColumnSettings()
REMEMBERED = ColumnSettings(text_a="premise", text_b="hypothesis", id="key", label="gold")


@pytest.mark.parametrize(
    ("said", "remembered", "fields", "texts"),
    [
        (NONE, REMEMBERED, {"premise": "a", "hypothesis": "b", "text": "c", "key": 7}, ("a", "b", 7)),
        (NONE, REMEMBERED, {"text": "c", "key": 7}, ("c", None, 7)),
        (
            ColumnSettings(text="review"),
            REMEMBERED,
            {"review": "a", "premise": "b", "hypothesis": "c"},
            ("a", None, None),
        ),
        (ColumnSettings(id="n"), REMEMBERED, {"premise": "a", "hypothesis": "b", "key": 7, "n": 8}, ("a", "b", 8)),
        (NONE, ColumnSettings(tokens="words"), {"words": ["a", "b"], "tokens": ["c"]}, ("a b", None, None)),
        (ColumnSettings(tokens="words"), NONE, {"words": "a b", "text": "c"}, ("a b", None, None)),
        (ColumnSettings(text="body.text"), NONE, {"body": {"text": "a"}, "id": "x"}, ("a", None, "x")),
        (NONE, ColumnSettings(question="q", context="c"), {"text": "a"}, ("a", None, None)),
    ],
)
def test_columns_are_the_users_then_the_models_then_the_usual(
    said: ColumnSettings, remembered: ColumnSettings, fields: dict[str, object], texts: tuple[str, str | None, object]
) -> None:
    given = read_feature_input(Row(fields, "file:1"), feature_layouts(said, remembered))
    assert (given.text_a, given.text_b, given.id) == texts


def test_a_column_that_is_named_has_to_be_there() -> None:
    layouts = feature_layouts(ColumnSettings(text="reviw"), NONE)
    told = r"file:1: no column 'reviw': there is review, text\. Name yours with --"
    with pytest.raises(InputError, match=told):
        read_feature_input(Row({"review": "a", "text": "b"}, "file:1"), layouts)

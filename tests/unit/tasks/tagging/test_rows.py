"""Rows as sentences: words with their places, tags and entities in every form, and rows that do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import InputError
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.tagging.rows import (
    DATA_SETS,
    TaggingColumns,
    TaggingExample,
    read_example,
    read_file,
    split_words,
    with_context,
)


def read(
    fields: Mapping[str, Any],
    columns: TaggingColumns | None = None,
    *,
    characters: bool = False,
    punctuation: bool = True,
    labelled: bool = True,
    needs_tags: bool = True,
    counts: ExampleCounts | None = None,
) -> TaggingExample:
    return read_example(
        Row(fields, "x:7"),
        columns or TaggingColumns(),
        characters=characters,
        punctuation=punctuation,
        labelled=labelled,
        needs_tags=needs_tags,
        note=(counts or ExampleCounts()).note,
    )


def test_tokens_and_tags_as_lists_or_as_text() -> None:
    fields: list[dict[str, Any]] = [
        {"tokens": ["Ada", "writes"], "tags": ["B-PER", "O"]},
        {"tokens": "Ada writes", "tags": "B-PER O"},
        {"tokens": '["Ada", "writes"]', "tags": ' ["B-PER", "O"]'.strip()},
        {"tokens": " Ada  writes ", "tags": "B-PER O", "predicate": "", "document": None},
    ]
    for one in fields:
        example = read(one)
        assert (example.text, example.units, example.tags) == ("Ada writes", ((0, 3), (4, 10)), ("B-PER", "O"))
        assert example.predicate is None
        assert example.fields is one
    assert read({"tokens": "[ 1 ]", "tags": "O O O"}).words == ["[", "1", "]"]
    assert read({"tokens": "[1]", "tags": "O"}).words == ["[1]"]
    assert read({"tokens": "[ ' tis so ' ]", "tags": "O O O O O O"}).words == ["[", "'", "tis", "so", "'", "]"]
    assert read({"tokens": "a\u00a0b \u2028", "tags": "O O"}).words == ["a\u00a0b", "\u2028"]
    assert read({"tokens": ["", " ", "a b"], "tags": "O O O"}).words == ["", " ", "a b"]
    assert read({"tokens": [], "tags": []}).units == ()


def test_columns_by_name() -> None:
    columns = TaggingColumns(("words", "tokens"), ("ner",), ("text",), ("verb",))
    assert read({"tokens": "a b", "ner": "O O", "verb": "1"}, columns).predicate == 1
    assert read({"words": "a b", "tokens": "c", "ner": "O O", "verb": 0}, columns).words == ["a", "b"]
    assert read({"text": "a b", "ner": "O O"}, columns).tags == ("O", "O")
    nested = TaggingColumns(("doc.words", "tokens"), ("doc.tags",), ("text",), ("doc.verb",))
    example = read({"doc": {"words": ["a", "b"], "tags": ["O", "B-X"], "verb": 1}}, nested)
    assert (example.words, example.tags, example.predicate) == (["a", "b"], ("O", "B-X"), 1)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tokens": ["a"], "tags": ["O", "O"]}, "x:7: 1 tokens and 2 tags: expected one tag a token"),
        ({"tokens": ["a"]}, "x:7: no column 'tags' for the tags: there is tokens"),
        ({"tags": ["a"]}, r"x:7: no column 'tokens' \(a list of words\) and none 'text': there is tags"),
        ({"tokens": None, "tags": []}, "x:7: no column 'tokens'"),
        ({"tokens": [1], "tags": ["O"]}, r"x:7: tokens\[0\] is 1: expected a text"),
        (
            {"tokens": "['EU', 'rejects']", "tags": "O O"},
            r"x:7: tokens is .*: a list in the cell .* is written as JSON",
        ),
        ({"tokens": "EU", "tags": "['O']"}, r"x:7: tags is .*: a list in the cell of a table is written as JSON"),
        ({"tokens": "a b c", "tags": "[3, 0, 7]"}, r"x:7: tags\[0\] is 3: expected a text"),
        ({"tokens": {"a": 1}, "tags": ["O"]}, r'x:7: tokens is {"a": 1}: expected a list of texts'),
        ({"tokens": ["\ud83d"], "tags": ["O"]}, r"x:7: tokens\[0\] holds half of a surrogate pair, \\ud83d"),
        ({"text": 5, "tags": ["O"]}, "x:7: text is 5: expected a text"),
        (
            {"tokens": "a b", "tags": "O O", "predicate": 2},
            "x:7: predicate is 2: expected the number of a word, 0 to 1",
        ),
        ({"tokens": "a b", "tags": "O O", "predicate": "-1"}, 'x:7: predicate is "-1"'),
        ({"tokens": "a b", "tags": "O O", "predicate": True}, "x:7: predicate is true"),
        ({"text": "a b", "entities": 1}, "x:7: entities is 1: expected a list"),
        ({"text": "a b", "entities": [[0, 4, "X"]]}, r"x:7: the entity \[0, 4, \"X\"\]: expected .* from 0 to 3"),
        ({"text": "a b", "entities": [[1, 2, "X"]]}, r"x:7: the entity ' ' \(X\) holds no word"),
        (
            {"text": "a b", "entities": [[0, 1, "X"], [0, 3, "Y"]]},
            r"x:7: the entity 'a b' \(Y\) shares a word with another one",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read(fields)


def test_rows_without_tags_where_none_are_needed() -> None:
    assert read({"tokens": ["a"], "tags": ["O"]}, labelled=False).tags is None
    assert read({"tokens": ["a"]}, needs_tags=False).tags is None
    assert read({"tokens": ["a"], "tags": ["O"]}, needs_tags=False).tags == ("O",)


def test_entities_that_point_into_a_text() -> None:
    counts = ExampleCounts()
    text = "Yes, (Ada  Lovelace) was in\u00a0London."
    entities = [[6, 19, "PER"], {"start": 28, "end": 34, "label": "LOC"}]
    example = read({"text": text, "entities": entities}, counts=counts)
    assert dict(zip(example.words, example.tags or (), strict=True)) == {
        "Yes": "O", ",": "O", "(": "O", "Ada": "B-PER", "Lovelace": "I-PER", ")": "O", "was": "O", "in": "O",
        "London": "B-LOC", ".": "O",
    }  # fmt: skip
    assert not counts.notes
    example = read({"text": "파리에서 왔다", "entities": [[0, 2, "LOC"]]}, counts=counts)
    assert (example.words, example.tags) == (["파리에서", "왔다"], ("B-LOC", "O"))
    assert counts.notes == {"entities widened to whole words": 1}
    assert read({"text": "파리에", "entities": [[0, 2, "LOC"]]}, characters=True).tags == ("B-LOC", "I-LOC", "O")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, world.", ["Hello", ",", "world", "."]),
        ("  don't   (U.S.)  ", ["don't", "(", "U.S", ".", ")"]),
        ("@ada #tag # @ ...", ["@ada", "#tag", "#", "@", ".", ".", "."]),
        ("\u2028a\u00a0b\n", ["a", "b"]),
        ("$5 50% 😀 क्या?", ["$", "5", "50", "%", "😀", "क्या", "?"]),
        ("", []),
    ],
)
def test_texts_are_cut_into_words(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text, punctuation=True)] == words
    assert [text[start:end] for start, end in split_words(text, punctuation=False)] == text.split()


@given(st.text(), st.booleans())
def test_words_cover_all_that_is_no_white_space(text: str, punctuation: bool) -> None:
    spans = split_words(text, punctuation)
    covered = [place for start, end in spans for place in range(start, end)]
    assert covered == [place for place, character in enumerate(text) if not character.isspace()]
    assert all(start < end for start, end in spans)


def test_characters_of_a_text_or_of_tokens() -> None:
    from_text = read({"text": "가 나"}, characters=True, labelled=False)
    from_tokens = read({"tokens": ["가", " ", "나"]}, characters=True, labelled=False)
    assert from_text.units == from_tokens.units == ((0, 1), (1, 2), (2, 3))
    assert from_text.text == from_tokens.text == "가 나"


def test_context_is_of_the_same_document_and_no_more_than_needed() -> None:
    def sentence(text: str, document: int | None, source: str | None = None) -> TaggingExample:
        units = tuple(split_words(text, punctuation=False))
        return TaggingExample(text, units, None, None, document, {}, source or text)

    sentences = [sentence(text, 0) for text in ("a b", "c", "d e", "f", "g h")] + [sentence("i", 1)]
    contexts = [(one.text, one.left, one.right) for one in with_context(iter(sentences), 2)]
    assert contexts == [
        ("a b", (), ("c", "d e")),
        ("c", ("a b",), ("d e",)),
        ("d e", ("a b", "c"), ("f", "g h")),
        ("f", ("d e",), ("g h",)),
        ("g h", ("d e", "f"), ()),
        ("i", (), ()),
    ]
    twice = [sentence("a", 0), sentence("b", 0, "x:1"), sentence("b", 0, "x:1"), sentence("c", 0)]  # two predicates
    assert [(one.left, one.right) for one in with_context(iter(twice), 9)][1:3] == [(("a",), ("c",))] * 2
    with pytest.raises(InputError, match=r"z: task\.document_context is true, and nothing says which sentences"):
        list(with_context(iter([sentence("z", None)]), 2))


def test_files_are_read_by_data_set_and_suffix(tmp_path: Path) -> None:
    def tokens(name: str, text: str, data_set: str | None = None) -> list[Any]:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        rows = read_file(path, None if data_set is None else DATA_SETS[data_set], lambda what, count: None)
        return [row.fields["tokens"] for row in rows]

    assert tokens("a.conll", "x O\n") == tokens("a.txt", "x O\n") == tokens("a.tsv", "x\tO\n", "wnut17") == [["x"]]
    assert tokens("a.tsv", "tokens\ttags\nx y\tO O\n") == ["x y"]
    table = json.dumps({"tokens": ["x"], "tags": ["O"]}) + "\n"
    assert tokens("a.jsonl", table) == tokens("a.jsonl", table, "klue-ner") == [["x"]]
    assert tokens("dev.tsv", "## id\n가\tO\n", "klue-ner") == [["가"]]
    assert tokens("a.morph", "나는\t나/NP+는/JX\n") == [["나는"]]
    with pytest.raises(InputError, match=r"a\.xml: unknown kind of file: expected \.conll, \.iob"):
        tokens("a.xml", "")

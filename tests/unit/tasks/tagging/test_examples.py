"""Rows as sentences: words with their places, tags and entities in every form, and rows that do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.files import write
from unmask.errors import InputError
from unmask.io.input_files import InputFiles
from unmask.io.rows import Row
from unmask.io.settings import TableSettings
from unmask.tasks.tagging.examples import (
    EntityInsideWord,
    TaggingColumns,
    TaggingExample,
    read_example,
    split_words,
    with_context,
)
from unmask.tasks.tagging.files import DATA_SETS, looks_like_columns, read_file

HOW: dict[str, Any] = {"characters": False, "punctuation": True, "labelled": True, "needs_tags": True}


def read(fields: Mapping[str, Any], columns: TaggingColumns | None = None, **how: Any) -> TaggingExample:
    return read_example(Row(fields, "x:7"), columns or TaggingColumns(), **HOW | how)


def no_note(what: str, count: int) -> None:
    pass


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
    text = "Yes, (Ada  Lovelace) was in\u00a0London."
    entities = [[6, 19, "PER"], {"start": 28, "end": 34, "label": "LOC"}]
    example = read({"text": text, "entities": entities})
    assert dict(zip(example.words, example.tags or (), strict=True)) == {
        "Yes": "O", ",": "O", "(": "O", "Ada": "B-PER", "Lovelace": "I-PER", ")": "O", "was": "O", "in": "O",
        "London": "B-LOC", ".": "O",
    }  # fmt: skip
    assert read({"text": "파리에", "entities": [[0, 2, "LOC"]]}, characters=True).tags == ("B-LOC", "I-LOC", "O")


@pytest.mark.parametrize("column", ["entities", "tags"])
def test_entities_in_the_cell_of_a_table(column: str) -> None:
    assert read({"text": "in Rome", column: '[[3, 7, "LOC"]]'}).tags == ("O", "B-LOC")
    for none in ("[]", []):
        assert read({"text": "in Rome", column: none}, TaggingColumns(tags=(column,))).tags == ("O", "O")
    with pytest.raises(InputError, match="x:7: 2 tokens and 0 tags"):
        read({"text": "in Rome", "tags": [], "entities": [[3, 7, "LOC"]]})
    with pytest.raises(InputError, match=r"x:7: entities is .*: expected a list of .* as JSON"):
        read({"text": "in Rome", "entities": "[[3, 7, 'LOC']]"})
    with pytest.raises(InputError, match=r'x:7: entities is "": expected .*, \[\] for none'):
        read({"text": "at home", "entities": ""})


@pytest.mark.parametrize(
    ("text", "entity", "told"),
    [
        (
            "파리에서 왔다",
            [0, 2, "LOC"],
            r"x:7: the entity '파리' \(LOC\) ends inside the word '파리에서', and words are",
        ),
        ("북한산에", [1, 4, "LOC"], r"x:7: the entity '한산에' \(LOC\) begins inside the word '북한산에'"),
        ("Ada-born", [0, 3, "X"], r"ends inside the word 'Ada-born'"),
    ],
)
def test_entities_that_end_inside_a_word_are_never_widened(text: str, entity: list[Any], told: str) -> None:
    with pytest.raises(EntityInsideWord, match=told):
        read({"text": text, "entities": [entity]})


def test_entities_as_doccano_writes_them() -> None:
    text, tags = "Ada in Oslo", ("B-PER", "O", "B-LOC")
    assert read({"id": 1, "text": text, "label": [[0, 3, "PER"], [7, 11, "LOC"]]}).tags == tags
    assert read({"text": text, "labels": [[0, 3, "PER"], [7, 11, "LOC"]]}).tags == tags
    offsets = [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}]
    assert read({"text": text, "entities": offsets}).tags == ("B-PER", "O", "O")
    assert read({"text": text, "label": []}).tags == ("O", "O", "O")
    assert read({"text": text, "spans": [[0, 3, "PER"]]}, TaggingColumns(tags=("spans",))).tags == ("B-PER", "O", "O")
    with pytest.raises(InputError, match="x:7: no column 'tags' for the tags: there is text, label"):
        read({"text": text, "label": "travel"})


def test_tags_as_numbers_with_names() -> None:
    names = ("O", "B-PER", "I-PER")
    for tags in ([1, 2, 0], "[1, 2, 0]"):
        assert read({"tokens": "Ada Lovelace writes", "ner_tags": tags}, names=names).tags == ("B-PER", "I-PER", "O")
    with pytest.raises(InputError, match=r"x:7: ner_tags\[1\] is 3: .*one of task\.labels, from 0 to 2"):
        read({"tokens": "a b", "ner_tags": [0, 3]}, names=names)
    with pytest.raises(InputError, match=r"x:7: tags\[0\] is 0: expected a text; to read numbers give .*task\.labels"):
        read({"tokens": "a", "tags": [0]})


def test_names_of_numbers_in_a_parquet_of_datasets(tmp_path: Path) -> None:
    """As `Dataset.to_parquet` of Hugging Face writes it."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow import parquet

    for feature in (
        {"feature": {"names": ["O", "B-X"], "_type": "ClassLabel"}, "_type": "List"},
        [{"names": ["O", "B-X"]}],
    ):
        told = json.dumps({"info": {"features": {"ner_tags": feature}}})
        table = pyarrow.table({"tokens": [["a", "b"]], "ner_tags": [[0, 1]]})
        parquet.write_table(table.replace_schema_metadata({"huggingface": told}), tmp_path / "a.parquet")
        (row,) = read_file(tmp_path / "a.parquet", None, no_note)
        assert read(row.fields).tags == ("O", "B-X")


def test_entities_as_label_studio_and_prodigy_write_them() -> None:
    text, tags = "Ada in Oslo", ("B-PER", "O", "O")
    entity = {"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}
    for label in ([entity], json.dumps([entity])):
        assert read({"id": 1, "text": text, "label": label}).tags == tags
    with pytest.raises(InputError, match=r"x:7: the entity .*: expected .* or an object of start, end and label"):
        read({"text": text, "label": [{**entity, "labels": ["PER", "LOC"]}]})
    spans = [{"start": 0, "end": 3, "label": "PER"}]
    assert read({"text": text, "spans": spans, "answer": "accept"}).tags == tags
    assert read({"text": text, "spans": []}).tags == ("O", "O", "O")
    assert read({"text": text, "spans": [], "label": [[0, 3, "PER"]]}).tags == tags
    with pytest.raises(InputError, match='x:7: answer is "reject": expected spans that were accepted'):
        read({"text": text, "spans": spans, "answer": "reject"})
    with pytest.raises(InputError, match="x:7: no column 'tags'"):  # of words, perhaps
        read({"tokens": "Ada in Oslo", "spans": [[0, 1, "PER"]]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, world.", ["Hello", ",", "world", "."]),
        ("  don't   (U.S.)  ", ["don't", "(", "U.S", ".", ")"]),
        ("Ada's (Oslo’s) it's", ["Ada", "'s", "(", "Oslo", "’s", ")", "it", "'s"]),
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


def test_words_stay_apart_where_characters_are_tagged() -> None:
    example = read({"tokens": ["Ada", "I", "saw", "Oslo"], "tags": "B-X O O B-X"}, characters=True)
    assert (example.text, example.tags) == ("Ada I saw Oslo", ("B-X", "O", "O", "B-X"))


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
        rows = read_file(write(tmp_path / name, text), None if data_set is None else DATA_SETS[data_set], no_note)
        return [row.fields["tokens"] for row in rows]

    assert tokens("a.conll", "x O\n") == tokens("a.txt", "x O\n") == tokens("a.tsv", "x\tO\n", "wnut17") == [["x"]]
    assert tokens("a.tsv", "tokens\ttags\nx y\tO O\n") == ["x y"]
    table = json.dumps({"tokens": ["x"], "tags": ["O"]}) + "\n"
    assert tokens("a.jsonl", table) == tokens("a.jsonl", table, "klue-ner") == [["x"]]
    assert tokens("dev.tsv", "## id\n가\tO\n", "klue-ner") == [["가"]]
    assert tokens("a.morph", "나는\t나/NP+는/JX\n") == [["나는"]]
    with pytest.raises(InputError, match=r"a\.xml: unknown kind of file: expected \.conll, \.iob"):
        tokens("a.xml", "")


KLUE_DP = """\
## KLUE-DP
## klue-dp-v1_dev_00000\t해당 그림
1\t해당\t해당\tMMD\t2\tDP
2\t그림\t그림\tNNG\t0\tNP

## klue-dp-v1_dev_00001\t간다
1\t간다\t가 ㄴ다\tVV+EF\t0\tVP
"""


def test_the_columns_of_words_and_tags_are_chosen_by_number_or_name(tmp_path: Path) -> None:
    def found(name: str, text: str, tokens: str = "", tags: str = "") -> list[Any]:
        usual = TaggingColumns()
        columns = TaggingColumns((tokens,) if tokens else usual.tokens, (tags,) if tags else usual.tags)
        rows = read_file(write(tmp_path / name, text), None, no_note, columns)
        return [(row.fields["tokens"], row.fields["tags"]) for row in rows]

    conll = "Ada NNP I-NP I-PER\nwrites VBZ I-VP O\n"
    for name in ("a.conll", "a.txt", "eng.train", "eng.testa", "eng.testb"):
        assert found(name, conll) == [(["Ada", "writes"], ["I-PER", "O"])]
    assert found("a.conll", conll, tags="2") == [(["Ada", "writes"], ["NNP", "VBZ"])]
    assert found("a.conll", conll, tags="3") == [(["Ada", "writes"], ["I-NP", "I-VP"])]
    dependencies = [(["해당", "그림"], ["MMD", "NNG"]), (["간다"], ["VV+EF"])]
    assert found("dev.tsv", KLUE_DP, "2", "4") == found("dev.conll", KLUE_DP, "2", "4") == dependencies
    conllu = "1\tdogs\tdog\tNOUN\tNNS\t_\t0\troot\t_\t_\n"
    assert found("a.conllu", conllu) == [(["dogs"], ["NOUN"])]
    assert found("a.conllu", conllu, "lemma", "XPOS") == found("a.conllu", conllu, "3", "5") == [(["dog"], ["NNS"])]
    assert found("a.tsv", "tokens\ttags\na b\tO O\n") == [("a b", "O O")]
    with pytest.raises(InputError, match=r"a\.conll: columns\.tags is 'pos', .*expected a number, from 1"):
        found("a.conll", conll, tags="pos")
    with pytest.raises(InputError, match=r"a\.conll:1: .* has 4 columns: expected at least 7"):
        found("a.conll", conll, tags="7")


@pytest.mark.parametrize("header", ["first_row", "none"])
def test_a_tsv_with_numbered_columns_has_no_header(tmp_path: Path, header: Literal["first_row", "none"]) -> None:
    """One rule whether or not `header=none` is given; a sentence a line where a cell holds several tags."""
    columns, settings = TaggingColumns(tokens=("2",), tags=("3",)), TableSettings(header=header)

    def found(text: str) -> list[TaggingExample]:
        files = InputFiles((write(tmp_path / "a.tsv", text),), settings)
        rows = read_file(files, None, no_note, columns)
        return [read_example(row, columns, **HOW) for row in rows]

    by_word = found("1\tAda\tB-PER\n2\twrites\tO\n\n1\tHi\tO\n")
    by_sentence = found("1\tAda writes\tB-PER O\n2\tHi\tO\n")
    for examples in (by_word, by_sentence):
        assert [(one.words, one.tags) for one in examples] == [(["Ada", "writes"], ("B-PER", "O")), (["Hi"], ("O",))]
    assert [one.tags for one in found('1\t["a"]\t["O"]\n')] == [("O",)]


def test_comments_begin_a_sentence_and_are_unlike_its_lines(tmp_path: Path) -> None:
    def words(text: str) -> list[Any]:
        return [row.fields["tokens"] for row in read_file(write(tmp_path / "a.conll", text), None, no_note)]

    assert words("# id 5\tdomain=en\na _ _ O\n\n# sent 2\nb _ _ O\n") == [["a"], ["b"]]
    assert words("# text = a b\n# x\n#\na O\n# O\n") == [["a", "#"]]
    assert words("# newdoc\na O\n") == [["a"]]  # two columns, but no tag
    assert words("#tag O\na O\n\n# O\nb O\n") == [["#tag", "a"], ["#", "b"]]


def test_lines_of_words_are_told_from_texts() -> None:
    entities, parts = ("O", "B-X", "I-X"), ("NOUN", "VERB")
    told = TaggingColumns()
    assert looks_like_columns(["Mr. B-PER", "Utterson I-PER", "", "-DOCSTART- O", "# a b c", "left O"], told, entities)
    assert looks_like_columns(["dogs NOUN", "bark VERB"], told, parts)
    assert looks_like_columns(["dogs NOUN x", "bark VERB x"], TaggingColumns(tags=("2",)), parts)
    for texts in (["a man wait", "b O"], ["waiting"], ["Type O"], ["a B-17"], []):
        assert not looks_like_columns([*texts, "He left."], told, entities)
    assert not looks_like_columns(["dogs O", "bark O"], told, parts)

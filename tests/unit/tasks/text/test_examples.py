"""Rows as examples: columns, labels of every form, and what is said of those that do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from support.files import write
from unmask.errors import InputError
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.settings import ColumnSettings
from unmask.tasks.text.examples import TextFiles, choose_columns
from unmask.tasks.text.labels import check_spelling, read_label, read_labels, read_number

SINGLE = ColumnSettings(text="text")
PAIR = ColumnSettings(text_a="text_a", text_b="text_b")
SCORED = ColumnSettings(text="text", label="score")


def test_columns_are_the_first_that_fit() -> None:
    assert choose_columns([SINGLE, PAIR], Row({"text_a": "a", "text_b": "b"}, "x:1")) is PAIR
    assert choose_columns([SINGLE, PAIR], Row({"text": "a", "text_a": "a", "text_b": "b"}, "x:1")) is SINGLE
    told = "x:1: no column 'text': expected text, or text_a and text_b; there is review, stars"
    with pytest.raises(InputError, match=told):
        choose_columns([SINGLE, PAIR], Row({"review": "a", "stars": 3}, "x:1"))


def test_columns_whose_label_is_there_go_before() -> None:
    assert choose_columns([SCORED, SINGLE], Row({"text": "a", "label": "1"}, "x:1")) is SINGLE
    assert choose_columns([SCORED, SINGLE], Row({"text": "a", "label": "1", "score": "2"}, "x:1")) is SCORED
    assert choose_columns([SCORED, SINGLE], Row({"text": "a"}, "x:1")) is SCORED


def texts_of(files: TextFiles) -> list[tuple[tuple[str, ...], str]]:
    return [(layout.texts, layout.label) for layout in files.layouts]


def test_what_the_user_says_goes_before_what_is_usual() -> None:
    files = TextFiles((ColumnSettings(text="sentence", label="gold"),))
    assert texts_of(files.with_columns(ColumnSettings(), lenient=False)) == [(("sentence",), "gold")]
    assert texts_of(files.with_columns(ColumnSettings(label="stars"), lenient=False)) == [(("sentence",), "stars")]
    mine = ColumnSettings(text="review", label="stars")
    assert texts_of(files.with_columns(mine, lenient=False)) == [(("review",), "stars")]
    assert texts_of(files.with_columns(mine, lenient=True)) == [
        (("review",), "stars"), (("sentence",), "gold"), (("text",), "stars")
    ]  # fmt: skip
    pair = TextFiles().with_columns(ColumnSettings(text_a="p", text_b="h"), lenient=True)
    assert texts_of(pair) == [(("p", "h"), "label"), (("text_a", "text_b"), "label")]
    assert pair.is_pair
    assert not TextFiles().is_pair


def test_files_fit_themselves_to_one_and_still_read_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text_a": "a", "text_b": "b"}\n')
    assert TextFiles().fit_to(path).layouts == (PAIR,)
    files = TextFiles((SINGLE, ColumnSettings(text="sentence"), PAIR))
    path.write_text('{"sentence": "a"}\n')
    assert [layout.texts for layout in files.fit_to(path).layouts] == [("sentence",), ("text",)]


def load(path: Path, unlabelled: bool = False, **options: Any) -> tuple[list[str | None], ExampleCounts]:
    def read(row: Row, name: str) -> str | None:
        label = read_label(row, name)
        return None if label == "-" else label

    counts = ExampleCounts()
    return [one.label for one in TextFiles(**options).load(path, counts, read, unlabelled)], counts


def test_examples_without_label_are_left_out_and_counted_or_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": "-"}\n')
    assert load(path) == (["x"], ExampleCounts(unlabelled=1))
    assert load(path, unlabelled=True) == (["x", None], ExampleCounts())
    path.write_text('{"text": "a", "label": "-"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl: not a single example has a label"):
        load(path)
    assert load(path, unlabelled=True)[0] == [None]


def test_an_empty_label_is_not_the_same_as_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": "b"}\n')
    assert load(path, unlabelled=True)[0] == ["x", None]
    with pytest.raises(InputError, match=r"a\.jsonl:2: no column 'label' for the label"):
        load(path)
    for empty in ('""', "null", "NaN"):
        path.write_text(f'{{"text": "a", "label": "x"}}\n{{"text": "b", "label": {empty}}}\n')
        for unlabelled in (False, True):
            with pytest.raises(InputError, match=r"a\.jsonl:2: the column 'label' is (empty|NaN)"):
                load(path, unlabelled)


def test_broken_rows_of_published_files_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tx\tlabel\n" + "a\tb\tc\n" + "broken\trow\n" * 7)
    labels, counts = load(path, has_broken_rows=True)
    assert labels == ["c"]
    lines = ", ".join(f"{path}:{line}" for line in range(3, 8))
    assert counts.summary() == (
        f"0 examples, 7 rows of too few fields left out, as the published file has them ({lines} and 2 more)"
    )


def test_the_first_faulty_rows_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    faulty = ["b\t", "too\tmany\tfields", "d\t", "e\t", "f\t", "g\t", "h"]
    path.write_text("text\tlabel\n" + "".join(f"{row}\nfine\tx\n" for row in faulty))
    with pytest.raises(InputError) as told:
        load(path)
    assert str(told.value).split("\n  ") == [
        f"{path}:2: the column 'label' is empty: fill it in, or take the row out",
        f"{path}:4: 3 fields where the header has 2 (text, label): fix the row (in a .tsv nothing is quoted: a "
        "text holds no tab and no line break; if yours are between quotes, give data.quoted=true)",
        f"{path}:6: the column 'label' is empty: fill it in, or take the row out",
        *(f"{path}:{line}: the same" for line in (8, 10)),
        "7 rows in all cannot be used",
    ]


def test_the_examples_before_a_faulty_row_are_read_and_none_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": 7, "label": "x"}\n{"text": "c", "label": "x"}\n')
    examples = TextFiles().load(path, ExampleCounts(), read_label, False)
    assert next(examples).text_a == "a"
    with pytest.raises(InputError, match=r"^[^\n]*a\.jsonl:2: text is 7: expected a text$"):
        next(examples)


@pytest.mark.parametrize(("value", "label"), [("a", "a"), (3, "3"), (True, "true"), (0.5, "0.5"), (" ", " ")])
def test_labels_are_read_as_text(value: object, label: str) -> None:
    assert read_label(Row({"label": value}, "x:1"), "label") == label
    assert read_label(Row({"labels": {"label": value}}, "x:1"), "labels.label") == label


def label_of(row: Row) -> str:
    return read_label(row, "label")


def labels_of(row: Row) -> tuple[str, ...]:
    return read_labels(row, "label", ",")


def score_of(row: Row) -> float:
    return read_number(row, "score")


NO_NUMBER = r"the column 'score' holds '.{1,60}': expected a finite number such as 3\.5"
TOO_LARGE = r"the column 'score' holds '.{1,60}': expected at most 3\.40282e\+38 .*; divide all values by a constant"


@pytest.mark.parametrize(
    ("read", "row", "told"),
    [
        (
            label_of,
            {"text": "a"},
            r"no column 'label' for the label: there is text\. Name it with --column label=NAME ",
        ),
        (label_of, {"label": ""}, "the column 'label' is empty"),
        (label_of, {"label": None}, "the column 'label' is empty"),
        (label_of, {"label": ["b"]}, r'the column \'label\' holds \["b"\].*task\.multi_label'),
        (label_of, {"label": "\udc00"}, r"label holds half of a surrogate pair"),
        (TextFiles().read, {"text": 5}, "text is 5: expected a text"),
        (
            TextFiles().read,
            {"text": None},
            'text is null: expected a text; fill it in, take the row out, or write "" for',
        ),
        (TextFiles().read, {"text": "\ud800"}, r"text holds half of a surrogate pair, \\ud800"),
        (TextFiles().read, {"words": "a"}, "no column 'text'"),
        (labels_of, {"label": "a,,b"}, "a label in the column 'label' is empty"),
        (labels_of, {"label": [""]}, "a label in the column 'label' is empty"),
        (labels_of, {"label": [None]}, "a label in the column 'label' is empty"),
        (labels_of, {"label": [["a"]]}, r'the column \'label\' holds \[\["a"\]\]'),
        (labels_of, {"label": None}, r"the column 'label' holds null: expected a list of labels, \[\] for none"),
        (labels_of, {"label": {"a": 1}}, r'the column \'label\' holds \{"a": 1\}'),
        (score_of, {"score": ""}, "the column 'score' is empty"),
        (score_of, {"score": None}, "the column 'score' is empty"),
        (score_of, {"score": math.nan}, "the column 'score' is NaN"),
        *((score_of, {"score": text}, NO_NUMBER) for text in ("nan", "inf", "-Infinity", "three", "3,5", "1_000")),
        *((score_of, {"score": value}, NO_NUMBER) for value in ("1e999", True, "x" * 99)),
        *((score_of, {"score": value}, TOO_LARGE) for value in ("1e39", "-1e297", 1e297)),
    ],
    ids=lambda value: getattr(value, "__name__", ascii(value)[:40]),
)
def test_what_cannot_be_read_is_refused(read: Callable[[Row], object], row: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=f"x:7: {told}"):
        read(Row(row, "x:7"))


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (["a", "b"], ("a", "b")),
        ([], ()),
        ("", ()),
        ("  ", ()),
        ("b, a ,b", ("b", "a")),
        (["b", "a", "b"], ("b", "a")),
        ([1, True], ("1", "true")),
        (["a, b"], ("a, b",)),  # nothing is cut in a list
        (7, ("7",)),
    ],
)
def test_lists_of_labels(value: object, labels: tuple[str, ...]) -> None:
    assert labels_of(Row({"label": value}, "x:1")) == labels


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("긍정 ", r"is written '\uae0d\uc815 ' here and '\uae0d\uc815' in a.csv:2, which look alike"),
        (
            normalize("NFD", "긍정"),
            r"the label 긍정 is written '\u1100\u1173\u11bc\u110c\u1165\u11bc' here and '\uae0d\uc815' in a.csv:2",
        ),
        (
            "긍정\0",
            r"the label 긍정 is written '\uae0d\uc815\x00' here and '\uae0d\uc815' in a.csv:2, which look alike",
        ),
        ("\ufeff긍정", r"is written '\ufeff\uae0d\uc815' here"),
        ("긍\u200b정", r"is written '\uae0d\u200b\uc815' here"),
        (" 긍\u00ad정\u200d ", r"is written ' \uae0d\xad\uc815\u200d ' here"),
        ("아주  좋음", r"is written '\uc544\uc8fc  \uc88b\uc74c' here"),
        ("아주\u00a0좋음", r"is written '\uc544\uc8fc\xa0\uc88b\uc74c' here"),
    ],
)
def test_labels_that_look_alike_are_refused(other: str, told: str) -> None:
    with pytest.raises(InputError, match=r"^a\.csv:9: the label ") as refused:
        check_spelling({"긍정": "a.csv:2", "아주 좋음": "a.csv:3", other: "a.csv:9"})
    assert told in str(refused.value)
    assert "list both in task.labels" in str(refused.value)


def test_labels_that_differ_only_in_the_case_are_told(caplog: pytest.LogCaptureFixture) -> None:
    check_spelling({"pos": "a.csv:2", "neg": "a.csv:3", "a b": "a.csv:4", "ab": "a.csv:6"})
    check_spelling({"Maße": "a.csv:2", "Masse": "a.csv:3"})
    assert not caplog.records
    check_spelling({"pos": "a.csv:2", "neg": "a.csv:3", "Pos": "a.csv:4", "NEG": "a.csv:5"})
    told = "labels that differ only in the case count as different ones: 'pos' and 'Pos' (a.csv:4), 'neg' and 'NEG' (a."
    assert told in caplog.text


@pytest.mark.parametrize("field", [" 리뷰", "리뷰\u200b"])
def test_a_column_that_looks_like_the_missing_one_is_named(field: str) -> None:
    row = Row({"번호": "1", field: "a"}, "a.csv:2")
    told = rf" It is written {field!a}, where '\ub9ac\ubdf0' is meant: write both one way. Name "
    with pytest.raises(InputError, match=r"^a\.csv:2: no column '리뷰': there is 번호, ") as refused:
        choose_columns([ColumnSettings(text="리뷰")], row)
    assert told in str(refused.value)
    with pytest.raises(InputError, match=r"^a\.csv:2: no column '리뷰' for the label: there is 번호, ") as refused:
        read_label(row, "리뷰")
    assert told in str(refused.value)
    with pytest.raises(InputError, match=r"there is text_A, 리뷰\. Name yours"):
        choose_columns([SINGLE, PAIR], Row({"text_A": "1", "리뷰": "a"}, "a.csv:2"))


@pytest.mark.parametrize(("value", "number"), [("3.5", 3.5), (" 2 ", 2.0), ("-1e-3", -0.001), (4, 4.0), (0.25, 0.25)])
def test_numbers(value: object, number: float) -> None:
    assert score_of(Row({"score": value}, "x:1")) == number

"""Rows as examples: columns, labels of every form, and what is said of those that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import InputError, SettingsError
from unmask.tasks.base import ExampleCounts
from unmask.tasks.examples import TextFiles, choose_columns, read_label, read_labels, read_number
from unmask.tasks.rows import Row
from unmask.tasks.settings import ColumnSettings

SINGLE = ColumnSettings(text="text")
PAIR = ColumnSettings(text_a="text_a", text_b="text_b")
SCORED = ColumnSettings(text="text", label="score")


def test_columns_are_the_first_that_fit() -> None:
    assert choose_columns([SINGLE, PAIR], Row({"text_a": "a", "text_b": "b"}, "x:1")) is PAIR
    assert choose_columns([SINGLE, PAIR], Row({"text": "a", "text_a": "a", "text_b": "b"}, "x:1")) is SINGLE
    with pytest.raises(
        InputError, match="x:1: no column 'text': expected text, or text_a and text_b; there is review, stars"
    ):
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
    with pytest.raises(SettingsError, match=r"data\.columns\.context means nothing to texts"):
        files.with_columns(ColumnSettings(context="passage"), lenient=False)


def test_files_fit_themselves_to_one_and_still_read_others(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text_a": "a", "text_b": "b"}\n')
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
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "-"}\n')
    assert load(path) == (["x"], ExampleCounts(unlabelled=1))
    assert load(path, unlabelled=True) == (["x", None], ExampleCounts())
    path.write_text('{"text": "a", "label": "-"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl: not a single example has a label"):
        load(path)
    path.write_text('{"text": "a", "label": null}\n{"text": "b"}\n{"text": "c", "label": ""}\n')
    assert load(path, unlabelled=True)[0] == [None] * 3
    with pytest.raises(InputError, match=r"a\.jsonl:1: the column 'label' is empty"):
        load(path)


def test_broken_rows_of_published_files_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\tx\tlabel\n" + "a\tb\tc\n" + "broken\trow\n" * 7)
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
    assert str(told.value) == "\n  ".join(
        [
            f"{path}:2: the column 'label' is empty: fill it in, or take the row out",
            f"{path}:4: 3 fields where the header has 2 (text, label): mend the row (in a .tsv nothing is quoted: a "
            "text holds no tab and no line break)",
            f"{path}:6: the same",
            f"{path}:8: the same",
            f"{path}:10: the same",
            "7 rows in all cannot be used",
        ]
    )


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


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"text": "a"}, "x:7: no column 'label' for the label: there is text"),
        ({"label": ""}, "x:7: the column 'label' is empty"),
        ({"label": None}, "x:7: the column 'label' is empty"),
        ({"label": ["b"]}, r'x:7: the column \'label\' holds \["b"\].*task\.multi_label'),
        ({"label": json.loads('"\\udc00"')}, r"x:7: label holds half of a surrogate pair"),
    ],
)
def test_labels_refused(row: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_label(Row(row, "x:7"), "label")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"text": 5}, "x:7: text is 5: expected a text"),
        ({"text": None}, "x:7: text is null: expected a text"),
        ({"text": json.loads('"\\ud800"')}, r"x:7: text holds half of a surrogate pair, \\ud800"),
        ({"words": "a"}, "x:7: no column 'text'"),
    ],
)
def test_texts_refused(row: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        TextFiles().read(Row(row, "x:7"))


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
    assert read_labels(Row({"label": value}, "x:1"), "label", ",") == labels


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a,,b", "x:1: a label in the column 'label' is empty"),
        ([""], "x:1: a label in the column 'label' is empty"),
        ([None], "x:1: a label in the column 'label' is empty"),
        ([["a"]], r'x:1: the column \'label\' holds \[\["a"\]\]'),
        (None, r"x:1: the column 'label' holds null: expected a list of labels, \[\] for none"),
        ({"a": 1}, r'x:1: the column \'label\' holds \{"a": 1\}'),
    ],
)
def test_lists_of_labels_refused(value: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_labels(Row({"label": value}, "x:1"), "label", ",")


@pytest.mark.parametrize(("value", "number"), [("3.5", 3.5), (" 2 ", 2.0), ("-1e-3", -0.001), (4, 4.0), (0.25, 0.25)])
def test_numbers(value: object, number: float) -> None:
    assert read_number(Row({"score": value}, "x:1"), "score") == number


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-Infinity", "three", "3,5", "1_000", "1e39", True, float("nan"), "x" * 99]
)
def test_numbers_refused(value: object) -> None:
    with pytest.raises(
        InputError, match=r"x:1: the column 'score' holds '.{1,60}': expected a finite number such as 3\.5"
    ):
        read_number(Row({"score": value}, "x:1"), "score")


@pytest.mark.parametrize("value", ["", None])
def test_missing_numbers_refused(value: object) -> None:
    with pytest.raises(InputError, match="x:1: the column 'score' is empty"):
        read_number(Row({"score": value}, "x:1"), "score")

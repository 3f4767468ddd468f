"""The published layouts of question answering, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import files
from support.tasks import new_task
from unmask.errors import InputError
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.qa.squad import read_questions, read_squad
from unmask.tasks.qa.triviaqa import read_triviaqa

QUESTION = {
    "id": "q1",
    "question": "What did Mina see?",
    "answers": [{"text": "a red kite", "answer_start": 9}, {"text": "kite", "answer_start": 15}],
}
NONE = {"id": "q2", "question": "Who flew it?", "answers": [], "is_impossible": True}
CONTEXT = "Mina saw a red kite. Later a blue kite flew by."


def squad(*questions: Any, **article: Any) -> dict[str, Any]:
    paragraph = {"context": CONTEXT, "qas": list(questions)}
    return {"version": "1.1", "data": [{"title": "Kites", "paragraphs": [paragraph], **article}]}


def write(path: Path, value: Any) -> Path:
    return files.write(path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def test_questions_of_squad(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.json", squad(QUESTION, NONE))
    first, second = read_squad(path)
    assert first == Row(
        {
            "id": "q1",
            "question": "What did Mina see?",
            "context": CONTEXT,
            "title": "Kites",
            "answers": {"text": ["a red kite", "kite"], "answer_start": [9, 15]},
        },
        f"{path}: 'Kites', paragraph 1, question q1",
    )
    assert second.fields["is_impossible"] is True
    assert second.fields["answers"] == {"text": [], "answer_start": []}


def test_questions_of_klue_mrc(tmp_path: Path) -> None:
    """`guid` in place of `id`; without an answer there are `plausible_answers` alone, or empty `answers` too."""
    answered = {"question_type": 1, "is_impossible": False, "guid": "klue-mrc_1", "answers": QUESTION["answers"]}
    plausible = {"question_type": 3, "is_impossible": True, "plausible_answers": [{"text": "kite", "answer_start": 15}]}
    questions = [
        {"question": "무엇을 보았나?", **answered},
        {"question": "누가 날렸나?", **plausible, "guid": "klue-mrc_2"},
        {"question": "언제 날렸나?", **plausible, "guid": "klue-mrc_3", "answers": []},
    ]
    path = write(tmp_path / "klue-mrc-v1.1_dev.json", squad(*questions, news_category=None, source="wikipedia"))
    assert next(read_questions(path)).source == f"{path}: 'Kites', paragraph 1, question klue-mrc_1"
    task = new_task(name="korquad1", unanswerable=True)
    examples = list(task.load(path, ExampleCounts()))
    assert [(each.id, each.answers) for each in examples] == [
        ("klue-mrc_1", ((9, 19), (15, 19))),
        ("klue-mrc_2", ()),
        ("klue-mrc_3", ()),
    ]


def test_a_test_file_has_no_answers(tmp_path: Path) -> None:
    [row] = read_squad(write(tmp_path / "a.json", squad({"id": 7, "question": "Why?"})))
    assert "answers" not in row.fields
    assert row.fields["id"] == 7


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (squad({**QUESTION, "answers": None}), r"'Kites', paragraph 1, question q1: answers is null: expected a list"),
        (squad({"question": "Why?"}), r"question number 1: no 'id' \(there is question\)"),
        (squad("Why?"), r"question number 1: expected an object with 'id', found \"Why\?\""),
        (
            squad({**QUESTION, "answers": [{"text": "kite", "answer_start": "9"}]}),
            r"question q1: answer_start is \"9\": expected a number",
        ),
        (squad({**NONE, "is_impossible": 1}), r"is_impossible is 1: expected true or false"),
        (squad(QUESTION, paragraphs={}), r"'Kites': paragraphs is \{\}: expected a list"),
        (squad(QUESTION, paragraphs=[]), r"a\.json: there is not a single question in it"),
        ({"data": ["x"]}, r"article 1: expected an object with 'paragraphs', found \"x\""),
        ({"Data": []}, r"no list under the key 'data': .*; found \{\"Data\": \[\]\}"),
        ({"data": {}}, r"no list under the key 'data'"),
        ("5", r"no list under the key 'data'"),
        ("", r"not JSON \(Expecting value: line 1 column 1"),
        ('{"data": [{"title":\n tru}]}', r"not JSON \(Expecting value: line 2 column 2 .*expected a whole JSON file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_squad(write(tmp_path / "a.json", value)))


def test_tables_and_lists_are_read_as_rows(tmp_path: Path) -> None:
    row = {"question": "What?", "context": CONTEXT, "answers": {"text": ["kite"], "answer_start": [15]}}
    for path in (
        write(tmp_path / "a.jsonl", json.dumps(row)),
        write(tmp_path / "a.json", [row]),
        write(tmp_path / "b.json", {"data": squad()["data"] + squad({"id": "1", **row, "answers": []})["data"]}),
    ):
        [read] = read_questions(path)
        assert (read.fields["question"], read.fields["context"]) == ("What?", CONTEXT)


TRIVIA = {
    "Domain": "Wikipedia",
    "Data": [
        {
            "Question": "Which bird lays the largest egg?",
            "QuestionId": "tc_1",
            "Answer": {
                "Value": "Ostrich",
                "Aliases": ["Struthio", "The ostriches"],
                "NormalizedAliases": ["ostrich", "struthio", "ostriches"],
            },
            "EntityPages": [{"Filename": "Bird.txt", "Title": "Bird"}, {"Filename": "Egg.txt"}],
            "SearchResults": [{"Filename": "1/1_2.txt"}],
        }
    ],
}


@pytest.fixture
def trivia(tmp_path: Path) -> Path:
    for file, text in {
        "wikipedia/Bird.txt": "ostrichlike birds aside,\n no egg is as large as that of the  ostrich, an ostrich says.",
        "wikipedia/Egg.txt": "egg " * 399 + "white ostrich",
        "web/1/1_2.txt": "A struthio\t" + "runs " * 500,
    }.items():
        files.write(tmp_path / "evidence" / file, text)
    return write(tmp_path / "qa" / "wikipedia-train.json", TRIVIA)


def test_triviaqa_finds_answers_in_the_first_words(trivia: Path) -> None:
    bird, egg, web = (row.fields for row in read_triviaqa(trivia))
    assert [row["id"] for row in (bird, egg, web)] == ["tc_1--Bird.txt", "tc_1--Egg.txt", "tc_1--1_2.txt"]
    (text,), (start,) = bird["answers"]["text"], bird["answers"]["answer_start"]
    assert text == "ostrich"
    assert bird["context"][start:].startswith("ostrich, an")  # not inside the word that comes first
    assert egg["context"].split() == ["egg"] * 399 + ["white"]
    assert egg["answers"] == {"text": [], "answer_start": []}
    assert web["answers"] == {"text": ["struthio"], "answer_start": [2]}  # an alias, whatever its case
    assert len(web["context"].split()) == 400
    assert bird["aliases"] == ["Ostrich", "Struthio", "The ostriches", "ostrich", "struthio", "ostriches"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"EntityPages": [{"Filename": "Gone.txt"}]}, r"tc_1: its document .*Gone\.txt cannot be read \(No such file"),
        ({"EntityPages": [{"Filename": "../../x"}]}, r"tc_1: the document '\.\./\.\./x' is outside the folder"),
        ({"EntityPages": [{"Title": "Bird"}]}, r"tc_1: EntityPages is .*: expected pages with a Filename"),
        ({"EntityPages": "새.txt"}, r'tc_1: EntityPages is "새.txt": expected pages with a Filename'),
        ({"Answer": "타조"}, r'tc_1: Answer is "타조": expected Value, Aliases'),
        ({"QuestionId": None}, r"question 1: expected an object with Question and QuestionId"),
        ({"EntityPages": [], "SearchResults": []}, r"not a single question with a document"),
    ],
)
def test_triviaqa_damaged(trivia: Path, change: dict[str, Any], message: str) -> None:
    write(trivia, {"Data": [{**TRIVIA["Data"][0], **change}]})  # type: ignore[dict-item]
    with pytest.raises(InputError, match=message):
        list(read_triviaqa(trivia))


def test_triviaqa_without_its_documents(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder .*evidence with the documents"):
        list(read_triviaqa(write(tmp_path / "a.json", TRIVIA)))


def test_a_published_sample_is_read_whole(samples_dir: Path) -> None:
    assert sum(1 for _ in read_squad(samples_dir / "tasks/xquad-en/dev.json")) == 177

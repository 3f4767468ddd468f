"""What a QA task reads: forms of answers, layouts, what is refused or repaired, and published files."""

from __future__ import annotations

import csv
import json
import logging
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from support.files import write, write_rows
from support.questions import KITE, RED, TOKENIZER, a_question, qa_task
from unmask.batch import IGNORE_INDEX
from unmask.errors import InputError
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.qa.answer_places import FIRST_TAKEN, MOVED, RESPELT
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.qa.reading import DROPPED_ANSWERS, DROPPED_QUESTIONS, SAME_ID, UNFOUND, WITHOUT_ANSWER
from unmask.tasks.qa.task import QaTask, open_task
from unmask.tasks.settings import ColumnSettings, TaskSettings


def load(task: QaTask, path: Path, **options: Any) -> tuple[list[QaExample], ExampleCounts]:
    counts = ExampleCounts()
    return list(task.load(path, counts, **options)), counts


def load_training(task: QaTask, path: Path) -> tuple[list[QaExample], ExampleCounts]:
    counts = ExampleCounts()
    return list(task.fit_to(path).load_training(path, counts)), counts


@pytest.mark.parametrize(
    ("answers", "placed"),
    [
        ({"text": ["a red kite", "kite"], "answer_start": [9, 15]}, (RED, (15, 19))),
        ({"text": "a red kite", "answer_start": 9}, (RED,)),
        ({"text": ["a red kite"]}, (RED,)),
        ([{"text": "a red kite", "answer_start": 9}], (RED,)),
        (["a red kite", "Later"], (RED, (21, 26))),
        ("a red kite", (RED,)),
        ('{"text": ["a red kite"], "answer_start": [9]}', (RED,)),
        ({"text": [], "answer_start": []}, ()),
        ([], ()),
        ("", ()),
        (None, ()),
    ],
)
def test_forms_of_answers(tmp_path: Path, answers: Any, placed: tuple[tuple[int, int], ...]) -> None:
    path = write_rows(tmp_path / "a.jsonl", a_question("kite"), {**a_question(), "answers": answers})
    examples, _ = load(qa_task(), path)
    assert examples[1].answers == placed
    assert examples[1].gold_texts == tuple(examples[1].context[slice(*answer)] for answer in placed)


def test_tables_with_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", f'n,q,answer_start,p,a\n7,What?,34,"{KITE}",kite\n8,Who?,,"{KITE}",[1]\n')
    columns = ColumnSettings(question="q", context="p", answers="a", id="n")
    task = qa_task(columns, drop_unfound_answers=True)
    (one,), counts = load_training(task, path)
    assert (one.id, one.answers, one.source) == ("7", ((34, 38),), f"{path}:2")
    assert counts.notes == {DROPPED_ANSWERS: 1, DROPPED_QUESTIONS: 1}  # [1] is a text
    with pytest.raises(InputError, match=r"a\.csv:2: no column 'question' and no column 'context': there is n, q"):
        load(qa_task(), path)
    lenient = open_task(TaskSettings(name="qa"), columns, lenient=True)
    assert lenient.read(Row({"question": "q", "context": "c"}, "x:1")).context == "c"


def test_whether_there_may_be_no_answer(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", a_question("kite"), a_question(is_impossible=True))
    assert qa_task().fit_to(path).settings.unanswerable is True
    assert qa_task(unanswerable=False).fit_to(path).settings.unanswerable is False
    assert qa_task().fit_to(write_rows(path, a_question("kite"))).settings.unanswerable is False
    assert [qa_task(name=name).settings.unanswerable for name in ("squad1", "squad2")] == [False, True]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (a_question("kite", context=" "), r"a\.jsonl:1: the passage is empty"),
        (a_question("kite", question=""), r"a\.jsonl:1: the question is empty"),
        (a_question("kite", question=3), r"a\.jsonl:1: question is 3: expected a text"),
        (a_question("kite", context="\ud800"), r"a\.jsonl:1: context holds half of a surrogate pair, \\ud800"),
        (a_question("kite", id=[1]), r"a\.jsonl:1: id is \[1\]: expected a text or a number"),
        (
            a_question("kite", answer_start="--5"),
            r'a\.jsonl:1: answer_start is "--5": expected the number of characters',
        ),
        (a_question("kite", answer_start="x"), r'a\.jsonl:1: answer_start is "x": expected the number of characters'),
        (a_question({"text": ["kite"], "answer_start": []}), r"a\.jsonl:1: answers is .*: expected as many entries"),
        (a_question([1]), r"a\.jsonl:1: answers is \[1\]: expected"),
        (a_question([" "]), r"a\.jsonl:1: an answer of answers is empty"),
        (
            a_question("kite", is_impossible=True),
            r"a\.jsonl:1: is_impossible is true, and yet the question has the answer",
        ),
        (a_question(), r"a\.jsonl:1: no column 'answers' for the answers: there is id, question, context\. Name it"),
        (a_question([]), r"a\.jsonl: not a single question has an answer, or says with is_impossible that it has none"),
        (a_question("kite", context=None), r"a\.jsonl:1: context is null: expected a text"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(qa_task(), write_rows(tmp_path / "a.jsonl", fields))


def test_where_every_question_has_an_answer(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", a_question("kite"), a_question([]))
    with pytest.raises(InputError, match=r"a\.jsonl:2: the question has no answer, and in squad1 every question"):
        load(qa_task(name="squad1"), path)
    examples, _ = load(qa_task(name="squad1"), path, unlabelled=True)
    assert [one.answers is None for one in examples] == [False, True]
    examples, _ = load(qa_task(), write_rows(path, a_question()), unlabelled=True)
    assert [one.answers for one in examples] == [None]


def test_a_file_without_answers_is_refused_before_a_model_reads_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", a_question([], id="a"), a_question([], id="b"))
    with pytest.raises(InputError, match="not a single question has an answer"):
        next(qa_task(name="squad2").load(path, ExampleCounts()))
    late = write_rows(path, *(a_question(answers, id=name) for name, answers in (("a", []), ("b", "kite"), ("c", []))))
    examples = qa_task(name="squad2").load(late, ExampleCounts())
    assert [one.id for one in examples] == ["a", "b", "c"]


def test_misplaced_answers_are_repaired_or_reported_all_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = [
        a_question({"text": ["a red kite"], "answer_start": [8]}),
        a_question({"text": ["a\u200b red  kite"], "answer_start": [9]}),
        a_question("kite"),
        a_question({"text": ["각각"], "answer_start": [0]}, context=unicodedata.normalize("NFD", "각각 값을")),
    ]
    bad = [a_question("a green kite", id="b"), a_question("kite"), a_question(["kite", "a cat"], id="c")]
    path = write_rows(tmp_path / "a.jsonl", *good, *bad)
    with pytest.raises(InputError, match="2 answers are not in the passage") as refused:
        load_training(qa_task(), path)
    assert f"'a green kite' of {path}:5; 'a cat' of {path}:7. Expected" in str(refused.value)
    assert "task.drop_unfound_answers=true" in str(refused.value)

    with caplog.at_level(logging.WARNING, "unmask"):
        examples, counts = load_training(qa_task(drop_unfound_answers=True), path)
    assert len(examples) == 6
    assert examples[1].answers == (RED,)
    decomposed = [examples[3].context[slice(*answer)] for answer in examples[3].answers or ()]
    assert decomposed == [unicodedata.normalize("NFD", "각각")]
    assert counts.notes == {MOVED: 1, RESPELT: 2, FIRST_TAKEN: 3, SAME_ID: 4, DROPPED_ANSWERS: 2, DROPPED_QUESTIONS: 1}
    assert "2 answers are not in their passage and left out: 'a green kite' of" in caplog.text


def test_measuring_needs_no_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every given text counts, as it is given; where it stands is asked of the training file alone."""
    path = write_rows(
        tmp_path / "dev.jsonl",
        a_question(["kite", "the year 1999"]),
        a_question("a green kite"),
        a_question({"text": ["a\u200b red  kite"], "answer_start": [9]}),
        a_question([]),
    )
    trained = qa_task(unanswerable=True).fit_to(write_rows(tmp_path / "train.jsonl", a_question("kite")))
    remembered = {name: value for name, value in trained.remembered().items() if name != "columns"}
    recalled = open_task(TaskSettings.model_validate(remembered), ColumnSettings(), lenient=True)
    golds = [("kite", "the year 1999"), ("a green kite",), ("a\u200b red  kite",), ()]
    for task in (trained, recalled):
        examples, counts = load(task, path)
        assert [one.gold_texts for one in examples] == golds
        assert [one.gold_texts for one in task.load_golds(path)] == golds
        assert [one.answers for one in examples] == [((15, 19),), None, (RED,), ()]
        assert counts.notes == {UNFOUND: 2, FIRST_TAKEN: 1, RESPELT: 1}
        encoded = task.encode(examples, TOKENIZER, counts)
        starts = encoded.unit_columns["start_positions"].tolist()
        assert (starts[1], starts[3]) == (IGNORE_INDEX, 0)  # not told to learn that there is none
        score = task.score()
        score.add(examples, [{"answer": text} for text in ("the year 1999", "green kite", "a red kite", "")])
        assert score.num_examples == 4
        assert score.metrics()["NoAns_total"] == 1
        assert task.floors(encoded, encoded)["exact"] == {"never answering": 25.0}
    examples, _ = load(trained.fit_to(path), path)  # also where it is measured on what it learns from
    assert len(examples) == 4
    assert not caplog.records


def test_documents_of_triviaqa_without_the_answer_are_left_out(tmp_path: Path) -> None:
    for name, text in (("a", KITE), ("b", "Nothing flew."), ("c", "")):
        write(tmp_path / "evidence" / "wikipedia" / name, text)
    question = {"Question": "What?", "QuestionId": "q", "Answer": {"Value": "Kite", "Aliases": ["dragon"]}}
    pages = [{"Filename": name} for name in "abc"]
    path = write(tmp_path / "train.json", json.dumps({"Data": [{**question, "EntityPages": pages}]}))
    task = qa_task(name="triviaqa")
    (one,), counts = load_training(task, path)
    assert (one.id, one.answers) == ("q--a", ((15, 19),))
    assert one.gold_texts == ("kite", "Kite", "dragon")
    assert counts.notes == {WITHOUT_ANSWER: 2}
    assert sum(1 for _ in task.load_rows(path)) == 3
    examples, _ = load(task, path, unlabelled=True)  # a prediction for each is scored with the file alone
    assert [one.gold_texts is None for one in examples] == [False, True, True]


def test_published_files_hold_their_answers_where_they_say(data_dir: Path) -> None:
    for name, file, number in (
        ("squad1", "squad1/dev-v1.1.json", 10_570),
        ("squad2", "squad2-cs224n/dev-v2.0.json", 6_078),
        ("korquad1", "korquad1/KorQuAD_v1.0_dev.json", 5_774),
    ):
        examples, counts = load(qa_task(name=name), data_dir / "tasks" / file)
        assert (len(examples), counts.notes) == (number, {})


def write_table(path: Path, *row: str) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("question", "context", "answers"), row])
    return path


@pytest.mark.parametrize(
    "cell",
    [
        "{'text': ['Hopper'], 'answer_start': [6]}",
        "{'text': array(['Hopper'], dtype=object), 'answer_start': array([6], dtype=int32)}",
        "[{'text': 'Hopper', 'answer_start': 6}]",
        "['Hopper']",
    ],
)
def test_answers_as_python_prints_them_are_refused_everywhere(tmp_path: Path, cell: str) -> None:
    path = write_table(tmp_path / "a.csv", "Who?", "Grace Hopper found it", cell)
    told = r"a\.csv:2: answers is .*, as Python prints it: expected JSON in the cell of a table"
    with pytest.raises(InputError, match=told):
        list(qa_task().load(path, ExampleCounts()))  # as dev
    with pytest.raises(InputError, match=told):
        qa_task().fit_to(path)


def test_an_answer_with_brackets_is_an_answer(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.csv", "What?", "It prints ['a'] here", "['a']")
    (example,) = qa_task().load(path, ExampleCounts())
    assert example.gold_texts == ("['a']",)

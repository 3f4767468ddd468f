"""MRQA 2019's layout, from its file to figures, whole and damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from support.files import write, write_rows
from support.tasks import new_task
from unmask.errors import InputError
from unmask.inference.prediction_scoring import evaluate_predictions
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.qa.mrqa import read_mrqa, without_header
from unmask.tasks.splitting import split_file

HEADER = {"header": {"dataset": "Kites", "split": "train"}}
CONTEXT = "[PAR] Mina saw A Red  Kite. Later a blue kite flew by."
RED = {"text": "red kite", "char_spans": [[36, 44], [17, 25]], "token_spans": [[8, 9], [4, 5]]}  # not in their order
QUESTION = {"qid": "q1", "question": "What did Mina see?", "answers": ["a red kite", "the kite"]}


def line(*questions: Any, context: Any = CONTEXT) -> dict[str, Any]:
    return {"id": "", "context": context, "context_tokens": [["Mina", 6]], "qas": list(questions)}


def test_the_first_span_of_the_context_is_learned_as_it_is_spelt(tmp_path: Path) -> None:
    rows = [HEADER, line({**QUESTION, "detected_answers": [RED]}, {"qid": "q2", "question": "Who flew it?"})]
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path = write(tmp_path / "dev.jsonl.gz", gzip.compress(content))
    first, second = read_mrqa(path)
    assert first == Row(
        {
            "id": "q1",
            "question": "What did Mina see?",
            "context": CONTEXT,
            "answers": {"text": ["Red  Kite", "blue kite"], "answer_start": [17, 36]},
            "aliases": ["a red kite", "the kite"],
        },
        f"{path}:2, question q1",
    )
    assert second.fields == {"id": "q2", "question": "Who flew it?", "context": CONTEXT}
    with pytest.raises(InputError, match=r"dev\.jsonl\.gz:2, question q2: no column 'answers'"):
        list(new_task(name="mrqa").load(path, ExampleCounts()))

    path = write_rows(tmp_path / "train.jsonl", *rows[:1], line({**QUESTION, "detected_answers": [RED]}))
    task = new_task(name="mrqa").fit_to(path)
    [example] = task.load(path, ExampleCounts())
    assert example.answers == ((17, 26), (36, 45))
    assert example.gold_texts == ("a red kite", "the kite")
    assert task.settings.unanswerable is False


def test_an_answer_without_its_place_is_looked_for(tmp_path: Path) -> None:
    kite = {**QUESTION, "answers": ["blue kite", "A Red Kite"], "detected_answers": []}
    beyond = {**QUESTION, "qid": "q3", "detected_answers": [{"text": "blue kite", "char_spans": [[400, 408]]}]}
    path = write_rows(tmp_path / "train.jsonl", line(kite, beyond))
    read = list(new_task(name="mrqa").fit_to(path).load_training(path, counts := ExampleCounts()))
    assert [example.answers for example in read] == [((36, 45), (15, 26)), ((36, 45),)]
    assert sum(counts.notes.values()) == 2, "one text is spelt otherwise, one is elsewhere than its span says"
    beyond["detected_answers"][0]["text"] = "a green one"
    write_rows(path, line(kite, beyond))
    with pytest.raises(
        InputError, match=r"1 answer is not in the passage, .* 'a green one' of .*\.jsonl:1, question q3"
    ):
        list(new_task(name="mrqa").fit_to(path).load_training(path, ExampleCounts()))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([HEADER], r"a\.jsonl: there is not a single question in it"),
        ([line()], r"a\.jsonl: there is not a single question in it"),
        ([line(QUESTION, context=None)], r"a\.jsonl:1: context is null: expected a text"),
        ([HEADER, line("q")], r'a\.jsonl:2: qas is \["q"\]: expected a list of objects with qid and question'),
        ([line({**QUESTION, "answers": "kite"})], r'1, question q1: answers is "kite": expected a list of texts'),
        ([line({**QUESTION, "detected_answers": {}})], r"question q1: detected_answers is \{\}: expected a list of "),
        ([line({"detected_answers": [{"text": "a", "char_spans": [[1]]}]})], r"1, question number 1: an answer is \{"),
        (
            [line({"detected_answers": [{"char_spans": [[1, 2]]}]})],
            r"number 1: an answer .*: expected a text, and char",
        ),
        ([line({"qid": "q1"})], r"a\.jsonl:1, question q1: no column 'question'"),
    ],
)
def test_damaged(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(new_task(name="mrqa").load(write_rows(tmp_path / "a.jsonl", *rows), ExampleCounts(), unlabelled=True))


def test_a_table_of_questions_is_read_too(tmp_path: Path) -> None:
    path = write(tmp_path / "new.csv", "question,context\nWho?,Mina saw it.\n")
    [example] = new_task(name="mrqa").load(path, ExampleCounts(), unlabelled=True)
    assert (example.question, example.context) == ("Who?", "Mina saw it.")


def test_only_published_answers_count(tmp_path: Path) -> None:
    """As in the shared task's scorer, to which a span is only right if it is one of them."""
    second = {"qid": "q2", "question": "?", "answers": ["Mina saw"], "detected_answers": [RED]}
    data = write_rows(tmp_path / "dev.jsonl", HEADER, line({**QUESTION, "detected_answers": [RED]}, second))
    answers = write(tmp_path / "answers.json", json.dumps({"q1": "Kite!", "q2": "Red Kite"}))
    metrics = evaluate_predictions(answers, data, "mrqa")["metrics"]
    assert metrics == pytest.approx({"exact_match": 50.0, "f1": 50.0})


def test_a_column_may_be_called_header() -> None:
    rows = [{"header": f"text {number}"} for number in range(3)]
    assert [row.fields for row in without_header(Row(row, "") for row in [HEADER, *rows])] == rows


def test_each_part_of_a_split_has_the_header(tmp_path: Path) -> None:
    rows = [line({**QUESTION, "qid": str(number)}, context=f"kite {number}") for number in range(10)]
    content = "".join(f"{json.dumps(row)}\n" for row in (HEADER, *rows)).encode()
    counts = split_file(write(tmp_path / "dev.jsonl.gz", gzip.compress(content)), "mrqa", tmp_path / "out")
    assert list(counts.values()) == [8, 1, 1]
    parts = [[json.loads(line) for line in path.read_text().splitlines()] for path in counts]
    assert [part[0] for part in parts] == [HEADER] * 3
    ids = [row.fields["id"] for path in counts for row in read_mrqa(path)]
    assert sorted(ids) == [str(number) for number in range(10)]

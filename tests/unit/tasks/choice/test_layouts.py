"""Multiple choice: published layouts and files with named columns, labels, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from support.files import write_rows
from support.tasks import new_task
from unmask.errors import InputError
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.choice.layouts import ChoiceExample
from unmask.tasks.choice.task import Choice
from unmask.tasks.settings import ColumnSettings

TASK = new_task("choice", max_length=12)
SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"


def load(task: Choice, path: Path) -> list[ChoiceExample]:
    return list(task.fit_to(path).load(path, ExampleCounts()))


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def test_swag_as_published(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train.csv",
        SWAG_HEADER + ",label",
        '0,v_1,17,"A cook waits. He","A cook waits.",He,gold,"stirs it, slowly.",sings.,"says ""no"".",runs.,2',
    )
    (read,) = load(new_task("swag"), path)
    assert (read.context, read.question) == ("A cook waits.", "He")
    assert read.choices == ("stirs it, slowly.", "sings.", 'says "no".', "runs.")
    assert (read.label, read.source) == (2, f"{path}:2")


def test_swag_test_file_has_no_label(tmp_path: Path) -> None:
    path = write(tmp_path / "test.csv", SWAG_HEADER, "0,v_1,17,A. He,A.,He,gold,a,b,c,d")
    task = new_task("swag").fit_to(path)
    assert [one.label for one in task.load(path, ExampleCounts(), unlabelled=True)] == [None]
    with pytest.raises(InputError, match=r"test\.csv:2: no column 'label' for the label"):
        load(task, path)


def test_story_cloze_as_published(tmp_path: Path) -> None:
    sentences = ",".join(f"InputSentence{number}" for number in range(1, 5))
    path = write(
        tmp_path / "val.csv",
        f"InputStoryid,{sentences},RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding",
        '4f,Ann sowed seeds.,It rained.,"The sun, too, came.",They grew.,She had flowers.,She sold a boat.,1',
        "5a,A.,B.,C.,D.,E.,F.,2",
    )
    first, second = load(new_task("storycloze"), path)
    assert first.context == "Ann sowed seeds. It rained. The sun, too, came. They grew."
    assert (first.question, first.choices, first.label) == ("", ("She had flowers.", "She sold a boat."), 0)
    assert second.label == 1
    write(path, path.read_text("utf-8").splitlines()[0], "5a,A.,B.,C.,D.,E.,F.,0")
    with pytest.raises(InputError, match=r"val\.csv:2: the column 'AnswerRightEnding' holds \"0\".*number, 1 to 2"):
        load(new_task("storycloze"), path)


ARTICLE = {
    "article": "The heron waits by the river.",
    "questions": ["What waits?", "Where is it? By the _ ."],
    "options": [["a heron", "a cat", "a boy", "a boat"], ["sea", "river", "road", "house"]],
    "answers": ["A", "B"],
}


def test_race_as_published_in_folders(tmp_path: Path) -> None:
    for level, number in (("middle", 7), ("high", 12)):
        file = tmp_path / "train" / level / f"{number}.txt"
        write(file, json.dumps({**ARTICLE, "id": f"{level}{number}.txt"}))
    examples = load(new_task("race"), tmp_path / "train")
    assert [one.fields["id"] for one in examples] == ["high12.txt-0", "high12.txt-1", "middle7.txt-0", "middle7.txt-1"]
    assert [one.group for one in examples] == ["high", "high", "middle", "middle"]
    assert [one.label for one in examples] == [0, 1, 0, 1]
    assert (examples[3].context, examples[3].question) == (ARTICLE["article"], "Where is it? By the _ .")
    assert examples[3].choices == ("sea", "river", "road", "house")
    assert examples[3].source == f"{tmp_path / 'train' / 'middle' / '7.txt'}:1, question 2"


def test_race_in_json_lines_by_article_or_by_question(tmp_path: Path) -> None:
    task = new_task("race")
    by_article = write_rows(tmp_path / "a.jsonl", {**ARTICLE, "id": "high1.txt"})
    question = {"example_id": "middle2.txt", "article": "x", "question": "y", "options": ["p", "q"], "answer": "B"}
    by_question = write_rows(tmp_path / "b.jsonl", question)
    assert [(one.label, one.group) for one in load(task, by_article)] == [(0, "high"), (1, "high")]
    (read,) = load(task, by_question)
    assert (read.fields["id"], read.group, read.label, read.choices) == ("middle2.txt", "middle", 1, ("p", "q"))


def test_what_is_wrong_with_race_is_told(tmp_path: Path) -> None:
    task = new_task("race")
    with pytest.raises(InputError, match=r"no \.txt file in this folder"):
        load(task, tmp_path)
    file = tmp_path / "high" / "1.txt"
    for text, message in (
        ("{", r"1\.txt: not JSON"),
        ("[]", r"1\.txt: expected a JSON object"),
        (json.dumps({**ARTICLE, "answers": ["A"]}), r"1\.txt:1: answers is \[\"A\"\]: expected a list as long"),
        (
            json.dumps({"questions": [], "options": [], "answers": []}),
            r"there is not a single question in it: expected",
        ),
        (json.dumps({**ARTICLE, "answers": ["A", "?"]}), r"1\.txt:1, question 2: the answer is \"\?\""),
        (json.dumps({**ARTICLE, "answers": ["A", "E"]}), r"question 2: the column 'label' holds 4: expected .* 0 to 3"),
        (json.dumps({"questions": ["a"], "options": [["a"]], "answers": ["A"]}), "no field 'article'"),
    ):
        write(file, text)
        with pytest.raises(InputError, match=message):
            load(task, tmp_path)


def test_codah_as_published(tmp_path: Path) -> None:
    task = new_task("codah")
    path = write(tmp_path / "train.tsv", 'n\tA hen has\t3 legs.\tsaid "moo".\t2\tfeathers.\t2')
    (read,) = load(task, path)
    assert (read.context, read.choices) == ("A hen has", ("3 legs.", 'said "moo".', "2", "feathers."))
    assert read.label == 2, "the label is a number, whatever the choices say"
    assert read.fields["category"] == "n"
    for line, message in (
        ("n\ta\tb\tc\td\t0", r"6 fields where the header has 7 \(category, context, choice_0"),
        ("n\ta\tb\tc\td\te\t4", r"the column 'label' holds \"4\": expected the right choice's number, 0 to 3"),
        ("n\ta\tb\tc\t \te\t0", r"the choice choices\[2\] is empty"),
    ):
        write(path, "n\ta\tb\tc\td\te\t0", line)
        with pytest.raises(InputError, match=rf"train\.tsv:2: {message}"):
            load(task, path)


def test_codah_of_the_project_reads_whole(data_dir: Path) -> None:
    task = new_task("codah")
    folder = data_dir / "tasks" / "codah"
    assert len(load(task, folder / "full_data.tsv")) == 2776
    folds = [load(task, folder / "fold_0" / f"{part}.tsv") for part in ("train", "dev", "test")]
    assert [len(part) for part in folds] == [1665, 556, 555]
    train, dev, test = ({(one.context, one.choices) for one in part} for part in folds)
    assert len(train | dev | test) == len(train) + len(dev) + len(test)


def test_any_file_with_named_columns(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"context": "It rains.", "choices": ["We get wet.", "We fly."], "label": 0},
        {"context": "", "question": "Who?", "choices": ["I", "you", "we"], "label": "we"},
    ]
    first, second = load(TASK, write_rows(tmp_path / "a.jsonl", *rows))
    assert (first.question, first.label, second.context, second.question, second.label) == ("", 0, "", "Who?", 2)
    columns = ColumnSettings(context="premise", choices=["one", "two"], label="gold")
    named = new_task("choice", columns)
    path = write(tmp_path / "a.tsv", "premise\tone\ttwo\tgold", "p\tx\ty\t1", "p\tx\ty\tx")
    assert [(one.choices, one.label) for one in load(named, path)] == [(("x", "y"), 1), (("x", "y"), 0)]
    cells = write(tmp_path / "a.csv", "context,choices,label", 'c,"[""x"", ""y""]",1')
    assert load(TASK, cells)[0].choices == ("x", "y")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["a", "b"], "label": 0}, "no column 'context': expected context and choices; there is"),
        ({"context": "c", "choices": ["a"], "label": 0}, r"1 choice\(s\) in choices: expected at least two"),
        ({"context": "c", "choices": ["a", ""], "label": 0}, r"the choice choices\[1\] is empty"),
        ({"context": "c", "choices": ["a", 5], "label": 0}, r"choices\[1\] is 5: expected a text"),
        ({"context": "c", "choices": "a or b", "label": 0}, "choices is 'a or b': expected a JSON list"),
        ({"context": "c", "choices": {"a": 1}, "label": 0}, "choices is .*: expected a list of texts"),
        ({"context": 3, "choices": ["a", "b"], "label": 0}, "context is 3: expected a text"),
        ({"context": "\ud800", "choices": ["a", "b"], "label": 0}, "context holds half of a surrogate"),
        ({"context": "c", "choices": ["a", "b"]}, "no column 'label' for the label"),
        ({"context": "c", "choices": ["a", "b"], "label": None}, "the column 'label' is empty"),
        ({"context": "c", "choices": ["a", "b"], "label": 2}, "the column 'label' holds 2: expected .* 0 to 1"),
        ({"context": "c", "choices": ["a", "b"], "label": -1}, "the column 'label' holds -1"),
        ({"context": "c", "choices": ["a", "b"], "label": 0.5}, "the column 'label' holds 0.5"),
        ({"context": "c", "choices": ["a", "b"], "label": math.nan}, "the column 'label' holds NaN"),
        ({"context": "c", "choices": ["a", "b"], "label": True}, "the column 'label' holds true"),
        ({"context": "c", "choices": ["a", "b"], "label": "z"}, "the column 'label' holds \"z\""),
        ({"context": "c", "choices": ["a", "a"], "label": "a"}, ".* fits more than one of the choices"),
        ({"context": "c", "choices": ["1", "0"], "label": "1"}, ".* fits more than one of the choices"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_its_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"a.jsonl:1: {message}"):
        list(TASK.load(write_rows(tmp_path / "a.jsonl", row), ExampleCounts()))


def test_a_number_of_json_is_never_a_text(tmp_path: Path) -> None:
    (read,) = load(TASK, write_rows(tmp_path / "a.jsonl", {"context": "c", "choices": ["1", "0"], "label": 1}))
    assert read.label == 1


def test_a_model_of_a_published_data_set_reads_json_lines_too(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", {"context": "c", "question": "q", "choices": ["a", "b"]})
    for name in ("codah", "race"):
        task = new_task(name, lenient=True)
        assert [task.read(row).choices for row in task.load_rows(path)] == [("a", "b")]


def test_inputs_of_a_fine_tuned_model_may_have_the_usual_columns() -> None:
    kept = new_task("swag").remembered()
    assert kept == {"name": "swag", "max_length": 128, "truncation": True, "columns": {}}
    task = new_task("swag", lenient=True)
    usual = task.read(Row({"context": "c", "choices": ["a", "b", "d"]}, "input 1"))
    own = task.read(Row({"sent1": "c", "sent2": "q", **{f"ending{n}": str(n) for n in range(4)}}, "input 2"))
    assert (usual.choices, usual.question, usual.label) == (("a", "b", "d"), "", None)
    assert (own.choices, own.question) == (("0", "1", "2", "3"), "q")
    with pytest.raises(InputError, match=r"input 3: no column 'sent1'.*or context and choices; there is text"):
        task.read(Row({"text": "c"}, "input 3"))


# ---- What people bring


@pytest.mark.parametrize(
    ("labels", "first", "places"),
    [(["A", "b", "C"], None, [0, 1, 2]), (["1", "2", "3"], 1, [0, 1, 2]), ([1, 3, "B"], 1, [0, 2, 1])],
)
def test_choices_by_letters_or_counted_from_1(
    tmp_path: Path, labels: list[str | int], first: int | None, places: list[int]
) -> None:
    rows = [{"context": "c", "choices": ["red", "green", "blue"], "label": label} for label in labels]
    path = write_rows(tmp_path / "a.jsonl", *rows)
    task = new_task("choice", ColumnSettings(first_choice=first))
    again = new_task("choice", ColumnSettings(**task.remembered()["columns"]), lenient=True)
    for each in (task, again):
        assert [example.label for example in load(each, path)] == places


def test_the_setting_for_choices_counted_from_1_is_named(tmp_path: Path) -> None:
    for label, told in (
        (2, r"counted from 1, give --column first_choice=1 \(in a recipe data\.columns\.first_choice; "),
        ("C", r"holds \"C\": expected the right choice's number, 0 to 1"),
    ):
        with pytest.raises(InputError, match=told):
            load(TASK, write_rows(tmp_path / "a.jsonl", {"context": "c", "choices": ["red", "green"], "label": label}))

"""Models through the commands that use them: columns, settings, tables on standard input, and files of answers."""

from __future__ import annotations

import json
import logging
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, type_in
from support.files import write_rows
from unmask.card import card_of
from unmask.inference.predictor import Predictor, predict

pytestmark = pytest.mark.usefixtures("one_thread")


def succeeded(result: Any) -> str:
    code, output, errors = result
    assert code == 0, errors
    return str(output)


def examples(task_models: Any, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in task_models.examples[kind].splitlines()]


def write(path: str, rows: list[dict[str, Any]]) -> str:
    return str(write_rows(Path(path), *rows))


@pytest.mark.parametrize(
    ("kind", "row", "given", "value"),
    [
        ("classification", {"text": "a warm paper"}, "a warm paper", "score"),
        ("regression", {"text_a": "dull", "text_b": "a warm"}, {"text": "dull", "text_pair": "a warm"}, "value"),
    ],
)
def test_the_code_of_a_card_answers_as_predict(
    kind: str, row: dict[str, str], given: Any, value: str, task_models: Any
) -> None:
    """Of a pair too, and the score of a regression is its number."""
    model, found = task_models.runs / kind / "model", dict[str, Any]()
    [code] = re.findall("```python\n(.*?)```", card_of(model), re.DOTALL)
    assert ("text_pair" in code, "the number itself" in code) == (kind == "regression",) * 2
    exec(code.replace("DIRECTORY", str(model)), found)
    answer, [expected] = found["model"](given), predict(model, [row])
    answer = answer[0] if isinstance(answer, list) else answer
    assert answer["score"] == pytest.approx(expected[value], abs=1e-5)


def test_columns_are_named_in_one_way_everywhere(unmask: Command, place: Path, task_models: Any) -> None:
    model, rows = task_models.runs / "regression", examples(task_models, "regression")
    usual = write("usual.jsonl", rows)
    names = {"text_a": "premise", "text_b": "hypothesis", "label": "stars"}
    data = write("data.jsonl", [{names[name]: value for name, value in row.items()} for row in rows])
    columns = [word for name, column in names.items() for word in ("--column", f"{name}={column}")]
    texts = columns[:4]
    figures = succeeded(unmask("evaluate", model, "--data", usual, "--json"))
    assert succeeded(unmask("evaluate", model, "--data", data, *columns, "--json")) == figures
    told = [json.loads(line) for line in succeeded(unmask("predict", model, data, *texts)).splitlines()]
    known = [json.loads(line) for line in succeeded(unmask("predict", model, usual)).splitlines()]
    assert [one["value"] for one in told] == [one["value"] for one in known]
    assert succeeded(unmask("predict", model, data, *texts, "--out", "p.jsonl")) == "p.jsonl\n"
    scored = ("evaluate", "--predictions", "p.jsonl", "--data", data, "--task", "regression", *columns, "--json")
    assert succeeded(unmask(*scored)) == figures
    for command in ("features", "similarity"):
        out = (("--out", "a"), ("--out", "b")) if command == "features" else ((), ())
        first = unmask(command, model, usual, *out[0])
        second = unmask(command, model, data, *texts, *out[1])
        assert succeeded(second).replace("b\n", "a\n") == succeeded(first)
    assert (place / "a" / "features.npy").read_bytes() == (place / "b" / "features.npy").read_bytes()
    code, _, errors = unmask("predict", model, data)
    assert code == 2
    assert "Name yours with --column text_a=NAME and --column text_b=NAME" in errors


def test_what_is_not_labelled_next_is_refused_in_training(unmask: Command, place: Path, task_models: Any) -> None:
    """And no guess is learnt in its place."""
    (place / "t.csv").write_text("text\na warm paper\na dull one\n", "utf-8")
    words = ("predict", task_models.runs / "classification", "t.csv", "--most-uncertain", 2, "--out", "next.csv")
    assert succeeded(unmask(*words)) == "next.csv\n"
    header, *rows = (place / "next.csv").read_text("utf-8-sig").splitlines()
    assert header == "text,label,predicted,score,probabilities.n,probabilities.y,certainty"
    (place / "next.csv").write_text("\n".join([header, rows[0].replace(",,", ",y,"), rows[1]]), "utf-8")
    training = task_models.words("classification", "next.csv")
    code, _, errors = unmask("finetune", "finetune/classification", *training, "--out", "run")
    assert code == 2
    assert "next.csv:3: the column 'label' is empty: fill it in, or take the row out" in errors


@pytest.mark.parametrize(
    ("words", "num_lines", "message"),
    [
        ((), 4, "4 inputs are answered, the rest begins at data.jsonl:5"),
        (("--most-uncertain", 3), 0, "0 inputs are answered"),
        (
            ("--out", "p.jsonl"),
            0,
            "nothing is kept: p.jsonl appears once everything is answered; `> FILE` in place of --out",
        ),
    ],
)
def test_what_an_interrupted_prediction_leaves_is_said(
    words: tuple[Any, ...],
    num_lines: int,
    message: str,
    unmask: Command,
    place: Path,
    task_models: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, outputs, computed = write("data.jsonl", examples(task_models, "classification")), Predictor.outputs, []

    def interrupted(*given: Any) -> Any:
        computed.append(None)
        if len(computed) == 3:
            signal.raise_signal(signal.SIGTERM)
        return outputs(*given)

    monkeypatch.setattr(Predictor, "outputs", interrupted)
    monkeypatch.setattr("unmask.inference.predictor.STREAMED", 2)
    code, output, errors = unmask("predict", task_models.runs / "classification", data, *words)
    assert (code, len(output.splitlines())) == (143, num_lines)
    assert errors.startswith(f"stopped by SIGTERM; {message}")
    assert [path.name for path in place.iterdir()] == ["data.jsonl"]


def test_similarity_takes_the_options_of_tables_that_its_messages_name(
    unmask: Command, place: Path, task_models: Any
) -> None:
    (place / "pairs.csv").write_bytes("text_a|text_b\n한국 사람|a man\n".encode("cp949"))
    (place / "text.csv").write_bytes("text\n한국 사람\n".encode("cp949"))
    expected = succeeded(unmask("similarity", task_models.base, "한국 사람", "a man"))
    told = "or give its encoding, --encoding NAME. It reads as '한국 사람|a man' in cp949"
    assert told in unmask("similarity", task_models.base, "pairs.csv")[2]
    written = ("--encoding", "cp949", "--separator", "|")
    assert succeeded(unmask("similarity", task_models.base, "pairs.csv", *written)) == expected
    searched = ("--query", "text.csv", "--corpus", "text.csv", "--encoding", "cp949")
    (found,) = [json.loads(line) for line in succeeded(unmask("similarity", task_models.base, *searched)).splitlines()]
    assert (found["query"], found["results"][0]["text"]) == ("한국 사람", "한국 사람")


def test_settings_over_those_that_a_model_remembers(unmask: Command, place: Path, task_models: Any) -> None:
    data = write("data.jsonl", examples(task_models, "qa"))
    model = task_models.runs / "qa"
    words = ("task.n_best=2", "task.max_answer_length=3")
    (first, *_) = succeeded(unmask("predict", model, data, *words)).splitlines()
    assert len(json.loads(first)["n_best"]) == 2
    said = json.loads(succeeded(unmask("evaluate", model, "--data", data, "task.unanswerable=true", "--json")))
    assert "NoAns_f1" in said["metrics"] or "exact" in said["metrics"]
    write("said.jsonl", [{"tags": ["B-X", "O", "B-X"]}])
    write("tags.jsonl", [{"tokens": ["a", "b", "c"], "tags": ["B-X", "O", "I-X"]}])
    scoring = ("--predictions", "said.jsonl", "--data", "tags.jsonl", "--task", "tagging")
    assert json.loads(succeeded(unmask("evaluate", *scoring, "--json")))["metrics"]["overall_f1"] == 1
    code, _, errors = unmask("evaluate", "task.repair_tags=false", *scoring)
    assert code == 2
    assert errors.startswith("error: tags.jsonl:1")
    assert "the tag 'I-X' breaks the scheme" in errors


def test_a_table_on_standard_input(
    unmask: Command, place: Path, task_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = task_models.runs / "classification"
    table = "id,text\n1,Ada Lovelace wrote a dull paper in Bath\n2,Grace Hopper wrote a warm paper in Oslo\n"
    Path("inputs.csv").write_text(table)
    type_in(monkeypatch, table)
    piped = succeeded(unmask("predict", model, "-", "--format", "csv"))
    assert piped == succeeded(unmask("predict", model, "inputs.csv"))
    assert [json.loads(line)["id"] for line in piped.splitlines()] == ["1", "2"]
    type_in(monkeypatch, table)
    code, _, errors = unmask("predict", model, "-")
    assert code == 2
    assert "it is the header of a table (id, text): give --format csv" in errors
    type_in(monkeypatch, table)
    assert len(succeeded(unmask("predict", model, "-", "--format", "txt")).splitlines()) == 3


def test_answers_in_squads_own_form(unmask: Command, place: Path, task_models: Any) -> None:
    rows = examples(task_models, "qa")
    data, model = write("data.jsonl", rows), task_models.runs / "qa"
    assert succeeded(unmask("predict", model, data, "--out", "answers.json")) == "answers.json\n"
    assert list(json.loads((place / "answers.json").read_text("utf-8"))) == [row["id"] for row in rows]
    figures = succeeded(unmask("evaluate", model, "--data", data, "--json"))
    scored = ("evaluate", "--predictions", "answers.json", "--data", data, "--task", "qa", "--json")
    assert succeeded(unmask(*scored)) == figures
    code, _, errors = unmask("predict", model, data, "--out", "answers.json")
    assert code == 2
    assert "answers.json exists already" in errors
    assert succeeded(unmask("predict", model, data, "--out", "answers.json", "--overwrite"))
    named = write("named.jsonl", [{"number": row.pop("id"), **row} for row in rows])
    assert succeeded(unmask("predict", model, named, "--column", "id=number", "--out", "other.json"))
    assert (place / "other.json").read_bytes() == (place / "answers.json").read_bytes()


def test_a_vocabulary_of_another_language_is_told_at_every_use(
    unmask: Command, place: Path, task_models: Any, without_report: None, caplog: pytest.LogCaptureFixture
) -> None:
    data = write("data.jsonl", [{"text": "국민 은", "label": "n"}, {"text": "paper 국민", "label": "y"}])
    model = task_models.runs / "classification"
    words = task_models.words("classification", data, f"data.dev={data}")
    train = ("finetune", "finetune/classification", *words, "--out", "run")
    uses = [("evaluate", model, "--data", data), ("predict", model, data), ("features", model, data, "--out", "f")]
    told = "75 % of the tokens (3 of 4) are [UNK], such as '국민': the vocabulary does not cover these texts"
    caplog.set_level(logging.INFO, "unmask")
    for command in (train, *uses):
        caplog.clear()
        succeeded(unmask(*command))
        assert caplog.text.count(told) == 1
        assert "2 examples, 3 of 4 tokens not in the vocabulary ([UNK])" in caplog.text


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging"])
def test_the_figures_of_predictions_are_those_of_the_model(
    unmask: Command, place: Path, task_models: Any, kind: str
) -> None:
    model, data = task_models.runs / kind, write("data.jsonl", examples(task_models, kind))
    succeeded(unmask("predict", model, data, "--out", "predictions.jsonl"))
    words = ("--data", data, "--task", kind, "--json")
    measured = json.loads(succeeded(unmask("evaluate", model, *words)))
    scored = json.loads(succeeded(unmask("evaluate", "--predictions", "predictions.jsonl", *words)))
    assert measured == scored
    for command in (("predict", model, data), ("features", model, data, "--out", "features")):
        code, _, errors = unmask(*command, "--precision", "auto")
        assert code == 2
        assert "precision 'auto': expected fp32 or bf16" in errors

"""Bad models, inputs and predictions through the real commands that use models: each refused in one message."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, tree_of, write_files
from support.model_files import edit_config
from support.searches import read_json

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


def check_refused(result: Any, message: str) -> None:
    """One line is the error, and the last; what is told of the vocabulary may stand before it."""
    code, output, errors = result
    assert code == 2, errors
    assert output == ""
    *warnings, told = errors.splitlines()
    assert f"{told}\n".startswith(f"error: {message}"), errors
    assert all("the vocabulary does not cover these texts" in warning for warning in warnings), errors


TSV = "text\tlabel\na film\ty\na plot\tn\n"
QA = '{"id": "1", "question": "q", "context": "c", "answers": ["c"]}\n'
TAGS = '{"tokens": ["x", "y"], "tags": ["O", "B-P"]}\n'
GLUE = "cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli"

BAD_USES: dict[str, tuple[dict[str, str], str, str]] = {
    # files, command, message
    "another kind of task": ({"d.tsv": TSV}, "evaluate {runs}/classification --task squad1 --data d.tsv",
     "the model was trained for 'classification', which is classification, and 'squad1' is qa: name a task of the "),
    "no such task": ({"d.tsv": TSV}, "evaluate {runs}/classification --task clasification --data d.tsv",
     "there is no task 'clasification'; did you mean classification?"),
    "nothing like a task": ({"d.tsv": TSV}, "evaluate {runs}/classification --task zzz --data d.tsv",
     "there is no task 'zzz'; expected one of classification, regression, qa"),
    "an unknown label": ({"d.tsv": "text\tlabel\na\todd\n"}, "evaluate {runs}/classification --data d.tsv",
     "d.tsv:2: the label 'odd' is none of the known ones (n, y): fix it, or train with it"),
    "examples of another kind": ({"d.tsv": TSV}, "evaluate {runs}/qa --data d.tsv",
     "d.tsv:2: no column 'question' and no column 'context': there is text, label."),
    "no labels": ({"d.tsv": "text\na\n"}, "evaluate {runs}/classification --data d.tsv",
     "d.tsv:2: no column 'label' for the label: there is text."),
    "a model without a head": ({"d.tsv": TSV}, "evaluate {base} --data d.tsv",
     "{base} (BertModel) is an encoder without a head: expected a fine-tuned model, as `unmask finetune` makes one"),
    "a model of the Hub": ({"d.tsv": TSV}, "evaluate google-bert/bert-base-uncased --data d.tsv",
        "google-bert/bert-base-uncased: no such directory: expected a model's, or that of the run that made it; a "
        "model of the Hugging Face Hub is not fetched, but `hf download google-bert/bert-base-uncased --local-dir"),
    "a model of the Hub, by its old name": ({"d.tsv": TSV}, "evaluate bert-base-uncased --data d.tsv",
        "bert-base-uncased: no such directory: expected a model's, or that of the run that made it; a model of the "
        "Hugging Face Hub is not fetched, but `hf download OWNER/bert-base-uncased --local-dir DIR` does so"),
    "no path of the Hub": ({"d.tsv": TSV}, "evaluate ~/gone --data d.tsv",
        "~/gone: no such directory: expected a model's, or that of the run that made it\n"),
    "no model": ({"d.tsv": TSV}, "evaluate gone --data d.tsv", "gone: no such directory: expected a model's"),
    "neither model nor predictions": ({"d.tsv": TSV}, "evaluate --data d.tsv",
     "give a MODEL to measure, or --predictions FILE to score without one: one of the two"),
    "probabilities of no answer beside a model": ({"d.tsv": TSV, "n.json": "{}"},
     "evaluate {runs}/classification --data d.tsv --na-probs n.json",
     "--na-probs has no effect without --predictions: leave it out\n"),
    "a threshold of no probabilities": ({"d.tsv": TSV, "p.json": "{}"},
     "evaluate --predictions p.json --data d.tsv --na-threshold .5",
     "--na-threshold is for --na-probs: leave it out, or give both\n"),
    "an unquoted glob": ({"d.tsv": TSV, "e.tsv": TSV}, "predict {runs}/classification d.tsv e.tsv",
     "'e.tsv': one FILE is read: quote the glob, or name its folder; a setting is task.KEY=VALUE\n"),
    "standard input to measure on": ({}, "evaluate {runs}/classification --data -",
     "standard input: a name says what kind of file it is: write it to a file, such as examples.csv\n"),
    "standard input with tags": ({}, "evaluate {runs}/tagging --data -",
     "standard input: a name says what kind of file it is: write it to a file, such as examples.csv\n"),
    "standard input to split": ({}, "split - --task classification --out s",
     "standard input: a name says what kind of file it is: write it to a file, such as examples.csv\n"),
    "the format of features": ({"d.tsv": TSV}, "features {base} d.tsv --out f --format csv",
     "no format 'csv': expected one of npy, parquet (of the input: --input-format)\n"),
    "a checkpoint of a fine-tuning run": ({}, "checkpoint {runs}/classification --out m",
     "{runs}/classification: it is a fine-tuning run: its model is {runs}/classification/model\n"),
    **{f"a device of {words.split()[0]}": ({"d.tsv": TSV}, f"{words} --device tpu", "device 'tpu': expected auto, cpu")
       for words in ("predict {runs}/classification d.tsv", "evaluate {runs}/classification --data d.tsv",
                     "features {base} d.tsv --out f", "similarity {base} a b")},
    "half of a surrogate pair": ({}, "similarity {base} caf\udce9 cafe", "the two texts"),
    "a column of a model that is not there": ({"d.tsv": "text\tlabel\na film\ty\n"},
     "evaluate {runs}/classification --data d.tsv --column text=x",
     "d.tsv:2: no column 'x': there is text, label. Name yours with --column text=NAME"),
    "a column of another kind": ({"d.tsv": TSV}, "predict {runs}/classification d.tsv --column question=text",
     "columns.question is not for classification: expected text, text_a"),
    "half a pair": ({"d.tsv": TSV}, "predict {runs}/regression d.tsv --column text_a=text",
     "--column: text_a and text_b belong together: give both"),
    "a column of features": ({"d.tsv": TSV}, "features {base} d.tsv --out f --column label=label",
     "--column label means nothing to features: expected text, or text_a and text_b, or tokens; id\n"),
    "a column of features that is not there": ({"d.tsv": TSV}, "features {base} d.tsv --out f --column text=x",
     "d.tsv:2: no column 'x': there is text, label. Name yours with --column text=NAME"),
    "texts and words": ({"d.tsv": TSV}, "features {base} d.tsv --out f --column text=text --column tokens=label",
     "--column tokens=label and text: features are of words or of a text: name one\n"),
    "a setting of training": ({"d.tsv": TSV}, "evaluate {runs}/classification --data d.tsv task.classifier_dropout=0",
     "task.classifier_dropout cannot be set here: it is for training, which is over; leave it out\n"),
    "a task's name among its settings": ({"d.tsv": TSV}, "evaluate {runs}/classification --data d.tsv task.name=cola",
     "task.name cannot be set here: --task says of which data set a file is; leave it out\n"),
    "a setting of another kind": ({"d.tsv": TSV}, "evaluate {runs}/classification --data d.tsv task.n_best=3",
     "task: n_best is for qa, not for classification: leave it out\n"),
    "a mistyped setting": ({"d.tsv": TSV}, "evaluate {runs}/classification --data d.tsv task.max_lenght=3",
     "task: unknown key max_lenght; did you mean max_length?\n"),
    "longer than the model": ({"d.tsv": TSV}, "evaluate {runs}/classification --data d.tsv task.max_length=41",
     "task.max_length 41 is over the 40 positions of the model: lower it\n"),
    "a recipe's key": ({"d.tsv": TSV}, "predict {runs}/classification d.tsv data.columns.text=text",
     "data: expected a setting of the task, such as task.max_length=256; columns are named by --column NAME=COLUMN"),
    "how labels are read where none are": ({"d.jsonl": TAGS}, "predict {runs}/tagging d.jsonl task.repair_tags=false",
     "task.repair_tags says how labels are read, and `unmask predict` reads none: leave it out\n"),
    "a setting of a model that is not there": ({"d.tsv": TSV, "p.jsonl": '{"label": "y"}\n'},
     "evaluate --predictions p.jsonl --data d.tsv task.max_length=8",
     "task.max_length is for a model that reads the examples, and --predictions are there already: leave it out\n"),
    "no such format": ({"d.dat": "a\n"}, "predict {runs}/classification d.dat --format cvs",
     "no format 'cvs': did you mean csv?\n"),
    "a format against the name": ({"d.tsv": TSV}, "predict {runs}/classification d.tsv --format csv",
     "d.tsv is .tsv by its name, and the format is to be csv: leave one out\n"),
    "predictions in a file of another kind": ({"d.tsv": TSV}, "predict {runs}/classification d.tsv --out p.xlsx",
     "p.xlsx: expected a name that ends in .jsonl (an object a line) or .csv, or for answers to questions in .json"),
    "answers to what is no question": ({"d.tsv": TSV}, "predict {runs}/classification d.tsv --out p.json",
     "p.json: .json is {{id: answer}}, for answers to questions, and the model's task is classification"),
    "answers to questions without ids": ({"d.jsonl": '{"question": "q", "context": "c"}\n'},
     "predict {runs}/qa d.jsonl --out p.json",
     "question 1 has no id, and {{id: answer}} needs one of each: name its column with --column id=NAME, or write "),
    "answers to one question twice": ({"d.jsonl": QA * 2}, "predict {runs}/qa d.jsonl --out p.json",
     "questions 1 and 2 have the same id, '1': {{id: answer}} holds one answer for each"),
    "inputs of another kind": ({"d.jsonl": '{"question": "a"}\n'}, "predict {runs}/classification d.jsonl",
     "d.jsonl:1: no column 'text': there is question. Name yours with --column text=NAME"),
    "a text for a pair": ({"d.txt": "a\n"}, "predict {runs}/regression d.txt",
     "d.txt:1: a plain text, but this model reads pairs: expected JSON lines, .tsv or .csv with text_a and text_b"),
    "a question without a passage": ({"d.jsonl": '{"question": "a"}\n'}, "predict {runs}/qa d.jsonl",
     "d.jsonl:1: no column 'context': expected question and context; there is question."),
    "one choice": ({"d.jsonl": '{"context": "a", "choices": ["x"]}\n'}, "predict {runs}/choice d.jsonl",
     "d.jsonl:1: 1 choice(s) in choices: expected at least two"),
    "no JSON": ({"d.jsonl": "x\n"}, "predict {runs}/classification d.jsonl", "d.jsonl:1: not JSON"),
    "no inputs": ({"d.txt": ""}, "predict {runs}/classification d.txt",
     "d.txt: there is nothing in it: expected inputs"),
    "inputs that are not there": ({}, "predict {runs}/classification d.txt", "d.txt: cannot be read: No such file"),
    "too few predictions": ({"d.tsv": TSV, "p.jsonl": '{"label": "y"}\n'},
     "evaluate --predictions p.jsonl --data d.tsv",
     "d.tsv has more rows than p.jsonl: expected one prediction for each example, in their order"),
    "predictions of another kind": ({"d.tsv": TSV, "p.jsonl": '{"value": 1}\n' * 2},
     "evaluate --predictions p.jsonl --data d.tsv", 'p.jsonl:1: d.tsv:2: its prediction has no label: expected one '),
    "predictions of other examples": ({"d.tsv": TSV, "p.jsonl": '{"label": "y", "input": {"text": "?"}}\n' * 2},
     "evaluate --predictions p.jsonl --data d.tsv", "p.jsonl:1: text is '?', and at d.tsv:2 it is 'a film'"),
    "no predictions": ({"d.tsv": TSV, "p.jsonl": ""}, "evaluate --predictions p.jsonl --data d.tsv",
     "p.jsonl: there is nothing in it: expected one prediction a line"),
    "answers for labels": ({"d.tsv": TSV, "p.json": "{}"}, "evaluate --predictions p.json --data d.tsv",
     "p.json: {{id: answer}} is how answers to questions are scored, and the task is classification"),
    "answers of other questions": ({"d.jsonl": QA, "p.json": '{"2": "c"}'},
     "evaluate --predictions p.json --data d.jsonl --task qa",
     "p.json: no prediction for any question of d.jsonl: they are not of the same questions"),
    "an ensemble of one": ({}, "ensemble {runs}/qa --out e", "an ensemble of 1 model(s): expected two or more"),
    "an ensemble of one twice": ({}, "ensemble {runs}/qa {runs}/qa --out e", "{runs}/qa/model is given twice"),
    "an ensemble of two kinds": ({}, "ensemble {runs}/qa {runs}/choice --out e",
     "{runs}/choice/model and {runs}/qa/model cannot answer together: head is MultipleChoice in the one and "),
    "features of nothing": ({"d.txt": ""}, "features {base} d.txt --out f",
     "d.txt: there is nothing in it: expected inputs"),
    "features of long rows": ({"d.txt": "a\n"}, "features {base} d.txt --out f --max-length 99",
     "max_length 99 is over the 40 positions of {base}"),
    "similar to no file": ({}, "similarity {base} pairs.tsv",
     "pairs.tsv: no such file: expected one of pairs; two texts"),
    "no corpus to look among": ({"q.txt": "a\n"}, "similarity {base} --query q.txt --corpus c.txt",
     "c.txt: cannot be read"),
    "a query without a corpus": ({"q.txt": "a\n"}, "similarity {base} --query q.txt",
     "give two texts, or one file of pairs"),
    "no task of GLUE": ({}, "glue submit {runs}/classification --out g.zip",
     "{runs}/classification: its config.json says that it was fine-tuned for 'classification' (unmask_task.name); "
     f"expected a run of {GLUE}"),
    "no submission": ({"g.zip": "x"}, "glue check g.zip", "g.zip: not a .zip that can be read"),
    "one group": ({"d.tsv": "text\tlabel\na\t1\na\t2\na\t3\n"}, "split d.tsv --task classification --out s",
     "d.tsv: 1 group that belongs together: expected at least three, for train, dev and test; split by something "),
    "nothing to split": ({"d.jsonl": ""}, "split d.jsonl --task classification --out s",
     "d.jsonl: there is nothing in it: expected examples"),
    "a short row to split": ({"d.tsv": "text\tlabel\n\na\n"}, "split d.tsv --task classification --out s",
     "d.tsv:3: 1 fields where the header has 2 (text, label): fix the row"),
    "no such group": ({"d.tsv": TSV}, "split d.tsv --task classification --out s --group title",
     "d.tsv:1: no column 'title' by which rows belong together: there is text, label; name one of them: --group"),
    "no column of a text to split": ({"d.tsv": TSV}, "split d.tsv --task classification --out s --column question=text",
     "columns.question is not for classification: expected text, text_a"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "command", "message"), BAD_USES.values(), ids=BAD_USES)
def test_bad_uses_are_refused(
    unmask: Command, place: Path, task_models: Any, files: dict[str, str], command: str, message: str
) -> None:
    write_files(files)
    models = {"base": task_models.base, "runs": task_models.runs}
    check_refused(unmask(*command.format(**models).split()), message.format(**models))
    assert tree_of(place).keys() == files.keys()


def test_a_checkpoint_is_no_model(unmask: Command, place: Path) -> None:
    write_files({"run/checkpoints/step-00000008/state.json": "{}", "d.tsv": TSV})
    message = "run/checkpoints/step-00000008: no model here (no config.json): expected run/model, or what `unmask "
    check_refused(unmask("predict", "run/checkpoints/step-00000008", "d.tsv"), message + "checkpoint run` makes of a ")


# -------------------------------------------------------------------------------------------------- damaged models


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


def changing(**changes: Any) -> Callable[[Path], None]:
    """Changes `config.json`."""
    return lambda path: edit_config(path.parent, **changes)


def remembering(**changes: Any) -> Callable[[Path], None]:
    """Changes what `config.json` keeps of the task."""
    return lambda path: edit_config(path.parent, unmask_task=read_json(path)["unmask_task"] | changes)


CANNOT = "m/config.json says of the model's task what this version cannot read: "

DAMAGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    # file, what is done to it, message
    "weights cut short": ("model.safetensors", cut, "m/model.safetensors is cut short or damaged"),
    "no weights": ("model.safetensors", Path.unlink,
     "m has no model.safetensors: expected a model directory in the Hugging"),
    "no config": ("config.json", Path.unlink,
     "m: no model here (no config.json): expected a model's directory, or a run's"),
    "a config cut short": ("config.json", cut, "m/config.json: not JSON"),
    "a tokenizer cut short": ("tokenizer.json", cut, "m/tokenizer.json"),
    "more labels than weights": ("config.json", changing(id2label={"0": "a", "1": "b", "2": "c"}),
     "m: the weights do not fit config.json: classifier.weight has the shape (2, 32), expected (3, 32)"),
    "no such class": ("config.json", changing(architectures=["T5Model"]),
     "m/config.json: architectures is ['T5Model']"),
    "a class of another head": ("config.json", changing(architectures=["BertForTokenClassification"]),
     "m/config.json: unmask_task.name is classification, and the head of a BertForTokenClassification is for tagging"),
    "a task of another head": ("config.json", remembering(name="qa"),
     "m/config.json: unmask_task.name is qa, and the head of a BertForSequenceClassification is for classification"),
    "no such task": ("config.json", remembering(name="juggling"),
     CANNOT + "unmask_task: name: there is no task 'juggling'"),
    "a setting from the future": ("config.json", remembering(rank=3), CANNOT + "unmask_task: unknown key rank"),
    "rows over the positions": ("config.json", remembering(max_length=4000),
     "m/config.json: unmask_task.max_length is 4000, and the model has 40 positions: lower it"),
    "a task that is no object": ("config.json", changing(unmask_task="qa"),
     "m/config.json: unmask_task, or columns in it, "),
    "columns that are no object": ("config.json", remembering(columns="text"),
     "m/config.json: unmask_task, or columns in it"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_models_are_refused(
    unmask: Command, place: Path, task_models: Any, name: str, damage: Callable[[Path], None], message: str
) -> None:
    shutil.copytree(task_models.runs / "classification" / "model", place / "m")
    damage(place / "m" / name)
    (place / "d.tsv").write_text(TSV)
    check_refused(unmask("predict", "m", "d.tsv"), message)
    check_refused(unmask("evaluate", "m", "--data", "d.tsv"), message)


def test_an_ensemble_misses_a_member(unmask: Command, place: Path, task_models: Any) -> None:
    for name in ("a", "b"):
        shutil.copytree(task_models.runs / "classification" / "model", place / name)
    assert unmask("ensemble", "a", "b", "--out", "e").code == 0
    (place / "d.tsv").write_text(TSV)
    assert unmask("evaluate", "e", "--data", "d.tsv").code == 0
    shutil.rmtree(place / "b")
    told = f"e/ensemble.json: there is no model at {place.resolve() / 'b'}: the members of an ensemble stay where they"
    check_refused(unmask("evaluate", "e", "--data", "d.tsv"), told)
    check_refused(unmask("predict", "e", "d.tsv"), told)

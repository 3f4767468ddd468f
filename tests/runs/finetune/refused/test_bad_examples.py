"""Bad examples through the real commands: refused in one message, or repaired and counted, and what stands is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, check_last_error, tree_of, write_files

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


def lines(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def question(
    context: str = "Grace Hopper found it", answers: tuple[str, ...] = ("Grace Hopper",), start: Any = 0, **more: Any
) -> dict[str, Any]:
    """A good one, but for what is said."""
    told = {"text": list(answers), "answer_start": [start for _ in answers]}
    return {"question": "Who found a moth?", "context": context, "answers": told, **more}


def choice(*choices: Any, label: Any = 0, context: str = "the moth") -> dict[str, Any]:
    return {"context": context, "choices": list(choices), "label": label}


def tagged(text: str, *entities: tuple[int, int, str]) -> dict[str, Any]:
    return {"text": text, "entities": [list(entity) for entity in entities]}


# --------------------------------------------------------------------------------------------- files to learn from

ABSENT = "Expected a text that the passage holds, with answer_start the number of characters before it; fix them, or"
ELSEWHERE = question(answers=("Ada",)), question(answers=("a bee",), start=3)
TSV = "text\tlabel\na film\ty\n"

BAD_FILES: dict[str, tuple[str, str, str, str]] = {
    # Of each kind some; others are refused below the command, in tests/unit/tasks and tests/unit/io.
    # kind, file, its content, message
    "no label": ("classification", "t.tsv", TSV + "b\t\n",
     "t.tsv:3: the column 'label' is empty: fill it in, or take the row out"),
    "a column without any text": ("classification", "t.tsv", "text\tlabel\n\ty\n \tn\n",
     "t.tsv: no example has any text in 'text': there is nothing to learn; name the column of the texts with "
     "--column text=NAME (in a recipe data.columns.text; data.dev_columns"),
    "a decimal comma": ("regression", "t.tsv", "text\tlabel\na\t30,75\n",
     "t.tsv:2: the column 'label' holds '30,75': expected a finite number such as 3.5; write 30.75, with a point"),
    "answers elsewhere": ("qa", "t.jsonl", lines(question(), *ELSEWHERE),
     "t.jsonl: 2 answers are not in the passage, or its place is not certain: 'Ada' of t.jsonl:2; 'a bee' of "
     f"t.jsonl:3. {ABSENT} leave them out with task.drop_unfound_answers=true"),
    "a label past the choices": ("choice", "t.jsonl", lines(choice("flew", "ran", label=2)),
     "t.jsonl:1: the column 'label' holds 2: expected the right choice's number, 0 to 1, or its very text"),
    "a word without a tag": ("tagging", "t.conll", "Ada B-PER\nran\n\n",
     "t.conll:2: 'ran' has 1 columns: expected at least 2"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files_are_refused(
    unmask: Command, place: Path, task_models: Any, kind: str, name: str, content: str, message: str
) -> None:
    write_files({name: content})
    words = task_models.words(kind, name)
    check_last_error(unmask("finetune", f"finetune/{kind}", *words, "--out", "run"), message)
    assert tree_of(place).keys() == {name}


# ------------------------------------------------------------------------------------------------- repaired and counted

REPAIRED: dict[str, tuple[str, str, str, list[str], str]] = {
    # kind, file, its content, settings, what is told of it
    "quotes in a .tsv": ("classification", "t.tsv", TSV + 'b "quoted" c"\tn\n', [],
     "train (t.tsv): 2 examples, 5 of 8 tokens not in the vocabulary ([UNK])"),
    "a mark at the beginning": ("classification", "t.tsv", "\ufeff" + TSV + "b\tn\n", [],
     "train (t.tsv): 2 examples, 1 of 3 tokens not in the vocabulary ([UNK])"),
    "two examples": ("classification", "t.tsv", TSV + "b\tn\n", ["data.dev=t.tsv"],
     "dev (t.tsv): 2 examples, 1 of 3 tokens not in the vocabulary ([UNK])"),
    "two values": ("regression", "t.tsv", "text\tlabel\na\t1\nb\t2\n", ["data.dev=t.tsv"], "dev (t.tsv): 2 examples"),
    "two questions": ("qa", "t.jsonl", lines(question(), question()), ["data.dev=t.jsonl"],
     "dev (t.jsonl): 2 examples"),
    "two words": ("tagging", "t.conll", "Ada B-PER\n\nran O\n\n", ["data.dev=t.conll"], "dev (t.conll): 2 examples"),
    "texts without a token": ("classification", "t.tsv", TSV + "\u200b\tn\n\tn\n", [],
     "train (t.tsv): 3 examples, 2 without any text, 1 of 2 tokens not in the vocabulary ([UNK])"),
    "a label that no text has": ("classification", "t.tsv", TSV + "b\tn\n", ["task.labels=[y, n, z]"],
     "warning: t.tsv: no example with the label z"),
    "answers elsewhere, with leave": ("qa", "t.jsonl", lines(question(), *ELSEWHERE),
     ["task.drop_unfound_answers=true"],
     "warning: t.jsonl: 2 answers are not in their passage and left out: 'Ada' of t.jsonl:2; 'a bee' of t.jsonl:3"),
    "an offset that is off": ("qa", "t.jsonl", lines(question(start=3)), [],
     "train (t.jsonl): 1 example, 1 answers that are elsewhere in their passage than their offset says: repaired, "
     "2 of 11 tokens not in the vocabulary ([UNK])"),
    "an answer spelt in another way": ("qa", "t.jsonl", lines(question("Grace\u200b Hop\u00adper found\u00a0it")), [],
     "1 answers that differ from their passage in white space, invisible characters or Unicode composition: repaired"),
    "an answer of nothing visible": ("qa", "t.jsonl", lines(question(), question("a \u200b b", ("\u200b",), 2)), [],
     "train (t.jsonl): 2 examples, 1 answers that no token of the tokenizer represents: not learned, 3 of 19 tokens "
     "not in the vocabulary ([UNK])"),
    "a question that is cut": ("qa", "t.jsonl", lines({**question(), "question": "moth " * 40}),
     ["task.max_question_length=9"],
     "warning: train (t.jsonl): 1 example, 1 questions longer than task.max_question_length: cut"),
    "dev is train": ("classification", "t.tsv", "text\tlabel\na\tn\nb\ty\n", ["data.dev=t.tsv"],
     "warning: 2 of the 2 inputs of dev (t.tsv) are in data.train too, but for case and blanks: its figures say less"),
    "a choice without a token": ("choice", "t.jsonl", lines(choice("\u200b", "ran"), choice("a", "b", label=1)), [],
     "train (t.jsonl): 2 examples, 1 choices without any token"),
    "a choice at one place": ("choice", "t.jsonl", lines(choice("flew", "ran")), [],
     "warning: t.jsonl: the right choice is number 0 in every example: mix their order"),
    "I- without B-": ("tagging", "t.conll", "Ada I-PER\nran O\nHopper I-LOC\n\nHopper B-LOC\n\n", [],
     "train (t.conll): 2 examples, 2 tags that broke their scheme and were repaired"),
    "words without a token": ("tagging", "t.conll", "\u200b B-PER\nAda B-LOC\nran O\n\n", ["data.dev=t.conll"],
     "dev (t.conll): 1 example, 1 words that encode to nothing"),
    "entities of invisible characters": ("tagging", "t.jsonl",
     lines(tagged("\u200bAda\u00a0Love\u00adlace ran", (1, 13, "PER"))), [],
     "inside the word '\\u200bAda': so characters are tagged, not words (task.units=characters)"),
    "entities inside a piece": ("tagging", "t.jsonl",
     lines(tagged("Ada ran", (0, 3, "PER")), tagged("paper", (0, 4, "X"))), ["data.dev=t.jsonl"],
     "3 vocabulary entries are no longer used (task.cut_pieces), because answers or entities begin"),
    "and that are not cut": ("tagging", "t.jsonl",
     lines(tagged("Ada ran", (0, 3, "PER")), tagged("paper", (0, 4, "X"))), ["task.cut_pieces=false"],
     "warning: t.jsonl: 1 of 2 entities begin or end inside a piece: no model with this tokenizer can find them "
     "exactly ('pape' at t.jsonl:2, and the piece 'paper'): set task.cut_pieces=true; if"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "content", "words", "told"), REPAIRED.values(), ids=REPAIRED)
def test_what_can_be_repaired_is_counted(
    unmask: Command, place: Path, task_models: Any, kind: str, name: str, content: str, words: list[str], told: str
) -> None:
    write_files({name: content})
    given = task_models.words(kind, name, *words)
    code, output, errors = unmask("finetune", f"finetune/{kind}", *given, "--out", "run")
    assert (code, output) == (0, "run/model\nrun/report.html\n"), errors
    assert told in errors


def test_broken_tags_may_be_refused(unmask: Command, place: Path, task_models: Any) -> None:
    write_files({"t.conll": "Ada B-PER\nran O\nHopper I-LOC\n\n"})
    words = task_models.words("tagging", "t.conll", "task.repair_tags=false")
    refused = unmask("finetune", "finetune/tagging", *words, "--out", "run")
    check_last_error(refused, "t.conll:3: the tag 'I-LOC' breaks the scheme BIO: nothing begins its entity")


# ------------------------------------------------------------------------------------------- runs that are there


def test_a_run_outlives_bad_examples(unmask: Command, place: Path, task_models: Any) -> None:
    """Neither --overwrite nor --resume with a bad or another training file changes anything of it."""
    write_files({"t.jsonl": task_models.examples["qa"]})
    words = task_models.words("qa", "t.jsonl", "data.dev=t.jsonl")
    assert unmask("finetune", "finetune/qa", *words, "--out", "run").code == 0
    before = tree_of(place / "run")
    bad = lines(question(), *ELSEWHERE)
    write_files({"bad.jsonl": bad})
    others = task_models.words("qa", "bad.jsonl")
    refused = unmask("finetune", "finetune/qa", *others, "--out", "run", "--overwrite")
    check_last_error(refused, "bad.jsonl: 2 answers are")
    assert tree_of(place / "run") == before
    refused = unmask("finetune", "finetune/qa", *others, "--out", "run", "--resume")
    check_last_error(refused, "run was begun with other settings: data.train=bad.jsonl (it was t.jsonl), data.dev=")
    other = "run: t.jsonl gives other examples than when this run was begun: restore the file, or the tokenizer of "
    for content, told in ((bad, "t.jsonl: 2 answers are not in the passage"), (lines(question()), other)):
        write_files({"t.jsonl": content})
        check_last_error(unmask("finetune", "finetune/qa", *words, "--out", "run", "--resume"), told)
        for name in ("model/model.safetensors", "metrics.jsonl", "results.json", "recipe.yaml"):
            assert tree_of(place / "run")[name] == before[name]
    refused = unmask("finetune", "finetune/qa", *words, "--out", "run")
    check_last_error(refused, "run exists already and would be overwritten: choose another --out, or pass --resume or")

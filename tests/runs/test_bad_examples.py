"""Bad examples, settings and models through the real commands: refused in one message, or mended and counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")

Command = Callable[..., Any]
Files = Mapping[str, str | bytes]

KINDS = ("classification", "regression", "qa", "choice", "tagging")
SENTENCES = (
    "Ada Lovelace wrote the first program in London",
    "Grace Hopper found a moth in the machine",
    "the Thames runs through London",
)


def lines(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def question(
    context: str = SENTENCES[1], answers: tuple[str, ...] = ("Grace Hopper",), start: Any = 0, **more: Any
) -> dict[str, Any]:
    """A good one, but for what is said."""
    told = {"text": list(answers), "answer_start": [start for _ in answers]}
    return {"question": "Who found a moth?", "context": context, "answers": told, **more}


def choice(*choices: Any, label: Any = 0, context: str = "the moth") -> dict[str, Any]:
    return {"context": context, "choices": list(choices), "label": label}


def tagged(text: str, *entities: tuple[int, int, str]) -> dict[str, Any]:
    return {"text": text, "entities": [list(entity) for entity in entities]}


GOOD: dict[str, list[dict[str, Any]]] = {
    "classification": [{"text": text, "label": label} for text, label in zip(SENTENCES, "yny", strict=True)],
    "regression": [{"text_a": text, "text_b": "a moth", "label": place} for place, text in enumerate(SENTENCES)],
    "qa": [question(), question(SENTENCES[2], ("London",), 24)],
    "choice": [choice("flew", "ran", "sat", label=1), choice("is", "was", context="it")],
    "tagging": [
        {"tokens": text.split(), "tags": ["B-PER", "I-PER", *["O"] * (len(text.split()) - 2)]} for text in SENTENCES[:2]
    ],
}


@dataclass(frozen=True)
class Models:
    """The base of all, and the directory of runs, one for each kind of task."""

    base: Path
    runs: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A pre-trained model of random weights, and what one step on it makes."""
    import torch

    from unmask.finetuning import finetune
    from unmask.models.bert import BertEncoder
    from unmask.models.hub import save_model
    from unmask.models.settings import EncoderSettings
    from unmask.tokenization.settings import TokenizerSettings
    from unmask.tokenization.train import train_tokenizer

    place = tmp_path_factory.mktemp("models")
    tokenizer, _ = train_tokenizer(iter(SENTENCES * 5), TokenizerSettings(), seed=0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    encoder = BertEncoder(EncoderSettings(vocab_size=tokenizer.vocab_size, max_position_embeddings=40, **sizes))
    save_model(place / "base", encoder)
    tokenizer.save(place / "base")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("unmask.finetuning.write_report", lambda directory: None)
        for kind in KINDS:
            data = place / f"{kind}.jsonl"
            data.write_text(lines(*GOOD[kind]), encoding="utf-8")
            finetune(f"finetune/{kind}", settings(kind, place / "base", str(data)), out=place / "runs" / kind)
    return Models(place / "base", place / "runs")


@pytest.fixture(autouse=True)
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own."""
    monkeypatch.setattr("unmask.finetuning.write_report", lambda directory: None)


def settings(kind: str, base: Path, train: str, *words: str) -> list[str]:
    """The words of a run of one step; those that are given take the place of the usual ones."""
    usual = [
        f"init_from={base}",
        f"data.train={train}",
        "task.max_length=32",
        *(["task.doc_stride=8"] if kind in ("qa", "tagging") else []),
        "train.steps=1",
        "train.batch_size=4",
        "device=cpu",
        "precision=fp32",
    ]
    given = {word.partition("=")[0] for word in words}
    return [*(word for word in usual if word.partition("=")[0] not in given), *words]


def write(files: Files, place: Path) -> None:
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def tree(place: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


def check_refused(result: Any, message: str) -> None:
    """One error, at the end, told as the user is to read it, and no more than that."""
    code, output, errors = result
    assert code == 2, errors
    assert output == ""
    told = errors.splitlines()
    assert told[-1].startswith(f"error: {message}"), errors
    assert not any(line.startswith("error: ") for line in told[:-1])
    assert "Traceback" not in errors


# ---------------------------------------------------------------------------------------------------- bad files to learn

ABSENT = "Expected a text that the passage holds, with answer_start the number of characters before it; mend them, or"
TSV = "text\tlabel\na film\ty\n"
IN_TSV = "mend the row (in a .tsv nothing is quoted: a text holds no tab and no line break)"

BAD_FILES: dict[str, tuple[str, str, str | bytes, str]] = {
    # kind, file, its content, message
    "a row too short": ("classification", "t.tsv", TSV + "a\n",
     f"t.tsv:3: 1 fields where the header has 2 (text, label): {IN_TSV}"),
    "a row too long": ("classification", "t.tsv", TSV + "a\tb\ty\n", "t.tsv:3: 3 fields where the header has 2"),
    "a comma": ("classification", "t.csv", "text,label\na, b,y\n",
     "t.csv:2: 3 fields where the header has 2 (text, label): mend the row (in a .csv a text with commas or line "
     "breaks stands between quotes)"),
    "an open quote": ("classification", "t.csv", 'text,label\n"a,y\nb,n\n',
     "t.csv:2: not CSV in the row that begins here"),
    "no label": ("classification", "t.tsv", TSV + "b\t\n",
     "t.tsv:3: the label label is empty: fill it in, or take the row out"),
    "a label null": ("classification", "t.jsonl", lines({"text": "a", "label": None}),
     "t.jsonl:1: the label label is empty"),
    "a label NaN": ("classification", "t.jsonl", '{"text": "a", "label": NaN}\n',
     "t.jsonl:1: the label label is NaN: fill it in"),
    "labels in a list": ("classification", "t.jsonl", lines({"text": "a", "label": ["y"]}),
     't.jsonl:1: the label label is ["y"]: expected a string or a number (lists of labels are for '
     'task.multi_label)'),
    "no column of labels": ("classification", "t.tsv", "text\tstars\na\t1\n",
     "t.tsv:2: no column 'label' for the label: there is text, stars. Name it with data.columns.label=..."),
    "no column of texts": ("classification", "t.tsv", "review\tlabel\na\t1\n",
     "t.tsv:2: no column 'text': expected text, or text_a and text_b; there is review, label. Name yours with "
     "data.columns.text=..."),
    "one class": ("classification", "t.tsv", TSV + "b\ty\n",
     "t.tsv: every example has the label 'y': there is nothing to tell apart; give examples of at least two labels"),
    "as many labels as examples": ("classification", "t.tsv", "text\tlabel\n" + "".join(f"a\tl{number}\n" for number in range(200)),
     "t.tsv: 200 different labels in 200 examples, such as 'l0', 'l1', 'l10': the column 'label' looks like ids, "
     "texts or measured values; name the right one with data.columns.label=..."),
    "an empty file": ("classification", "t.tsv", "", "t.tsv: there is not a single row in it: expected examples"),
    "a header alone": ("classification", "t.tsv", "text\tlabel\n", "t.tsv: there is not a single row in it"),
    "a column twice": ("classification", "t.tsv", "text\ttext\ny\tz\n", "t.tsv:1: the header names 'text' twice"),
    "no list in .json": ("classification", "t.json", '"abc"',
     't.json:1: expected a JSON object, such as {"text": "..."}; found "abc"'),
    "a list cut short": ("classification", "t.json", '[{"text": "a", "label": "y"},\n {"text"',
     "t.json:2: not JSON in what begins here"),
    "a list a line": ("classification", "t.jsonl", '["a"]\n',
     't.jsonl:1: expected a JSON object, such as {"text": "..."}; found ["a"]'),
    "a number for a text": ("classification", "t.jsonl", lines({"text": 3, "label": "y"}),
     "t.jsonl:1: text is 3: expected a text"),
    "half a character": ("classification", "t.jsonl", '{"text": "\\ud800", "label": "y"}\n',
     "t.jsonl:1: text holds half of a surrogate pair, \\ud800: no character"),
    "another encoding": ("classification", "t.tsv", TSV.encode("utf-16"),
     "t.tsv:1: not UTF-8 at byte 0 of the text (0xff)"),
    "another kind of file": ("classification", "t.xlsx", "x", "t.xlsx: unknown kind of file: expected .tsv"),
    "no agreed label": ("mnli", "t.tsv", "sentence1\tsentence2\tgold_label\na\tb\t-\n",
     "t.tsv: not a single example has a label"),
    "nan": ("regression", "t.tsv", "text\tlabel\na\tnan\n",
     "t.tsv:2: the value label is 'nan': expected a finite number such as 3.5; mend it, or take the row out"),
    "infinity": ("regression", "t.jsonl", '{"text": "a", "label": Infinity}\n',
     "t.jsonl:1: the value label is 'Infinity'"),
    "over float32": ("regression", "t.jsonl", '{"text": "a", "label": 1e39}\n',
     "t.jsonl:1: the value label is '1e+39'"),
    "a word for a value": ("regression", "t.tsv", "text\tlabel\na\tgood\n", "t.tsv:2: the value label is 'good'"),
    "one value": ("regression", "t.tsv", "text\tlabel\na\t1\nb\t1\n",
     "t.tsv: every example has the value 1: there is nothing to tell apart"),
    "answers elsewhere": ("qa", "t.jsonl", lines(question(), question(answers=("Ada",)), question(answers=("a bee",), start=3)),
     "t.jsonl: 2 answers are not in the passage, or it cannot be told where: 'Ada' of t.jsonl:2; 'a bee' of "
     f"t.jsonl:3. {ABSENT} leave them out with task.drop_unfound_answers=true"),
    "an offset of nowhere": ("qa", "t.jsonl", lines(question("moth " * 20, ("moth",), 900)),
     "t.jsonl: 1 answer is not in the passage, or it cannot be told where: 'moth' of t.jsonl:1"),
    "an offset in words": ("qa", "t.jsonl", lines(question(start="x")),
     't.jsonl:1: answer_start is "x": expected the number of characters before the answer'),
    "an empty passage": ("qa", "t.jsonl", lines(question(), question("")),
     "t.jsonl:2: the passage is empty: fill it in, or take the row out"),
    "a blank question": ("qa", "t.jsonl", lines({**question(), "question": " "}), "t.jsonl:1: the question is empty"),
    "an empty answer": ("qa", "t.jsonl", lines(question(answers=("",))),
     "t.jsonl:1: an answer of answers is empty: expected a text, or an empty list where the passage holds no "
     "answer"),
    "a question over the window": ("qa", "t.jsonl", lines({**question(), "question": "moth " * 40}),
     "task.max_length 32 has no room for a passage beside the question of 40 tokens at t.jsonl:1 and 3 special "
     "tokens: raise task.max_length, or lower task.max_question_length (64)"),
    "an answer over every window": ("qa", "t.jsonl", lines(question("moth " * 90, ("moth " * 60,))),
     "t.jsonl: not a single window of a passage holds an answer"),
    "no answer at all": ("qa", "t.jsonl", lines(question(answers=())),
     "t.jsonl: not a single question has an answer, or says with is_impossible"),
    "impossible, and an answer": ("qa", "t.jsonl", lines(question(is_impossible=True)),
     "t.jsonl:1: is_impossible is true, and yet the question has the answer 'Grace Hopper'"),
    "more texts than offsets": ("qa", "t.jsonl", lines({**question(), "answers": {"text": ["a"], "answer_start": []}}),
     't.jsonl:1: answers is {"text": ["a"], "answer_start": []}: expected as many entries of answer_start as of '
     'text'),
    "not SQuAD's layout": ("squad1", "t.json", '{"version": "1.1"}', "t.json: no array under the key 'data'"),
    "SQuAD cut short": ("squad1", "t.json", '{"data": [{"title": ', "t.json: at character 21: not JSON"),
    "SQuAD 1 without an answer": ("squad1", "t.json", json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "c", "qas": [{"id": "1", "question": "q", "answers": []}]}]}]}),
     "t.json: 'T', paragraph 1, question 1: the question has no answer, and in squad1 every question has one"),
    "one choice": ("choice", "t.jsonl", lines(choice("flew")),
     "t.jsonl:1: 1 choice(s) in choices: expected at least two"),
    "an empty choice": ("choice", "t.jsonl", lines(choice("flew", "")), "t.jsonl:1: the choice choices[1] is empty"),
    "a label past the choices": ("choice", "t.jsonl", lines(choice("flew", "ran", label=2)),
     "t.jsonl:1: the label label is 2: expected the right choice's number, 0 to 1, or its very text"),
    "a label before the choices": ("choice", "t.jsonl", lines(choice("flew", "ran", label=-1)),
     "t.jsonl:1: the label label is -1"),
    "a label of two choices": ("choice", "t.jsonl", lines(choice("1", "0", label="1")),
     't.jsonl:1: the label label is "1", which fits more than one of the choices'),
    "choices in a text": ("choice", "t.tsv", "context\tchoices\tlabel\na\tx, y\t0\n",
     "t.tsv:2: choices is 'x, y': expected a JSON list of texts"),
    "a choice over the window": ("choice", "t.jsonl", lines(choice("moth " * 40, "ran")),
     "t.jsonl:1: a choice and its question have 43 tokens, special ones included, and task.max_length is 32: only "
     "the context may be cut"),
    "a letter in CODAH": ("codah", "t.tsv", "c\tThe moth\tflew\tran\tsat\tlay\tA\n",
     't.tsv:1: the label label is "A": expected the right choice\'s number, 0 to 3'),
    "a word without a tag": ("tagging", "t.conll", "Ada B-PER\nran\n\n",
     "t.conll:2: 'ran' has 1 columns: expected at least 2"),
    "no tag of entities": ("tagging", "t.conll", "Ada B-PER\nran X\n\n",
     "t.conll:2: the tag 'X' is none of the known ones (O, B-PER, I-PER)"),
    "one tag": ("tagging", "t.conll", "Ada O\nran O\n\n",
     "t.conll: every word is tagged O: nothing can be learned from it"),
    "fewer tags than words": ("tagging", "t.jsonl", lines({"tokens": ["a", "b"], "tags": ["O"]}),
     "t.jsonl:1: 2 tokens and 1 tags: expected one tag a token"),
    "tags that are numbers": ("tagging", "t.jsonl", lines({"tokens": ["a"], "tags": [0]}),
     "t.jsonl:1: tags[0] is 0: expected a text"),
    "an entity past the text": ("tagging", "t.jsonl", lines(tagged("abc", (0, 9, "PER"))),
     't.jsonl:1: the entity [0, 9, "PER"]: expected [start, end, label], characters of the text from 0 to 3'),
    "an entity of a blank": ("tagging", "t.jsonl", lines(tagged("a \u00a0 b", (2, 3, "PER"))),
     "t.jsonl:1: the entity '\\xa0' (PER) holds no word"),
    "entities that overlap": ("tagging", "t.jsonl", lines(tagged("abc d", (0, 3, "PER"), (1, 3, "LOC"))),
     "t.jsonl:1: the entity 'bc' (LOC) shares a word with another one"),
    "nothing but silent words": ("tagging", "t.conll", "\u200b B-PER\n\u200d B-LOC\n\n",
     "t.conll: no word has a token: nothing can be learned from it"),
    "an empty file of words": ("tagging", "t.conll", "", "t.conll: the file is empty: expected one word a line"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files_are_refused(
    unmask: Command, place: Path, models: Models, kind: str, name: str, content: str | bytes, message: str
) -> None:
    write({name: content}, place)
    words = settings(kind if kind in KINDS else "qa" if kind == "squad1" else "", models.base, name)
    check_refused(unmask("finetune", f"finetune/{kind}", *words, "--out", "run"), message)
    assert tree(place).keys() == {name}

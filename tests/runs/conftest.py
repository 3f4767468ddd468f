"""A corpus, a store and a recipe on which a whole pre-training run takes less than a second."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from support.commands import Command, Finished, write_documents
from support.corpora import learn_and_prepare
from support.files import json_lines, write

RECIPE = """
seed: 3
device: cpu
precision: fp32
tokenizer: {vocab_size: 200}
held_out: 0.3
model: {preset: tiny, hidden_size: 32, num_attention_heads: 2, max_position_embeddings: 32}
packing: {max_length: 32}
optimizer: {learning_rate: 1e-3}
schedule: {warmup_steps: 3}
train:
  steps: 12
  batch_size: 8
  micro_batch_size: 5
  log_every: 3
  eval_every: 5
  save_every: 4
  eval_sequences: 16
"""
"""Dropout is on (the models' default), gradients are accumulated over micro-batches, and neither rows nor evaluations
nor checkpoints fall together."""


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("recipe") / "tiny.yaml", RECIPE)


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """Twelve documents."""
    with (samples_dir / "text" / "en-books.jsonl").open(encoding="utf-8") as books:
        documents = [json.loads(line)["text"][:1500] for line in islice(books, 12)]
    return write_documents(tmp_path_factory.mktemp("text") / "text.jsonl", documents)


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path) -> Path:
    return learn_and_prepare(tiny_text, tmp_path_factory.mktemp("store"), vocab_size=200)


@pytest.fixture(scope="session")
def words(tiny_recipe: Path, tiny_store: Path) -> tuple[str, list[str]]:
    """What is given to `pretrain`."""
    return str(tiny_recipe), [f"store={tiny_store}"]


@pytest.fixture(scope="session")
def whole(words: tuple[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of these words that was never interrupted."""
    from unmask.pretraining.run import pretrain

    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("whole") / "run"
    assert pretrain(*words, out=run) == run / "model"
    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are taken in the same order in every process, and small models are not slowed down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of a run has tests of its own and takes longer than these runs."""
    for module in ("pretraining.run", "finetuning.run", "finetuning.search.search"):
        monkeypatch.setattr(f"unmask.{module}.write_report", lambda *_, **__: None)


@pytest.fixture
def unmask(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs `unmask` with these words, in this process."""
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", math.inf)  # however busy the machine is

    from unmask.cli.main import main
    from unmask.inference.coverage import WARNED_OF

    def run(*words: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["unmask", *map(str, words)])
        WARNED_OF.clear()  # a command is a process of its own
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        return Finished(int(left.value.code or 0), *capfd.readouterr())

    yield run
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.fixture
def tokenizer(tiny_store: Path) -> Path:
    """Of 200 entries."""
    return tiny_store / "tokenizer"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, so that paths in messages are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def task_examples(kind: str) -> list[dict[str, Any]]:
    """Sixteen for a kind of task, which tell who wrote what sort of paper, and where."""
    people, places = ("Ada Lovelace", "Grace Hopper", "Mary Somerville"), ("London", "Paris", "Oslo", "Bath")
    examples: list[dict[str, Any]] = []
    for number in range(16):
        person, place, sort = people[number % 3], places[number % 4], ("dull", "warm")[number * 5 // 8 % 2]
        text = f"{person} wrote a {sort} paper in {place}"
        asked = {"id": str(number), "question": f"Where did {person} write?", "context": text}
        tags = ["B-PER", "I-PER", "O", "O", "O", "O", "O", "B-LOC"]
        examples.append(
            {
                "classification": {"text": text, "label": "ny"[sort == "warm"]},
                "regression": {"text_a": text, "text_b": f"a {sort} paper", "label": (sort == "warm") + number / 9},
                "qa": {**asked, "answers": {"text": [place], "answer_start": [text.index(place)]}},
                "choice": {"context": text, "choices": [*places[:3], "Bath"], "label": number % 4},
                "tagging": {"tokens": text.split(), "tags": tags},
            }[kind]
        )
    return examples


@dataclass(frozen=True)
class TaskModels:
    """Models of test size for fine-tuning.

    Attributes:
        base: of random weights, as pre-training leaves one; 40 positions.
        runs: the directory of runs, named by their kinds of task, each of one step on `base`.
        examples: a file's text for each kind, JSON lines.
    """

    base: Path
    runs: Path
    examples: Mapping[str, str]

    def words(self, kind: str, train: object, *others: str) -> list[str]:
        """What `unmask finetune` needs for a run of one step; `others` take the place of the usual words."""
        usual = [
            *(f"init_from={self.base}", f"data.train={train}", "train.steps=1", "train.batch_size=4"),
            *("device=cpu", "precision=fp32", "task.max_length=32"),
            *(["task.doc_stride=8"] if kind in ("qa", "tagging") else []),
        ]
        given = {word.partition("=")[0] for word in others}
        given |= {"train.steps"} if "train.epochs" in given else set()
        return [*(word for word in usual if word.partition("=")[0] not in given), *others]


@pytest.fixture(scope="session")
def task_models(tmp_path_factory: pytest.TempPathFactory) -> TaskModels:
    from support.untrained import save_bert
    from unmask.finetuning.run import finetune

    place = tmp_path_factory.mktemp("models")
    kinds = ("classification", "regression", "qa", "choice", "tagging")
    rows = {kind: task_examples(kind) for kind in kinds}
    texts = [row["question"] + " The moth ran by ." for row in rows["qa"]] + [row["context"] for row in rows["qa"]]
    base = save_bert(place / "base", texts * 3, max_position_embeddings=40, initializer_range=0.1)
    models = TaskModels(base, place / "runs", {kind: json_lines(*rows[kind]) for kind in kinds})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("unmask.finetuning.run.write_report", lambda *_, **__: None)
        for kind in kinds:
            data = write(place / f"{kind}.jsonl", models.examples[kind])
            finetune(f"finetune/{kind}", models.words(kind, data), out=models.runs / kind)
    return models

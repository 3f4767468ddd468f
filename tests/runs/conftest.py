"""A corpus, a store and a recipe on which a whole pre-training run takes less than a second."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

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
  micro_batch_size: 3
  log_every: 3
  eval_every: 5
  save_every: 4
  eval_sequences: 16
"""
"""Dropout is on (the models' default), gradients are accumulated over ragged micro-batches, and neither rows nor
evaluations nor checkpoints fall together."""


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """Twelve documents."""
    with (samples_dir / "text" / "en-books.jsonl").open(encoding="utf-8") as books:
        documents = [json.loads(line)["text"][:1500] for line in islice(books, 12)]
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path) -> Path:
    from unmask.preparation import prepare
    from unmask.tokenization.settings import TokenizerSettings
    from unmask.tokenizer_training import train_tokenizer

    directory = tmp_path_factory.mktemp("store")
    train_tokenizer([tiny_text], directory / "tokenizer", TokenizerSettings(vocab_size=200))
    prepare([tiny_text], directory / "tokenizer", directory / "store")
    return directory / "store"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are taken in the same order in every process, and small models are not slowed down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has tests of its own and takes longer than these runs."""
    monkeypatch.setattr("unmask.pretraining.write_report", lambda directory: None)


class Finished(NamedTuple):
    code: int
    output: str
    errors: str


@pytest.fixture
def unmask(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Finished]]:
    """Runs `unmask` with these words, in this process."""
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr("unmask.progress.FIRST_SHOWN_S", math.inf)  # however busy the machine is

    from unmask.cli import main

    def run(*words: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["unmask", *map(str, words)])
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

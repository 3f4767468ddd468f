"""A real run that is sound, and what the doctor finds in a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import write_documents
from support.corpora import learn_and_prepare
from support.files import write
from support.run_checks import RUN_RECIPE
from unmask.pretraining.run import pretrain
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("recipe") / "recipe.yaml", RUN_RECIPE))


@pytest.fixture(scope="session")
def texts(samples_dir: Path) -> list[str]:
    """Pieces of the sample books, as documents."""
    lines = (samples_dir / "text" / "en-books.jsonl").read_text(encoding="utf-8").splitlines()
    chapters = [json.loads(line)["text"] for line in lines[:40]]
    return [chapter[start : start + 3000] for chapter in chapters for start in (0, 3000)]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    directory = tmp_path_factory.mktemp("store")
    return learn_and_prepare(write_documents(directory / "text.jsonl", texts), directory, vocab_size=600)


@pytest.fixture(scope="session")
def other_tokenizer(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """One of as many entries, learnt from other text."""
    directory = tmp_path_factory.mktemp("other")
    lines = (samples_dir / "tasks" / "snli" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    text = write_documents(directory / "text.jsonl", [json.loads(line)["premise"] for line in lines])
    train_tokenizer([text], directory / "tokenizer", TokenizerSettings(vocab_size=600))
    return directory / "tokenizer"


@pytest.fixture(scope="session")
def sound(recipe: str, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sound") / "run"
    pretrain(recipe, [f"store={store}"], out=run)
    return run

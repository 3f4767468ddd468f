"""The store and the work that the tests on a GPU share."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from support.gpu_training import TASKS, VOCAB_SIZE, Work, work_of_objective, work_of_task
from unmask.store.preparation import prepare
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """A token store, its tokenizer beside it."""
    directory = tmp_path_factory.mktemp("gpu")
    with (samples_dir / "text" / "en-books.jsonl").open(encoding="utf-8") as books:
        texts = [json.loads(line)["text"][:6000] for line in islice(books, 12)]
    text = directory / "text.jsonl"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts), encoding="utf-8")
    settings = TokenizerSettings.model_validate({"vocab_size": VOCAB_SIZE})
    train_tokenizer([text], directory / "tokenizer", settings)
    prepare([text], directory / "tokenizer", directory / "store")
    return directory


@pytest.fixture(scope="module")
def work(request: pytest.FixtureRequest, store: Path) -> Work:
    return work_of_task(request.param) if request.param in TASKS else work_of_objective(request.param, store)


@pytest.fixture(scope="session")
def masked_lm(store: Path) -> Work:
    return work_of_objective("masked LM and NSP", store)

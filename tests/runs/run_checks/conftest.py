"""A real run that is sound, and what the doctor finds in a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from unmask.doctor.findings import Finding
from unmask.doctor.run.checks import check_run
from unmask.pretraining.run import pretrain
from unmask.store.preparation import prepare
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings

CAUSES = {"learning-rate-too-high", "other-vocabulary", "repeated-corpus", "duplicates"}

RECIPE = """
seed: 0
device: cpu
precision: fp32
held_out: 0.2
model: {preset: tiny, hidden_size: 64, num_attention_heads: 2, max_position_embeddings: 64}
packing: {max_length: 64}
optimizer: {learning_rate: 3e-3}
schedule: {warmup_steps: 10}
train: {steps: 120, batch_size: 16, log_every: 10, eval_every: 60, eval_sequences: 200, save_every: 60}
"""


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def texts(samples_dir: Path) -> list[str]:
    """Pieces of the sample books, as documents."""
    lines = (samples_dir / "text" / "en-books.jsonl").read_text(encoding="utf-8").splitlines()
    chapters = [json.loads(line)["text"] for line in lines[:40]]
    return [chapter[start : start + 3000] for chapter in chapters for start in (0, 3000)]


@pytest.fixture(scope="session")
def store(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], write_text: Callable[[Path, Sequence[str]], Path]
) -> Path:
    directory = tmp_path_factory.mktemp("store")
    text = write_text(directory / "text.jsonl", texts)
    train_tokenizer([text], directory / "tokenizer", TokenizerSettings(vocab_size=600))
    prepare([text], directory / "tokenizer", directory / "store")
    return directory / "store"


@pytest.fixture(scope="session")
def other_tokenizer(
    tmp_path_factory: pytest.TempPathFactory, samples_dir: Path, write_text: Callable[[Path, Sequence[str]], Path]
) -> Path:
    """One of as many entries, learnt from other text."""
    directory = tmp_path_factory.mktemp("other")
    lines = (samples_dir / "tasks" / "snli" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    text = write_text(directory / "text.jsonl", [json.loads(line)["premise"] for line in lines])
    train_tokenizer([text], directory / "tokenizer", TokenizerSettings(vocab_size=600))
    return directory / "tokenizer"


def levels_of(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


def faults_of(run: Path) -> set[str]:
    """The findings at the level of a fault, and whichever of the causes stands at another level."""
    findings = check_run(run)
    assert all(finding.message and (finding.advice or finding.level in ("good", "note")) for finding in findings)
    return {finding.name for finding in findings if finding.level == "fault" or finding.name in CAUSES}


@pytest.fixture(scope="session")
def sound(recipe: str, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sound") / "run"
    pretrain(recipe, [f"store={store}"], out=run)
    return run


def copy_with_store(run: Path, copy: Path, store: Path) -> None:
    """A run as it would be if `store` stood where its store was."""
    shutil.copytree(run, copy)
    lines = (run / "recipe.yaml").read_text(encoding="utf-8").splitlines()
    changed = [f"store: {store}" if line.startswith("store:") else line for line in lines]
    (copy / "recipe.yaml").write_text("\n".join(changed) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def recipe_text() -> str:
    return RECIPE


@pytest.fixture(scope="session")
def levels() -> Callable[[Sequence[Finding]], dict[str, str]]:
    return levels_of


@pytest.fixture(scope="session")
def named_faults() -> Callable[[Path], set[str]]:
    return faults_of


@pytest.fixture(scope="session")
def copy_run() -> Callable[..., None]:
    return copy_with_store

"""The models that are fine-tuned in one program and opened in the other, of each family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from support.finetuned_exchange import FAMILIES, KINDS, QUESTION, SIZES, TEXTS
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import PRESETS


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Each family of encoders."""
    return str(request.param)


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    """Each kind of task."""
    return str(request.param)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Encoders of random weights as `transformers` saves them."""
    directories = {}
    for family, (config, changes, preset) in FAMILIES.items():
        directory = tmp_path_factory.mktemp(family)
        tokenizer, _ = learn_tokenizer(
            iter([*TEXTS, *[QUESTION, "It was read in many towns."] * 3]), PRESETS[preset], seed=0
        )
        tokenizer.save(directory)
        opened = AutoTokenizer.from_pretrained(directory)
        torch.manual_seed(0)
        sizes = SIZES | changes | {"vocab_size": len(opened), "pad_token_id": opened.pad_token_id}
        AutoModel.from_config(config(**sizes)).save_pretrained(directory)
        directories[family] = directory
    return directories


@pytest.fixture
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own."""
    monkeypatch.setattr("unmask.finetuning.run.write_report", lambda *_, **__: None)

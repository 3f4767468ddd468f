"""The tokenizer of the tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> TextTokenizer:
    return load_tokenizer(tiny_model)

"""What is refused of tokens named beside a vocabulary; `tests/golden/test_added_tokens.py` compares those that are
read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import ModelError
from unmask.tokenization.tokenizer import load_tokenizer

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]


@pytest.mark.parametrize(
    ("config", "added", "message"),
    [
        (
            {},
            {"<e>": 9},
            r"added_tokens.json: the added token '<e>' has the id 9; expected 6, as in vocab.txt or the next",
        ),
        ({}, {"a": 6}, r"added_tokens.json: the added token 'a' has the id 6; expected 5"),
        ({"added_tokens_decoder": {"7": {"content": "<e>"}}}, {}, r"tokenizer_config.json: the added token .* id 7"),
        ({"added_tokens_decoder": {"x": {"content": "<e>"}}}, {}, r"tokenizer_config.json: its added tokens are not"),
        ({"added_tokens_decoder": ["<e>"]}, {}, r"tokenizer_config.json: its added tokens are not laid out"),
        ({"added_tokens_decoder": {"6": {}}}, {}, r"tokenizer_config.json: its added tokens are not laid out"),
        ({"additional_special_tokens": 3}, {}, r"tokenizer_config.json: its added tokens are not laid out"),
        ({"extra_special_tokens": [""]}, {}, r"tokenizer_config.json: its added tokens are not laid out"),
        ({}, {"<e>": None}, r"added_tokens.json: its added tokens are not laid out"),
    ],
)
def test_what_is_refused(tmp_path: Path, config: dict[str, Any], added: dict[str, Any], message: str) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(ENTRIES))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if added:
        (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(ModelError, match=message):
        load_tokenizer(tmp_path)

"""How much of some texts a vocabulary covers, and when somebody is warned of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unmask.inference.coverage import Coverage
from unmask.tasks.base import ExampleCounts
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer


def test_a_vocabulary_is_warned_of_once_in_a_process(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    other, _ = learn_tokenizer(["a man waits"] * 4, TokenizerSettings(vocab_size=40))
    for tokenizer in (load_tokenizer(tiny_model), load_tokenizer(tiny_model), other, other):
        Coverage(tokenizer, "x.tsv").add(np.array([tokenizer.unk_id] * 3, dtype=np.int32))
    assert len(caplog.records) == 2, "one for each vocabulary"


@pytest.mark.parametrize(("unknown", "warnings"), [(0, 0), (5, 0), (6, 1), (100, 1)])
def test_texts_are_warned_of_once_where_over_5_percent_are_unknown(
    tiny_model: Path, caplog: pytest.LogCaptureFixture, unknown: int, warnings: int
) -> None:
    tokenizer = load_tokenizer(tiny_model)
    coverage, known = Coverage(tokenizer, "x.tsv"), tokenizer.encode_batch(["man"])[0][0]
    ids = [tokenizer.unk_id] * unknown + [known] * (100 - unknown)
    for _ in range(3):
        coverage.add(np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], dtype=np.int32))
    assert (coverage.tokens, coverage.unknown) == (300, 3 * unknown)
    assert len(caplog.records) == warnings
    assert all("Is the tokenizer one of another language?" in record.getMessage() for record in caplog.records)


def test_bytes_cover_everything(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer, _ = learn_tokenizer(["a man waits"] * 4, TokenizerSettings(kind="byte_bpe", vocab_size=262))
    coverage, counts = Coverage(tokenizer, "x.tsv"), ExampleCounts()
    coverage.add(np.array(tokenizer.encode_batch(["국민"])[0], dtype=np.int32))
    coverage.note(counts)
    assert not counts.unknown
    assert not caplog.text

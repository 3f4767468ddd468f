"""A tiny pre-trained model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.sizes import tiny
from unmask.models.heads.heads import MaskedLMHead, NextSentenceHead


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """The directory of a pre-trained model: random weights, large enough that no two logits are alike."""
    import torch

    from unmask.models.bert import BertEncoder
    from unmask.models.hub.directory import save_model
    from unmask.tokenization.learning.train import learn_tokenizer
    from unmask.tokenization.settings import TokenizerSettings

    lines = (samples_dir / "tasks" / "snli" / "train.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["premise"] for line in lines]
    tokenizer, _ = learn_tokenizer(iter(texts), TokenizerSettings(vocab_size=400), seed=0)
    directory = tmp_path_factory.mktemp("tiny") / "model"
    directory.mkdir()
    torch.manual_seed(0)
    encoder = BertEncoder(tiny(tokenizer.vocab_size, initializer_range=0.2))
    save_model(
        directory,
        encoder,
        {"masked_lm_head": MaskedLMHead(encoder.settings), "next_sentence_head": NextSentenceHead(encoder.settings)},
    )
    tokenizer.save(directory)
    return directory

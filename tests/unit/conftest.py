"""Small token stores made of given numbers, so that a test knows where every token came from; and a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from unmask.models.heads.heads import MaskedLMHead, NextSentenceHead
from unmask.store.encoding import Chunk, Encoder
from unmask.store.manifest import token_dtype, word_arrays
from unmask.store.shard_writer import EncodedChunk, ShardWriter, write_manifest
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.word_characters import WordTokenizer

Documents = Sequence[Sequence[Sequence[int]]]
"""Documents of sentences of token ids."""

MakeStore = Callable[..., TokenStore]
MakeWordStore = Callable[..., TokenStore]


def chunk_of(documents: Documents, hashes: Sequence[int], vocab_size: int) -> EncodedChunk:
    return EncodedChunk(
        tokens=np.array([token for document in documents for sentence in document for token in sentence]).astype(
            token_dtype(vocab_size)
        ),
        sentence_lengths=np.array([len(s) for document in documents for s in document], dtype=np.uint32),
        document_sentences=np.array([len(document) for document in documents], dtype=np.uint32),
        text_hashes=np.array(hashes, dtype=np.uint32),
        unknown_tokens=0,
        documents_without_tokens=0,
    )


@pytest.fixture(scope="session")
def make_store(tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    """Writes documents as a store, `shard_documents` to a shard, and opens it."""
    numbers = count()

    def make(
        documents: Documents,
        *,
        hashes: Sequence[int] | None = None,
        vocab_size: int = 1 << 20,
        shard_documents: int = 7,
    ) -> TokenStore:
        directory: Path = tmp_path_factory.getbasetemp() / f"store-{next(numbers)}"
        (directory / "tokenizer").mkdir(parents=True)
        hashes = hashes or [2**31] * len(documents)
        records = []
        for number, start in enumerate(range(0, len(documents), shard_documents)):
            with ShardWriter(directory, number, token_dtype(vocab_size)) as writer:
                stop = start + shard_documents
                writer.add(chunk_of(documents[start:stop], hashes[start:stop], vocab_size))
                records.append(writer.finish({}))
        write_manifest(directory, records, {"vocab_size": vocab_size})
        return TokenStore(directory)

    return make


@pytest.fixture(scope="session")
def number_tokens() -> Callable[[Sequence[Sequence[int]]], list[list[list[int]]]]:
    """Documents from the lengths of their sentences; every token of the corpus is another number, counted up."""

    def number(lengths: Sequence[Sequence[int]]) -> list[list[list[int]]]:
        tokens = count(1)
        return [[[next(tokens) for _ in range(length)] for length in document] for document in lengths]

    return number


@pytest.fixture(scope="session")
def make_word_store(tmp_path_factory: pytest.TempPathFactory) -> MakeWordStore:
    """Writes texts as a store of words, `shard_documents` to a shard, and opens it."""
    numbers = count()

    def make(texts: Sequence[str], tokenizer: WordTokenizer, shard_documents: int = 3) -> TokenStore:
        directory: Path = tmp_path_factory.getbasetemp() / f"word-store-{next(numbers)}"
        (directory / "tokenizer").mkdir(parents=True)
        tokenizer.save(directory / "tokenizer")
        encoder, records = Encoder(tokenizer), []
        for number, start in enumerate(range(0, len(texts), shard_documents)):
            with ShardWriter(directory, number, token_dtype(tokenizer.vocab_size)) as writer:
                for text in texts[start : start + shard_documents]:
                    chunk = Chunk(number)
                    chunk.add(text)
                    writer.add(encoder.encode(chunk))
                records.append(writer.finish({}))
        description = {"vocab_size": tokenizer.vocab_size, "side_arrays": word_arrays(tokenizer.vocab_size)}
        write_manifest(directory, records, description)
        return TokenStore(directory)

    return make


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """The directory of a pre-trained model: random weights, large enough that no two logits are alike."""
    import torch

    from unmask.models.bert import BertEncoder
    from unmask.models.hub.directory import save_model
    from unmask.models.settings import EncoderSettings
    from unmask.tokenization.learning.train import train_tokenizer
    from unmask.tokenization.settings import TokenizerSettings

    lines = (samples_dir / "tasks" / "snli" / "train.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["premise"] for line in lines]
    tokenizer, _ = train_tokenizer(iter(texts), TokenizerSettings(vocab_size=400), seed=0)
    directory = tmp_path_factory.mktemp("tiny") / "model"
    directory.mkdir()
    torch.manual_seed(0)
    encoder = BertEncoder(
        EncoderSettings(
            vocab_size=tokenizer.vocab_size,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            initializer_range=0.2,
        )
    )
    save_model(
        directory,
        encoder,
        masked_lm_head=MaskedLMHead(encoder.settings),
        next_sentence_head=NextSentenceHead(encoder.settings),
    )
    tokenizer.save(directory)
    return directory

"""Small token stores made of given numbers, so that a test knows where every token came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from unmask.data.shard_writer import EncodedChunk, ShardWriter, write_manifest
from unmask.data.store import TokenStore, token_dtype

Documents = Sequence[Sequence[Sequence[int]]]
"""Documents of sentences of token ids."""

MakeStore = Callable[..., TokenStore]


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

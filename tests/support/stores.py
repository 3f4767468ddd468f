"""Small token stores made of given numbers or words, so that a test knows where every token came from."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from unmask.corpus.annotations import KINDS
from unmask.corpus.documents import Document
from unmask.store.encoding import Chunk, ChunkEncoder, cut_chunks
from unmask.store.manifest import SPAN_ARRAYS, token_dtype, word_arrays
from unmask.store.shard_writer import EncodedChunk, ShardWriter, write_manifest
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.word_characters import WordTokenizer
from unmask.tokenization.tokenizer import TextTokenizer

Documents = Sequence[Sequence[Sequence[int]]]
"""Documents of sentences of token ids."""

IMPROBABLE = 1e-4
"""The seeds are fixed, so a p-value under this would be a fault, not bad luck."""

_NUMBERS = count()


@cache
def _root() -> Path:
    """Where the stores of this process are, until it ends."""
    folder = TemporaryDirectory(prefix="unmask-stores-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _new_directory() -> Path:
    directory = _root() / str(next(_NUMBERS))
    (directory / "tokenizer").mkdir(parents=True)
    return directory


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


def make_store(
    documents: Documents, *, hashes: Sequence[int] | None = None, vocab_size: int = 1 << 20, shard_documents: int = 7
) -> TokenStore:
    """Writes documents as a store, `shard_documents` to a shard, and opens it."""
    directory, records = _new_directory(), []
    hashes = hashes or [2**31] * len(documents)
    for number, start in enumerate(range(0, len(documents), shard_documents)):
        with ShardWriter(directory, number, token_dtype(vocab_size)) as writer:
            stop = start + shard_documents
            writer.add(chunk_of(documents[start:stop], hashes[start:stop], vocab_size))
            records.append(writer.finish({}))
    write_manifest(directory, records, {"vocab_size": vocab_size})
    return TokenStore(directory)


def number_tokens(lengths: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """Documents from the lengths of their sentences; every token of the corpus is another number, counted up."""
    tokens = count(1)
    return [[[next(tokens) for _ in range(length)] for length in document] for document in lengths]


def numbered_store(
    lengths: Sequence[Sequence[int]], *, hashes: Sequence[int] | None = None, shard_documents: int = 7
) -> TokenStore:
    """The store of `number_tokens`."""
    return make_store(number_tokens(lengths), hashes=hashes, shard_documents=shard_documents)


def cut_long_sentences(document: list[list[int]], longest: int) -> list[list[int]]:
    return [s[i : i + longest] for s in document for i in range(0, len(s), longest)]


def make_word_store(texts: Sequence[str], tokenizer: WordTokenizer, shard_documents: int = 3) -> TokenStore:
    """Writes texts as a store of words, `shard_documents` to a shard, and opens it."""
    directory, records = _new_directory(), []
    tokenizer.save(directory / "tokenizer")
    encoder = ChunkEncoder(tokenizer)
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


def make_annotated_store(documents: Sequence[Document], tokenizer: TextTokenizer) -> TokenStore:
    """Writes documents as a store that knows their annotations, some 200 bytes to a shard, and opens it."""
    directory, records, encoder = _new_directory(), [], ChunkEncoder(tokenizer)
    for number, chunk in enumerate(cut_chunks(documents, 200)):
        with ShardWriter(directory, number, token_dtype(tokenizer.vocab_size)) as writer:
            writer.add(encoder.encode(chunk))
            records.append(writer.finish({}))
    has_spans = any(record[f"{kind}_spans"] for record in records for kind in KINDS)
    side_arrays = {"side_arrays": SPAN_ARRAYS} if has_spans else {}
    write_manifest(directory, records, {"vocab_size": tokenizer.vocab_size, **side_arrays})
    return TokenStore(directory)

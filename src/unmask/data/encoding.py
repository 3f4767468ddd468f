"""Documents to token ids, a chunk at a time: what every process of a preparation does, here or on another machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unmask.data.sentence_splitters import SENTENCE_SPLITTERS
from unmask.data.shard_writer import EncodedChunk, TextDigest
from unmask.data.store import token_dtype
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.tokenization.word_cache import WordCache

CHUNK_BYTES = 1 << 20
"""Text that is encoded at once: a chunk ends after the document with which it has this many bytes."""


@dataclass
class Chunk:
    """Documents in a row that go into one shard."""

    shard: int
    texts: list[str] = field(default_factory=list)
    bytes: int = 0


@dataclass(frozen=True)
class EncoderSettings:
    """What makes an encoder, small enough to be sent to another process.

    Attributes:
        tokenizer: its directory.
        splitter: a key of `SENTENCE_SPLITTERS`.
    """

    tokenizer: Path
    splitter: str = "rules"


class Encoder:
    """Splits documents into sentences and encodes them; remembers words from one chunk to the next."""

    def __init__(self, tokenizer: TextTokenizer, splitter: str = "rules") -> None:
        self._split = SENTENCE_SPLITTERS[splitter]()
        self._tokenizer = tokenizer
        self._words = WordCache(tokenizer.backend, token_dtype(tokenizer.vocab_size))

    @staticmethod
    def load(settings: EncoderSettings) -> Encoder:
        return Encoder(load_tokenizer(settings.tokenizer), settings.splitter)

    def encode(self, texts: list[str]) -> EncodedChunk:
        """Encodes documents; sentences and documents without a token are left out."""
        sentences: list[str] = []
        sentences_of: list[int] = []
        for text in texts:
            bounds = self._split(text)
            sentences.extend([text[start:end] for start, end in bounds])
            sentences_of.append(len(bounds))
        if self._tokenizer.segmenter != "none":
            sentences = [self._tokenizer.segment(sentence) for sentence in sentences]
        tokens, lengths = self._words.encode(sentences)
        document_of_sentence = np.repeat(np.arange(len(texts)), sentences_of)
        kept_sentences = np.bincount(document_of_sentence[lengths > 0], minlength=len(texts))
        has_tokens = kept_sentences > 0
        hashes = np.array([text_hash(text) for text in texts], dtype=np.uint32)
        unk_id = self._tokenizer.unk_id
        return EncodedChunk(
            tokens=tokens,
            sentence_lengths=lengths[lengths > 0],
            document_sentences=kept_sentences[has_tokens].astype(np.uint32),
            text_hashes=hashes[has_tokens],
            unknown_tokens=0 if unk_id is None else int(np.count_nonzero(tokens == unk_id)),
            documents_without_tokens=int(np.count_nonzero(~has_tokens)),
        )


def cut_chunks(texts: Iterable[str], shard_bytes: int) -> Iterator[Chunk]:
    """Cuts a corpus into chunks, each within one shard; a document is never cut.

    Args:
        texts: the documents, in order.
        shard_bytes: a shard ends after the document with which it has this many bytes of UTF-8.
    """
    shard, shard_size = 0, 0
    chunk = Chunk(shard)
    for text in texts:
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
        chunk.texts.append(text)
        chunk.bytes += size
        shard_size += size
        shard_is_full = shard_size >= shard_bytes
        if chunk.bytes >= CHUNK_BYTES or shard_is_full:
            yield chunk
            if shard_is_full:
                shard, shard_size = shard + 1, 0
            chunk = Chunk(shard)
    if chunk.texts:
        yield chunk


def digested(chunks: Iterable[Chunk], digest: TextDigest) -> Iterator[Chunk]:
    """The chunks as they are; their documents go into the digest as they pass."""
    for chunk in chunks:
        for text in chunk.texts:
            digest.add(text)
        yield chunk


def text_hash(text: str) -> int:
    """The first 32 bits of the SHA-256 of a text in UTF-8, by which documents are held out."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "big")

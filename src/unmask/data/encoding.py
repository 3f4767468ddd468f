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
from unmask.errors import SettingsError
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.tokenization.word_cache import WordCache

HASH_BYTES = 4
"""Of a text's SHA-256, by which it is held out."""
CHUNK_BYTES = 1 << 20
"""Text that is encoded at once: a chunk ends after the document with which it has this many bytes."""


@dataclass
class Chunk:
    """Documents in a row that go into one shard.

    Attributes:
        shard: its number.
        texts: of the documents.
        hashes: SHA-256 of each text in UTF-8.
        bytes: of all texts in UTF-8.
    """

    shard: int
    texts: list[str] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    bytes: int = 0

    def add(self, text: str) -> int:
        """Appends a document; its bytes."""
        utf8 = text.encode("utf-8")
        self.texts.append(text)
        self.hashes.append(hashlib.sha256(utf8).digest())
        self.bytes += len(utf8)
        return len(utf8)


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
    """Splits documents into sentences and encodes them; remembers words from one chunk to the next.

    Raises:
        SettingsError: there is no such splitter, or a package is missing for it.
    """

    def __init__(self, tokenizer: TextTokenizer, splitter: str = "rules") -> None:
        if splitter not in SENTENCE_SPLITTERS:
            raise SettingsError(f"sentences by {splitter!r}: expected {' or '.join(SENTENCE_SPLITTERS)}")
        self._split = SENTENCE_SPLITTERS[splitter]()
        self._tokenizer = tokenizer
        self._words = WordCache(tokenizer.backend, token_dtype(tokenizer.vocab_size))

    @staticmethod
    def load(settings: EncoderSettings) -> Encoder:
        return Encoder(load_tokenizer(settings.tokenizer), settings.splitter)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """Encodes documents; sentences and documents without a token are left out."""
        texts = chunk.texts
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
        hashes = np.frombuffer(b"".join([each[:HASH_BYTES] for each in chunk.hashes]), ">u4").astype(np.uint32)
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
        shard_size += chunk.add(text)
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
        for text_digest in chunk.hashes:
            digest.add(text_digest)
        yield chunk


def text_hash(text: str) -> int:
    """The first 32 bits of the SHA-256 of a text in UTF-8, by which documents are held out."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:HASH_BYTES], "big")

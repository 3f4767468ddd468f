"""From documents to token ids, a chunk at a time, in each process of a preparation, here or on another machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.corpus.annotations import Annotation
from unmask.corpus.documents import Document
from unmask.corpus.sentences.rules import begin_at_space, sentence_text
from unmask.corpus.sentences.splitters import SENTENCE_SPLITTERS
from unmask.errors import SettingsError
from unmask.store.annotation_places import AnnotatedText, place_annotations
from unmask.store.manifest import token_dtype
from unmask.store.shard_writer import EncodedChunk, WordBytes
from unmask.tokenization.encoding.plain_text import plain_copy
from unmask.tokenization.encoding.word_cache import WordCache
from unmask.tokenization.kinds.word_characters import WordTokenizer
from unmask.tokenization.opening import Tokenizer, open_tokenizer

HASH_BYTES = 4
"""Bytes of a text's SHA-256 that decide whether it is held out."""
CHUNK_BYTES = 1 << 20
"""Text that is encoded at once: a chunk ends after the document with which it reaches this many bytes."""


TextDigest: TypeAlias = "hashlib._Hash"
"""SHA-256 over the SHA-256 hashes of a shard's documents, in order."""


@dataclass
class Chunk:
    """Consecutive documents that go into one shard."""

    shard: int  # its number
    texts: list[str] = field(default_factory=list)  # of the documents
    hashes: list[bytes] = field(default_factory=list)  # SHA-256 of each text in UTF-8
    bytes: int = 0  # of all texts in UTF-8
    # of each text that has any, by its place in `texts`
    annotations: dict[int, tuple[Annotation, ...]] = field(default_factory=dict)

    def add(self, text: str, annotations: tuple[Annotation, ...] = ()) -> int:
        """Appends a document, and returns its size in bytes."""
        if annotations:
            self.annotations[len(self.texts)] = annotations
        utf8 = text.encode("utf-8")
        self.texts.append(text)
        self.hashes.append(hashlib.sha256(utf8).digest())
        self.bytes += len(utf8)
        return len(utf8)


@dataclass(frozen=True)
class EncodingSettings:
    """What makes an encoder, small enough to be sent to another process."""

    tokenizer: Path  # its directory
    splitter: str = "rules"  # a key of `SENTENCE_SPLITTERS`


class ChunkEncoder:
    """Splits documents into sentences and encodes them; caches words across chunks.

    Raises:
        SettingsError: there is no such splitter, or a package is missing for it.
    """

    def __init__(self, tokenizer: Tokenizer, splitter: str = "rules") -> None:
        if splitter not in SENTENCE_SPLITTERS:
            raise SettingsError(f"sentences by {splitter!r}: expected {' or '.join(SENTENCE_SPLITTERS)}")
        self._split = SENTENCE_SPLITTERS[splitter]()
        self._tokenizer = tokenizer
        self._space_counts = _is_space_part_of_words(tokenizer)
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._cache = None if tokenizer.reads_words else WordCache(tokenizer.backend, self._dtype)

    @staticmethod
    def load(settings: EncodingSettings) -> ChunkEncoder:
        return ChunkEncoder(open_tokenizer(settings.tokenizer), settings.splitter)

    @cached_property
    def _backend(self) -> tokenizers.Tokenizer | None:
        """What gives tokens with their offsets: not words, nor text segmented into morphemes."""
        if self._tokenizer.reads_words or self._tokenizer.segmenter != "none":
            return None
        return plain_copy(self._tokenizer.backend)

    def _segment(self, sentence: str) -> str:
        return sentence[: sentence.startswith(" ")] + self._tokenizer.segment(sentence)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """Encodes documents; sentences and documents without a token are left out.

        For a tokenizer to which the space before a word belongs, a sentence begins with the white space before it, even
        a line break; the first sentence of a document begins without.
        """
        texts = chunk.texts
        sentences: list[str] = []
        sentences_of: list[int] = []
        annotated: list[AnnotatedText] = []
        annotations = chunk.annotations
        for number, text in enumerate(texts):
            bounds = self._split(text)
            if self._space_counts:
                bounds = begin_at_space(text, bounds)
            if annotations and number in annotations:
                annotated.append(AnnotatedText(text, annotations[number], bounds, len(sentences)))
            sentences.extend([sentence_text(text, start, end) for start, end in bounds])
            sentences_of.append(len(bounds))
        if self._tokenizer.segmenter != "none":
            sentences = [self._segment(sentence) for sentence in sentences]
        words: WordBytes | None = None
        if self._tokenizer.reads_words:
            tokens, lengths, words = _encode_words(self._tokenizer, sentences, self._dtype)
        else:
            assert self._cache is not None
            tokens, lengths = self._cache.encode(sentences)
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
            words=words,
            spans=place_annotations(annotated, lengths, self._backend) if annotated else None,
        )


def _encode_words(
    tokenizer: WordTokenizer, sentences: Sequence[str], dtype: np.dtype[Any]
) -> tuple[NDArray[np.unsignedinteger[Any]], NDArray[np.uint32], WordBytes]:
    """Encodes sentences as `WordCache` does, without the marks at their beginning and end, and keeps their bytes.

    Returns:
        (words,) the ids of all words, that of `<UNK>` for words outside the vocabulary; (sentences,) uint32, the
        number of words of each; the bytes of the words.
    """
    words_of = [tokenizer.words(sentence) for sentence in sentences]
    words = [word for words in words_of for word in words]
    encoded = [word.encode() for word in words]
    ids = np.array(tokenizer.vocabulary_ids(words), dtype=dtype)
    lengths = np.fromiter(map(len, words_of), np.uint32, len(words_of))
    word_lengths = np.fromiter(map(len, encoded), np.uint32, len(encoded))
    return ids, lengths, WordBytes(np.frombuffer(b"".join(encoded), np.uint8), word_lengths)


def _is_space_part_of_words(tokenizer: Tokenizer) -> bool:
    """Whether a word after a space has a different entry from the word alone, as in byte-level BPE."""
    if tokenizer.reads_words:
        return False
    alone, after_space = tokenizer.backend.encode_batch(["a", " a"], add_special_tokens=False)
    return bool(alone.ids != after_space.ids)


def cut_chunks(documents: Iterable[Document], shard_bytes: int) -> Iterator[Chunk]:
    """Cuts a corpus into chunks, each within one shard; a document is never cut.

    Args:
        shard_bytes: a shard ends after the document with which it reaches this many bytes of UTF-8.
    """
    shard, shard_size = 0, 0
    chunk = Chunk(shard)
    for document in documents:
        shard_size += chunk.add(document.text, document.annotations)
        shard_is_full = shard_size >= shard_bytes
        if chunk.bytes >= CHUNK_BYTES or shard_is_full:
            yield chunk
            if shard_is_full:
                shard, shard_size = shard + 1, 0
            chunk = Chunk(shard)
    if chunk.texts:
        yield chunk


def digested(chunks: Iterable[Chunk], digest: TextDigest) -> Iterator[Chunk]:
    """Yields the chunks unchanged, and adds the SHA-256 of their documents, and of annotations, to the digest."""
    for chunk in chunks:
        for number, text_digest in enumerate(chunk.hashes):
            digest.update(text_digest)
            if chunk.annotations and number in chunk.annotations:
                digest.update(hashlib.sha256(json.dumps(chunk.annotations[number]).encode()).digest())
        yield chunk


def held_out_hash(text: str) -> int:
    """The first 32 bits of the SHA-256 of a text in UTF-8, which decide whether a document is held out."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:HASH_BYTES], "big")

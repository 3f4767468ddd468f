"""From sentences to words for ELMo's store: the bytes of every word, and its id in the output vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.store.manifest import token_dtype
from unmask.store.shard_writer import WordBytes
from unmask.tokenization.kinds.word_characters import WordTokenizer


class WordEncoding:
    """Encodes sentences as `WordCache` does, and keeps the bytes of their words."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)

    def encode(
        self, sentences: Sequence[str]
    ) -> tuple[NDArray[np.unsignedinteger[Any]], NDArray[np.uint32], WordBytes]:
        """Encodes sentences, without the marks at their beginning and end.

        Returns:
            (words,) the ids of all words, that of `<UNK>` for words outside the vocabulary; (sentences,) uint32, the
            number of words of each; the bytes of the words.
        """
        words_of = [self._tokenizer.words(sentence) for sentence in sentences]
        words = [word for words in words_of for word in words]
        encoded = [word.encode() for word in words]
        ids = np.array(self._tokenizer.vocabulary_ids(words), dtype=self._dtype)
        lengths = np.fromiter(map(len, words_of), np.uint32, len(words_of))
        word_lengths = np.fromiter(map(len, encoded), np.uint32, len(encoded))
        return ids, lengths, WordBytes(np.frombuffer(b"".join(encoded), np.uint8), word_lengths)

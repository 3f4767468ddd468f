"""From sentences to words for ELMo's store: the bytes of every word, and its id in the output vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.store.shard_writer import WordBytes
from unmask.tokenization.kinds.word_characters import WordTokenizer


def encode_words(
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

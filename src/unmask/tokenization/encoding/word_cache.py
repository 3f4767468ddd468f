"""Encodes a corpus word by word and caches the ids of each word: exact, several times faster, in bounded memory.

WordPiece and BPE never look across word boundaries, and the words of a text repeat. So a text is cut at its white
space, each pre-token is looked up, and only new ones are encoded: WordPiece's by `longest_match`, others by the
library, thousands in one text. `WordRules` says for each family how to cut a text so that the concatenated ids of the
pre-tokens are the ids of the text, and how to separate the ids of many new words. Texts and tokenizers that the rules
do not cover are left to the library.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from unmask.tokenization.definition import SPACE, Definition, in_order
from unmask.tokenization.encoding.longest_match import longest_match
from unmask.tokenization.encoding.plain_text import PlainTextEncoder, plain_copy, splits_han, unchanged_characters

MAX_PRE_TOKENS = 1 << 19
"""Most pre-tokens to cache: about 200 bytes each, so some 100 MB in every process that encodes."""
LONGEST_PRE_TOKEN = 64
"""Longer pre-tokens, in characters, are not kept."""

_TEXTS_AT_ONCE = 512  # few enough for their data to stay in the processor's cache
_WORDS_AT_ONCE = 8192
_CHARACTERS_AT_ONCE = 1 << 20
"""Longer texts are encoded in pieces of about this length: a list of pre-tokens takes many times the memory of text."""
_LONE_SPACE = re.compile(r"(?<=\S) (?=\S)")
"""Where every text may be cut; the second piece begins with the space."""


@dataclass(frozen=True)
class WordRules:
    """How to cut texts into pre-tokens that can be encoded separately, for one tokenizer."""

    # returns the pre-tokens of each text; or None for a text that has to be encoded whole
    cut: Callable[[Sequence[str]], list[list[str] | None]]
    # returns the words of a pre-token, each of them a pre-token too; or None if it has to be encoded whole
    words: Callable[[str], list[str] | None]
    is_word: Callable[[str], object]  # whether a pre-token is one word
    match: Callable[[str], bytes] | None  # returns the ids of a word, as bytes; None if words are left to `encoder`
    join: Callable[[Iterable[str]], str]  # makes one text in which `encoder` finds each of some words, in order
    encoder: Tokenizer  # encodes such a text
    # (vocabulary,) bool, True for edges: exactly one id of each word is an edge, its first or its last
    is_edge: NDArray[np.bool_]
    edge_is_last: bool  # True if it is the last


class WordCache:
    """Encodes texts as `PlainTextEncoder` does, into flat arrays."""

    def __init__(self, backend: Tokenizer, dtype: np.dtype[Any], max_pre_tokens: int = MAX_PRE_TOKENS) -> None:
        """Accepts any tokenizer; if no rules cover it, the library does all the encoding.

        Args:
            backend: copied.
            dtype: of the ids in the returned arrays.
        """
        self._dtype = dtype
        self._max_pre_tokens = max_pre_tokens
        self._plain = PlainTextEncoder(backend)
        rules = word_rules(backend, dtype)
        self._known = (
            None if rules is None else _KnownPreTokens(rules, lambda pre_token: self._encode_whole([pre_token])[0])
        )

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.unsignedinteger[Any]], NDArray[np.uint32]]:
        """Encodes texts, without special tokens.

        Returns:
            (tokens,) the ids of all texts, concatenated; (texts,) uint32, the number of ids of each text.
        """
        encoded: list[bytes] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[start : start + _TEXTS_AT_ONCE]
            if sum(map(len, some)) < _CHARACTERS_AT_ONCE:
                encoded += self._encode(some)
            else:
                encoded += map(self._encode_long, some)
        lengths = np.fromiter(map(len, encoded), np.uint32, len(encoded)) // self._dtype.itemsize
        return np.frombuffer(b"".join(encoded), self._dtype), lengths

    def _encode_long(self, text: str) -> bytes:
        pieces = [text] if self._known is None else pieces_of(text)
        return b"".join(self._encode([piece])[0] for piece in pieces)

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        known = self._known
        if known is None:
            return self._encode_whole(texts)
        pre_tokens_of = known.rules.cut(texts)
        learnt: list[str] = []
        if known.rules.match is None:
            new = {pre_token for pre_tokens in pre_tokens_of if pre_tokens for pre_token in pre_tokens}
            learnt = self._learn(known, new)
        find = known.__getitem__
        encoded = [
            b"".join(map(find, pre_tokens)) if pre_tokens is not None else self._encode_whole([text])[0]
            for pre_tokens, text in zip(pre_tokens_of, texts, strict=True)
        ]
        for pre_token in learnt:
            if len(pre_token) > LONGEST_PRE_TOKEN:
                known.pop(pre_token, None)
        known.forget_beyond(self._max_pre_tokens)
        return encoded

    def _learn(self, known: _KnownPreTokens, pre_tokens: set[str]) -> list[str]:
        """Has the library encode the new pre-tokens among these, word by word; they and their words are returned."""
        words_of = {pre_token: known.rules.words(pre_token) for pre_token in known.missing(pre_tokens)}
        new = known.missing(set(chain.from_iterable(words for words in words_of.values() if words)))
        for start in range(0, len(new), _WORDS_AT_ONCE):
            some = new[start : start + _WORDS_AT_ONCE]
            known.update(zip(some, self._encode_together(known.rules, some), strict=True))
        for pre_token, words in words_of.items():
            if words is not None:
                known[pre_token] = b"".join(map(known.__getitem__, words))
        return [*new, *words_of]

    def _encode_together(self, rules: WordRules, words: list[str]) -> list[bytes]:
        """Encodes words in one text; fewer at a time if an unknown character leaves a word without its edge."""
        [encoding] = rules.encoder.encode_batch_fast([rules.join(words)], add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=self._dtype)
        edges = np.flatnonzero(rules.is_edge[ids])
        if len(edges) != len(words):
            if len(words) == 1:
                return self._encode_whole(words)
            middle = len(words) // 2
            return self._encode_together(rules, words[:middle]) + self._encode_together(rules, words[middle:])
        bounds = np.append(0, edges + 1) if rules.edge_is_last else np.append(edges, len(ids))
        cuts = (bounds * self._dtype.itemsize).tolist()
        flat = ids.tobytes()
        return [flat[start:end] for start, end in pairwise(cuts)]

    def _encode_whole(self, texts: Sequence[str]) -> list[bytes]:
        return [np.array(ids, self._dtype).tobytes() for ids in self._plain.encode_batch(texts)]


def pieces_of(text: str) -> Iterator[str]:
    """A long text cut where no word spans the cut."""
    start = 0
    while found := _LONE_SPACE.search(text, start + _CHARACTERS_AT_ONCE):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


class _KnownPreTokens(dict[str, bytes]):
    """Pre-tokens and their ids; a missing one is encoded and, unless it is long, cached."""

    def __init__(self, rules: WordRules, encode_whole: Callable[[str], bytes]) -> None:
        super().__init__()
        self.rules = rules
        self._match, self._is_word, self._words = rules.match, rules.is_word, rules.words
        self._encode_whole = encode_whole

    def __missing__(self, pre_token: str) -> bytes:
        words = [pre_token] if self._is_word(pre_token) else self._words(pre_token)
        if words is None or self._match is None:
            ids = self._encode_whole(pre_token)
        elif words == [pre_token]:
            ids = self._match(pre_token)
        else:
            ids = b"".join(map(self.__getitem__, words))
        if len(pre_token) <= LONGEST_PRE_TOKEN:
            self[pre_token] = ids
        return ids

    def missing(self, pre_tokens: set[str]) -> list[str]:
        """Those that are not here; `set.difference` would look at every known pre-token, however few are asked for."""
        return [pre_token for pre_token in pre_tokens if pre_token not in self]

    def forget_beyond(self, most: int) -> None:
        """If there are too many, forgets the newer half: frequent pre-tokens came early."""
        if len(self) > most:
            kept = list(islice(self.items(), most // 2))
            self.clear()
            self.update(kept)


def word_rules(backend: Tokenizer, dtype: np.dtype[Any]) -> WordRules | None:
    """The rules for a tokenizer, or None if it is of an unknown kind; `dtype` is that of an id."""
    definition = json.loads(backend.to_str())
    if any(not token["special"] for token in definition["added_tokens"]):
        return None
    splitter = definition["pre_tokenizer"] or {}
    if splitter.get("type") == "BertPreTokenizer":
        return _white_space_rules(backend, definition, dtype)
    only_composes = definition["normalizer"] in (None, {"type": "NFC"})
    if splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True) and only_composes:
        return _byte_level_rules(backend, definition["model"], splitter["add_prefix_space"])
    return None


_BETWEEN_TEXTS = "\x1f"
_ODD_SPACES = "\x0b\x0c\x1c\x1d\x1e\x85"
"""Python splits at these and at `_BETWEEN_TEXTS`, while the library drops or keeps them."""
_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
"""Characters that are each a separate word if the normaliser puts spaces around them."""
_MARKS = ",.()-'\""
"""Marks that are always separate words: with spaces around them, half as many pre-tokens are new."""


def _white_space_rules(backend: Tokenizer, definition: Definition, dtype: np.dtype[Any]) -> WordRules | None:
    """WordPiece, and BPE with an end-of-word mark, after BERT's normaliser and splitting at punctuation.

    BERT's normaliser works character by character, and NFC composes nothing across white space, so every pre-token
    between white space is encoded separately. Its words are runs of letters and digits, and single marks, provided that
    the normaliser does no more to any of its characters than lowercase them.
    """
    lowercase, unchanged = unchanged_characters(definition)
    if "!" not in unchanged:  # even printable ASCII is not left unchanged
        return None
    model, entries = definition["model"], in_order(backend.get_vocab(with_added_tokens=True))
    prefix, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
    match = None
    if model["type"] == "WordPiece" and prefix:
        is_edge = np.array([not entry.startswith(prefix) or entry == prefix for entry in entries])
        ids = {entry: np.array(index, dtype).tobytes() for entry, index in model["vocab"].items()}
        match = longest_match(ids, prefix, ids[model["unk_token"]], model["max_input_chars_per_word"], lowercase)
    elif model["type"] == "BPE" and suffix and not prefix and not model.get("dropout"):
        is_edge = np.array([entry.endswith(suffix) for entry in entries])
    else:
        return None
    is_plain = re.compile(f"[{re.escape(unchanged)}{_HAN if splits_han(definition) else ''}]*").fullmatch
    letters = "".join(c for c in unchanged if c.isalnum() or not (c.isascii() or unicodedata.category(c)[0] == "P"))
    is_word = re.compile(f"[{re.escape(letters)}]+").fullmatch
    find_words = re.compile(f"[{re.escape(letters)}]+|.").findall

    def cut(texts: Sequence[str]) -> list[list[str] | None]:
        joined = _BETWEEN_TEXTS.join(texts)
        if joined.count(_BETWEEN_TEXTS) >= len(texts) or any(space in joined for space in _ODD_SPACES):
            return [None if _has_odd_space(text) else text.split() for text in texts]
        for mark in _MARKS:
            joined = joined.replace(mark, f" {mark} ")
        return [text.split() for text in joined.split(_BETWEEN_TEXTS)] if texts else []

    def words(pre_token: str) -> list[str] | None:
        return find_words(pre_token) if is_plain(pre_token) else None

    def join(words: Iterable[str]) -> str:
        return " ".join(words).lower() if lowercase else " ".join(words)

    encoder = plain_copy(backend, normalized=True)
    return WordRules(cut, words, is_word, match, join, encoder, is_edge, edge_is_last=match is None)


def _has_odd_space(text: str) -> bool:
    return _BETWEEN_TEXTS in text or any(space in text for space in _ODD_SPACES)


def _byte_level_rules(backend: Tokenizer, model: dict[str, Any], prefix_space: bool) -> WordRules | None:
    """Byte-level BPE, in which the space before a word belongs to it (Radford et al. 2019).

    In a text whose white space is only single spaces, each space begins a word. Of two in a row, the library's
    expression makes the first a separate word: such a text is encoded whole. NFC composes nothing with a space.
    """
    if model["type"] != "BPE" or model.get("dropout") or model.get("end_of_word_suffix"):
        return None
    is_edge = np.array([entry.startswith(SPACE) for entry in in_order(backend.get_vocab(with_added_tokens=True))])

    def cut(texts: Sequence[str]) -> list[list[str] | None]:
        return [cut_one(text) for text in texts]

    def cut_one(text: str) -> list[str] | None:
        pre_tokens = text.split()
        space = text[:1] == " "
        if " ".join(pre_tokens) != text[space:] or (space and not pre_tokens):
            return None
        if not pre_tokens:
            return []
        first, *others = pre_tokens
        return [f" {first}" if prefix_space or space else first, *map(" ".__add__, others)]

    def words(pre_token: str) -> list[str] | None:
        return [pre_token] if pre_token[0] == " " else None

    return WordRules(cut, words, words, None, "".join, plain_copy(backend), is_edge, edge_is_last=False)

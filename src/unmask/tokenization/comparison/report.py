"""Tokenizers compared on the same held-out text: what stays whole, what is cut up, what is lost, at what length.

All are measured on the same words and the same characters, so that figures can be compared whatever the kind:

    pre-token   what stands between white space, with one space before it, as in running text. Nothing but pre-tokens is
              counted: other white space is left out, whether or not a kind of tokenizer keeps it.
    word      a longest run of letters, marks and digits within a pre-token (so never punctuation), likewise with one
              space before it. In writing without spaces between words (Chinese, Japanese, Thai) that is a whole phrase:
              compare tokens per character there. Tokens per word are the fertility of Rust et al. (2021, "How Good is
              Your Tokenizer?", section 3.1.2).

No tokenizer encodes the same pre-token or word twice: the text is counted first, and each distinct one encoded once.
Memory is bounded by the text that is counted: `max_bytes` at most, drawn evenly, in passages of some 2,000 characters,
from all of the text.

A segmenter that looks at whole sentences (Kiwi) is given one pre-token at a time, and may cut some words otherwise
than in their sentences.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from unmask.corpus.cleaning.scripts import letters_by_script
from unmask.corpus.documents import CorpusCounts
from unmask.corpus.files import find_files
from unmask.corpus.pipeline import read_documents
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.corpus.source import names_of
from unmask.errors import InputError, SettingsError
from unmask.io.paths import model_in
from unmask.io.progress import Progress
from unmask.tokenization.encoding.plain_text import plain_copy
from unmask.tokenization.kinds.alphabet import count_characters
from unmask.tokenization.kinds.word_characters import is_word_tokenizer
from unmask.tokenization.learning.word_counts import count_words
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

MAX_BYTES = 10_000_000
NUM_SHOWN = 10
"""How many words each list has."""
MOST_PIECES = 5
"""Words of this many pieces or more are counted together."""

_PASSAGE = re.compile(r".{1,2000}\S{0,500}", re.DOTALL)
_BATCH = 8192
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclass(frozen=True)
class TextFacts:
    """The text that tokenizers were compared on."""

    sources: tuple[str, ...]  # its files
    num_bytes_read: int  # bytes of UTF-8 read
    num_bytes: int  # bytes of the passages that were counted
    num_characters: int  # of the pre-tokens, including the space before each
    num_utf8_bytes: int  # likewise
    num_words: int
    num_distinct_words: int
    letters: Mapping[str, int]  # letters within words, by Unicode script, the most frequent first


@dataclass(frozen=True)
class CutWord:
    """A word, how often it occurs, and the pieces it is cut into; `�` is part of a character."""

    word: str
    count: int
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class TokenizerFigures:
    """One tokenizer, and how it does on the text.

    The lower `tokens_per_word` and `tokens_per_character` and the higher `bytes_per_token`, the shorter the sequences.
    WordPiece makes one token of an unknown word: where many are unknown, this flatters.
    """

    name: str  # the end of its path, long enough to distinguish it from the others
    path: str  # where it was opened
    kind: str  # `wordpiece`, `bpe`, `byte_bpe` or `sentencepiece`
    lowercase: bool  # True if it makes no difference between upper and lower case
    segmenter: str  # what cuts the text into morphemes beforehand, or "none"
    vocab_size: int  # how many ids it has
    num_entries_used: int  # ids that occur in the text
    num_unused_slots: int  # entries `[unused0]` ...
    special_tokens: tuple[str, ...]  # the other entries that stand for no text
    num_tokens: int  # in the text
    num_unknown_tokens: int  # in the text
    num_word_tokens: int  # in its words
    words_by_pieces: tuple[int, ...]  # words of 1, 2 ... `MOST_PIECES` and more pieces, unknown words left out
    num_unknown_words: int  # words with an unknown token in them
    lost_letters: Mapping[str, int]  # letters that unknown tokens stand for, by script
    longest_words: tuple[CutWord, ...]  # those cut into most pieces, in the script of most of the text
    costliest_words: tuple[CutWord, ...]  # of those that occur again: most tokens in the text beyond one each
    unknown_words: tuple[CutWord, ...]  # the most frequent ones
    tokens_per_word: float
    tokens_per_character: float
    bytes_per_token: float
    whole_word_share: float  # of the words, those that are one known piece
    unknown_word_share: float  # of the words
    unknown_token_share: float  # of the tokens
    lost_letter_shares: Mapping[str, float]  # of each script's letters


@dataclass(frozen=True)
class TokenizersReport:
    """Tokenizers, in the order in which they were named, and the text they were compared on."""

    text: TextFacts
    tokenizers: tuple[TokenizerFigures, ...]
    seed: int
    max_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """The whole report, for a JSON file."""
        return asdict(self)


def report_tokenizers(
    tokenizers: Sequence[str | Path],
    text: Sequence[str | Path],
    *,
    max_bytes: int = MAX_BYTES,
    seed: int = 0,
    reading: ReadingSettings = ReadingSettings(),  # noqa: B008  immutable
    cleaning: CleaningSettings = CleaningSettings(),  # noqa: B008  immutable
) -> TokenizersReport:
    """Compares tokenizers on a text that none of them should have been trained on.

    Args:
        tokenizers: their directories.
        text: files, folders and globs, as `unmask.corpus.files.find_files` takes them.
        max_bytes: bytes of UTF-8 to count. From a longer text passages are drawn evenly, between half of this and all
            of it. 10 MB of English take less than 0.1 GB of memory.
        seed: of that sample.
        reading: how files become documents.
        cleaning: what is repaired and left out beforehand.

    Raises:
        ModelError: a path holds no tokenizer.
        InputError: there is no text, no word in it, or it cannot be read.
        SettingsError: no tokenizer is named, one is a tokenizer of words, or `max_bytes` is not positive.
    """
    if not tokenizers:
        raise SettingsError("no tokenizer was named: give the directory of at least one")
    if max_bytes < 1:
        raise SettingsError(f"max_bytes={max_bytes}: expected at least 1, the bytes of text to count")
    paths = [Path(path) for path in tokenizers]
    opened = [_open(path) for path in paths]
    facts, pre_tokens, words = _count(text, max_bytes, seed, reading, cleaning)
    figures = []
    with Progress("comparing", total=len(opened), unit="tokenizers") as progress:
        for name, path, tokenizer in zip(_names(paths), paths, opened, strict=True):
            figures.append(_measure(name, path, tokenizer, facts, pre_tokens, words))
            progress.advance()
    return TokenizersReport(facts, tuple(figures), seed, max_bytes)


def _open(path: Path) -> TextTokenizer:
    if is_word_tokenizer(model_in(path)):
        raise SettingsError(
            f"{path}: a tokenizer of words cuts none into pieces and reads every one of them, so there is nothing to "
            "compare; `unmask tokenizer train` says how many words its vocabulary does not hold"
        )
    tokenizer = load_tokenizer(path)
    tokenizer.load_segmenter()
    return tokenizer


def _count(
    text: Sequence[str | Path], max_bytes: int, seed: int, reading: ReadingSettings, cleaning: CleaningSettings
) -> tuple[TextFacts, Counter[str], Counter[str]]:
    """The facts of the text, its distinct pre-tokens and its distinct words with their counts."""
    files = find_files(text, reading.format)
    counts = CorpusCounts()
    total = max(1, sum(path.stat().st_size for path in files if path.is_file()))  # standard input has no size
    with Progress("reading", unit="bytes") as progress:

        def passages() -> Iterator[str]:
            for document in read_documents(files, counts, reading, cleaning):
                yield from _PASSAGE.findall(document.text)
                progress.update(min(1.0, counts.file_bytes / total), counts.utf8_bytes)

        counted = count_words(passages(), split=lambda pre_token: [pre_token], sample_bytes=max_bytes, seed=seed)
    pre_tokens = counted.words
    words: Counter[str] = Counter()
    for pre_token, count in pre_tokens.items():
        for word in _word_pattern().findall(pre_token):
            words[word] += count
    if not words:
        raise InputError(f"{names_of(files)}: no word in it: give text to compare the tokenizers on")
    facts = TextFacts(
        sources=tuple(map(str, files)),
        num_bytes_read=counted.num_bytes_read,
        num_bytes=counted.num_bytes,
        num_characters=sum(count * (1 + len(pre_token)) for pre_token, count in pre_tokens.items()),
        num_utf8_bytes=sum(count * (1 + len(pre_token.encode())) for pre_token, count in pre_tokens.items()),
        num_words=words.total(),
        num_distinct_words=len(words),
        letters=_letters(words),
    )
    return facts, pre_tokens, words


@cache
def _word_pattern() -> re.Pattern[str]:
    """Letters, digits and marks; word characters of `re` lack marks, and include superscripts and circled numbers."""
    marks, other_numbers = [], []
    for character in map(chr, range(sys.maxunicode + 1)):
        category = unicodedata.category(character)
        if category[0] == "M":
            marks.append(character)
        elif category == "No":
            other_numbers.append(character)
    return re.compile(rf"(?:[^\W_{''.join(other_numbers)}]|[{''.join(marks)}])+")


def _letters(texts: Mapping[str, int]) -> dict[str, int]:
    """Letters by script in texts with their counts, the most frequent script first."""
    letters: Counter[str] = Counter()
    for character, count in count_characters(texts).items():
        for script in letters_by_script(character):
            letters[script] += count
    return dict(sorted(letters.items(), key=lambda item: (-item[1], item[0])))


def _measure(
    name: str, path: Path, tokenizer: TextTokenizer, text: TextFacts, pre_tokens: Counter[str], words: Counter[str]
) -> TokenizerFigures:
    num_tokens = num_unknown_tokens = 0
    is_used = np.zeros(tokenizer.vocab_size, dtype=bool)
    for count, ids in _encode(tokenizer, pre_tokens):
        num_tokens += count * len(ids)
        num_unknown_tokens += count * tokenizer.count_unknown(ids)
        is_used[ids] = True

    words_by_pieces = [0] * MOST_PIECES
    num_word_tokens = 0
    num_pieces: list[int] = []  # of each distinct word
    unknown: Counter[str] = Counter()
    for word, (count, ids) in zip(words, _encode(tokenizer, words), strict=True):
        num_word_tokens += count * len(ids)
        num_pieces.append(len(ids))
        if tokenizer.count_unknown(ids):
            unknown[word] = count
        elif ids:
            words_by_pieces[min(len(ids), MOST_PIECES) - 1] += count

    def shown(word: str) -> CutWord:
        return CutWord(word, words[word], _pieces(tokenizer, word))

    cut = [item for item in zip(num_pieces, words.values(), words, strict=True) if item[0] > 1]
    script = next(iter(text.letters), "")
    longest = nlargest(NUM_SHOWN, (item for item in cut if set(letters_by_script(item[2])) == {script}))
    repeated = (item for item in cut if item[1] > 1)
    costliest = nlargest(NUM_SHOWN, repeated, key=lambda item: ((item[0] - 1) * item[1], item[2]))
    lost = _lost_letters(tokenizer, unknown)
    entries = tokenizer.token_strings
    slots = [entry for entry in entries if _UNUSED.fullmatch(entry)]
    return TokenizerFigures(
        name=name,
        path=str(path),
        kind=tokenizer.kind,
        lowercase=tokenizer.lowercases,
        segmenter=tokenizer.segmenter,
        vocab_size=tokenizer.vocab_size,
        num_entries_used=int(is_used.sum()),
        num_unused_slots=len(slots),
        special_tokens=tuple(entries[index] for index in tokenizer.special_ids if entries[index] not in slots),
        num_tokens=num_tokens,
        num_unknown_tokens=num_unknown_tokens,
        num_word_tokens=num_word_tokens,
        words_by_pieces=tuple(words_by_pieces),
        num_unknown_words=unknown.total(),
        lost_letters=lost,
        longest_words=tuple(shown(word) for _, _, word in longest),
        costliest_words=tuple(shown(word) for _, _, word in costliest),
        unknown_words=tuple(
            shown(word) for word, _ in nlargest(NUM_SHOWN, unknown.items(), key=lambda item: item[::-1])
        ),
        tokens_per_word=num_word_tokens / text.num_words,
        tokens_per_character=num_tokens / text.num_characters,
        bytes_per_token=text.num_utf8_bytes / max(1, num_tokens),
        whole_word_share=words_by_pieces[0] / text.num_words,
        unknown_word_share=unknown.total() / text.num_words,
        unknown_token_share=num_unknown_tokens / max(1, num_tokens),
        lost_letter_shares={script: lost.get(script, 0) / count for script, count in text.letters.items()},
    )


def _encode(tokenizer: TextTokenizer, counts: Mapping[str, int]) -> Iterator[tuple[int, list[int]]]:
    """The count and the ids of each key."""
    for batch in _batches(counts):
        encoded = tokenizer.encode_batch([f" {text}" for text, _ in batch])
        yield from zip((count for _, count in batch), encoded, strict=True)


def _batches(counts: Mapping[str, int]) -> Iterator[list[tuple[str, int]]]:
    items = iter(counts.items())
    while batch := list(islice(items, _BATCH)):
        yield batch


def _lost_letters(tokenizer: TextTokenizer, unknown: Mapping[str, int]) -> dict[str, int]:
    """How many letters, by script, unknown tokens stand for: WordPiece loses whole words, BPE single characters."""
    backend = plain_copy(tokenizer.backend)
    lost: Counter[str] = Counter()
    for batch in _batches(unknown):
        texts = [tokenizer.segment(f" {word}") for word, _ in batch]
        encodings = backend.encode_batch(texts, add_special_tokens=False)
        for text, (_, count), encoding in zip(texts, batch, encodings, strict=True):
            for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if index == tokenizer.unk_id:
                    lost[text[start:end]] += count
    return _letters(lost)


def _pieces(tokenizer: TextTokenizer, word: str) -> tuple[str, ...]:
    (ids,) = tokenizer.encode_batch([f" {word}"])
    if tokenizer.kind == "byte_bpe":  # its entries are written in stand-ins for bytes
        return tuple(tokenizer.decode([index]).strip() for index in ids)
    return tuple(tokenizer.tokens(ids))


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths by which all differ; whole paths if one is named twice."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*its[-length:])) for its in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]

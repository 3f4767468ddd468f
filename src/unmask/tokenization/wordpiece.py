"""Training of WordPiece (Wu et al. 2016; Devlin et al. 2019) by the `tokenizers` library, the same bytes every time.

The library grows the vocabulary by the most frequent pair of pieces, not by the likelihood that Wu et al. describe;
their code was never released. Three things are done around it. Its trainer numbers the characters that continue a word
in the order of a hash table, so the outcome differs from process to process: here every character, alone and
continuing, is handed to it as a special token, which fixes their numbers, and the model is built afresh from the
vocabulary that comes out. It skips characters outside the alphabet and joins what stood on either side: here such words
are left out whole, since encoding makes them `[UNK]` whole. And it is fed words rather than texts, each as often as it
was counted, so that a corpus is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from unmask.errors import InputError, SettingsError
from unmask.tokenization.pipeline import (
    CONTINUATION_PREFIX,
    MAX_WORD_CHARACTERS,
    SPECIAL_TOKENS,
    directory_files,
    make_backend,
    make_normalizer,
)
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.tokenization.word_counts import WordCounts, count_words

_LATIN_ALPHABET_SIZE = 1000
_HANGUL_OR_HAN_ALPHABET_SIZE = 6000
_HANGUL_OR_HAN_SHARE = 0.01
"""Share of the characters from which on Hangul or Han counts as present: a corpus in English has some of both."""
_HANGUL_AND_HAN = (
    (0x1100, 0x11FF),  # Hangul jamo
    (0x3130, 0x318F),  # Hangul compatibility jamo
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xAC00, 0xD7A3),  # Hangul syllables
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x20000, 0x323AF),  # Han, later extensions
)
_REPETITIONS_AT_ONCE = 4096


@dataclass(frozen=True)
class TrainingReport:
    """What a training saw, and what came of it.

    Attributes:
        vocab_size: entries, special tokens included.
        asked_vocab_size: entries asked for; more than `vocab_size` where the text did not suffice.
        alphabet_size: characters kept.
        num_characters_dropped: distinct characters seen but not kept.
        dropped_character_count: times that one of them was seen.
        dropped_character_share: the same as a share of all characters, white space aside.
        num_words: words seen, punctuation marks included.
        num_distinct_words: distinct ones among them.
        unknown_word_count: words seen that encode as `[UNK]`, for a character dropped or for being too long.
        num_documents: documents learned from.
        num_bytes: bytes of UTF-8 learned from.
        num_documents_read: documents read, the ones left out of the sample included.
        num_bytes_read: likewise bytes.
    """

    vocab_size: int
    asked_vocab_size: int
    alphabet_size: int
    num_characters_dropped: int
    dropped_character_count: int
    dropped_character_share: float
    num_words: int
    num_distinct_words: int
    unknown_word_count: int
    num_documents: int
    num_bytes: int
    num_documents_read: int
    num_bytes_read: int

    def summary(self) -> str:
        """The report in a few lines of prose."""
        lines = [
            f"{self.vocab_size:,} entries from {self.num_words:,} words ({self.num_distinct_words:,} distinct) "
            f"in {self.num_documents:,} documents, {self.num_bytes / 1e6:,.1f} MB",
            f"alphabet of {self.alphabet_size:,} characters; {self.num_characters_dropped:,} rare ones dropped, "
            f"{self.dropped_character_share:.4%} of the text; "
            f"{self.unknown_word_count / self.num_words:.4%} of the words are unknown",
        ]
        if self.num_documents < self.num_documents_read:
            lines.append(f"a sample: {self.num_bytes_read / 1e6:,.1f} MB were read")
        if self.vocab_size < self.asked_vocab_size:
            lines.append(f"fewer than the {self.asked_vocab_size:,} entries asked for: the text gives no more")
        return "\n".join(lines)


def train_wordpiece(
    texts: Iterable[str],
    settings: TokenizerSettings,
    seed: int = 0,
    on_progress: Callable[[str, int], None] | None = None,
) -> tuple[TextTokenizer, TrainingReport]:
    """Trains a WordPiece tokenizer; the same texts, settings and seed give the same bytes.

    Args:
        texts: one document each; gone through once.
        seed: of the sample that is taken where the texts exceed `settings.sample_bytes`.
        on_progress: called with ("reading", bytes read so far) after each document, and with ("learning", bytes
            learned from) once when all is read and the vocabulary is about to grow.

    Raises:
        InputError: no text, or none with a character frequent enough.
        SettingsError: `settings.vocab_size` has no room for the alphabet.
    """
    normalizer = make_normalizer(settings.lowercase, compose=True)

    def report_reading(num_bytes: int) -> None:
        if on_progress is not None:
            on_progress("reading", num_bytes)

    def split(text: str) -> list[str]:
        return _split_words(text, normalizer)

    counts = count_words(texts, split, settings.sample_bytes, seed, report_reading)
    if not counts.words:
        raise InputError(
            f"no text to train on: {counts.num_documents_read} documents were read and none of them holds a word"
        )
    characters = _count_characters(counts.words)
    alphabet = _choose_alphabet(characters, settings)
    base = _base_entries(alphabet, normalizer)
    if settings.vocab_size < len(base):
        raise SettingsError(
            f"a vocabulary of {settings.vocab_size} entries has no room for {len(alphabet)} characters, alone and "
            f"continuing a word, and the special tokens: set vocab_size to {len(base)} at least, or alphabet_size lower"
        )
    if on_progress is not None:
        on_progress("learning", counts.num_bytes)
    known = _known_words(counts.words, alphabet)
    vocab = _grow_vocabulary(known, base, settings)
    backend = make_backend(vocab, normalizer, SPECIAL_TOKENS)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": settings.model_max_length}
    tokenizer = TextTokenizer(backend, SPECIAL_TOKENS, directory_files(backend, SPECIAL_TOKENS, config))
    return tokenizer, _report(settings, counts, known, characters, alphabet, len(vocab))


def _split_words(text: str, normalizer: Normalizer) -> list[str]:
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(text))]


def _count_characters(words: Counter[str]) -> Counter[str]:
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    return characters


def _is_hangul_or_han(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _HANGUL_AND_HAN)


def _choose_alphabet(characters: Counter[str], settings: TokenizerSettings) -> list[str]:
    """The most frequent characters, ascending."""
    size = settings.alphabet_size
    if size is None:
        east_asian = sum(count for character, count in characters.items() if _is_hangul_or_han(character))
        present = east_asian >= _HANGUL_OR_HAN_SHARE * characters.total()
        size = _HANGUL_OR_HAN_ALPHABET_SIZE if present else _LATIN_ALPHABET_SIZE
    frequent = [(-count, character) for character, count in characters.items() if count >= settings.min_character_count]
    if not frequent:
        raise InputError(
            f"no text to train on: no character is seen {settings.min_character_count} times; "
            "give more text, or set min_character_count lower"
        )
    return sorted(character for _, character in sorted(frequent)[:size])


def _base_entries(alphabet: list[str], normalizer: Normalizer) -> list[str]:
    """The entries that need no learning: special tokens, characters, and those characters that can continue a word.

    A punctuation mark or a Han character is always a word of its own, so no entry is spent on continuing with it.
    """
    continuing = [character for character in alphabet if _split_words(f"x{character}", normalizer) == [f"x{character}"]]
    return [*SPECIAL_TOKENS.values(), *alphabet, *(f"{CONTINUATION_PREFIX}{character}" for character in continuing)]


def _known_words(words: Counter[str], alphabet: list[str]) -> Counter[str]:
    """The words that encode as something else than `[UNK]`."""
    kept = set(alphabet)
    return Counter(
        {word: count for word, count in words.items() if len(word) <= MAX_WORD_CHARACTERS and kept.issuperset(word)}
    )


def _grow_vocabulary(words: Counter[str], base: list[str], settings: TokenizerSettings) -> dict[str, int]:
    """Lets the library join pairs of pieces until the vocabulary is full or no pair is frequent enough."""
    trainer = WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_pair_count,
        show_progress=False,
        special_tokens=base,
        continuing_subword_prefix=CONTINUATION_PREFIX,
    )
    learner = Tokenizer(WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    learner.pre_tokenizer = WhitespaceSplit()
    learner.train_from_iterator(_repeat_words(words), trainer)
    vocab = learner.get_vocab()
    return {entry: vocab[entry] for entry in sorted(vocab, key=vocab.__getitem__)}


def _repeat_words(words: Counter[str]) -> Iterator[str]:
    """Each word as often as it was counted, in texts of modest size: the library takes no counts."""
    for word, count in words.items():
        while count > 0:
            repetitions = min(count, _REPETITIONS_AT_ONCE)
            yield f"{word} " * repetitions
            count -= repetitions


def _report(
    settings: TokenizerSettings,
    counts: WordCounts,
    known: Counter[str],
    characters: Counter[str],
    alphabet: list[str],
    vocab_size: int,
) -> TrainingReport:
    num_characters = characters.total()
    dropped = num_characters - sum(characters[character] for character in alphabet)
    num_words = counts.words.total()
    return TrainingReport(
        vocab_size=vocab_size,
        asked_vocab_size=settings.vocab_size,
        alphabet_size=len(alphabet),
        num_characters_dropped=len(characters) - len(alphabet),
        dropped_character_count=dropped,
        dropped_character_share=dropped / num_characters,
        num_words=num_words,
        num_distinct_words=len(counts.words),
        unknown_word_count=num_words - known.total(),
        num_documents=counts.num_documents,
        num_bytes=counts.num_bytes,
        num_documents_read=counts.num_documents_read,
        num_bytes_read=counts.num_bytes_read,
    )

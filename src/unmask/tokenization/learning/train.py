"""Training of a tokenizer, deterministic: counts words, grows a vocabulary, and makes the files of a directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from unmask.corpus.segmenters import SEGMENTERS
from unmask.errors import SettingsError, TooLittleTextError
from unmask.io.progress import human_bytes
from unmask.tokenization.directory import OpenedDirectory, new_files
from unmask.tokenization.encoding.word_cache import pieces_of
from unmask.tokenization.kinds.alphabet import count_characters
from unmask.tokenization.kinds.bpe import BPE
from unmask.tokenization.kinds.byte_bpe import BYTE_BPE
from unmask.tokenization.kinds.kind import Learned, Split, TokenizerKind
from unmask.tokenization.kinds.wordpiece import WORDPIECE
from unmask.tokenization.learning.lost_marks import LostMarks
from unmask.tokenization.learning.word_counts import WordCounts, count_words
from unmask.tokenization.library import word_splitter
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer

TOKENIZERS: dict[str, TokenizerKind] = {"wordpiece": WORDPIECE, "bpe": BPE, "byte_bpe": BYTE_BPE}
"""`TokenizerSettings.kind` -> the family to train."""


@dataclass(frozen=True)
class TrainingReport:
    """The data and the results of a training."""

    vocab_size: int  # entries, special tokens included
    asked_vocab_size: int  # entries requested; more than `vocab_size` if there was too little text
    alphabet_size: int  # characters kept; bytes, for `byte_bpe`
    num_characters_dropped: int  # distinct characters seen but not kept
    dropped_character_count: int  # their occurrences
    dropped_character_share: float  # their occurrences as a share of all characters but white space
    num_words: int  # words seen, punctuation marks included
    num_distinct_words: int  # distinct words among them
    # words seen that encode to an unknown token, because of a dropped character or their length
    unknown_word_count: int
    num_documents: int  # documents learned from
    num_bytes: int  # bytes of UTF-8 learned from
    num_documents_read: int  # documents read, including those left out of the sample
    num_bytes_read: int  # likewise bytes

    @classmethod
    def of(
        cls,
        counts: WordCounts,
        *,
        vocab_size: int,
        asked_vocab_size: int,
        alphabet_size: int,
        num_known_words: int,
        dropped: Counter[str],
        num_characters: int,
    ) -> TrainingReport:
        """Of the words counted, those known, and the characters dropped of all that were seen."""
        num_words = counts.words.total()
        return cls(
            vocab_size=vocab_size,
            asked_vocab_size=asked_vocab_size,
            alphabet_size=alphabet_size,
            num_characters_dropped=len(dropped),
            dropped_character_count=dropped.total(),
            dropped_character_share=dropped.total() / max(1, num_characters),
            num_words=num_words,
            num_distinct_words=len(counts.words),
            unknown_word_count=num_words - num_known_words,
            num_documents=counts.num_documents,
            num_bytes=counts.num_bytes,
            num_documents_read=counts.num_documents_read,
            num_bytes_read=counts.num_bytes_read,
        )

    def summary(self) -> str:
        """The report in a few lines of prose."""
        lines = [
            f"{self.vocab_size:,} entries from {self.num_words:,} words ({self.num_distinct_words:,} distinct) "
            f"in {self.num_documents:,} documents, {human_bytes(self.num_bytes)}",
            f"alphabet of {self.alphabet_size:,} characters; {self.num_characters_dropped:,} rare ones dropped, "
            f"{self.dropped_character_share:.4%} of the text; "
            f"{self.unknown_word_count / self.num_words:.4%} of the words are unknown",
        ]
        if self.num_documents < self.num_documents_read:
            lines.append(f"a sample: {human_bytes(self.num_bytes_read)} were read")
        return "\n".join(lines)


def learn_tokenizer(
    texts: Iterable[str],
    settings: TokenizerSettings,
    seed: int = 0,
    announce: Callable[[int, int], None] = lambda _entries, _words: None,
) -> tuple[TextTokenizer, TrainingReport]:
    """Trains a tokenizer; the same texts, settings and seed give the same bytes.

    Args:
        texts: one document each; iterated once.
        seed: of the sample that is taken if the texts exceed `settings.sample_bytes`.
        announce: is called once all texts are read, before the vocabulary grows, which the library does without a word:
            with the most entries that it will have, and with the number of distinct words.

    Raises:
        InputError: there is no text, or no character is frequent enough.
        SettingsError: the vocabulary has no room for the alphabet, a further special token is an ordinary word or an
            entry already, or the installed `tokenizers` library cannot train.
    """
    family = TOKENIZERS[settings.kind]
    lowercase = family.lowercase if settings.lowercase is None else settings.lowercase
    normalizer = family.normalizer(lowercase, settings.strip_accents)
    split = word_splitter(normalizer, family.pre_tokenizer)
    _refuse_words(settings.extra_special_tokens, split)
    _refuse_entries(settings.extra_special_tokens, family.reserved_entries(settings.unused_slots, ()))
    reserved = family.reserved_entries(settings.unused_slots, settings.extra_special_tokens)
    segment = str if settings.segmenter == "none" else SEGMENTERS[settings.segmenter]()

    def pre_tokens(text: str) -> Iterable[str]:
        return chain.from_iterable(map(family.pre_tokens, pieces_of(segment(text))))

    lost = LostMarks() if settings.strip_accents is None and split("é") == ["e"] else None
    counts = count_words(texts, split, settings.sample_bytes, seed, pre_tokens, lost.see if lost else None)
    if not counts.words:
        raise TooLittleTextError(
            f"no text to train on: {counts.num_documents_read} documents were read and none of them holds a word"
        )
    characters = count_characters(counts.words)
    if lost:
        num_letters = sum(count for character, count in characters.items() if character.isalpha())
        lost.warn(num_letters, ", or take --preset bert-cased" if family is WORDPIECE else "")
    alphabet = family.alphabet(characters, settings)
    base = family.base(alphabet, split)
    capacity = _capacity(settings, family, len(reserved), base, alphabet)
    announce(len(reserved) + capacity, len(counts.words))
    known = _known_words(counts.words, alphabet, family.max_word_characters)
    learned = family.grow(known, base, num_entries=capacity, min_pair_count=settings.min_pair_count)
    if learned.merges is not None and settings.num_merges is not None and len(learned.merges) >= settings.num_merges:
        learned = Learned.of_merges(base, learned.merges[: settings.num_merges])
        capacity = len(learned.entries)
    _refuse_entries(settings.extra_special_tokens, learned.entries)
    vocab = {entry: index for index, entry in enumerate([*reserved, *learned.entries])}
    assert len(vocab) == len(reserved) + len(learned.entries), "an entry equals a special token"
    definition = family.define(vocab, learned.merges, family.special_tokens, settings.extra_special_tokens, normalizer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": settings.model_max_length,
        **({"additional_special_tokens": settings.extra_special_tokens} if settings.extra_special_tokens else {}),
    }
    files = new_files(definition, family.special_tokens, config, family.has_segments, settings.segmenter)
    tokenizer = TextTokenizer(OpenedDirectory(files, dict(family.special_tokens), settings.segmenter))
    dropped = Counter({character: characters[character] for character in characters.keys() - set(alphabet)})
    return tokenizer, TrainingReport.of(
        counts,
        vocab_size=len(vocab),
        asked_vocab_size=len(reserved) + capacity,
        alphabet_size=len(alphabet),
        num_known_words=known.total(),
        dropped=dropped,
        num_characters=characters.total(),
    )


def _refuse_words(tokens: tuple[str, ...], split: Split) -> None:
    for token in tokens:
        if len(split(token)) < 2:
            raise SettingsError(
                f"extra_special_tokens: {token!r} is an ordinary word, which text could hold by chance: "
                f"give it a mark, as in [{token}]"
            )


def _refuse_entries(tokens: tuple[str, ...], entries: list[str]) -> None:
    repeated = [token for token in tokens if token in entries]
    if repeated:
        raise SettingsError(
            f"extra_special_tokens: {repeated[0]!r} is an entry of the vocabulary already: leave it out, or give it "
            "another name"
        )


def _capacity(
    settings: TokenizerSettings, family: TokenizerKind, num_reserved: int, base: list[str], alphabet: list[str]
) -> int:
    """How many entries there may be besides the reserved ones."""
    if settings.num_merges is not None:
        return len(base) + settings.num_merges
    least = num_reserved + len(base)
    if settings.vocab_size < least:
        raise SettingsError(
            f"a vocabulary of {settings.vocab_size} entries has no room for the {len(base)} entries of an alphabet of "
            f"{len(alphabet)} and the {num_reserved} special and unused ones: set vocab_size to {least} at least"
            + (", or alphabet_size lower" if family is not BYTE_BPE else "")
        )
    return settings.vocab_size - num_reserved


def _known_words(words: Counter[str], alphabet: list[str], longest: int | None) -> Counter[str]:
    """The words that encode without unknown tokens."""
    kept = set(alphabet)
    return Counter(
        {
            word: count
            for word, count in words.items()
            if (longest is None or len(word) <= longest) and kept.issuperset(word)
        }
    )

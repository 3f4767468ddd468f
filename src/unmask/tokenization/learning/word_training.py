"""Training of ELMo's tokenizer: counts the words of a corpus; the most frequent become the output vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from unmask.errors import SettingsError, TooLittleTextError
from unmask.tokenization.kinds.word_characters import MAX_CHARACTERS, SPECIAL_WORDS, WordTokenizer
from unmask.tokenization.learning.train import TrainingReport
from unmask.tokenization.learning.word_counts import count_words
from unmask.tokenization.settings import TokenizerSettings

_MIN_COUNT = 2
"""Words seen only once are left out: as `<UNK>`, they teach the model how likely unknown words are."""
_NUM_BYTES = 256


def train_word_tokenizer(
    texts: Iterable[str], settings: TokenizerSettings, seed: int = 0
) -> tuple[WordTokenizer, TrainingReport]:
    """Trains a tokenizer; the same texts, settings and seed give the same bytes.

    Args:
        texts: one document each; iterated once.
        settings: `vocab_size`, special words included, `lowercase` (None keeps both cases) and `sample_bytes`.
        seed: of the sample that is taken if the texts exceed `settings.sample_bytes`.

    Raises:
        InputError: there is no text, or no word occurs twice.
        SettingsError: any other setting is given.
    """
    _refuse_others(settings)
    tokenizer = WordTokenizer(SPECIAL_WORDS, MAX_CHARACTERS, bool(settings.lowercase))
    counts = count_words(texts, tokenizer.words, settings.sample_bytes, seed)
    capacity = settings.vocab_size - len(SPECIAL_WORDS)
    by_frequency = sorted(counts.words.items(), key=lambda item: (-item[1], item[0]))
    kept = [(word, count) for word, count in by_frequency[:capacity] if count >= _MIN_COUNT]
    if not kept:
        raise TooLittleTextError(
            f"too little text to train on: {counts.num_documents_read} document(s) were read, and no word is in "
            f"them {_MIN_COUNT} times, which is what it takes to be an entry (no setting changes that): give more text"
        )
    report = TrainingReport.of(
        counts,
        vocab_size=len(SPECIAL_WORDS) + len(kept),
        asked_vocab_size=settings.vocab_size,
        alphabet_size=_NUM_BYTES,
        num_known_words=sum(count for _, count in kept),
        dropped=Counter(),
        num_characters=0,
    )
    return WordTokenizer([*SPECIAL_WORDS, *(word for word, _ in kept)], MAX_CHARACTERS, tokenizer.lowercase), report


def _refuse_others(settings: TokenizerSettings) -> None:
    used = {"kind", "vocab_size", "lowercase", "sample_bytes"}
    unused = settings.model_dump(exclude=used, exclude_defaults=True)
    if unused:
        raise SettingsError(
            f"tokenizer.{next(iter(unused))} is not for a tokenizer of words, whose vocabulary is the most frequent "
            "ones: leave it out"
        )

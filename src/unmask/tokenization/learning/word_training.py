"""Training of ELMo's tokenizer: counts the words of a corpus; the most frequent become the output vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unmask.errors import SettingsError, TooLittleTextError
from unmask.tokenization.kinds.word_characters import MAX_CHARACTERS, SPECIAL_WORDS, WordTokenizer
from unmask.tokenization.learning.train import TrainingReport
from unmask.tokenization.learning.word_counts import count_words
from unmask.tokenization.settings import TokenizerSettings

_MIN_COUNT = 2
"""Words seen only once are left out: as `<UNK>`, they teach the model how likely unknown words are."""
_NUM_BYTES = 256


def train_word_tokenizer(
    texts: Iterable[str],
    settings: TokenizerSettings,
    seed: int = 0,
    on_progress: Callable[[str, int], None] | None = None,
) -> tuple[WordTokenizer, TrainingReport]:
    """Trains a tokenizer; the same texts, settings and seed give the same bytes.

    Args:
        texts: one document each; iterated once.
        settings: `vocab_size`, special words included, `lowercase` (None keeps both cases) and `sample_bytes`.
        seed: of the sample that is taken if the texts exceed `settings.sample_bytes`.
        on_progress: as in `unmask.tokenization.learning.train.train_tokenizer`.

    Raises:
        InputError: there is no text, or no word occurs twice.
        SettingsError: any other setting is given.
    """
    _refuse_others(settings)
    tokenizer = WordTokenizer(SPECIAL_WORDS, MAX_CHARACTERS, bool(settings.lowercase))

    def report_reading(num_bytes: int) -> None:
        if on_progress is not None:
            on_progress("reading", num_bytes)

    counts = count_words(texts, tokenizer.words, settings.sample_bytes, seed, report_reading)
    if on_progress is not None:
        on_progress("learning", counts.num_bytes)
    room = settings.vocab_size - len(SPECIAL_WORDS)
    by_frequency = sorted(counts.words.items(), key=lambda item: (-item[1], item[0]))
    kept = [(word, count) for word, count in by_frequency[:room] if count >= _MIN_COUNT]
    if not kept:
        raise TooLittleTextError(
            f"too little text to train on: {counts.num_documents_read} document(s) were read, and no word stands in "
            f"them {_MIN_COUNT} times, which is what it takes to be an entry (no setting changes that): give more text"
        )
    num_words = counts.words.total()
    report = TrainingReport(
        vocab_size=len(SPECIAL_WORDS) + len(kept),
        asked_vocab_size=settings.vocab_size,
        alphabet_size=_NUM_BYTES,
        num_characters_dropped=0,
        dropped_character_count=0,
        dropped_character_share=0.0,
        num_words=num_words,
        num_distinct_words=len(counts.words),
        unknown_word_count=num_words - sum(count for _, count in kept),
        num_documents=counts.num_documents,
        num_bytes=counts.num_bytes,
        num_documents_read=counts.num_documents_read,
        num_bytes_read=counts.num_bytes_read,
    )
    return WordTokenizer([*SPECIAL_WORDS, *(word for word, _ in kept)], MAX_CHARACTERS, tokenizer.lowercase), report


def _refuse_others(settings: TokenizerSettings) -> None:
    unused = {
        "num_merges": settings.num_merges is not None,
        "segmenter": settings.segmenter != "none",
        "unused_slots": settings.unused_slots > 0,
        "extra_special_tokens": bool(settings.extra_special_tokens),
    }
    given = [name for name, is_given in unused.items() if is_given]
    if given:
        raise SettingsError(
            f"tokenizer.{given[0]} is not for a tokenizer of words, whose vocabulary is the most frequent ones: "
            "leave it out"
        )

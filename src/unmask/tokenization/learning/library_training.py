"""Learning by the `tokenizers` library, made deterministic.

Its trainers number the pieces that begin, continue or end a word in the order of a hash table, which differs from
process to process, and break ties by these numbers. So every entry of the base is given to them as a special token,
which fixes its number, and only the resulting vocabulary and merges are used. They accept no counts, so every word is
given as often as it occurred.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from unmask.tokenization.kinds.kind import Learned

LONGEST_WORD = 400
"""In characters or bytes. Longer words, which no language has, are ignored."""

_REPETITIONS_AT_ONCE = 4096


def grow_wordpiece(
    words: Counter[str], base: list[str], prefix: str, *, num_entries: int, min_pair_count: int
) -> Learned:
    """Joins pairs of pieces until the vocabulary is full or no pair is frequent enough; arguments as in `Grow`.

    Args:
        words, base, num_entries, min_pair_count: see `unmask.tokenization.kinds.kind.Grow`.
        prefix: of pieces that continue a word.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.trainers import WordPieceTrainer

    trainer = WordPieceTrainer(
        vocab_size=num_entries,
        min_frequency=min_pair_count,
        show_progress=False,
        special_tokens=base,
        continuing_subword_prefix=prefix,
    )
    learner = Tokenizer(WordPiece(continuing_subword_prefix=prefix))
    learner.pre_tokenizer = WhitespaceSplit()
    learner.train_from_iterator(_repeat_words(words), trainer)
    vocab = learner.get_vocab()
    return Learned(sorted(vocab, key=vocab.__getitem__))


def grow_bpe(words: Counter[str], base: list[str], suffix: str, *, num_entries: int, min_pair_count: int) -> Learned:
    """Merges pairs of pieces (Sennrich et al. 2016) until the vocabulary is full or no pair is frequent enough.

    Args:
        words, base, num_entries, min_pair_count: see `unmask.tokenization.kinds.kind.Grow`; the library needs every
            character in the base without the suffix, even one that only ever ends a word.
        suffix: of pieces that end a word; may be empty.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.trainers import BpeTrainer

    marked = {"end_of_word_suffix": suffix} if suffix else {}
    trainer = BpeTrainer(
        vocab_size=num_entries,
        min_frequency=min_pair_count,
        show_progress=False,
        special_tokens=base,
        **marked,  # type: ignore[arg-type]
    )
    learner = Tokenizer(BPE(**marked))
    learner.pre_tokenizer = WhitespaceSplit()
    learner.train_from_iterator(_repeat_words(words), trainer)
    merges = [(first, second) for first, second in json.loads(learner.to_str())["model"]["merges"]]
    return Learned.of_merges(base, merges)


def _repeat_words(words: Counter[str]) -> Iterator[str]:
    """Each word as often as it was counted, in texts of limited size."""
    for word, count in words.items():
        if len(word) > LONGEST_WORD:
            continue
        while count > 0:
            repetitions = min(count, _REPETITIONS_AT_ONCE)
            yield f"{word} " * repetitions
            count -= repetitions

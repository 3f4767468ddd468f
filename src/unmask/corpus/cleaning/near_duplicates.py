"""Near-duplicates, found in one pass by MinHash and locality-sensitive hashing; needs the extra `near-duplicates`.

The similarity of two documents is that of their sets of word 5-grams: shared ones / all ones (Jaccard). Words are
separated by white space, in Korean as in English; so in text written without spaces (Chinese, Japanese, Thai) little
but equal lines is found. The similarity is estimated from 128 hashes per document, with a standard error of at most
0.045 (sqrt(J (1 - J) / 128)). Of two similar documents the earlier stays; later ones are not compared with dropped
ones.

Broder, "On the resemblance and containment of documents" (1997). `rensa` does the hashing: 43 MB of Wikipedia's text a
second on one core, where `datasketch` 2.0 did 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unmask.corpus.cleaning.draft import Draft
from unmask.errors import SettingsError

SHINGLE_WORDS = 5
NUM_HASHES = 128
LEAST_RECALL = 0.85
"""The least share of pairs right at the threshold that become candidates; their hashes are then compared one by one."""

_SEED = 1
_PIECE_CHARACTERS = 1 << 20


def drop_near_duplicates(drafts: Iterable[Draft], threshold: float) -> Iterator[Draft]:
    """Drops documents that are similar to an earlier one.

    Args:
        threshold: the least Jaccard similarity, 0..1, at which a document is dropped.

    Raises:
        SettingsError: `rensa` is not installed.
    """
    try:
        import rensa
    except ImportError as error:
        raise SettingsError(
            "near_duplicates needs the package rensa: install it with pip install 'unmask[near-duplicates]', or leave "
            "that setting out"
        ) from error
    kept = rensa.RMinHashDeduplicator(threshold, NUM_HASHES, use_lsh=True, num_bands=num_bands(threshold), seed=_SEED)
    for number, draft in enumerate(drafts):
        if draft.dropped is None:
            sketch = rensa.RMinHash(NUM_HASHES, _SEED)
            sketch.update(shingles(draft.text))
            if not kept.add(str(number), sketch):
                draft.drop("near-duplicate")
        yield draft


def estimate_memory(num_documents: int, threshold: float) -> int:
    """Most bytes of memory that this many documents take.

    Memory measured with `rensa` 0.5 on up to 400,000 documents, just after its tables have grown, is 70 to 100 % of
    this.
    """
    return num_documents * (1000 + 125 * num_bands(threshold))


def num_bands(threshold: float) -> int:
    """Into how many bands the hashes are cut: the fewest that find `LEAST_RECALL` of the pairs at the threshold."""
    for num_rows in (8, 4, 2):
        bands = NUM_HASHES // num_rows
        if 1 - (1 - threshold**num_rows) ** bands >= LEAST_RECALL:
            return bands
    return NUM_HASHES


def shingles(text: str) -> Iterator[str]:
    """Every run of five words of a text, joined by spaces; of a shorter text, all of it.

    A large text is split piece by piece, since a list of its words takes many times its memory.
    """
    before: list[str] = []
    start = 0
    while start < len(text):
        space = text.find(" ", start + _PIECE_CHARACTERS)
        end = len(text) if space < 0 else space
        words = before + text[start:end].split()
        yield from map(" ".join, zip(*(words[first:] for first in range(SHINGLE_WORDS)), strict=False))
        before = words[1 - SHINGLE_WORDS :]
        if start == 0 and len(words) < SHINGLE_WORDS:
            yield " ".join(words)
        start = end

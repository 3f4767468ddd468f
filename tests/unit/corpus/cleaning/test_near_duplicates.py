"""Near-duplicates: planted ones are found, and nothing else is."""

from __future__ import annotations

import random
import sys

import pytest

import unmask.corpus.cleaning.near_duplicates as near_duplicates
from unmask.corpus.cleaning.draft import Draft
from unmask.corpus.cleaning.near_duplicates import drop_near_duplicates, estimate_memory, num_bands, shingles
from unmask.errors import SettingsError


def decide(texts: list[str], threshold: float = 0.8) -> list[str | None]:
    drafts = [Draft(text, str(number), 0, 0) for number, text in enumerate(texts)]
    return [draft.dropped for draft in drop_near_duplicates(drafts, threshold)]


def jaccard(first: str, second: str) -> float:
    one, other = set(shingles(first)), set(shingles(second))
    return len(one & other) / len(one | other)


def words(generator: random.Random, count: int, letters: str) -> list[str]:
    return ["".join(generator.choices(letters, k=4)) for _ in range(count)]


def changed(text: list[str], generator: random.Random, num_changes: int) -> list[str]:
    """A text with some of its words replaced, each at least ten words from the next and five from the ends."""
    step = len(text) // num_changes
    copy = list(text)
    for number in range(num_changes):
        copy[number * step + generator.randrange(5, step - 5)] = "other"
    return copy


@pytest.mark.parametrize("letters", ["abcdefghijklmnop", "가나다라마바사아자차카타파하"])
def test_planted_near_duplicates_are_found_and_nothing_else_is_dropped(letters: str) -> None:
    generator = random.Random(0)
    originals = [words(generator, 300, letters) for _ in range(200)]
    # Of 296 shingles a changed word takes 5: 2 changes leave a similarity of 286 / 306 = .93, 12 one of .66.
    near = [" ".join(changed(text, generator, 2)) for text in originals]
    far = [" ".join(changed(text, generator, 12)) for text in originals]
    texts = [" ".join(text) for text in originals]
    assert all(0.92 < jaccard(text, copy) < 0.95 for text, copy in zip(texts, near, strict=True))
    assert all(0.64 < jaccard(text, copy) < 0.68 for text, copy in zip(texts, far, strict=True))
    decisions = decide([*texts, *near, *far])
    assert decisions[:200] == [None] * 200
    # The estimate's standard error is .023 at .93 and .042 at .66: .80 is 5.7 and 3.3 of them away, so that of 200
    # at most one may go wrong by chance.
    assert decisions[200:400].count("near-duplicate") >= 199
    assert decisions[400:].count(None) >= 199


def test_the_first_stays_and_a_dropped_one_is_no_measure() -> None:
    generator = random.Random(0)
    first = words(generator, 400, "abcdefgh")
    second = changed(first, generator, 4)  # .9 like the first
    third = changed(second, generator, 20)  # less than .7 like either
    texts = [" ".join(text) for text in (first, second, third, first)]
    assert decide(texts) == [None, "near-duplicate", None, "near-duplicate"]


def test_dropped_documents_are_neither_kept_nor_compared() -> None:
    text = " ".join(words(random.Random(0), 50, "abc"))
    first, second = Draft(text, "1", 0, 0), Draft(text, "2", 0, 0)
    first.drop("too short")
    assert [draft.dropped for draft in drop_near_duplicates([first, second], 0.8)] == ["too short", None]


def test_short_texts_are_compared_whole() -> None:
    assert decide(["one two", "one three", "one  two", "three", "four"]) == [None, None, "near-duplicate", None, None]


def test_shingles_are_runs_of_five_words() -> None:
    assert list(shingles("a b  c\nd e f")) == ["a b c d e", "b c d e f"]
    assert list(shingles("a b")) == ["a b"]


def test_a_large_text_is_split_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(map(str, range(1_000)))
    expected = list(shingles(text))
    for size in (1, 3, 50, 777):
        monkeypatch.setattr(near_duplicates, "_PIECE_CHARACTERS", size)
        found = list(shingles(text))
        assert [shingle for shingle in found if shingle.count(" ") == 4] == expected
        assert len(found) - len(expected) <= 1  # a first piece of less than five words counts as well


def test_bands_find_most_pairs_at_the_threshold() -> None:
    assert [num_bands(threshold) for threshold in (0.1, 0.3, 0.5, 0.7, 0.8, 0.95)] == [128, 64, 32, 32, 16, 16]


def test_memory_is_told_by_document_and_as_a_whole() -> None:
    assert estimate_memory(1_000_000, 0.8) == 3_000_000_000
    assert estimate_memory(10, 0.5) > estimate_memory(10, 0.8) > estimate_memory(9, 0.8)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(SettingsError, match=r"pip install 'unmask\[near-duplicates\]'"):
        decide(["a"])

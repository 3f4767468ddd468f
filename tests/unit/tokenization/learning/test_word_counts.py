"""Counting words in one pass, and the sample that is taken of a corpus above the budget."""

from __future__ import annotations

from collections import Counter

from unmask.tokenization.learning.word_counts import count_words


def documents(count: int) -> list[str]:
    return [f"common document{index:05d}" for index in range(count)]


def test_counts_split_words_of_every_text() -> None:
    counts = count_words(["a-b a", "b  a-b\n"], lambda chunk: chunk.split("-"), sample_bytes=1000, seed=0)
    assert counts.words == Counter({"a": 3, "b": 3})
    assert (counts.num_documents, counts.num_bytes) == (2, len("a-b a") + len("b  a-b\n"))


def test_a_corpus_within_the_budget_is_counted_whole() -> None:
    texts = documents(100)
    counts = count_words(texts, lambda chunk: [chunk], sample_bytes=sum(map(len, texts)), seed=3)
    assert counts.words["common"] == counts.num_documents == counts.num_documents_read == 100


def test_a_larger_corpus_is_sampled_to_between_half_the_budget_and_all_of_it() -> None:
    texts = documents(20_000)
    budget = 40_000
    counts = count_words(texts, lambda chunk: [chunk], sample_bytes=budget, seed=3)
    # Half the budget, less four standard deviations of a binomial of some 1,000 documents.
    assert 0.43 * budget < counts.num_bytes <= budget
    assert counts.words["common"] == counts.num_documents == len(counts.words) - 1
    assert counts.num_documents_read == 20_000
    assert counts.num_bytes_read == sum(map(len, texts))
    # Taken from all over the corpus, not from its head.
    second_half = sum(word >= "document10000" for word in counts.words)
    assert 0.4 < second_half / counts.num_documents < 0.6


def test_the_sample_is_a_function_of_the_seed() -> None:
    texts = documents(2_000)

    def sample(seed: int) -> Counter[str]:
        return count_words(texts, lambda chunk: [chunk], sample_bytes=4_000, seed=seed).words

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_one_document_above_the_budget_is_kept() -> None:
    counts = count_words(["word " * 1000], lambda chunk: [chunk], sample_bytes=10, seed=0)
    assert counts.words == Counter({"word": 1000})

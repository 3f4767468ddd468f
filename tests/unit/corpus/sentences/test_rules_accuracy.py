"""Sentence boundaries against hand-marked lines of real text: the F1 that the built-in rules must keep.

The figures beside the published splitters are `benchmarks/sentences.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from unmask.corpus.sentences.rules import split_sentences

MARKED = Path(__file__).parent / "marked"
MARK = "␞"
NUM_LINES = {"english": 300, "korean": 300, "korean_reviews": 80}
LEAST_F1 = {"english": 0.95, "korean": 0.93}


@dataclass(frozen=True)
class MarkedLine:
    """A line and where its sentences start by hand, the first one left out: there is nothing to find."""

    text: str
    starts: frozenset[int]


def parse(marked: str) -> MarkedLine:
    sentences = marked.split(MARK)
    starts = [sum(map(len, sentences[:index])) for index in range(1, len(sentences))]
    return MarkedLine("".join(sentences), frozenset(starts))


def read_marked(language: str) -> list[MarkedLine]:
    lines = (MARKED / f"{language}.txt").read_text("utf-8").split("\n")
    return [parse(line) for line in lines if line and not line.startswith("#")]


def boundary_f1(marked: list[MarkedLine], found: list[frozenset[int]]) -> float:
    """The harmonic mean of precision and recall over the boundaries within lines."""
    hits = sum(len(line.starts & starts) for line, starts in zip(marked, found, strict=True))
    return 2 * hits / sum(len(line.starts) + len(starts) for line, starts in zip(marked, found, strict=True))


def find_starts(text: str) -> frozenset[int]:
    return frozenset(start for start, _ in split_sentences(text)[1:])


def test_the_measure_by_hand() -> None:
    marked = [parse("It rained. ␞We stayed. ␞Did you?"), parse("Yes."), parse("a.␞B")]
    assert marked[0] == MarkedLine("It rained. We stayed. Did you?", frozenset({11, 22}))
    assert marked[2] == MarkedLine("a.B", frozenset({2}))
    # Found: one of three marks, and one that is none. Precision 1/2, recall 1/3.
    assert boundary_f1(marked, [frozenset({11, 14}), frozenset(), frozenset()]) == pytest.approx(2 / 5)


@pytest.mark.parametrize("name", NUM_LINES)
def test_marked_lines_are_as_their_head_says(name: str) -> None:
    marked = read_marked(name)
    assert len(marked) == len({line.text for line in marked}) == NUM_LINES[name]
    assert sum(len(line.starts) for line in marked) > len(marked)
    for line in marked:
        assert line.text == line.text.strip()
        assert len(line.text.splitlines()) == 1
        assert all(0 < start < len(line.text) and not line.text[start].isspace() for start in line.starts)


def test_further_reviews_are_other_ones() -> None:
    texts = [{line.text for line in read_marked(name)} for name in ("korean", "korean_reviews")]
    assert texts[0].isdisjoint(texts[1])
    assert min(map(len, texts[1])) >= 60, "as its head says"


@pytest.mark.parametrize("language", LEAST_F1)
def test_boundaries_are_found(language: str) -> None:
    marked = read_marked(language)
    f1 = boundary_f1(marked, [find_starts(line.text) for line in marked])
    assert f1 >= LEAST_F1[language], f"{language}: F1 {f1:.4f}"

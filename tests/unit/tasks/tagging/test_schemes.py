"""Schemes of tags: told apart, turned into BIO, repaired; entities are those that seqeval reads."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, Entities

from unmask.tasks.tagging.schemes import (
    Entity,
    Scheme,
    are_bio,
    complete_labels,
    detect_scheme,
    find_entities,
    inside,
    split_tag,
    to_bio,
)

any_tag = st.one_of(st.just("O"), st.builds("{}-{}".format, st.sampled_from("BIES"), st.sampled_from(["PER", "a-b"])))
bio_tag = st.one_of(st.just("O"), st.builds("{}-{}".format, st.sampled_from("BI"), st.sampled_from(["PER", "a-b"])))


@pytest.mark.parametrize(
    ("scheme", "tags", "bio", "broken"),
    [
        ("BIO", "B-P I-P O B-P B-P", "B-P I-P O B-P B-P", []),
        ("BIO", "I-P I-P O B-P I-Q", "B-P I-P O B-P B-Q", [0, 4]),
        ("IOB1", "I-P I-P B-P I-P O I-Q I-P", "B-P I-P B-P I-P O B-Q B-P", []),
        ("IOBES", "S-P B-P I-P E-P O B-Q E-Q", "B-P B-P I-P I-P O B-Q I-Q", []),
        ("IOBES", "U-P B-P I-P L-P O B-Q L-Q", "B-P B-P I-P I-P O B-Q I-Q", []),
        ("IOBES", "B-P O E-P I-P E-P I-P", "B-P O B-P B-P I-P B-P", [0, 2, 3, 5]),
        ("none", "NOUN X-Y O", "NOUN X-Y O", []),
    ],
)
def test_schemes_become_bio(scheme: Scheme, tags: str, bio: str, broken: list[int]) -> None:
    assert to_bio(tags.split(), scheme) == (bio.split(), broken)


@given(st.lists(any_tag, max_size=12), st.sampled_from(["BIO", "IOB1", "IOBES"]))
def test_bio_tags_hold_the_same_entities_and_are_whole(tags: list[str], scheme: Scheme) -> None:
    bio, _ = to_bio(tags, scheme)
    assert find_entities(bio) == find_entities(tags)
    assert to_bio(bio, "BIO") == (bio, [])
    assert find_entities(bio, strict=True) == find_entities(bio)


@given(st.lists(any_tag, max_size=12))
def test_entities_are_those_of_seqeval(tags: list[str]) -> None:
    expected = [Entity(label, first, last + 1) for label, first, last in get_entities(tags)]
    assert find_entities(tags) == expected


@given(st.lists(bio_tag, max_size=12))
def test_strict_entities_are_those_of_seqeval(tags: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected,) = Entities([tags], IOB2).entities
    assert find_entities(tags, strict=True) == [Entity(one.tag, one.start, one.end) for one in expected]


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["B-P I-P O", "O O"], "BIO"),
        (["B-P I-P O", "I-P O"], "BIO"),  # one mistake
        (["I-P I-P O", "I-P B-P O"], "IOB1"),
        (["I-P O"], "IOB1"),
        (["O O", "O"], "BIO"),
        (["O S-P", "B-P E-P"], "IOBES"),
        (["O U-P", "B-P L-P"], "IOBES"),
        (["NOUN VERB", "X"], "none"),
        (["B-P O", "PER O"], "BIO"),  # and a mistake
        (["NN I-don't-know VB"], "none"),
        (["B-P I-P", "B-Q"], "BIO"),
        ([""], "none"),
        (["I-P O I-P", "B-P O", "I-Q I-P", "I-P", "O B-Q I-Q"], "IOB1"),  # and two mistakes
        (["B-P O B-P", "I-P O"], "BIO"),
        (["I-P O I-P O I-P", "B-P O B-P"], "BIO"),  # more of them with I, but no two thirds
        (["I-P O I-P O I-P O I-P O I-P", "B-P O B-P"], "IOB1"),
        (["B-P I-P O B-P", "S-P O"], "BIO"),
        (["S-P B-P E-P O S-P", "B-P O"], "IOBES"),
    ],
)
def test_schemes_are_told_apart(sentences: list[str], scheme: Scheme) -> None:
    assert detect_scheme(sentence.split() for sentence in sentences) == scheme


def test_labels_are_complete_and_sorted() -> None:
    assert complete_labels(["I-b", "O", "B-a"]) == ("O", "B-a", "I-a", "B-b", "I-b")
    assert complete_labels(["B-a"]) == ("O", "B-a", "I-a")
    assert complete_labels(["O", "O"]) == ("O",)


def test_tags_taken_apart() -> None:
    assert split_tag("B-creative-work") == ("B", "creative-work")
    assert split_tag("U-x") == ("S", "x")
    assert split_tag("O") == ("O", "")
    assert [split_tag(tag) for tag in ("B-", "PER", "-LRB-", "", "b-PER", "BPER")] == [None] * 6
    assert [inside(tag) for tag in ("B-a", "I-a", "O", "NOUN")] == ["I-a", "I-a", "O", "NOUN"]
    assert are_bio(["O", "B-a"])
    assert are_bio(["O"])
    assert not are_bio([])
    assert not are_bio(["O", "NOUN"])

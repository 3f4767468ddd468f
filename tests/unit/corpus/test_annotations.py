"""Annotations: what is no annotation, how they follow the text through cleaning, which tokens they cover."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.corpora import SKIP
from support.files import write_rows
from support.stores import make_annotated_store, make_store
from support.templates import BERT
from unmask.corpus.annotations import KINDS, Annotation, annotation_fault
from unmask.corpus.cleaning.cleaning import clean
from unmask.corpus.cleaning.draft import Draft
from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.pipeline import read_documents
from unmask.corpus.sentences.rules import split_sentences
from unmask.corpus.settings import CleaningSettings
from unmask.errors import InputError, SettingsError
from unmask.packing.annotation_columns import annotation_column, check_annotations
from unmask.packing.planning import PlannedSequence, Span
from unmask.packing.sequences import pack_sequences
from unmask.store.annotation_places import keep_longest
from unmask.store.encoding import ChunkEncoder, cut_chunks
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.learning.word_training import train_word_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer

# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ({"start": 0}, "'spans': {\"start\": 0}: expected"),
        ("0-4", "'spans': \"0-4\": expected"),
        ([[0, 4, "entity"], {"start": 0, "end": 4}], 'item 2: {"start": 0, "end": 4} in a text of 16 characters: exp'),
        ([[0, 4]], "item 1: [0, 4] in"),
        ([[0.0, 4, "entity"]], 'item 1: [0.0, 4, "entity"] in'),
        ([[0, "4", "entity"]], 'item 1: [0, "4", "entity"] in'),
        ([[False, True, "entity"]], 'item 1: [false, true, "entity"] in'),
        ([[0, 4, "person"]], 'item 1: [0, 4, "person"] in'),
        ([[0, 4, ["entity"]]], 'item 1: [0, 4, ["entity"]] in'),
        ([[4, 4, "entity"]], 'item 1: [4, 4, "entity"] in'),
        ([[4, 2, "noun_phrase"]], 'item 1: [4, 2, "noun_phrase"] in'),
        ([[-2, 2, "entity"]], 'item 1: [-2, 2, "entity"] in'),
        ([[0, 17, "entity"]], 'item 1: [0, 17, "entity"] in'),
    ],
)
def test_what_is_no_annotation_is_told_with_its_line(tmp_path: Path, spans: object, problem: str) -> None:
    good = {"text": "Ada met Grace.", "spans": [[0, 3, "entity"]]}
    path = write_rows(tmp_path / "text.jsonl", good, {"text": "Ada met Bob too.", "spans": spans}, good)
    with pytest.raises(InputError) as error:
        list(read_documents([path], CorpusCounts()))
    assert str(error.value).startswith(f"{path}:2: 'spans'")
    assert problem in str(error.value)
    assert "list of [start, end, kind]" in str(error.value)
    assert "entity, noun_phrase" in str(error.value)
    counts = CorpusCounts()
    assert len(list(read_documents([path], counts, SKIP))) == 2
    assert counts.skipped == {"bad annotations": 1}


def test_documents_without_annotations_have_none(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "text.jsonl", {"text": "a"}, {"text": "b", "spans": None}, {"text": "c", "spans": []})
    assert [document.annotations for document in read_documents([path], CorpusCounts())] == [(), (), ()]


def test_places_are_characters_not_bytes(tmp_path: Path) -> None:
    row = {"text": "😀 한강은 서울에 있다", "spans": [[2, 4, "entity"], [6, 8, "entity"]]}
    [document] = read_documents([write_rows(tmp_path / "text.jsonl", row)], CorpusCounts())  # \ud83d\ude00 escaped
    assert shown(document) == ["한강", "서울"]


def test_faults_are_short_whatever_stands_there() -> None:
    fault = annotation_fault([["x" * 10_000, 2, "entity"]], 5)
    assert fault is not None
    assert len(fault) < 400


# ------------------------------------------------------------------------------------------------------------ cleaning


def cleaned(text: str, *places: tuple[int, int], **changes: Any) -> Draft:
    annotations = tuple(Annotation(start, end, "entity") for start, end in places)
    draft = Draft(text, "somewhere", len(text.encode()), len(text.encode()), annotations)
    clean(draft, CleaningSettings(**changes))
    return draft


def shown(of: Draft | Document) -> list[str]:
    """What is annotated."""
    return [of.text[each.start : each.end] for each in of.annotations]


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("a\u200b Ada\u00adL b", (3, 8), "AdaL"),  # a soft hyphen inside
        ("a\r\nb Ada c", (5, 8), "Ada"),
        ("a\r\nb", (0, 2), "a\n"),  # half of a line break takes the whole
        ("Jose\u0301 and Ana", (0, 5), "José"),
        ("Jose\u0301 and Ana", (0, 4), "José"),  # a letter takes the mark that it is composed with
        ("Jose\u0301 and Ana", (10, 13), "Ana"),
        ("\u1112\u1161\u11ab강 물", (0, 4), "한강"),
        ("\u0958x y", (1, 2), "x"),  # NFC makes the first longer
        ("\u0958x y", (0, 1), "\u0915\u093c"),
        ("e\u200b\u0301 z", (3, 5), " z"),
        ("\u200dla\u200ctin 👩\u200d\u200d x", (2, 7), "atin"),
    ],
)
def test_an_annotation_follows_its_text(text: str, place: tuple[int, int], expected: str) -> None:
    draft = cleaned(text, place)
    assert shown(draft) == [expected]
    assert draft.num_annotations_removed == 0


def test_one_whose_text_is_removed_is_dropped_and_counted(tmp_path: Path) -> None:
    draft = cleaned("A \u200b\u200b b", (2, 4), (5, 6))
    assert shown(draft) == ["b"]
    assert draft.num_annotations_removed == 1
    text = "Ada wrote it.\nShare this article on Facebook\nBob read it.\nRead more"
    places = [(0, 3), (25, 32), (36, 44), (45, 48), (58, 62), (53, 62), (10, 48)]
    path = write_rows(tmp_path / "text.jsonl", {"text": text, "spans": [[*place, "entity"] for place in places]})
    counts = CorpusCounts()
    [document] = read_documents([path], counts, cleaning=CleaningSettings(boilerplate_lines=True))
    assert document.text == "Ada wrote it.\nBob read it."
    assert shown(document) == ["Ada", "Bob", " it.", "it.\nBob"]
    assert (counts.annotations, counts.annotations_removed) == (4, 3)


def test_repeated_paragraphs_take_their_annotations_along(tmp_path: Path) -> None:
    line = "The same long paragraph about Ada stands here once more."
    rows = [
        {"text": f"{line}\nFirst Bob.", "spans": [[30, 33, "entity"]]},
        {"text": f"Then Cy.\n{line}\nAnd Di.", "spans": [[5, 7, "entity"], [39, 42, "entity"], [70, 72, "entity"]]},
        {"text": line, "spans": [[30, 33, "entity"]]},
    ]
    path, counts = write_rows(tmp_path / "text.jsonl", *rows), CorpusCounts()
    documents = read_documents([path], counts, cleaning=CleaningSettings(duplicates="paragraphs"))
    assert [shown(document) for document in documents] == [["Ada"], ["Cy", "Di"]]
    assert (counts.annotations, counts.annotations_removed) == (3, 1)  # a document that is dropped is counted as one


LETTERS = [chr(0x4E00 + number) for number in range(400)]
JUNK = ["\r\n", "\r", "\n", "\x00", "\x1b", "\u200b", "\u00ad", "\u200d", "\u200c", "\x0c", "\u2028", " "]
MARKED = ["e\u0301", "\u1112\u1161\u11ab", "\u0958", "\u0301", "\u1161"]


@st.composite
def texts_with_places(draw: st.DrawFn) -> tuple[str, list[tuple[int, int]]]:
    """A text in which each Han character stands once, so that it can be known again."""
    letters = iter(LETTERS)
    pieces = draw(st.lists(st.one_of(st.none(), st.sampled_from(JUNK + MARKED)), min_size=1, max_size=40))
    text = "".join(next(letters) if piece is None else piece for piece in pieces)
    ends = st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(lambda ends: (min(ends), max(ends)))
    return text, draw(st.lists(ends.filter(lambda ends: ends[0] < ends[1]), max_size=6))


def letters_of(text: str) -> list[str]:
    return [character for character in text if character in LETTERS]


@settings(max_examples=50)
@given(texts_with_places())
def test_an_annotation_covers_the_same_letters_after_cleaning(case: tuple[str, list[tuple[int, int]]]) -> None:
    text, places = case
    draft = cleaned(text, *places)
    assert draft.text == cleaned(text).text
    assert len(draft.annotations) + draft.num_annotations_removed == len(places)
    before, after = ([letters_of(each) for each in some] for some in ([text[a:b] for a, b in places], shown(draft)))
    assert [letters for letters in after if letters] == [letters for letters in before if letters]
    for each in draft.annotations:
        assert 0 <= each.start < each.end <= len(draft.text)


# -------------------------------------------------------------------------------------------------------------- tokens

WORDS = ["ada", "grace", "lovelace", "hopper", "met", "at", "the", "analytical", "engine", "went", "home", "x"]


@pytest.fixture(scope="module", params=["wordpiece", "byte_bpe"])
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    text = [" ".join(WORDS).title() + ". " + " ".join(WORDS) + ", yes-no!"] * 3
    size = {"wordpiece": 90, "byte_bpe": 300}[request.param]
    found, _ = learn_tokenizer(text, TokenizerSettings(kind=request.param, vocab_size=size, unused_slots=0))
    return found


def token_places(tokenizer: TextTokenizer, sentence: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where each token of a sentence of ASCII stands, found by walking along it with the entries' letters."""
    places, at = [], 0
    for entry in tokenizer.tokens(ids):
        written = entry.removeprefix("##").replace("Ġ", "")
        while sentence[at] == " ":
            at += 1
        assert sentence[at : at + len(written)].lower() == written.lower()
        places.append((at, at + len(written)))
        at += len(written)
    return places


def plainly(tokenizer: TextTokenizer, document: Document) -> tuple[dict[str, list[tuple[int, int]]], int, int]:
    """Spans of tokens by kind, how many overlapped, and how many cover none: token by token, pair by pair."""
    where = []
    for number, (start, end) in enumerate(split_sentences(document.text)):
        sentence = document.text[start:end]
        if number and "Ġ" in tokenizer.tokens(range(tokenizer.vocab_size)) and document.text[start - 1].isspace():
            start, sentence = start - 1, f" {sentence}"
        [ids] = tokenizer.encode_batch([sentence])
        where += [(start + a, start + b) for a, b in token_places(tokenizer, sentence, ids)]
    overlapping = without = 0
    spans: dict[str, list[tuple[int, int]]] = {}
    for kind in KINDS:
        found = []
        for start, end, its_kind in document.annotations:
            touched = [number for number, (a, b) in enumerate(where) if set(range(a, b)) & set(range(start, end))]
            if its_kind == kind and touched:
                found.append((min(touched), max(touched) + 1))
            without += its_kind == kind and not touched
        kept: list[tuple[int, int]] = []
        while found:
            best = max(found, key=lambda span: (span[1] - span[0], -span[0]))
            found.remove(best)
            if all(best[1] <= start or end <= best[0] for start, end in kept):
                kept.append(best)
            else:
                overlapping += 1
        spans[kind] = sorted(kept)
    return spans, overlapping, without


@st.composite
def documents(draw: st.DrawFn) -> Document:
    gap = st.sampled_from([" ", ". ", ", ", "\n", "  ", "! ", "-", "\n\n"])
    word = st.sampled_from(WORDS).flatmap(lambda word: st.sampled_from([word, word.title()]))
    parts = draw(st.lists(st.tuples(word, gap), min_size=1, max_size=30))
    text = "".join(word + gap for word, gap in parts)
    starts = st.integers(0, len(text) - 1)
    place = starts.flatmap(lambda start: st.tuples(st.just(start), st.integers(start + 1, min(len(text), start + 40))))
    places = draw(st.lists(st.tuples(place, st.sampled_from(sorted(KINDS))), max_size=8))
    return Document(text, "somewhere", tuple(Annotation(*place, kind) for place, kind in places))


@settings(max_examples=20)
@given(some=st.lists(documents(), min_size=1, max_size=4), data=st.data())
def test_a_store_holds_what_a_plain_search_finds(
    tokenizer: TextTokenizer, some: list[Document], data: st.DataObject
) -> None:
    store = make_annotated_store(some, tokenizer)
    store.verify()
    expected = [plainly(tokenizer, document) for document in some]
    manifest = store.manifest
    assert manifest["overlapping_spans"] == sum(overlapping for _, overlapping, _ in expected)
    assert manifest["spans_without_tokens"] == sum(without for *_, without in expected)
    for kind in KINDS:
        assert store.num_spans(kind) == sum(len(spans[kind]) for spans, *_ in expected)
        for number, (spans, *_) in enumerate(expected):
            size = len(store.document(number).tokens)
            start, end = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
            assert list(map(tuple, store.spans(number, 0, size, kind).tolist())) == spans[kind]
            within = [(max(a, start), min(b, end)) for a, b in spans[kind] if a < end and b > start]
            assert list(map(tuple, store.spans(number, start, end, kind).tolist())) == within


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda each: (each[0], sum(each))), max_size=20))
def test_of_overlapping_spans_the_longest_stays(spans: list[tuple[int, int]]) -> None:
    left, expected = list(spans), []
    while left:
        best = max(left, key=lambda span: (span[1] - span[0], -span[0]))
        expected.append(best)
        left = [span for span in left if span[1] <= best[0] or best[1] <= span[0]]
    assert keep_longest(spans) == sorted(expected)


def test_korean_letters_in_pieces_belong_to_their_syllable() -> None:
    tokenizer, _ = learn_tokenizer(["한강은 서울에 있다."] * 3, TokenizerSettings(vocab_size=60, unused_slots=0))
    text = "\u1112\u1161\u11ab강은 서울에 있다."  # the first syllable in three pieces
    document = Document(text, "somewhere", (Annotation(2, 4, "entity"), Annotation(6, 8, "noun_phrase")))
    [chunk] = cut_chunks([document], 1 << 20)
    encoded = ChunkEncoder(tokenizer).encode(chunk)
    assert encoded.spans is not None
    for (start, end, _), expected in zip(encoded.spans.rows, ["한강", "서울"], strict=True):
        written = "".join(tokenizer.tokens(encoded.tokens[start:end].tolist())).replace("##", "")
        assert written.startswith(expected)


def test_marks_of_the_tokenizer_in_a_text_are_ordinary_characters() -> None:
    tokenizer, _ = learn_tokenizer(["[ mask ] ada [ sep ]"] * 3, TokenizerSettings(vocab_size=60, unused_slots=0))
    document = Document("[MASK] ada [SEP] ada", "somewhere", (Annotation(17, 20, "entity"),))
    store = make_annotated_store([document], tokenizer)
    [(start, end)] = store.spans(0, 0, 10**6, "entity").tolist()
    assert tokenizer.decode(store.tokens(0, start, end).tolist()) == "ada"
    assert start >= 6


def test_words_of_their_own_have_no_annotations() -> None:
    tokenizer, _ = train_word_tokenizer(["Ada met Grace."] * 3, TokenizerSettings(vocab_size=10))
    [chunk] = cut_chunks([Document("Ada met Grace.", "somewhere", (Annotation(0, 3, "entity"),))], 1 << 20)
    spans = ChunkEncoder(tokenizer).encode(chunk).spans
    assert spans is not None
    assert (len(spans.rows), spans.without_tokens) == (0, 1)


# ------------------------------------------------------------------------------------------------------------- columns


def test_a_column_numbers_the_annotations_and_cuts_them_at_segments() -> None:
    text = "ada lovelace met grace hopper at home"
    tokenizer, _ = learn_tokenizer([text] * 3, TokenizerSettings(vocab_size=200, unused_slots=0))
    annotations = (Annotation(0, 12, "entity"), Annotation(17, 29, "entity"), Annotation(17, 37, "noun_phrase"))
    store = make_annotated_store([Document(text, "somewhere", annotations)], tokenizer)
    assert len(store.document(0).tokens) == 7, "each word is a token"
    # [CLS] lovelace met grace [SEP] hopper at home [SEP] [CLS] ada lovelace [SEP]
    spans, places = [Span(0, 1, 4), Span(0, 4, 7), Span(0, 0, 2)], [1, 5, 10]
    columns = {kind: annotation_column(kind, store, spans, places, 13) for kind in KINDS}
    assert columns["entity"].tolist() == [0, 1, 0, 2, 0, 3, 0, 0, 0, 0, 4, 4, 0]
    assert columns["noun_phrase"].tolist() == [0, 0, 0, 1, 0, 2, 2, 2, 0, 0, 0, 0, 0]
    assert all(column.dtype == np.int64 for column in columns.values())
    pair = PlannedSequence(tuple((span,) for span in spans[:2]))
    batch = pack_sequences([(pair, 0)], store, BERT, annotations="entity")
    assert batch.columns["entity"].tolist() == [0, 1, 0, 2, 0, 3, 0, 0, 0]
    check_annotations(store, "entity")


def test_a_store_without_annotations_says_how_they_get_in() -> None:
    store = make_store([[[1, 2], [3]]])
    assert store.spans(0, 0, 3, "entity").tolist() == []
    with pytest.raises(SettingsError, match=r'"spans": \[\[start, end, "noun_phrase"\], \.\.\.\]'):
        check_annotations(store, "noun_phrase")

"""Exact duplicates: which documents and paragraphs stay, and a set of hashes that stays small in memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unmask.corpus.cleaning.duplicates as duplicates
from unmask.corpus.cleaning.draft import Draft
from unmask.corpus.cleaning.duplicates import MIN_PARAGRAPH_CHARACTERS, SeenHashes, drop_duplicates, duplicate_key

A = "A paragraph that is long enough to be compared with others."
B = "Another one, which says something else, and is as long."
C = "하나의 문단이 다른 문단과 비교될 만큼 충분히 길려면 이 정도의 길이는 되어야 할 것이다."


def drafts_of(texts: list[str]) -> list[Draft]:
    sizes = [len(text.encode("utf-8")) for text in texts]
    return [Draft(text, str(number), size, size) for number, (text, size) in enumerate(zip(texts, sizes, strict=True))]


def decide(texts: list[str], directory: Path, paragraphs: bool = False) -> list[Draft]:
    return list(drop_duplicates(drafts_of(texts), paragraphs, directory))


def kept(drafts: list[Draft]) -> list[str]:
    return [draft.text for draft in drafts if draft.dropped is None]


# --------------------------------------------------------------------------------------------- documents, paragraphs


def test_the_first_of_equal_documents_stays(tmp_path: Path) -> None:
    drafts = decide(["a b", "b", "a b", "c", " a\n\tb ", "b", "a\u200b b"], tmp_path)
    assert [draft.dropped for draft in drafts] == [None, None, "duplicate", None, "duplicate", "duplicate", None]
    assert [draft.source for draft in drafts] == [str(number) for number in range(7)]


def test_dropped_documents_are_left_as_they_are(tmp_path: Path) -> None:
    first, second = drafts_of([A, A])
    first.drop("too short")
    assert [draft.dropped for draft in drop_duplicates([first, second], True, tmp_path)] == ["too short", None]


def test_only_the_first_of_equal_paragraphs_stays(tmp_path: Path) -> None:
    drafts = decide([f"{A}\n{B}", f"Short.\n{B}\n{C}\n{C}\nShort.", f" {A}\n\n{C} "], tmp_path, paragraphs=True)
    assert [draft.text for draft in drafts] == [f"{A}\n{B}", f"Short.\n{C}\nShort.", ""]
    assert [draft.dropped for draft in drafts] == [None, None, "nothing left"]
    assert drafts[1].removed == [("duplicate paragraphs", 2, len(f"{B}\n{C}\n".encode()))]
    assert all(draft.utf8_bytes == len(draft.text.encode()) for draft in drafts)


def test_short_paragraphs_stay_however_often_they_come(tmp_path: Path) -> None:
    line = "x" * (MIN_PARAGRAPH_CHARACTERS - 1)
    texts = [f"{number}\n{line}\n“Yes.”\n“Yes.”" for number in range(3)]
    assert kept(decide(texts, tmp_path, paragraphs=True)) == texts
    longer = [f"{number}\n{line}x" for number in range(3)]
    assert kept(decide(longer, tmp_path, paragraphs=True)) == [longer[0], "1", "2"]


def test_a_document_of_one_line_is_not_its_own_paragraph(tmp_path: Path) -> None:
    assert kept(decide([A, B, A], tmp_path, paragraphs=True)) == [A, B]


@given(texts=st.lists(st.lists(st.sampled_from([A, B, C, "Short.", ""]), max_size=5).map("\n".join), max_size=30))
def test_small_batches_come_to_what_a_plain_loop_does(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    documents, paragraphs, expected = set(), set(), []
    for text in texts:
        key = "".join(text.split())
        if key in documents:
            continue
        documents.add(key)
        lines = []
        for line in text.split("\n"):
            if line in (A, B, C):
                if line in paragraphs:
                    continue
                paragraphs.add(line)
            lines.append(line)
        remains = "\n".join(lines)
        if remains == text or remains.strip():
            expected.append(remains)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_BATCH_DOCUMENTS", 3)
        assert kept(decide(texts, tmp_path_factory.getbasetemp(), paragraphs=True)) == expected


def test_a_batch_ends_by_its_bytes_and_documents_go_on_at_once(tmp_path: Path) -> None:
    taken = []

    def drafts() -> list[Draft]:
        for draft in drafts_of([f"{number} " + "x" * (3 << 20) for number in range(9)]):
            taken.append(draft)
            yield draft

    next(drop_duplicates(drafts(), False, tmp_path))
    assert len(taken) == 3  # with 9 MiB there are more than 8


def test_nothing_is_left_on_the_disk_whatever_happens(tmp_path: Path) -> None:
    decide([A, B], tmp_path)
    assert list(tmp_path.iterdir()) == []
    unfinished = drop_duplicates(drafts_of([A, B]), False, tmp_path)
    next(unfinished)
    assert [path.name.startswith(".unfinished-") for path in tmp_path.iterdir()] == [True]
    unfinished.close()
    assert list(tmp_path.iterdir()) == []


def test_kinds_are_never_equal() -> None:
    assert duplicate_key("a", b"document") != duplicate_key("a", b"paragraph")
    assert duplicate_key(" a\tb\n", b"document") == duplicate_key("ab", b"document")
    assert len(duplicate_key("", b"document")) == 16


# ------------------------------------------------------------------------------------------------------------ hashes

HALF = st.integers(0, 3).map(lambda number: number.to_bytes(8, "little"))
NEAR = st.tuples(HALF, HALF).map(b"".join)


@given(batches=st.lists(st.lists(st.one_of(NEAR, st.binary(min_size=16, max_size=16)), max_size=40), max_size=12))
def test_the_set_answers_as_a_set_does(batches: list[list[bytes]], tmp_path_factory: pytest.TempPathFactory) -> None:
    hashes = SeenHashes(tmp_path_factory.mktemp("hashes"), memory_hashes=8)
    seen: set[bytes] = set()
    for batch in batches:
        expected = []
        for one in batch:
            expected.append(one not in seen)
            seen.add(one)
        assert hashes.add(batch) == expected


def test_memory_is_bounded_and_runs_are_few(tmp_path: Path) -> None:
    hashes = SeenHashes(tmp_path, memory_hashes=1_000)
    generator = random.Random(0)
    num_added = 0
    for _ in range(400):
        batch = [generator.randbytes(16) for _ in range(generator.randrange(1, 500))]
        assert all(hashes.add(batch))
        num_added += len(batch)
        assert hashes.num_in_memory < 1_000
        # Each run is at least twice as long as the next: at most log2(n) of them.
        assert len(hashes._runs) <= num_added.bit_length()
    assert num_added > 90_000
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) == 16 * (num_added - hashes.num_in_memory)
    assert not any(hashes.add([bytes(16), *batch])[1:])


def test_large_runs_are_merged_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_PIECE_HASHES", 7)
    hashes = SeenHashes(tmp_path, memory_hashes=50)
    # Few different first halves, so that equal ones go over the ends of pieces.
    every = [first.to_bytes(8, "little") + second.to_bytes(8, "little") for first in range(5) for second in range(200)]
    random.Random(0).shuffle(every)
    for start in range(0, len(every), 30):
        assert all(hashes.add(every[start : start + 30]))
    assert not any(hashes.add(every))

"""The doctor's reading of a store: every number against one worked out in the plainest way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.stores import Documents
from unmask.doctor.store.statistics import Duplicates, LengthCounts, count_store, find_duplicates
from unmask.errors import StoreError
from unmask.store.manifest import DOCUMENT, manifest_checksum
from unmask.store.store import TokenStore

FIVE: Documents = [[[1, 2, 3], [4]], [[5, 5]], [[1, 2, 3], [4]], [[6], [7, 8, 9, 10, 11, 12], [9]], [[5, 5]]]


def write_store(directory: Path, documents: Documents, hashes: Sequence[int], shard: int) -> TokenStore:
    """A store of 13 entries written byte for byte by the published layout, so many documents to a shard."""
    directory.mkdir()
    files, shards = {}, []
    for number, start in enumerate(range(0, len(documents), shard)):
        some = documents[start : start + shard]
        sentences = [sentence for document in some for sentence in document]
        records = np.zeros(len(some), DOCUMENT)
        records["sentence_end"] = np.cumsum([len(document) for document in some])
        records["text_hash"] = hashes[start : start + shard]
        arrays = {
            "tokens": np.array([token for sentence in sentences for token in sentence], "<u2"),
            "sentences": np.cumsum([len(sentence) for sentence in sentences]).astype("<u4"),
            "documents": records,
        }
        for part, array in arrays.items():
            name = f"{part}-{number:05d}.bin"
            (directory / name).write_bytes(array.tobytes())
            files[name] = {"bytes": array.nbytes, "sha256": hashlib.sha256(array.tobytes()).hexdigest()}
        shards.append({part: len(array) for part, array in arrays.items()})
    totals = {part: sum(shard[part] for shard in shards) for part in ("tokens", "sentences", "documents")}
    manifest = {"format_version": 1, "vocab_size": 13, **totals, "shards": shards, "files": files}
    manifest["sha256"] = manifest_checksum(manifest)
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return TokenStore(directory)


@pytest.mark.parametrize("shard", [1, 2, 5])
def test_a_store_by_hand(tmp_path: Path, shard: int) -> None:
    read: list[float] = []
    found = count_store(write_store(tmp_path / "s", FIVE, [0] * 5, shard), read.append)
    assert sum(read) == 20
    assert found.token_counts.tolist() == [0, 2, 2, 2, 2, 4, 1, 1, 1, 2, 1, 1, 1]
    assert (found.sentence_lengths.num, found.sentence_lengths.total, found.sentence_lengths.longest) == (9, 20, 6)
    assert [found.sentence_lengths.between(n, n + 1) for n in range(8)] == [0, 4, 2, 2, 0, 0, 1, 0]
    assert [found.document_lengths.between(n, n + 1) for n in range(9)] == [0, 0, 2, 0, 2, 0, 0, 0, 1]
    assert found.num_single == 2
    longest = found.longest[0]
    assert (longest.document, longest.tokens.tolist()) == (3, [7, 8, 9, 10, 11, 12])
    assert [len(sentence.tokens) for sentence in found.longest] == [6, 3, 3]


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", FIVE, [0] * 5, 2)
    path = tmp_path / "s" / "tokens-00001.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StoreError, match=r"tokens-00001\.bin: its checksum is not"):
        count_store(store)


@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=80),
    share=st.sampled_from([0.01, 0.05, 0.25, 0.5, 0.75, 0.99, 1.0]),
    start=st.integers(0, 70),
    width=st.integers(0, 70),
)
def test_lengths_are_exact(lengths: list[int], share: float, start: int, width: int) -> None:
    counts = LengthCounts()
    for piece in (lengths[:7], lengths[7:]):
        counts.add(np.array(piece, dtype=np.int64))
    assert (counts.num, counts.total, counts.longest) == (len(lengths), sum(lengths), max(lengths))
    assert counts.mean == pytest.approx(sum(lengths) / len(lengths))
    assert counts.quantile(share) == np.quantile(lengths, share, method="inverted_cdf")
    assert counts.between(start, start + width) == sum(start <= n < start + width for n in lengths)
    assert counts.sum_from(start) == sum(n for n in lengths if n >= start)


@pytest.mark.parametrize("shard", [1, 3, 5])
def test_duplicates_are_equal_token_for_token(tmp_path: Path, shard: int) -> None:
    last = 2**32 - 1
    # Documents 0 and 2 are equal, and 1 and 4; 3 has the hash of 1 and 4 and is another text.
    found = find_duplicates(write_store(tmp_path / "s", FIVE, [7, last, 7, last, last], shard))
    assert found.copies == {1: 1, 2: 2}
    assert found.num_distinct == 3
    assert found.share == pytest.approx(2 / 5)
    assert found.examples == ((0, 2), (1, 4))


@pytest.mark.parametrize(
    ("copies", "times"),
    [
        ({1: 90}, 1),
        ({10: 96}, 10),
        ({10: 96, 20: 2}, 10),
        ({10: 99, 1: 1}, 10),
        ({10: 50, 1: 50}, 1),
        ({2: 30, 3: 70}, 2),
    ],
)
def test_a_corpus_repeats_where_nearly_every_document_does(copies: dict[int, int], times: int) -> None:
    num_documents = sum(number * count for number, count in copies.items())
    assert Duplicates(num_documents, copies, ()).times_repeated() == times

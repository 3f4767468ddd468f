"""The space that a store needs: of what is free, and of what is there already."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from support.trained import trained
from unmask.corpus.pipeline import read_documents
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.errors import OutputError
from unmask.store import disk_space
from unmask.store.disk_space import Estimate, check_free_space, estimate_store
from unmask.store.encoding import ChunkEncoder

ESTIMATE = Estimate(text_bytes=400, documents=1, tokens=100, store_bytes=90)


def test_finished_shards_need_no_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20))
    out = tmp_path / "store"
    with pytest.raises(OutputError, match="the store will need about 90 B, but only 20 B are free"):
        check_free_space(out, ESTIMATE)
    out.mkdir()
    (out / "tokens-00000.bin").write_bytes(bytes(69))
    told = "the store will need about 90 B, 69 B of which are there, but only 20 B are free"
    with pytest.raises(OutputError, match=told):
        check_free_space(out, ESTIMATE)
    (out / "sentences-00000.bin").write_bytes(bytes(1))
    assert check_free_space(out, ESTIMATE).endswith("about 90 B, 70 B of which are there; 20 B are free")
    most = "the store will need about 90 B, duplicates included; 20 B are free, which may be too little"
    assert check_free_space(tmp_path / "new", ESTIMATE, with_duplicates=True).endswith(most)


@pytest.mark.parametrize("cleaning", [CleaningSettings(), CleaningSettings(duplicates="documents")])
def test_of_a_table_as_much_text_is_expected_as_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleaning: CleaningSettings
) -> None:
    """Of a Parquet file, all of whose rows are one group, a few are read, and fewer than are searched for duplicates
    together."""
    monkeypatch.setattr(disk_space, "_READ_S", 0.0)
    texts = [f"The quick brown fox {number} jumped over the lazy dogs." for number in range(5000)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": texts}), path, compression="none")  # a row of it is many bytes
    encoder = ChunkEncoder(trained(texts[:100], vocab_size=200), "rules")
    estimate = estimate_store([path], encoder, ReadingSettings(), cleaning)
    assert estimate is not None
    assert estimate.text_bytes == pytest.approx(sum(map(len, texts)), rel=0.1)
    assert estimate.documents == pytest.approx(5000, rel=0.1)


def test_a_file_that_takes_long_to_open_is_not_judged_by_its_first_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def slowly(*given: Any) -> Iterator[Any]:
        now[0] = 60.0
        yield from read_documents(*given)

    monkeypatch.setattr(disk_space, "read_documents", slowly)
    monkeypatch.setattr(disk_space, "time", SimpleNamespace(monotonic=lambda: now[0]))
    texts = ["The quick brown fox jumped over the lazy dogs. " * 50, *["A fox."] * 1000]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": texts}), path)
    estimate = estimate_store(
        [path], ChunkEncoder(trained(texts[:2], vocab_size=80), "rules"), ReadingSettings(), CleaningSettings()
    )
    assert estimate is not None
    assert estimate.text_bytes == pytest.approx(sum(map(len, texts)), rel=0.1)

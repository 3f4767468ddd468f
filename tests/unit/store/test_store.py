"""The token store: what was put in comes out, and whatever is damaged is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.files import flip, write
from support.stores import make_store
from unmask.errors import InputError, StoreError
from unmask.objectives.floors import unigram_entropy
from unmask.store.manifest import manifest_checksum, token_dtype
from unmask.store.store import TokenStore

# --------------------------------------------------------------------------------------------------- what comes out


SENTENCE = st.lists(st.integers(0, 65535), min_size=1, max_size=5)
DOCUMENT = st.lists(SENTENCE, min_size=1, max_size=4)


@settings(max_examples=20)  # each writes a store
@given(documents=st.lists(DOCUMENT, min_size=1, max_size=9), shard_documents=st.integers(1, 4))
def test_documents_come_out_as_they_went_in(documents: list[list[list[int]]], shard_documents: int) -> None:
    hashes = [2**32 - 1 - number for number in range(len(documents))]
    store = make_store(documents, hashes=hashes, vocab_size=65536, shard_documents=shard_documents)
    flat = [[token for sentence in document for token in sentence] for document in documents]
    assert store.num_documents == len(documents)
    assert store.num_tokens == sum(map(len, flat))
    for number, document in enumerate(documents):
        stored = store.document(number)
        assert stored.tokens.tolist() == flat[number]
        assert stored.sentence_ends.tolist() == np.cumsum([len(sentence) for sentence in document]).tolist()
        assert store.tokens(number, 1, len(flat[number])).tolist() == flat[number][1:]
        assert store.text_hash(number) == hashes[number]
    assert store.text_hashes().tolist() == hashes
    counts = store.token_counts()
    assert len(counts) == 65536
    assert counts.tolist() == np.bincount(sum(flat, []), minlength=65536).tolist()  # noqa: RUF017
    read: list[float] = []
    store.verify(read.append)
    assert sum(read) == store.size_bytes


@pytest.mark.parametrize(("vocab_size", "token_bytes"), [(8, 2), (30522, 2), (65536, 2), (65537, 4), (1_000_000, 4)])
def test_two_bytes_a_token_up_to_65536_entries(vocab_size: int, token_bytes: int) -> None:
    assert token_dtype(vocab_size).itemsize == token_bytes
    store = make_store([[[0, vocab_size - 1]], [[1]]], vocab_size=vocab_size)
    assert (store.directory / "tokens-00000.bin").stat().st_size == 3 * token_bytes
    assert store.document(0).tokens.tolist() == [0, vocab_size - 1]


def test_a_shard_without_documents_is_passed_over() -> None:
    """A shard of documents of which nothing is a token has empty files."""
    store = make_store([[[1, 2]], [[3]]], shard_documents=1)
    with_gap = copy_with_manifest(store.directory, insert_empty_shard)
    assert [TokenStore(with_gap).document(number).tokens.tolist() for number in range(2)] == [[1, 2], [3]]
    assert len(TokenStore(str(with_gap)).text_hashes()) == 2
    assert TokenStore(with_gap).token_counts()[:5].tolist() == [0, 1, 1, 1, 0]
    TokenStore(with_gap).verify()


def insert_empty_shard(directory: Path, manifest: dict[str, Any]) -> None:
    """Moves shard 1 to 2 and puts an empty one between."""
    for part in ("tokens", "sentences", "documents"):
        (directory / f"{part}-00001.bin").rename(directory / f"{part}-00002.bin")
        (directory / f"{part}-00001.bin").touch()
        manifest["files"][f"{part}-00002.bin"] = manifest["files"].pop(f"{part}-00001.bin")
        empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        manifest["files"][f"{part}-00001.bin"] = {"bytes": 0, "sha256": empty}
    manifest["shards"].insert(1, dict.fromkeys(manifest["shards"][0], 0))


def copy_with_manifest(directory: Path, change: Callable[[Path, dict[str, Any]], None]) -> Path:
    copied = directory.with_name(f"{directory.name}-changed")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(directory, copied)
    manifest = json.loads((copied / "manifest.json").read_text())
    change(copied, manifest)
    if isinstance(manifest, dict):
        manifest["sha256"] = manifest_checksum(manifest)
    (copied / "manifest.json").write_text(json.dumps(manifest))
    return copied


def test_the_entropy_of_a_known_distribution() -> None:
    assert unigram_entropy(np.array([8, 0, 4, 2, 2])) == pytest.approx(1.75 * np.log(2), rel=1e-12)
    assert unigram_entropy(np.array([0, 5])) == 0


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store of two shards with a tokenizer file, to be damaged."""

    def add_tokenizer(copied: Path, manifest: dict[str, Any]) -> None:
        (copied / "tokenizer" / "vocab.txt").write_text("abc")
        abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        manifest["files"]["tokenizer/vocab.txt"] = {"bytes": 3, "sha256": abc}

    made = make_store([[[1, 2, 3], [4]], [[5]], [[6, 7]]], vocab_size=1000, shard_documents=2)
    return copy_with_manifest(made.directory, add_tokenizer)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_document_that_is_not_there_is_no_index(directory: Path, index: int) -> None:
    with pytest.raises(IndexError, match=f"document {index}: expected 0 to 2, as .* holds"):
        TokenStore(directory).document(index)


def test_what_a_store_does_not_hold_is_named(directory: Path) -> None:
    store = TokenStore(directory)
    for use in (lambda: store.num_spans("verb"), lambda: store.spans(0, 0, 1, "verb")):
        with pytest.raises(InputError, match="of the kind 'verb': expected entity or noun_phrase"):
            use()
    with pytest.raises(StoreError, match="a store of ids alone"):
        store.words(0, 0, 1)


def refused(directory: Path, message: str, use: Callable[[TokenStore], object] = TokenStore.verify) -> bool:
    """Whether a store is refused with a message; any other message fails by itself."""
    with pytest.raises(StoreError, match=message) as raised:
        use(TokenStore(directory))
    return raised.type is StoreError


FILES = [f"{part}-0000{shard}.bin" for part in ("tokens", "sentences", "documents") for shard in (0, 1)]


@pytest.mark.parametrize("name", [*FILES, "tokenizer/vocab.txt"])
def test_a_flipped_bit_is_found_by_verify(directory: Path, name: str) -> None:
    TokenStore(directory).verify()
    flip(directory / name, place=1, bit=6)
    assert refused(
        directory, rf"{name}: its checksum is not the manifest's, so at least one byte has changed: restore the file"
    )


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_by_reading(directory: Path, name: str) -> None:
    flip(directory / name)
    assert refused(directory, f"{name}: its checksum", lambda store: [store.document(number) for number in range(3)])
    part = name.split("-")[0]
    if part == "tokens":
        assert refused(directory, f"{name}: its checksum", TokenStore.token_counts)
        assert refused(directory, f"{name}: its checksum", lambda store: [store.tokens(n, 0, 1) for n in range(3)])
    if part == "documents":
        assert refused(directory, f"{name}: its checksum", TokenStore.text_hashes)


def test_a_flipped_bit_of_the_tokenizer_is_found_before_it_is_opened(directory: Path) -> None:
    assert TokenStore(directory).tokenizer_directory == directory / "tokenizer"
    flip(directory / "tokenizer" / "vocab.txt")
    assert refused(directory, "tokenizer/vocab.txt: its checksum", lambda store: store.tokenizer_directory)


def test_each_file_is_verified_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    monkeypatch.setattr("unmask.store.shard.verify_file", lambda path, _: verified.append(path.name))
    store = TokenStore(directory)
    assert verified == []
    for _ in range(2):
        for number in range(3):
            store.document(number)
        store.text_hashes()
        store.token_counts()
    assert sorted(verified) == sorted(FILES)


@pytest.mark.parametrize("name", [*FILES, "tokenizer/vocab.txt"])
def test_a_truncated_longer_or_missing_file_is_refused_at_once(directory: Path, name: str) -> None:
    path = directory / name
    content = path.read_bytes()
    for changed in (content[:-1], content + b"\0", b""):
        path.write_bytes(changed)
        sizes = f"{len(changed)} bytes, the manifest says {len(content)}"
        assert refused(directory, f"{name}: {sizes}: the store is damaged; restore the file", lambda store: store)
    path.unlink()
    assert refused(directory, f"{name}: missing: the store is damaged; restore the file", lambda store: store)


def test_what_is_no_store_is_told_apart(directory: Path, tmp_path: Path) -> None:
    assert refused(
        tmp_path / "missing", "missing: no such store: make one with `unmask prepare TEXT --tokenizer DIR --out"
    )
    assert refused(directory / "manifest.json", "no such store")
    (tmp_path / ".unfinished-.replaced-st").mkdir()
    assert refused(
        tmp_path / "st", r"st: a command that replaced it was stopped half-way, and it is in \.unfinished-.replaced-st"
    )
    (tmp_path / "st").mkdir()
    write(tmp_path / "st" / "tokens-00000.bin")
    assert refused(tmp_path / "st", "--resume` continues it$")
    (directory / "manifest.json").unlink()
    assert refused(directory, r"an unfinished store \(no manifest.json\): `unmask prepare ... --resume` continues it")
    assert refused(tmp_path, r"not a token store \(no manifest.json\): expected the --out of `unmask prepare`")
    run = tmp_path / "run"
    (run / "store").mkdir(parents=True)
    (run / "store" / "manifest.json").write_text("{}")
    assert refused(run, rf"run: not a token store \(no manifest.json\): its store is {run / 'store'}")


def test_another_version_is_refused(directory: Path) -> None:
    changed = copy_with_manifest(directory, lambda _, manifest: manifest.update(format_version=2))
    assert refused(changed, r"manifest.json: store format 2, this version reads 1: prepare the store again")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"3", b'"x"', b"\xff", b"{}", b'{"format_version": 1}'])
def test_a_damaged_manifest_is_refused(directory: Path, content: bytes) -> None:
    (directory / "manifest.json").write_bytes(content)
    assert refused(directory, r"manifest.json: damaged \(.*\): prepare the store again")


@pytest.mark.parametrize(("key", "value"), [("tokens", 70_000), ("sha256", None), ("sha256", "missing")])
def test_a_changed_manifest_is_refused(directory: Path, key: str, value: object) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest[key] = value
    if value == "missing":
        del manifest[key]
    path.write_text(json.dumps(manifest))
    assert refused(directory, r"manifest.json: (damaged|its own checksum is not)", lambda store: store)

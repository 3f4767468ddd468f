"""Preparing a store: what it holds, the same bytes whatever the workers and chunks, and what is never overwritten."""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import write_documents
from support.corpora import contents, names
from unmask.corpus.documents import Document
from unmask.corpus.sentences.rules import split_sentences
from unmask.errors import AnotherProcess, InputError, OutputError, SettingsError
from unmask.io.progress import Progress
from unmask.io.writing import alone_in
from unmask.packing.split import Split
from unmask.store import encoding
from unmask.store.encoding import Chunk, ChunkEncoder, cut_chunks, held_out_hash
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

SHARD_BYTES = 30_000
ODD_DOCUMENTS = [
    "\ufffd",  # a sentence to the splitter, no token to the tokenizer
    "One sentence only",
    "x",
    "나는 학교에 간다. 너는 집에 있다.",
    "A line without a stop " * 300,
    "Two\nlines. And more! Is it? Yes.",
]


def make_documents(num_bytes: int) -> list[str]:
    dice = random.Random(0)
    words = ["".join(dice.choices("etaoinshrdlu", k=dice.randint(1, 9))) for _ in range(2000)]
    documents = list(ODD_DOCUMENTS)
    size = 0
    while size < num_bytes:
        sentences = [" ".join(dice.choices(words, k=dice.randint(1, 25))) for _ in range(dice.randint(1, 40))]
        documents.append(". ".join(sentence.capitalize() for sentence in sentences) + ".")
        size += len(documents[-1])
    return documents


DOCUMENTS = make_documents(150_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`text.jsonl`, and two tokenizers for it."""
    folder = tmp_path_factory.mktemp("prepare")
    write_documents(folder / "text.jsonl", DOCUMENTS)
    for name, vocab_size in (("tokenizer", 300), ("other", 200)):
        train_tokenizer([folder / "text.jsonl"], folder / name, TokenizerSettings(vocab_size=vocab_size))
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """The store that nothing interrupted."""
    return prepare_here(folder, folder / "whole").directory


def prepare_here(folder: Path, out: Path, **options: Any) -> TokenStore:
    return prepare([folder / "text.jsonl"], folder / "tokenizer", out, **{"shard_bytes": SHARD_BYTES, **options})


# --------------------------------------------------------------------------------------------------- what is in a store


def test_a_store_holds_the_sentences_of_each_document(folder: Path, whole: Path) -> None:
    store, tokenizer = TokenStore(whole), load_tokenizer(folder / "tokenizer")
    documents = [text for text in DOCUMENTS if text != "\ufffd"]
    sentences_of = [[text[start:end] for start, end in split_sentences(text)] for text in documents]
    assert store.num_documents == len(documents)
    num_sentences = num_unknown = 0
    for number, sentences in enumerate(sentences_of):
        ids = [each for each in (tokenizer.encode_batch([sentence])[0] for sentence in sentences) if each]
        stored = store.document(number)
        assert stored.tokens.tolist() == [token for sentence in ids for token in sentence]
        assert stored.sentence_ends.tolist() == np.cumsum([len(sentence) for sentence in ids]).tolist()
        assert store.text_hash(number) == int(hashlib.sha256(documents[number].encode()).hexdigest()[:8], 16)
        num_sentences += len(ids)
        num_unknown += sum(tokenizer.count_unknown(sentence) for sentence in ids)
    manifest = store.manifest
    assert (manifest["documents"], manifest["sentences"]) == (len(documents), num_sentences)
    assert manifest["tokens"] == sum(store.document(number).sentence_ends[-1] for number in range(len(documents)))
    assert (manifest["unknown_tokens"], manifest["documents_without_tokens"]) == (num_unknown, 1)
    assert manifest["text"]["utf8_bytes"] == sum(len(text.encode()) for text in DOCUMENTS)
    assert manifest["text"]["documents"] == len(DOCUMENTS)
    text = folder / "text.jsonl"
    assert manifest["sources"] == [{"file": str(text), "bytes": text.stat().st_size, "documents": len(DOCUMENTS)}]
    assert manifest["tokenizer_fingerprint"] == tokenizer.fingerprint()
    assert load_tokenizer(store.tokenizer_directory).fingerprint() == tokenizer.fingerprint()
    store.verify()


def test_shards_end_after_so_many_bytes_of_text(whole: Path) -> None:
    store = TokenStore(whole)
    sizes = [len(text.encode()) for text in DOCUMENTS]
    expected, documents, size = [], 0, 0
    for text, length in zip(DOCUMENTS, sizes, strict=True):
        documents, size = documents + (text != "\ufffd"), size + length
        if size >= SHARD_BYTES:
            expected.append(documents)
            documents, size = 0, 0
    expected += [documents] if documents else []
    assert [shard["documents"] for shard in store.manifest["shards"]] == expected
    assert len(expected) >= 5
    assert store.manifest["token_bytes"] == 2
    assert sum(path.stat().st_size for path in whole.glob("tokens-*.bin")) == 2 * store.num_tokens


def test_what_an_encoder_has_seen_changes_nothing(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "tokenizer")
    encoder = ChunkEncoder(tokenizer)
    for texts in (DOCUMENTS[:30], DOCUMENTS[:30], DOCUMENTS[20:40], []):
        documents = [Document(text, "somewhere") for text in texts]
        [chunk] = cut_chunks(documents, 1 << 30) if texts else [Chunk(0)]
        encoded, expected = encoder.encode(chunk), ChunkEncoder(tokenizer).encode(chunk)
        for name in ("tokens", "sentence_lengths", "document_sentences", "text_hashes"):
            assert np.array_equal(getattr(encoded, name), getattr(expected, name))
            assert getattr(encoded, name).dtype == getattr(expected, name).dtype
    assert encoded.tokens.dtype == np.uint16


def test_held_out_is_a_matter_of_the_text_alone(folder: Path, whole: Path, tmp_path: Path) -> None:
    def held_out_texts(store: TokenStore, texts: Sequence[str]) -> set[str]:
        split = Split(store, 0.3, is_held_out=True)
        return {text for number, text in enumerate(texts) if number in split}

    texts = [text for text in DOCUMENTS if text != "\ufffd"]
    expected = {text for text in texts if held_out_hash(text) < 0.3 * 2**32}
    assert held_out_texts(TokenStore(whole), texts) == expected
    shuffled = random.Random(1).sample(texts, len(texts) // 2)
    write_documents(tmp_path / "half.jsonl", shuffled)
    half = prepare([tmp_path / "half.jsonl"], folder / "other", tmp_path / "half")
    assert held_out_texts(half, shuffled) == expected & set(shuffled)


def test_four_bytes_a_token_for_a_large_vocabulary(tmp_path: Path) -> None:
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(66_000))]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab))
    (tmp_path / "text.txt").write_text("w65999 w0\n\nw65600")
    store = prepare([tmp_path / "text.txt"], tmp_path / "vocab.txt", tmp_path / "store")
    assert store.document(0).tokens.tolist() == [66_004, 5]
    assert store.manifest["token_bytes"] == 4
    assert (tmp_path / "store" / "tokens-00000.bin").stat().st_size == 12


# ------------------------------------------------------------------------------------------------------ always the same


@pytest.mark.parametrize(("workers", "chunk_bytes"), [(1, 1), (1, 10_000), (2, 5000), (3, 1 << 20)])
def test_the_bytes_do_not_depend_on_workers_or_chunks(
    folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", chunk_bytes)
    prepare_here(folder, tmp_path / "store", workers=workers)
    assert contents(tmp_path / "store") == contents(whole)


# --------------------------------------------------------------------------------------------------- what is in the way


@pytest.mark.parametrize("option", ["resume", "overwrite"])
def test_a_folder_of_other_things_is_never_touched(folder: Path, tmp_path: Path, option: str) -> None:
    """Not even one that looks like a store at first sight."""
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("tokens-00000.bin", "thesis.txt"):
        (precious / name).write_text("years of work")
    before = contents(precious)
    with pytest.raises(OutputError, match=r"holds thesis\.txt, which is no part of a token store"):
        prepare_here(folder, precious, **{option: True})
    assert contents(tmp_path) == {f"precious/{name}": content for name, content in before.items()}


def test_overwriting_replaces_a_store(folder: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    shutil.copytree(whole, out)
    (out / "tokens-00099.bin").touch()
    with pytest.raises(OutputError, match=rf"{out} exists already and would be overwritten: choose another name"):
        prepare_here(folder, out)
    prepare_here(folder, out, overwrite=True)
    assert contents(out) == contents(whole)
    assert names(tmp_path) == ["store"]


@pytest.mark.parametrize("good", [0, 1], ids=["at once", "after finished shards"])
def test_overwriting_that_fails_gives_the_store_back(folder: Path, whole: Path, tmp_path: Path, good: int) -> None:
    out = tmp_path / "store"
    shutil.copytree(whole, out)
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    texts = [folder / "text.jsonl"] * good + [tmp_path / "bad.txt"]
    with pytest.raises(InputError, match="not UTF-8") as told:
        prepare(texts, folder / "tokenizer", out, overwrite=True, shard_bytes=20_000)
    assert "--resume" not in str(told.value)
    assert contents(out) == contents(whole)
    assert names(tmp_path) == ["bad.txt", "store"]


@pytest.mark.parametrize("option", ["resume", "overwrite"])
def test_a_store_that_is_being_made_is_left_alone(folder: Path, whole: Path, tmp_path: Path, option: str) -> None:
    out = tmp_path / "store"
    shutil.copytree(whole, out)
    if option == "resume":
        (out / "manifest.json").unlink()
    before = contents(out)
    with alone_in(out), pytest.raises(AnotherProcess, match="store: another process works there at this moment"):
        prepare_here(folder, out, **{option: True})
    assert contents(out) == before
    assert names(tmp_path) == ["store"]


def test_continuing_and_replacing_at_once_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--resume continues a store and --overwrite replaces it: give one of them"):
        prepare_here(folder, tmp_path / "store", resume=True, overwrite=True)
    assert names(tmp_path) == []


def test_a_tokenizer_in_the_place_of_the_store_is_not_removed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    shutil.copytree(folder / "tokenizer", out / "tokenizer")
    with pytest.raises(OutputError, match=r"tokenizer is needed and lies in .*store, which would be overwritten"):
        prepare([folder / "text.jsonl"], out / "tokenizer", out, resume=True)
    assert names(out / "tokenizer") == names(folder / "tokenizer")


def test_what_the_store_is_made_from_is_not_overwritten(folder: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    shutil.copytree(whole, out)
    with pytest.raises(OutputError, match=r"tokenizer is needed and lies in .*store, which would be over"):
        prepare([folder / "text.jsonl"], out / "tokenizer", out, overwrite=True)
    assert contents(out) == contents(whole)


def test_an_empty_folder_is_filled_and_stays_when_that_fails(folder: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    out.mkdir()
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="not UTF-8"):
        prepare([tmp_path / "bad.txt"], folder / "tokenizer", out)
    assert names(out) == []
    prepare_here(folder, out)
    assert contents(out) == contents(whole)


# -------------------------------------------------------------------------------------------------------------- memory

MEASURE = """
import re, resource, sys
from unmask.store.preparation import prepare

if __name__ == "__main__":
    store = prepare(sys.argv[1:2], sys.argv[2], sys.argv[3], workers=2, shard_bytes=16 << 20)
    own = int(re.search("VmHWM:\\\\s*([0-9]+)", open("/proc/self/status").read())[1])
    largest_worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(store.num_tokens, own + 2 * largest_worker)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["many documents", "one document", "one document of one line"])
def test_memory_stays_bounded(folder: Path, tmp_path: Path, kind: str) -> None:
    """The peaks of three processes come to under 500 MiB together, for 60 MB of text or a document of 6 MB."""
    documents = make_documents(60_000_000 if kind == "many documents" else 6_000_000)
    if kind != "many documents":
        documents = [("\n" if kind == "one document" else " ").join(documents)]
    write_documents(tmp_path / "text.jsonl", documents)
    words = [str(tmp_path / "text.jsonl"), str(folder / "tokenizer"), str(tmp_path / "store")]
    done = subprocess.run([sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=True)
    num_tokens, peak_kib = map(int, done.stdout.split())
    assert num_tokens > 1_000_000
    assert peak_kib < 500 << 10


def test_progress_is_that_of_encoding(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the text is read before the second of the chunks is encoded."""
    shown: list[float] = []
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(Progress, "update", lambda _, fraction, count: shown.append(fraction))
    prepare_here(folder, tmp_path / "store")
    assert shown == sorted(shown)
    assert shown[0] == 0
    assert any(0.3 < fraction < 0.7 for fraction in shown)
    assert 0.9 < shown[-1] < 1

"""Preparing a store: the same bytes whatever the workers, chunks and stops on the way; nothing half-written is left."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask import preparation
from unmask.data.packing import Split
from unmask.data.sentences import split_sentences
from unmask.data.shard_writer import ShardWriter
from unmask.data.store import TokenStore
from unmask.errors import InputError, Interrupted, OutputError, StoreError
from unmask.preparation import encode_texts, prepare, text_hash
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.tokenizer_training import train_tokenizer

SHARD_BYTES = 30_000
ODD_DOCUMENTS = [
    "\ufffd",  # a sentence to the splitter, no token to the tokenizer
    "One sentence only",
    "x",
    "나는 학교에 간다. 너는 집에 있다.",
    "A line without a stop " * 300,
    "Two\nlines. And more! Is it? Yes.",
]


def make_documents(num_bytes: int, seed: int = 0) -> list[str]:
    dice = random.Random(seed)
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
    prepare([folder / "text.jsonl"], folder / "tokenizer", folder / "whole", shard_bytes=SHARD_BYTES)
    return folder / "whole"


def write_documents(path: Path, documents: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


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
    assert manifest["sources"] == [
        {"file": str(folder / "text.jsonl"), "bytes": (folder / "text.jsonl").stat().st_size}
    ]
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


@pytest.mark.parametrize("batch", [1, 7, 100_000])
def test_encoding_in_pieces_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    tokenizer = load_tokenizer(folder / "tokenizer")
    expected = encode_texts(DOCUMENTS[:30], tokenizer)
    monkeypatch.setattr(preparation, "_BATCH_SENTENCES", batch)
    encoded = encode_texts(DOCUMENTS[:30], tokenizer)
    for name in ("tokens", "sentence_lengths", "document_sentences", "text_hashes"):
        assert np.array_equal(getattr(encoded, name), getattr(expected, name))
        assert getattr(encoded, name).dtype == getattr(expected, name).dtype
    assert encode_texts([], tokenizer).tokens.dtype == np.uint16


def test_held_out_is_a_matter_of_the_text_alone(folder: Path, whole: Path, tmp_path: Path) -> None:
    def held_out_texts(store: TokenStore, texts: Sequence[str]) -> set[str]:
        split = Split(store, 0.3, is_held_out=True)
        return {text for number, text in enumerate(texts) if number in split}

    texts = [text for text in DOCUMENTS if text != "\ufffd"]
    expected = {text for text in texts if text_hash(text) < 0.3 * 2**32}
    assert held_out_texts(TokenStore(whole), texts) == expected
    shuffled = random.Random(1).sample(texts, len(texts) // 2)
    write_documents(tmp_path / "half.jsonl", shuffled)
    half = prepare([tmp_path / "half.jsonl"], folder / "other", tmp_path / "half")
    assert held_out_texts(half, shuffled) == expected & set(shuffled)


def test_four_bytes_a_token_for_a_large_vocabulary(folder: Path, tmp_path: Path) -> None:
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
    monkeypatch.setattr(preparation, "_CHUNK_BYTES", chunk_bytes)
    prepare_here(folder, tmp_path / "store", workers=workers)
    assert contents(tmp_path / "store") == contents(whole)


CHILD = """
import multiprocessing, sys
from unmask import preparation
from unmask.cli import main
from unmask.data import shard_writer

preparation._CHUNK_BYTES = 4000
preparation.prepare.__kwdefaults__["shard_bytes"] = 30_000

def stop(place):
    def wait(self_or_path, *arguments):
        result = place(self_or_path, *arguments)
        number = getattr(self_or_path, "_number", None)
        if number == SHARD or str(self_or_path).endswith(f"tokens-0000{SHARD}.bin"):
            print("ready", *[child.pid for child in multiprocessing.active_children()], flush=True)
            sys.stdin.read()
        return result
    return wait

SHARD, PLACE = int(sys.argv.pop(1)), sys.argv.pop(1)
if PLACE == "in a shard":
    shard_writer.ShardWriter.add = stop(shard_writer.ShardWriter.add)
if PLACE == "before its record":
    shard_writer.describe_file = stop(shard_writer.describe_file)
if __name__ == "__main__":
    main()
"""
"""`unmask` that stops in shard SHARD until its standard input is closed: twice in the same place for every test."""


@contextmanager
def preparing(folder: Path, out: Path, shard: int, place: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has come to a place in a shard, in a group of its own, and waits there."""
    command = [sys.executable, "-c", CHILD, str(shard), place, "prepare", str(folder / "text.jsonl")]
    command += ["--tokenizer", str(folder / "tokenizer"), "--out", str(out), *(words or ("--workers", "1"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready"), process.stderr.read() if process.stderr else ""
            process.args = [int(pid) for pid in line.split()[1:]]
            yield process
        finally:
            process.kill()


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Lets a process go on to its end: its exit code and what it wrote to standard error."""
    _, errors = process.communicate()
    return process.returncode, errors


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def shard_files(*numbers: int) -> list[str]:
    return sorted(
        name.format(number)
        for name in ("documents-{:05d}.bin", "sentences-{:05d}.bin", "shard-{:05d}.json", "tokens-{:05d}.bin")
        for number in numbers
    )


@pytest.mark.parametrize("place", ["in a shard", "before its record"])
def test_killed_and_resumed_gives_the_same_bytes(folder: Path, whole: Path, tmp_path: Path, place: str) -> None:
    out = tmp_path / "store"
    with preparing(folder, out, 2, place) as process:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert set(shard_files(0, 1)) < set(names(out))
    with pytest.raises(StoreError, match=r"an unfinished store .*--resume` goes on with it"):
        TokenStore(out)
    with pytest.raises(OutputError, match=r"exists already .*pass --resume to go on with it, or --overwrite"):
        prepare_here(folder, out)
    kept = (out / "tokens-00000.bin").stat().st_ino
    prepare_here(folder, out, resume=True)
    assert contents(out) == contents(whole)
    assert (out / "tokens-00000.bin").stat().st_ino == kept, "a finished shard was made again"


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "stopped by Ctrl-C"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_a_signal_keeps_finished_shards_and_says_so(
    folder: Path, whole: Path, tmp_path: Path, number: int, code: int, message: str
) -> None:
    out = tmp_path / "store"
    with preparing(folder, out, 2, "in a shard") as process:
        process.send_signal(number)
        assert finished(process) == (
            code,
            f"{message}; 2 finished shard(s) are kept: the same command with --resume goes on\n",
        )
    assert names(out) == shard_files(0, 1)
    prepare_here(folder, out, resume=True)
    assert contents(out) == contents(whole)


def test_a_signal_before_the_first_shard_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with preparing(folder, tmp_path / "store", 0, "in a shard") as process:
        process.send_signal(signal.SIGTERM)
        assert finished(process) == (143, "stopped by SIGTERM; no shard was finished, so nothing is kept\n")
    assert names(tmp_path) == []


def ended(pids: Sequence[int]) -> bool:
    """Whether processes end within half a minute: a wait for something that comes at once, or never."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(descriptor):
            if not select.select([descriptor], [], [], 30)[0]:
                return False
    return True


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waiting for another's process needs Linux")
@pytest.mark.parametrize("how", ["killed", "told with its whole group"])
def test_workers_end_with_the_process_that_started_them(folder: Path, tmp_path: Path, how: str) -> None:
    out = tmp_path / "store"
    with preparing(folder, out, 2, "in a shard", "--workers", "2") as process:
        workers = process.args
        assert isinstance(workers, list)
        assert len(workers) == 2
        if how == "killed":
            process.send_signal(signal.SIGKILL)
            process.wait()
        else:
            os.killpg(process.pid, signal.SIGTERM)
            code, errors = finished(process)
            assert (code, errors.split(";")[0]) == (143, "stopped by SIGTERM")
            assert names(out) == shard_files(0, 1)
        assert ended([int(pid) for pid in workers])


# ------------------------------------------------------------------------------------------------------------- resuming


@pytest.fixture
def stopped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of which two shards are finished."""
    out = tmp_path / "stopped"
    add = ShardWriter.add

    def stop_in_shard_2(self: ShardWriter, chunk: Any) -> None:
        if self._number == 2:
            raise Interrupted("stopped by SIGTERM", signal.SIGTERM)
        add(self, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", stop_in_shard_2)
        with pytest.raises(Interrupted):
            prepare_here(folder, out)
    assert names(out) == shard_files(0, 1)
    return out


Resume = Callable[[Path, Path], TokenStore]
"""Goes on with the store at a path, given the folder of texts and tokenizers."""


def with_text(documents: Sequence[str]) -> Resume:
    def resume(folder: Path, out: Path) -> TokenStore:
        text = write_documents(out.parent / "changed.jsonl", documents)
        return prepare([text], folder / "tokenizer", out, resume=True, shard_bytes=SHARD_BYTES)

    return resume


@pytest.mark.parametrize(
    ("resume", "different"),
    [
        pytest.param(with_text(["Changed.", *DOCUMENTS[1:]]), "text", id="the first document"),
        pytest.param(with_text(DOCUMENTS[:3]), "text", id="less text than one shard"),
        pytest.param(with_text(DOCUMENTS[::-1]), "text", id="another order"),
        pytest.param(
            lambda folder, out: prepare(
                [folder / "text.jsonl"], folder / "other", out, resume=True, shard_bytes=SHARD_BYTES
            ),
            "tokenizer",
            id="another tokenizer",
        ),
        pytest.param(
            lambda folder, out: prepare_here(folder, out, resume=True, shard_bytes=9), "shard_bytes", id="size"
        ),
    ],
)
def test_resuming_with_anything_else_is_refused(folder: Path, stopped: Path, resume: Resume, different: str) -> None:
    before = contents(stopped)
    with pytest.raises(StoreError, match=rf"{stopped}: what is there was made from another .*{different}.*--overwrite"):
        resume(folder, stopped)
    assert contents(stopped) == before


def test_text_that_ends_where_a_shard_does_is_refused_too(folder: Path, stopped: Path) -> None:
    """Of a shorter text that fills shard 0 exactly, shard 1 would be left over."""
    size = 0
    kept = []
    for text in DOCUMENTS:
        kept.append(text)
        size += len(text.encode())
        if size >= SHARD_BYTES:
            break
    before = contents(stopped)
    with pytest.raises(StoreError, match="made from another text"):
        with_text(kept)(folder, stopped)
    assert contents(stopped) == before


def test_text_added_behind_is_taken_in(folder: Path, stopped: Path) -> None:
    """What has been written stays right: only the finished shards have to be those of the text."""
    added = with_text([*DOCUMENTS, "A last document."])(folder, stopped)
    assert added.num_documents == len(DOCUMENTS)
    added.verify()


def test_a_damaged_finished_shard_is_made_again(folder: Path, whole: Path, stopped: Path) -> None:
    tokens = stopped / "tokens-00001.bin"
    tokens.write_bytes(b"\x01" + tokens.read_bytes()[1:])
    (stopped / "shard-00000.json").write_text("[]")
    prepare_here(folder, stopped, resume=True)
    assert contents(stopped) == contents(whole)


def test_a_fault_while_resuming_loses_no_finished_shard(
    folder: Path, whole: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(stopped)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_check_resumed", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            prepare_here(folder, stopped, resume=True)
    assert contents(stopped) == before
    prepare_here(folder, stopped, resume=True)
    assert contents(stopped) == contents(whole)


def test_a_complete_store_is_opened_if_it_is_the_same(folder: Path, whole: Path, tmp_path: Path) -> None:
    before = contents(whole)
    assert prepare_here(folder, whole, resume=True).num_documents == len(DOCUMENTS) - 1
    with pytest.raises(StoreError, match="made from another tokenizer"):
        prepare([folder / "text.jsonl"], folder / "other", whole, resume=True)
    changed = write_documents(tmp_path / "text.jsonl", DOCUMENTS[:-1])
    with pytest.raises(StoreError, match="made from another text"):
        prepare([changed], folder / "tokenizer", whole, resume=True)
    assert contents(whole) == before


def test_resuming_where_there_is_nothing_begins(folder: Path, whole: Path, tmp_path: Path) -> None:
    prepare_here(folder, tmp_path / "store", resume=True)
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


def test_overwriting_that_fails_gives_the_store_back(folder: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    shutil.copytree(whole, out)
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="not UTF-8"):
        prepare([tmp_path / "bad.txt"], folder / "tokenizer", out, overwrite=True)
    assert contents(out) == contents(whole)
    assert names(tmp_path) == ["bad.txt", "store"]


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


# --------------------------------------------------------------------------------------------------------- a full disk


@contextmanager
def disk_full_after(monkeypatch: pytest.MonkeyPatch, num_files: int) -> Iterator[None]:
    """So many files are written; the next one finds no space when it is flushed to the disk."""
    left = [num_files]

    def fsync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


FILES_OF_A_SHARD = 4


@pytest.mark.parametrize("num_files", [0, 1, 2, 3, 4, 5, 7, 8, "tokenizer", "manifest"])
def test_a_full_disk_keeps_finished_shards_only(
    folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int | str
) -> None:
    out = tmp_path / "store"
    num_shards = len(TokenStore(whole).manifest["shards"])
    if not isinstance(num_files, int):
        num_files = FILES_OF_A_SHARD * num_shards + {"tokenizer": 1, "manifest": 4}[num_files]
    with disk_full_after(monkeypatch, num_files), pytest.raises(OutputError) as told:
        prepare_here(folder, out)
    num_kept = min(num_shards, num_files // FILES_OF_A_SHARD)
    first, *more = str(told.value).splitlines()
    assert first.startswith(f"the disk is full while writing {out}")
    assert first.endswith("free some space, or write elsewhere")
    if not num_kept:
        assert names(tmp_path) == more == []
        return
    assert more == [f"{num_kept} finished shard(s) are kept: the same command with --resume goes on"]
    assert names(out) == shard_files(*range(num_kept))
    prepare_here(folder, out, resume=True)
    assert contents(out) == contents(whole)


def test_a_write_that_fails_is_a_full_disk_too(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: ShardWriter, chunk: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ShardWriter, "add", add)
    with pytest.raises(OutputError, match="the disk is full"):
        prepare_here(folder, tmp_path / "store")
    assert names(tmp_path) == []


@pytest.mark.parametrize("num_files", range(5))
def test_a_full_disk_leaves_no_tokenizer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    with disk_full_after(monkeypatch, num_files), pytest.raises(OutputError, match="the disk is full while writing"):
        train_tokenizer([folder / "text.jsonl"], tmp_path / "made", TokenizerSettings(vocab_size=200))
    assert names(tmp_path) == []
    shutil.copytree(folder / "other", tmp_path / "made")
    with disk_full_after(monkeypatch, num_files), pytest.raises(OutputError, match="the disk is full while writing"):
        train_tokenizer([folder / "text.jsonl"], tmp_path / "made", TokenizerSettings(vocab_size=300), overwrite=True)
    assert contents(tmp_path / "made") == contents(folder / "other")
    assert names(tmp_path) == ["made"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk of its own can be mounted by root only")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("command", ["prepare", "tokenizer train"])
def test_a_truly_full_disk(folder: Path, tiny_disk: Path, command: str) -> None:
    (tiny_disk / "filler").write_bytes(b"x" * (40 << 10))
    words = [
        sys.executable,
        "-m",
        "unmask",
        *command.split(),
        str(folder / "text.jsonl"),
        "--out",
        str(tiny_disk / "made"),
    ]
    words += ["--tokenizer", str(folder / "tokenizer"), "--workers", "1"] if command == "prepare" else []
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: the disk is full while writing {tiny_disk}")
    assert len(done.stderr.splitlines()) == 1
    assert names(tiny_disk) == ["filler"]


# -------------------------------------------------------------------------------------------------------------- memory

MEASURE = """
import re, resource, sys
from unmask.preparation import prepare

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

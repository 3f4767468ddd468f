"""Text to a token store: read, clean, split into sentences, encode, write; by several processes, in constant memory.

One process reads the corpus in order and cuts it into chunks of about a megabyte; workers encode them; the chunks come
back in order and go into shards that end after a fixed number of bytes of text. So the bytes of a store do not depend
on the number of workers, and never more than a few chunks a worker are in memory.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from unmask.data.corpus import CorpusCounts, find_files, read_documents
from unmask.data.sentences import split_sentences
from unmask.data.shard_writer import (
    STORE_FILES,
    EncodedChunk,
    ShardWriter,
    TextDigest,
    num_records,
    read_record,
    remove_records,
    remove_unfinished,
    write_manifest,
)
from unmask.data.store import TokenStore, token_dtype
from unmask.errors import InputError, Interrupted, OutputError, StoreError
from unmask.files import UNFINISHED, refuse_existing, refuse_foreign, told_as_output_error
from unmask.interruption import Interruption
from unmask.progress import Progress
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

SHARD_BYTES = 128 << 20
"""A shard ends after the document with which it has this many bytes of UTF-8 text."""

_CHUNK_BYTES = 1 << 20
_CHUNKS_IN_FLIGHT = 4
"""Chunks per worker that are being encoded or wait to be written."""
_BATCH_SENTENCES = 16_384
"""Sentences encoded at once: ids are Python integers on the way, and a document may be of any size."""


@dataclass
class _Chunk:
    """Documents in a row that go into one shard."""

    shard: int
    texts: list[str] = field(default_factory=list)
    bytes: int = 0


def prepare(
    text: Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    overwrite: bool = False,
    resume: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> TokenStore:
    """Makes a token store.

    Args:
        text: files, folders and globs, as `unmask.data.corpus.find_files` takes them.
        tokenizer: a tokenizer's directory.
        out: the store's directory.
        workers: encoding processes; with 1 nothing is started. A script that passes more needs the usual
            `if __name__ == "__main__":`.
        overwrite: True replaces a store at `out` when the new one is complete; it is as it was if anything goes wrong.
        resume: True goes on with an interrupted preparation at `out`: its finished shards are kept.
        shard_bytes: bytes of text in a shard.

    Raises:
        InputError: no text, or text that cannot be read.
        OutputError: `out` exists, holds other things than a store, or the disk is full.
        StoreError: the store to be resumed was made from another text or tokenizer.
        Interrupted: Ctrl-C or SIGTERM; finished shards are kept.
    """
    out, tokenizer_path = Path(out), Path(tokenizer)
    out = out if out.name else out.resolve()  # "." has no name to put a neighbour beside
    if workers < 1:
        raise InputError(f"workers={workers}: expected at least 1")
    files = find_files(text)
    encoder = load_tokenizer(tokenizer_path)
    if resume and (out / "manifest.json").is_file():
        return _open_complete(out, files, encoder)
    if not resume:
        refuse_existing(out, overwrite, "choose another name, or pass --resume to go on with it, or --overwrite")
    refuse_foreign(out, STORE_FILES, "a token store")
    replaces = overwrite and not resume and out.exists()
    with (
        _moved_aside(out, [*files, tokenizer_path]) if replaces else nullcontext(),
        _unfinished_store(out, keeps_shards=not replaces),
        Interruption() as interruption,
    ):
        return _prepare(files, encoder, tokenizer_path, out, workers, shard_bytes, interruption)


def _open_complete(out: Path, files: list[Path], tokenizer: TextTokenizer) -> TokenStore:
    """The store at `out`, if it was made from this tokenizer and from files of these sizes."""
    store = TokenStore(out)
    sizes = [source["bytes"] for source in store.manifest.get("sources", [])]
    if store.manifest.get("tokenizer_fingerprint") != tokenizer.fingerprint():
        raise _made_from_another(out, ["tokenizer"])
    if sizes != [path.stat().st_size for path in files]:
        raise _made_from_another(out, ["text"])
    return store


@contextmanager
def _moved_aside(out: Path, inputs: list[Path]) -> Iterator[None]:
    """Moves what is at `out` out of the way, and back if nothing takes its place.

    Raises:
        OutputError: something that the new store is to be made from would move with it.
    """
    for path in inputs:
        if path.resolve().is_relative_to(out.resolve()):
            raise OutputError(f"{path} is needed and lies in {out}, which would be overwritten: choose another --out")
    aside = out.with_name(f"{UNFINISHED}replaced-{out.name}")
    with told_as_output_error(out):
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(out, aside)
    try:
        yield
    finally:
        if out.exists():
            shutil.rmtree(aside)
        else:
            os.replace(aside, out)


@contextmanager
def _unfinished_store(out: Path, keeps_shards: bool) -> Iterator[None]:
    """Makes the directory; when anything goes wrong, leaves nothing but finished shards, and says so.

    Args:
        keeps_shards: False leaves not even those, since a store that was to be replaced comes back in their place.
    """
    existed = out.is_dir()
    with told_as_output_error(out):
        out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException as error:
        if (out / "manifest.json").is_file():  # the store was complete before
            raise
        if not keeps_shards:
            shutil.rmtree(out)
            if isinstance(error, Interrupted):
                raise Interrupted(f"{error}; the store there is as it was", error.signal_number) from error
            raise
        num_kept = remove_unfinished(out)
        if not num_kept and not existed:
            out.rmdir()
        kept = f"{num_kept} finished shard(s) are kept: the same command with --resume goes on"
        if isinstance(error, Interrupted):
            message = f"{error}; {kept if num_kept else 'no shard was finished, so nothing is kept'}"
            raise Interrupted(message, error.signal_number) from error
        if num_kept and isinstance(error, InputError | OutputError):
            raise type(error)(f"{error}\n{kept}") from error
        raise


def _prepare(
    files: list[Path],
    tokenizer: TextTokenizer,
    tokenizer_path: Path,
    out: Path,
    workers: int,
    shard_bytes: int,
    interruption: Interruption,
) -> TokenStore:
    counts = CorpusCounts()
    dtype = token_dtype(tokenizer.vocab_size)
    fingerprint = tokenizer.fingerprint()
    total_bytes = max(1, sum(path.stat().st_size for path in files))
    num_tokens = 0
    records: list[dict[str, Any]] = []
    with (
        Progress("preparing", unit="tokens") as progress,
        _encoder(tokenizer, tokenizer_path, workers, interruption) as encode,
    ):

        def show_and_check() -> None:
            progress.update(counts.file_bytes / total_bytes, num_tokens)
            interruption.check()

        def watched(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
            for chunk in chunks:
                show_and_check()
                yield chunk

        chunks = watched(cut_chunks((document.text for document in read_documents(files, counts)), shard_bytes))
        for shard, chunks_of_shard in groupby(chunks, key=lambda chunk: chunk.shard):
            digest = TextDigest()
            digested = _digested(chunks_of_shard, digest)
            record = read_record(out, shard)
            if record is not None:
                for _ in digested:
                    pass
                _check_resumed(out, record, _made_from(fingerprint, shard_bytes, digest))
            else:
                with ShardWriter(out, shard, dtype) as writer:
                    for encoded in encode(digested):
                        writer.add(encoded)
                        num_tokens += len(encoded.tokens)
                        show_and_check()
                    record = writer.finish(_made_from(fingerprint, shard_bytes, digest))
            records.append(record)
        progress.update(1.0, num_tokens)
    interruption.check()
    if num_records(out) > len(records):
        raise _made_from_another(out, ["text"])
    if sum(record["documents"] for record in records) == 0:
        remove_records(out)
        others = f" and {len(files) - 1} more file(s)" if len(files) > 1 else ""
        raise InputError(f"{files[0]}{others}: no text with a sentence in it: give text to prepare")
    with told_as_output_error(out):
        (out / "tokenizer").mkdir(exist_ok=True)
    tokenizer.save(out / "tokenizer")
    description = {
        "vocab_size": tokenizer.vocab_size,
        "token_bytes": dtype.itemsize,
        "tokenizer_fingerprint": fingerprint,
        "shard_bytes": shard_bytes,
        "sources": [{"file": str(path), "bytes": path.stat().st_size} for path in files],
        "text": asdict(counts),
    }
    write_manifest(out, records, description)
    return TokenStore(out)


def cut_chunks(texts: Iterator[str], shard_bytes: int) -> Iterator[_Chunk]:
    """Cuts a corpus into chunks of about a megabyte, each within one shard; a document is never cut."""
    shard, shard_size = 0, 0
    chunk = _Chunk(shard)
    for text in texts:
        size = len(text.encode("utf-8"))
        chunk.texts.append(text)
        chunk.bytes += size
        shard_size += size
        shard_is_full = shard_size >= shard_bytes
        if chunk.bytes >= _CHUNK_BYTES or shard_is_full:
            yield chunk
            if shard_is_full:
                shard, shard_size = shard + 1, 0
            chunk = _Chunk(shard)
    if chunk.texts:
        yield chunk


def encode_texts(texts: list[str], tokenizer: TextTokenizer) -> EncodedChunk:
    """Splits documents into sentences and encodes them; sentences and documents without a token are left out."""
    sentences: list[str] = []
    sentences_of: list[int] = []
    for text in texts:
        bounds = split_sentences(text)
        sentences.extend(text[start:end] for start, end in bounds)
        sentences_of.append(len(bounds))
    dtype = token_dtype(tokenizer.vocab_size)
    lengths = np.zeros(len(sentences), dtype=np.uint32)
    runs = [np.zeros(0, dtype)]
    for start in range(0, len(sentences), _BATCH_SENTENCES):
        encoded = tokenizer.encode_batch(sentences[start : start + _BATCH_SENTENCES])
        lengths[start : start + len(encoded)] = [len(ids) for ids in encoded]
        runs.append(np.fromiter(chain.from_iterable(encoded), dtype))
    tokens = np.concatenate(runs)
    document_of_sentence = np.repeat(np.arange(len(texts)), sentences_of)
    kept_sentences = np.bincount(document_of_sentence[lengths > 0], minlength=len(texts))
    has_tokens = kept_sentences > 0
    hashes = np.array([text_hash(text) for text in texts], dtype=np.uint32)
    return EncodedChunk(
        tokens=tokens,
        sentence_lengths=lengths[lengths > 0],
        document_sentences=kept_sentences[has_tokens].astype(np.uint32),
        text_hashes=hashes[has_tokens],
        unknown_tokens=int(np.count_nonzero(tokens == tokenizer.unk_id)),
        documents_without_tokens=int(np.count_nonzero(~has_tokens)),
    )


def text_hash(text: str) -> int:
    """The first 32 bits of the SHA-256 of a text in UTF-8, by which documents are held out."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "big")


@contextmanager
def _encoder(
    tokenizer: TextTokenizer, path: Path, workers: int, interruption: Interruption
) -> Iterator[Callable[[Iterator[_Chunk]], Iterator[EncodedChunk]]]:
    """Yields a function that encodes chunks in order: here, or in worker processes."""
    if workers == 1:
        yield lambda chunks: (encode_texts(chunk.texts, tokenizer) for chunk in chunks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(str(path),))
    try:
        yield lambda chunks: _encode_ahead(pool, chunks, workers * _CHUNKS_IN_FLIGHT)
    except BrokenProcessPool as error:
        interruption.check()  # a SIGTERM to the whole group of processes ends the workers first
        raise OutputError("a worker process was killed (out of memory?): try fewer --workers") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _encode_ahead(pool: ProcessPoolExecutor, chunks: Iterator[_Chunk], most: int) -> Iterator[EncodedChunk]:
    waiting: deque[Future[EncodedChunk]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(_encode_in_worker, chunk.texts))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


_tokenizer_of_worker: TextTokenizer | None = None


def _start_worker(tokenizer: str) -> None:
    """Workers leave Ctrl-C to the process that started them, end when it does, and give the tokenizer one thread."""
    global _tokenizer_of_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer_of_worker = load_tokenizer(Path(tokenizer))


def _end_with_parent() -> None:
    """A parent that was killed has told its workers nothing, and they would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_in_worker(texts: list[str]) -> EncodedChunk:
    assert _tokenizer_of_worker is not None
    return encode_texts(texts, _tokenizer_of_worker)


def _digested(chunks: Iterator[_Chunk], digest: TextDigest) -> Iterator[_Chunk]:
    for chunk in chunks:
        for text in chunk.texts:
            digest.add(text)
        yield chunk


def _made_from(fingerprint: str, shard_bytes: int, digest: TextDigest) -> dict[str, Any]:
    return {"tokenizer": fingerprint, "shard_bytes": shard_bytes, "text": digest.hexdigest()}


def _check_resumed(out: Path, record: dict[str, Any], made_from: dict[str, Any]) -> None:
    """Refuses to go on with a shard that the same command would not have written."""
    different = [name for name, value in made_from.items() if record["made_from"].get(name) != value]
    if different:
        raise _made_from_another(out, different)


def _made_from_another(out: Path, different: list[str]) -> StoreError:
    return StoreError(
        f"{out}: what is there was made from another {' and '.join(different)}: "
        "start again with --overwrite, or choose another --out"
    )

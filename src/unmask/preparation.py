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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from unmask.data.corpus import CorpusCounts, find_files, read_documents
from unmask.data.sentences import split_sentences
from unmask.data.shard_writer import EncodedChunk, ShardWriter, TextDigest, read_record, write_manifest
from unmask.data.store import TokenStore, token_dtype
from unmask.errors import InputError, OutputError, StoreError, UserError
from unmask.files import UNFINISHED, refuse_existing, remove_own, told_as_output_error
from unmask.progress import Progress
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

SHARD_BYTES = 128 << 20
"""A shard ends after the document with which it has this many bytes of UTF-8 text."""

_CHUNK_BYTES = 1 << 20
_CHUNKS_IN_FLIGHT = 4
"""Chunks per worker that are being encoded or wait to be written."""


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
        overwrite: True replaces what is at `out`.
        resume: True goes on with an interrupted preparation at `out`: its finished shards are kept.
        shard_bytes: bytes of text in a shard.

    Raises:
        InputError: no text, or text that cannot be read.
        OutputError: `out` exists, or the disk is full.
        StoreError: the store to be resumed was made from another text or tokenizer.
    """
    out, tokenizer_path = Path(out), Path(tokenizer)
    if workers < 1:
        raise InputError(f"workers={workers}: expected at least 1")
    files = find_files(text)
    encoder = load_tokenizer(tokenizer_path)
    if resume and (out / "manifest.json").is_file():
        return TokenStore(out)
    if not resume:
        refuse_existing(out, overwrite, "choose another name, or pass --resume to go on with it, or --overwrite")
        remove_own(out, ("manifest.json", "tokens-*.bin", "shard-*.json"), "a token store")
    with _unfinished_store(out) as finished:
        return _prepare(files, encoder, tokenizer_path, out, workers, shard_bytes, finished)


@contextmanager
def _unfinished_store(out: Path) -> Iterator[list[dict[str, Any]]]:
    """Makes the directory; when anything goes wrong, keeps finished shards and says so, and leaves nothing where there
    are none.

    Yields the list that the records of finished shards are put into.
    """
    finished: list[dict[str, Any]] = []
    with told_as_output_error(out):
        out.mkdir(parents=True, exist_ok=True)
    try:
        yield finished
    except BaseException as error:
        for path in out.glob(f"{UNFINISHED}*"):
            path.unlink()
        if not finished:
            shutil.rmtree(out)
        elif isinstance(error, UserError):
            raise type(error)(
                f"{error}\n{len(finished)} finished shards are kept: the same command with --resume goes on"
            ) from error
        raise


def _prepare(
    files: list[Path],
    tokenizer: TextTokenizer,
    tokenizer_path: Path,
    out: Path,
    workers: int,
    shard_bytes: int,
    finished: list[dict[str, Any]],
) -> TokenStore:
    counts = CorpusCounts()
    dtype = token_dtype(tokenizer.vocab_size)
    fingerprint = tokenizer.fingerprint()
    total_bytes = sum(path.stat().st_size for path in files)
    chunks = cut_chunks((document.text for document in read_documents(files, counts)), shard_bytes)
    with (
        Progress("preparing", unit="tokens") as progress,
        _encoder(tokenizer, tokenizer_path, workers) as encode,
    ):
        num_tokens = 0
        for shard, chunks_of_shard in groupby(chunks, key=lambda chunk: chunk.shard):
            record = read_record(out, shard)
            if record is not None:
                _check_resumed(out, record, chunks_of_shard, fingerprint, shard_bytes)
            else:
                with ShardWriter(out, shard, dtype) as writer:
                    digest = TextDigest()
                    for encoded in encode(_digested(chunks_of_shard, digest)):
                        writer.add(encoded)
                        num_tokens += len(encoded.tokens)
                        progress.update(counts.file_bytes / max(1, total_bytes), num_tokens)
                    record = writer.finish(_made_from(fingerprint, shard_bytes, digest))
            finished.append(record)
    if sum(record["documents"] for record in finished) == 0:
        finished.clear()
        raise InputError(
            f"no text with a sentence in {len(files)} file(s) ({counts.empty_files} of them empty): nothing to prepare"
        )
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
    write_manifest(out, finished, description)
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
    encoded = tokenizer.encode_batch(sentences)
    lengths = np.fromiter(map(len, encoded), dtype=np.uint32, count=len(encoded))
    tokens = np.fromiter((token for ids in encoded for token in ids), dtype=np.uint32, count=int(lengths.sum()))
    document_of_sentence = np.repeat(np.arange(len(texts)), sentences_of)
    kept_sentences = np.bincount(document_of_sentence[lengths > 0], minlength=len(texts))
    has_tokens = kept_sentences > 0
    hashes = np.array([text_hash(text) for text in texts], dtype=np.uint32)
    return EncodedChunk(
        tokens=tokens.astype(token_dtype(tokenizer.vocab_size)),
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
    tokenizer: TextTokenizer, path: Path, workers: int
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
    """Workers leave Ctrl-C to the process that started them, and one thread each to the tokenizer."""
    global _tokenizer_of_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer_of_worker = load_tokenizer(Path(tokenizer))


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


def _check_resumed(
    out: Path, record: dict[str, Any], chunks: Iterator[_Chunk], fingerprint: str, shard_bytes: int
) -> None:
    """Refuses to go on with shards that the same command would not have written."""
    digest = TextDigest()
    for _ in _digested(chunks, digest):
        pass
    wanted = _made_from(fingerprint, shard_bytes, digest)
    different = [name for name, value in wanted.items() if record["made_from"].get(name) != value]
    if different:
        raise StoreError(
            f"{out}: its finished shards were made from another {' and '.join(different)}: "
            "start again with --overwrite, or choose another --out"
        )

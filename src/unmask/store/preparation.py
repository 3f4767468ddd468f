"""Text to a token store: read, clean, split into sentences, encode, write; by several processes, in constant memory.

One process reads the corpus in order and cuts it into chunks of about a megabyte; others encode them; the chunks come
back in order and go into shards that end after a fixed number of bytes of text. So the bytes of a store do not depend
on which process encodes, and no more than a few chunks per worker are ever in memory. On a Ray cluster whole shards are
sent out, and written where they are encoded.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from unmask.config import as_settings
from unmask.corpus.annotations import KINDS
from unmask.corpus.cleaning.near_duplicates import estimate_memory
from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.pipeline import find_corpora, read_corpora
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.corpus.source import name_of, names_of
from unmask.corpus.statistics import describe_losses
from unmask.errors import InputError, SettingsError
from unmask.io.paths import MANIFEST, SKIPPED, as_path
from unmask.io.progress import Progress, human_bytes, human_count
from unmask.io.signals import Interruption
from unmask.io.writing import (
    alone_in,
    as_output_error,
    json_line,
    own_place,
    put_back,
    refuse_existing,
    refuse_foreign,
    refuse_inputs_inside,
    writing,
    writing_directory,
)
from unmask.store.directory import tidy_complete, unfinished_store
from unmask.store.disk_space import check_free_space, estimate_store
from unmask.store.encoding import Chunk, ChunkEncoder, EncodingSettings, cut_chunks, digested
from unmask.store.encoding_pool import encoder_pool
from unmask.store.job import Job, finished_shard, made_from_another
from unmask.store.manifest import SPAN_ARRAYS, token_dtype, word_arrays
from unmask.store.shard_writer import STORE_FILES, EncodedChunk, ShardWriter, remove_records, write_manifest
from unmask.store.store import TokenStore
from unmask.tokenization.opening import Tokenizer, open_tokenizer

SHARD_BYTES = 128 << 20
"""A shard ends after the document with which it reaches this many bytes of UTF-8 text."""

_MOST_SHOWN = 0.99
"""The most of the progress while tokens are still being written: how many there will be is an estimate."""


def prepare(
    text: str | Path | Iterable[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    ray_address: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    reading: ReadingSettings | Mapping[str, Any] = ReadingSettings(),  # noqa: B008  frozen
    cleaning: CleaningSettings | Mapping[str, Any] = CleaningSettings(),  # noqa: B008  frozen
    splitter: str = "rules",
    shard_bytes: int = SHARD_BYTES,
) -> TokenStore:
    """Makes a token store.

    Args:
        text: one or more files, folders and globs, or a mixture, as `unmask.corpus.pipeline.find_corpora` takes them.
        tokenizer: a tokenizer's directory.
        out: the store's directory.
        workers: encoding processes; 1 starts none. A script that passes more needs the usual
            `if __name__ == "__main__":`.
        ray_address: of a Ray cluster that encodes instead; `text`, `tokenizer` and `out` are in a folder that all of
            its machines share under the same name.
        overwrite: True replaces a store at `out` when the new one is complete; if anything fails, the old one stays.
        resume: True continues an interrupted preparation at `out`: its finished shards are kept.
        reading: how files become documents, as settings or a dictionary of them.
        cleaning: what is repaired in documents and which are left out; likewise.
        splitter: what finds sentences, a key of `unmask.corpus.sentences.splitters.SENTENCE_SPLITTERS`.
        shard_bytes: bytes of text in a shard, at least 1.

    Raises:
        InputError: no text, or text that cannot be read.
        SettingsError: a setting is unknown or out of its range, or both `resume` and `overwrite` are given.
        ModelError: the tokenizer does not load.
        OutputError: `out` exists, holds other things than a store, or the disk is full or too small.
        StoreError: the store to be resumed was made from another text or tokenizer, or with other settings.
        Interrupted: Ctrl-C or SIGTERM; finished shards are kept.
    """
    if resume and overwrite:
        raise SettingsError("--resume continues a store and --overwrite replaces it: give one of them")
    reading = as_settings(ReadingSettings, reading, "reading")
    cleaning = as_settings(CleaningSettings, cleaning, "cleaning")
    out, tokenizer_path = own_place(Path(out)), as_path(tokenizer, "a tokenizer's directory")
    if workers < 1:
        raise SettingsError(f"workers={workers}: expected at least 1")
    if shard_bytes < 1:
        raise SettingsError(f"shard_bytes={shard_bytes}: expected at least 1")
    put_back(out)
    if not (resume and (out / MANIFEST).is_file()):
        refuse_foreign(out, STORE_FILES, "a token store")
    if not resume:
        refuse_existing(out, overwrite, "choose another name, or pass --resume to continue it, or --overwrite")
    complete = TokenStore(out) if resume and (out / MANIFEST).is_file() else None
    sizes = {} if complete is None else complete.manifest.get("mixture_bytes", {})
    text_tokenizer = open_tokenizer(tokenizer_path)
    text_tokenizer.load_segmenter()
    encoder = ChunkEncoder(text_tokenizer, splitter)
    corpora = find_corpora(text, reading, cleaning, sizes)  # last, since it may read all of the text
    job = Job(
        corpora=corpora,
        reading=reading,
        cleaning=cleaning,
        encoding=EncodingSettings(tokenizer_path, splitter),
        out=out,
        dtype=token_dtype(text_tokenizer.vocab_size),
        fingerprint=text_tokenizer.fingerprint(),
        shard_bytes=shard_bytes,
    )
    if complete is not None:
        _check_complete(complete, job)
        tidy_complete(out)
        return complete
    refuse_inputs_inside(out, [*job.files, tokenizer_path])
    replaces = overwrite and out.exists()
    if replaces:
        with alone_in(out):  # else another process is making a store there
            pass
    with (
        Interruption() as interruption,  # entered first, so that Ctrl-C does not cut into the tidying up
        writing_directory(out, overwrite=True) if replaces else unfinished_store(out) as place,
    ):
        job = replace(job, out=place)
        expected_tokens = _report_and_check_disk(job, encoder)
        _prepare(job, text_tokenizer, encoder, workers, ray_address, interruption, expected_tokens)
    return TokenStore(out)


def describe_annotations(store: TokenStore) -> str:
    """How many annotations were kept and lost of the text that a store was made from."""
    manifest = store.manifest
    kept = ", ".join(f"{store.num_spans(kind):,} {kind}" for kind in KINDS)
    lost = {
        "lost their text to cleaning": manifest["text"]["annotations_removed"],
        "overlapped a longer one of their kind": manifest["overlapping_spans"],
        "cover no token": manifest["spans_without_tokens"],
    }
    return "; ".join([f"annotations: {kept}", *(f"{count:,} {why}" for why, count in lost.items() if count)])


def _report_and_check_disk(job: Job, encoder: ChunkEncoder) -> int | None:
    """Says how large the store will be; returns about how many tokens it will have, if that is known of all files."""
    estimates = [estimate_store(corpus.files, encoder, job.reading, job.cleaning) for corpus in job.corpora]
    known = [each.times(corpus.times) for each, corpus in zip(estimates, job.corpora, strict=True) if each is not None]
    if not known:
        return None
    whole = sum(known[1:], known[0])
    if not whole.tokens:
        return None  # reading all of it will show what is wrong
    with_duplicates = job.cleaning.duplicates != "keep" or job.cleaning.near_duplicates is not None
    print(check_free_space(job.out, whole, with_duplicates=with_duplicates), file=sys.stderr)
    if job.cleaning.near_duplicates is not None:
        memory = estimate_memory(whole.documents, job.cleaning.near_duplicates)
        documents = human_count(whole.documents)
        print(f"near-duplicates: about {human_bytes(memory)} of memory for {documents} documents", file=sys.stderr)
    return whole.tokens if len(known) == len(estimates) else None


def _check_complete(store: TokenStore, job: Job) -> None:
    """Refuses a store that was not made with this tokenizer and these settings, from files of these sizes."""
    manifest, settings = store.manifest, job.settings()
    sizes = [source["bytes"] for source in manifest["sources"]]
    if manifest["tokenizer_fingerprint"] != job.fingerprint:
        raise made_from_another(job.out, ["tokenizer"])
    if sizes != [_size(path) for path in dict.fromkeys(job.files)]:  # corpora of a mixture may share files
        raise made_from_another(job.out, ["text"])
    for name in ("shard_bytes", "sentences_by", "mixture", "mixture_seed", "reading", "cleaning"):
        before, now = manifest.get(name), settings.get(name)
        if before != now:
            keys = [name]
            if isinstance(before, dict) and isinstance(now, dict):
                keys = [f"{name}.{key}" for key in {**before, **now} if before.get(key) != now.get(key)]
            raise made_from_another(job.out, keys)


@dataclass
class _Read:
    """What a preparation has read so far of its text."""

    counts: CorpusCounts = field(default_factory=CorpusCounts)
    documents_of: Counter[str] = field(default_factory=Counter)  # by file
    text_bytes: int = 0

    def chunks(self, job: Job) -> Iterator[Chunk]:
        for chunk in cut_chunks(self._documents(job), job.shard_bytes):
            self.text_bytes += chunk.bytes
            yield chunk

    def _documents(self, job: Job) -> Iterator[Document]:
        for document in read_corpora(job.corpora, self.counts, job.reading, job.cleaning, work_directory=job.out):
            self.documents_of[document.source.rpartition(":")[0]] += 1
            yield document


def _prepare(
    job: Job,
    tokenizer: Tokenizer,
    encoder: ChunkEncoder,
    workers: int,
    ray_address: str | None,
    interruption: Interruption,
    expected_tokens: int | None,
) -> None:
    out, read = job.out, _Read()
    with ExitStack() as stack:
        progress = stack.enter_context(Progress("preparing", unit="tokens"))
        stack.enter_context(listing_skipped(out, read.counts))
        tokens_done = 0

        def advance(num_tokens: int) -> None:
            nonlocal tokens_done
            tokens_done += num_tokens
            if expected_tokens is None:
                progress.advance(num_tokens)
            else:  # it is an estimate: the end is where nothing is left
                progress.update(min(_MOST_SHOWN, tokens_done / expected_tokens), tokens_done)
            interruption.check()

        def watched(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
            for chunk in chunks:
                advance(0)
                yield chunk

        chunks = watched(read.chunks(job))
        if ray_address is None:
            encode = stack.enter_context(encoder_pool(encoder, job.encoding, workers))
            records = [
                _write_shard(job, shard, some, encode, advance)
                for shard, some in groupby(chunks, lambda chunk: chunk.shard)
            ]
        else:
            from unmask.store.ray_encoding import write_shards_on_ray

            records = list(write_shards_on_ray(ray_address, job, chunks, advance))
    interruption.check()
    if len(list(out.glob("shard-*.json"))) > len(records):
        raise made_from_another(out, ["text"])
    if sum(record["documents"] for record in records) == 0:
        remove_records(out)
        raise InputError(
            f"{names_of(job.files)}: no text with a sentence in it{describe_losses(read.counts)}: give text to prepare"
        )
    with as_output_error(out):
        (out / "tokenizer").mkdir(exist_ok=True)
    tokenizer.save(out / "tokenizer")
    write_manifest(out, records, _description(job, tokenizer, records, read))


def _description(job: Job, tokenizer: Tokenizer, records: list[dict[str, Any]], read: _Read) -> dict[str, Any]:
    """What the manifest says besides the shards."""
    side_arrays = word_arrays(tokenizer.vocab_size) if tokenizer.reads_words else {}
    if any(record[f"{kind}_spans"] for record in records for kind in KINDS):
        side_arrays |= SPAN_ARRAYS
    return {
        "vocab_size": tokenizer.vocab_size,
        "token_bytes": job.dtype.itemsize,
        **({"side_arrays": side_arrays} if side_arrays else {}),
        "tokenizer_fingerprint": job.fingerprint,
        "sources": [
            {"file": str(path), "bytes": _size(path), "documents": read.documents_of[name_of(path)]}
            for path in dict.fromkeys(job.files)
        ],
        **job.settings(),
        **({"mixture_bytes": {corpus.name: corpus.size for corpus in job.corpora}} if job.corpora[0].name else {}),
        "text": read.counts.as_dict(),
        "text_bytes": read.text_bytes,
    }


def _write_shard(
    job: Job,
    shard: int,
    chunks: Iterator[Chunk],
    encode: Callable[[Iterator[Chunk]], Iterator[EncodedChunk]],
    advance: Callable[[int], None],
) -> dict[str, Any]:
    """Writes a shard, unless it exists already; returns the record of what it holds."""
    digest = hashlib.sha256()
    record = finished_shard(job, shard, chunks, digest)
    if record is not None:
        advance(record["tokens"])
        return record
    with ShardWriter(job.out, shard, job.dtype) as writer:
        for encoded in encode(digested(chunks, digest)):
            writer.add(encoded)
            advance(len(encoded.tokens))
        return writer.finish(job.made_from(digest))


def _size(path: Path) -> int:
    """Bytes of a file; 0 for standard input and pipes, whose size is unknown, and for a file that has vanished."""
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def listing_skipped(directory: Path, counts: CorpusCounts) -> Iterator[None]:
    """Lists what a corpus's statistics count as skipped; no file stays if nothing is skipped or the block fails."""
    file: IO[bytes] | None = None

    def add(source: str, reason: str) -> None:
        nonlocal file
        if file is None:
            file = stack.enter_context(writing(directory / SKIPPED))
        file.write(json_line({"source": source, "reason": reason}))

    with ExitStack() as stack:
        counts.on_skip = add
        stack.callback(setattr, counts, "on_skip", None)
        yield

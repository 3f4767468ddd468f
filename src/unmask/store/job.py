"""The output and inputs of a preparation, and the check that an existing shard belongs to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.corpus.pipeline import Corpus
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.errors import StoreError
from unmask.store.encoding import Chunk, EncodingSettings, TextDigest, digested
from unmask.store.shard_writer import read_record

_OPTIONS = {"sentences_by": "--sentences", "splitter": "--sentences"}
"""What `unmask prepare` calls settings that have other names in manifests and records of shards."""


@dataclass(frozen=True)
class Job:
    """The output and inputs of a preparation."""

    corpora: list[Corpus]  # in their order in the store
    reading: ReadingSettings  # how files become documents
    cleaning: CleaningSettings  # what is repaired and left out
    encoding: EncodingSettings  # makes an encoder
    out: Path  # the store's directory
    dtype: Any  # of a token
    fingerprint: str  # of the tokenizer
    shard_bytes: int  # bytes of text in a shard

    @property
    def files(self) -> list[Path]:
        return [file for corpus in self.corpora for file in corpus.files]

    def settings(self) -> dict[str, Any]:
        """Everything besides text and tokenizer that determines the store, as in the manifest."""
        times, seed = {corpus.name: corpus.times for corpus in self.corpora}, self.corpora[0].seed
        return {
            "shard_bytes": self.shard_bytes,
            "sentences_by": self.encoding.splitter,
            **({"mixture": times, "mixture_seed": seed} if self.corpora[0].name else {}),
            "reading": self.reading.as_recorded(),
            "cleaning": self.cleaning.model_dump(),
        }

    def made_from(self, digest: TextDigest) -> dict[str, Any]:
        """What a shard is made from, which must be the same when a preparation is resumed."""
        return {
            "tokenizer": self.fingerprint,
            "shard_bytes": self.shard_bytes,
            "splitter": self.encoding.splitter,
            "text": digest.hexdigest(),
        }


def finished_shard(job: Job, shard: int, chunks: Iterable[Chunk], digest: TextDigest) -> dict[str, Any] | None:
    """The record of a shard that is there already, whose text is then read; None if the shard has to be written.

    Raises:
        StoreError: the same command would not have written it: it was made from something else.
    """
    record = read_record(job.out, shard)
    if record is None:
        return None
    for _ in digested(chunks, digest):
        pass
    before = record["made_from"]
    different = [name for name, value in job.made_from(digest).items() if before.get(name) != value]
    if different:
        raise made_from_another(job.out, different)
    return record


def made_from_another(out: Path, different: list[str]) -> StoreError:
    """The error that names the differences in text or settings of a resumed preparation."""
    made = f"was made from another {' and '.join(_OPTIONS.get(name, name) for name in different)}"
    return StoreError(f"{out}: what is there {made}: start again with --overwrite, or choose another --out")

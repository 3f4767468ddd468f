"""Several corpora in one store, each taken more or less often than it is large.

    exponent: 0.7                 # share of the text = size ** exponent, over all corpora: small languages grow
    corpora:
      english: {text: [enwiki.jsonl.zst]}
      korean: {text: [kowiki.jsonl.zst], weight: 2}

A corpus whose share calls for 2.3 times its size has each document twice, and three documents of ten a third time,
drawn by a hash. Exponential smoothing of languages is multilingual BERT's (Devlin et al. 2019, the released code's
`multilingual.md`, with exponent 0.7), which sampled pre-training data by it; here documents are sampled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from unmask.config import Settings, build_settings, read_settings_file
from unmask.errors import InputError

SUFFIXES = (".yaml", ".yml")
"""The suffixes of mixtures, which distinguish them from corpora."""

Item = TypeVar("Item")


class CorpusInMixture(Settings):
    """One corpus of a mixture."""

    text: list[str] = Field(min_length=1)
    """Files, folders and globs."""

    weight: float = Field(default=1, gt=0)
    """Factor on its share of the text."""


class MixtureSettings(Settings):
    """The corpora of a mixture, and how large it is."""

    corpora: dict[str, CorpusInMixture] = Field(min_length=1)

    exponent: float = Field(default=1, ge=0, le=1)
    """1: shares in proportion to size; 0: equal shares; in between, smaller corpora are taken more often."""

    size: float = Field(default=1, gt=0)
    """Bytes of the mixture as a multiple of the bytes of all corpora together."""

    seed: int = Field(default=0, ge=0)
    """Decides which documents are taken once more."""


def read_mixture(path: Path) -> MixtureSettings:
    """Reads a mixture; paths in it are relative to its own folder.

    Raises:
        SettingsError: it does not match `MixtureSettings`.
    """
    mixture = build_settings(MixtureSettings, read_settings_file(path), str(path))
    corpora = {
        name: corpus.model_copy(update={"text": [_seen_from(path.parent, text) for text in corpus.text]})
        for name, corpus in mixture.corpora.items()
    }
    return mixture.model_copy(update={"corpora": corpora})


def _seen_from(folder: Path, text: str) -> str:
    return text if text in ("", "-") else str(folder / text)  # neither is a path: `find_corpora` refuses both


def times_taken(mixture: MixtureSettings, sizes: Mapping[str, int]) -> dict[str, float]:
    """How often each document of a corpus is taken on average to give the requested shares.

    Args:
        sizes: corpus -> bytes of its text, cleaned.

    Raises:
        InputError: a corpus has no text.
    """
    for name, size in sizes.items():
        if not size:
            raise InputError(f"corpus {name!r} of the mixture has no text: leave it out, or give it some")
    weights = {name: corpus.weight * sizes[name] ** mixture.exponent for name, corpus in mixture.corpora.items()}
    total = mixture.size * sum(sizes.values())
    return {name: weight / sum(weights.values()) * total / sizes[name] for name, weight in weights.items()}


def take(documents: Iterable[Item], name: str, times: float, seed: int) -> Iterator[Item]:
    """Yields each document of a corpus `times` times: its whole part, and once more at random for the fraction.

    Args:
        name: of the corpus, on which the draw depends along with the document's place.
    """
    whole, rest = divmod(times, 1)
    threshold = int(rest * 2**64)
    for index, document in enumerate(documents):
        copies = int(whole)
        if threshold:
            digest = hashlib.blake2b(f"{seed}:{index}:{name}".encode(), digest_size=8).digest()
            copies += int.from_bytes(digest, "big") < threshold
        for _ in range(copies):
            yield document

"""The files of a fine-tuning run: refuses a resume where one has changed; warns of two that are one or share texts."""

from __future__ import annotations

import filecmp
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from unmask.io.input_files import InputFiles
from unmask.io.writing import is_litter, sha256
from unmask.tasks.base import Example
from unmask.tasks.rows import alike
from unmask.tasks.settings import DataSettings
from unmask.tasks.splits import SPLITS
from unmask.training.run.resuming import check_unchanged

logger = logging.getLogger("unmask")

_WHY = {"data.train": "its figures say less about new text", "data.dev": "what is chosen on dev flatters its figures"}


class Base(NamedTuple):
    """A model that the runs of a search begin from, and the fingerprint of its weights."""

    place: Path
    weights: str


def look_at_bases(places: Mapping[str, Path]) -> dict[str, Base]:
    """The models in some directories, by the keys that name them in the recipe."""
    return {name: Base(place, _fingerprint_of(_weights_in(place), place)) for name, place in places.items()}


def check_same_data(directory: Path, data: DataSettings, bases: Mapping[str, Base] = {}) -> None:
    """`check_unchanged` of a fine-tuning run's files, and of the models that the runs of a search begin from; a single
    run has its weights in its checkpoints."""
    files = _files(data)
    found = {name: _fingerprint(path) for name, path in files.items()}
    found |= {name: base.weights for name, base in bases.items()}
    check_unchanged(directory, found, files | {name: base.place for name, base in bases.items()})


def shared_files(data: DataSettings) -> Iterator[str]:
    """Warnings about figures that mislead because two of a run's files are the same file, or equal in every byte."""
    for (name, first), (other, second) in combinations(_files(data).items(), 2):
        if name.partition("[")[0] == other.partition("[")[0]:
            continue  # shards of one split
        is_one = first.samefile(second)
        if is_one or (first.is_file() and second.is_file() and filecmp.cmp(first, second, shallow=False)):
            what = "is the same file as" if is_one else "holds the very bytes of"
            why = (
                f"its figures are of what was learned, and say nothing of new examples: give others as {other}"
                if name == "data.train"
                else "what is chosen by the one is flattered by the other: give examples of their own for each"
            )
            yield f"{other}={second} {what} {name}={first}: {why}"


def text_hashes(examples: Iterable[Example]) -> frozenset[int]:
    """Of the texts of each, whatever their case, blanks and composition."""
    return frozenset(map(_text_hash, examples))


def _text_hash(example: Example) -> int:
    return hash(tuple(map(alike, example.texts)))


def warn_of_known(split: str, file: InputFiles, examples: Iterable[Example], others: Mapping[str, Set[int]]) -> None:
    """Says how many examples that are measured are in other files too: a warning where it is over a hundredth.

    Args:
        others: the hashes of each other file's texts.
    """
    hashes = [_text_hash(example) for example in examples]
    for other, its in others.items():
        if num_known := sum(each in its for each in hashes):
            logger.log(
                logging.WARNING if 100 * num_known > len(hashes) else logging.INFO,
                "%s inputs of %s (%s) are in %s too, but for case and blanks: %s; unmask split keeps what belongs "
                "together on one side",
                f"{num_known:,} of the {len(hashes):,}",
                split,
                file,
                other,
                _WHY[other],
            )


def _files(data: DataSettings) -> dict[str, Path]:
    """A fine-tuning run's files, by their keys in the recipe."""
    given = {split: data.files(split) for split in SPLITS}
    return {
        f"data.{split}" + (f"[{number}]" if len(files.paths) > 1 else ""): path
        for split, files in given.items()
        if files is not None
        for number, path in enumerate(files.paths)
    }


def _fingerprint(path: Path) -> str:
    """The SHA-256 of a file; of a folder, that of the names and fingerprints of all its files."""
    if not path.is_dir():
        return sha256(path)
    return _fingerprint_of((file for file in path.rglob("*") if file.is_file() and not is_litter(file.name)), path)


def _fingerprint_of(files: Iterable[Path], folder: Path) -> str:
    sums = "".join(f"{file.relative_to(folder)}\0{sha256(file)}\n" for file in sorted(files))
    return hashlib.sha256(sums.encode("utf-8", "surrogateescape")).hexdigest()


def _weights_in(directory: Path) -> list[Path]:
    """A model's files of weights: those of `transformers`, else whatever else there is, as TensorFlow's."""
    return list(directory.glob("*.safetensors")) or [
        file for file in directory.iterdir() if file.suffix in (".bin", ".hdf5") or ".ckpt" in file.name
    ]

"""The files of a fine-tuning run: refuses a resume where one has changed; warns of two that share texts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Set
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


def text_hashes(examples: Iterable[Example]) -> frozenset[int]:
    """Of the texts of each, whatever their case, blanks and composition."""
    return frozenset(map(_text_hash, examples))


def _text_hash(example: Example) -> int:
    return hash(tuple(map(alike, example.texts)))


def warn_of_known(
    split: str, file: InputFiles, examples: Iterable[Example], others: Mapping[str, Set[int]]
) -> list[str]:
    """Says how many examples that are measured are in other files too: a warning where it is over a hundredth, or
    most of another file.

    Args:
        others: the hashes of each other file's texts.

    Returns:
        The warnings.
    """
    hashes = [_text_hash(example) for example in examples]
    warnings = []
    for other, its in others.items():
        if num_known := sum(each in its for each in hashes):
            message = (
                f"{num_known:,} of the {len(hashes):,} inputs of {split} ({file}) are in {other} too, but for case and "
                f"blanks: {_WHY[other]}; unmask split keeps what belongs together on one side"
            )
            is_notable = 100 * num_known > len(hashes) or 2 * len(its & set(hashes)) > len(its)
            if is_notable:
                warnings.append(message)
            logger.log(logging.WARNING if is_notable else logging.INFO, "%s", message)
    return warnings


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

"""The files of a fine-tuning run: refuses a resume where one has changed, and warns where two are one."""

from __future__ import annotations

import filecmp
import hashlib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from unmask.io.writing import sha256
from unmask.tasks.settings import DataSettings
from unmask.tasks.splits import SPLITS
from unmask.training.run.directory import check_unchanged


def check_files(directory: Path, data: DataSettings) -> None:
    """`check_unchanged` of a fine-tuning run's files."""
    files = _files(data)
    check_unchanged(directory, {name: _fingerprint(path) for name, path in files.items()}, files)


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
    files = sorted(file for file in path.rglob("*") if file.is_file())
    sums = "".join(f"{file.relative_to(path)}\0{sha256(file)}\n" for file in files)
    return hashlib.sha256(sums.encode("utf-8", "surrogateescape")).hexdigest()

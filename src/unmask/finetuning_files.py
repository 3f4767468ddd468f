"""The files that a fine-tuning run reads: warns where two are one, and refuses those that changed before a resume."""

from __future__ import annotations

import filecmp
import hashlib
import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from unmask.errors import CheckpointError
from unmask.files import sha256, write_json
from unmask.tasks.settings import DataSettings

DATA = "data.json"
"""In the directory of a run or search: the SHA-256 of each of its files."""


def check_unchanged(data: DataSettings, directory: Path) -> None:
    """Writes down what a run's files hold, or compares them with what was written when it was begun.

    Raises:
        CheckpointError: one differs: figures of before and after could not be compared.
    """
    found = {name: _fingerprint(file) for name, file in _named(data)}
    record = directory / DATA
    if record.is_file():
        before = json.loads(record.read_bytes())
        changed = [f"data.{name}={file}" for name, file in _named(data) if before.get(name) != found[name]]
        if changed:
            raise CheckpointError(
                f"{directory}: {' and '.join(changed)} holds something else than when this run was begun: restore it, "
                "or start again with --overwrite"
            )
        return
    write_json(record, found)


def shared_files(data: DataSettings) -> Iterator[str]:
    """Warnings about figures that mislead because two of a run's files are the same file, or equal in every byte."""
    for (name, first), (other, second) in combinations(_named(data), 2):
        is_one = first.samefile(second)
        if is_one or (first.is_file() and second.is_file() and filecmp.cmp(first, second, shallow=False)):
            what = "is the same file as" if is_one else "holds the very bytes of"
            why = (
                f"its figures are of what was learned, and say nothing of new examples: give others as data.{other}"
                if name == "train"
                else "what is chosen by the one is flattered by the other: give examples of their own for each"
            )
            yield f"data.{other}={second} {what} data.{name}={first}: {why}"


def _named(data: DataSettings) -> list[tuple[str, Path]]:
    return [(name, Path(file)) for name in ("train", "dev", "test") if (file := getattr(data, name)) is not None]


def _fingerprint(path: Path) -> str:
    """The SHA-256 of a file; of a folder, that of the names and fingerprints of all its files."""
    if not path.is_dir():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    told = "".join(f"{file.relative_to(path)}\0{sha256(file)}\n" for file in files)
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()

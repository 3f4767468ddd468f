"""The files that a run reads: refuses a resume where one has changed, and warns where two are one."""

from __future__ import annotations

import filecmp
import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

from unmask.data.store import TokenStore
from unmask.errors import CheckpointError
from unmask.files import sha256, write_json
from unmask.tasks.settings import DataSettings

DATA = "data.json"
"""In the directory of a run or search: a fingerprint of each of its inputs."""


def check_unchanged(directory: Path, found: Mapping[str, str], places: Mapping[str, Path]) -> None:
    """Writes down what a run's inputs hold, or compares them with what was written when it was begun.

    Args:
        directory: the run's.
        found: a fingerprint of each input, by the key that names it in the recipe.
        places: where each is, for the message; a run and its store may be moved.

    Raises:
        CheckpointError: one differs: what came before and after it would not be one run. Or the record is damaged.
    """
    record = directory / DATA
    before: dict[str, str] = {}
    if record.is_file():
        try:
            before = json.loads(record.read_bytes())
            changed = [f"{name}={places[name]}" for name in found if before.get(name, found[name]) != found[name]]
        except (ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{record}: cannot be read ({error}): remove it if the run's inputs are what they were"
            ) from error
        if changed:
            raise CheckpointError(
                f"{directory}: {' and '.join(changed)} holds something else than when this run was begun: restore it, "
                "or start again with --overwrite"
            )
    if before.keys() != found.keys():
        write_json(record, dict(found))


def check_store(directory: Path, store: TokenStore) -> None:
    """`check_unchanged` of a token store, by the checksums of its files, its tokenizer's among them."""
    files = json.dumps(store.manifest["files"], sort_keys=True)
    check_unchanged(directory, {"store": hashlib.sha256(files.encode()).hexdigest()}, {"store": store.directory})


def check_files(directory: Path, data: DataSettings) -> None:
    """`check_unchanged` of a fine-tuning run's files."""
    files = _files(data)
    check_unchanged(directory, {name: _fingerprint(path) for name, path in files.items()}, files)


def shared_files(data: DataSettings) -> Iterator[str]:
    """Warnings about figures that mislead because two of a run's files are the same file, or equal in every byte."""
    for (name, first), (other, second) in combinations(_files(data).items(), 2):
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
    given = {"data.train": data.train, "data.dev": data.dev, "data.test": data.test}
    return {name: Path(file) for name, file in given.items() if file is not None}


def _fingerprint(path: Path) -> str:
    """The SHA-256 of a file; of a folder, that of the names and fingerprints of all its files."""
    if not path.is_dir():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    told = "".join(f"{file.relative_to(path)}\0{sha256(file)}\n" for file in files)
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()

"""What tests of whole commands share: files to give them, what is in a folder, how a command refuses."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from support.files import write, write_rows


class Finished(NamedTuple):
    """What a command ended with: its exit code, and what it wrote to standard output and standard error."""

    code: int
    output: str
    errors: str


Command = Callable[..., Finished]
"""The fixture `unmask`: runs the command line with these words, in this process."""


def write_files(files: Mapping[str, str | bytes]) -> None:
    """Writes files, by name, into the folder that is worked in."""
    for name, content in files.items():
        write(Path(name), content)


def write_documents(path: Path, documents: Sequence[str]) -> Path:
    """Writes documents as JSON lines."""
    return write_rows(path, *({"text": text} for text in documents))


def type_in(monkeypatch: pytest.MonkeyPatch, content: str | bytes) -> None:
    """Gives it on standard input."""
    given = content.encode() if isinstance(content, str) else content
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder: what each file holds, and None of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def check_refused(finished: Finished, message: str) -> None:
    """Exit code 2 and nothing written but one message, which begins so."""
    assert (finished.code, finished.output) == (2, ""), finished.errors
    assert finished.errors.startswith(f"error: {message}"), finished.errors
    assert len(finished.errors.splitlines()) == 1, finished.errors


def check_last_error(finished: Finished, message: str) -> None:
    """Exit code 2, no output, and one error, which begins so, at the end of what was logged."""
    assert (finished.code, finished.output) == (2, ""), finished.errors
    logged = [line for line in finished.errors.splitlines() if not line.startswith("  ")]  # an error's further lines
    assert logged[-1].startswith(f"error: {message}"), finished.errors
    assert not any(line.startswith("error: ") for line in logged[:-1])
    assert "Traceback" not in finished.errors

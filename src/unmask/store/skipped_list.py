"""`skipped.jsonl` in a store: every record that could not be read and was skipped, with its place and the reason."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self

from unmask.corpus.documents import CorpusCounts
from unmask.io.writing import writing

SKIPPED = "skipped.jsonl"


class SkippedList:
    """Lists what a corpus's account books as skipped; writes nothing if nothing is skipped.

    Use in a `with` statement, and call `finish` inside it: a list that is not finished leaves no file.
    """

    def __init__(self, directory: Path, counts: CorpusCounts) -> None:
        self._directory = directory
        self._counts = counts
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._counts.on_skip = self._add
        return self

    def __exit__(self, *error: Any) -> None:
        self._counts.on_skip = None
        self._stack.__exit__(*error)

    def finish(self) -> None:
        """Gives the file its final name, if there is a file."""
        self._stack.close()

    def _add(self, source: str, reason: str) -> None:
        if self._file is None:
            self._file = self._stack.enter_context(writing(self._directory / SKIPPED))
        row = json.dumps({"source": source, "reason": reason}, ensure_ascii=False)
        self._file.write(row.encode("utf-8", "backslashreplace") + b"\n")

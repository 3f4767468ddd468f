"""What the tasks on a text or a pair of texts have in common: how files are read and examples are encoded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts, Task
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.rows import naming
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.text.examples import TextExample, TextFiles, encode_texts
from unmask.tokenization.opening import Tokenizer

LabelT = TypeVar("LabelT")


@dataclass(frozen=True)
class TextTask(Task[TextExample[LabelT]], Generic[LabelT]):
    """A task whose examples are `TextExample`s.

    Attributes:
        settings: its name, lengths and dropout, and the settings of its kind.
        files: how its files are read.
    """

    settings: TaskSettings
    files: TextFiles

    per_token: ClassVar[bool] = False

    @property
    def columns(self) -> ColumnSettings:  # type: ignore[override]
        """The columns that are looked for first."""
        return self.files.columns

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(tuple(layout.texts) for layout in self.files.layouts))

    @abstractmethod
    def _read_label(self, row: Row, name: str) -> LabelT | None:
        """The label in a column of a row; None for a value that means no label."""

    @abstractmethod
    def _targets(self, examples: Sequence[TextExample[LabelT]]) -> NDArray[np.generic]:
        """The column `labels`, (examples, ...), with a value that the loss ignores where an example has no label."""

    def load_rows(self, path: DataPath) -> Iterator[Row]:
        """See `Task`; no row is left out."""
        return self.files.rows(path)

    def load(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[TextExample[LabelT]]:
        return self.files.load(path, counts, self._read_label, unlabelled)

    def read(self, row: Row) -> TextExample[LabelT]:
        return self.files.read(row)

    def is_published_txt(self, lines: Sequence[str]) -> bool:
        line = lines[0] if lines else ""
        if self.files.txt_format == ".jsonl":
            return line.startswith("{")
        names = line.split("\t")
        fits = any(set(columns.texts) <= set(names) for columns in self.files.layouts)
        return self.files.txt_format is not None and len(names) > 1 and fits

    def encode(
        self,
        examples: Sequence[TextExample[LabelT]],
        tokenizer: Tokenizer,
        counts: ExampleCounts,
        num_segments: int = 2,
    ) -> EncodedExamples:
        """See `Task`; a unit has the column `labels`."""
        columns = {"labels": self._targets(examples)}
        return encode_texts(examples, tokenizer, counts, num_segments, self.settings, columns)

    def check_examples(self, examples: Sequence[TextExample[LabelT]], counts: ExampleCounts, path: DataPath) -> None:
        if counts.empty == len(examples):
            raise InputError(
                f"{path}: no example has any text in {' or '.join(map(repr, self.columns.texts))}: there is "
                f"nothing to learn; name the column of the texts with {naming('text')}, or of pairs text_a and text_b"
            )

    def remembered(self) -> dict[str, Any]:
        """See `Task`; the column of labels is always named: the data set's may be called otherwise."""
        return super().remembered() | {"columns": self.columns.model_dump(exclude_none=True)}

"""What the tasks on a text or a pair of texts have in common: how files are read and examples are encoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.rows import Row
from unmask.models.family import HeadKind
from unmask.tasks.base import ExampleCounts, UsualTask
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.settings import TaskSettings
from unmask.tasks.text.examples import TextExample, TextFiles, encode_texts
from unmask.tokenization.opening import Tokenizer

LabelT = TypeVar("LabelT")


@dataclass(frozen=True)
class TextTask(UsualTask, ABC, Generic[LabelT]):
    """A task whose examples are `TextExample`s; the methods of `Task` that every such task shares.

    Attributes:
        settings: its name, lengths and dropout, and the settings of its kind.
        files: how its files are read.
    """

    settings: TaskSettings
    files: TextFiles

    head_kind: ClassVar[HeadKind] = "sequence_classification"
    per_token: ClassVar[bool] = False

    @property
    def id_column(self) -> str:
        return self.files.columns.id or "id"

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

    def read_all(self, rows: Iterable[Row]) -> Iterator[TextExample[LabelT]]:
        return map(self.read, rows)

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
                f"{path}: no example has any text in {' or '.join(map(repr, self.files.columns.texts))}: there is "
                "nothing to learn; name the column of the texts with data.columns.text=..., or of pairs text_a and "
                "text_b"
            )

    def remembered(self) -> dict[str, Any]:
        return {
            **self.settings.model_dump(include={"name", "max_length", "truncation"}),
            **self.settings.model_dump(
                include={"encoder_top", "two_orders", "bilstm_size", "long_text", "window_pooling", "doc_stride"}
                | {"feature_layers"},
                exclude_defaults=True,
            ),
            "columns": self.files.columns.model_dump(exclude_none=True),
        }

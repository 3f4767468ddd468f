"""The common base of tasks on a text or a pair of texts: how their files are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from unmask.io.input_files import DataPath
from unmask.io.rows import Row
from unmask.models.heads.heads import HeadKind
from unmask.tasks.settings import TaskSettings
from unmask.tasks.text.examples import TextExample, TextFiles

LabelT = TypeVar("LabelT")


@dataclass(frozen=True)
class TextTask(Generic[LabelT]):
    """A task whose examples are `TextExample`s.

    Attributes:
        settings: its name, lengths and dropout, and the settings of its kind.
        files: how its files are read.
    """

    settings: TaskSettings
    files: TextFiles

    head_kind: ClassVar[HeadKind] = "sequence_classification"
    per_token: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def max_length(self) -> int:
        return self.settings.max_length

    @property
    def is_pair(self) -> bool:
        """True if only pairs are accepted."""
        return self.files.is_pair

    @property
    def id_column(self) -> str:
        """See `Task`."""
        return self.files.columns.id or "id"

    def load_rows(self, path: DataPath) -> Iterator[Row]:
        """See `Task`; no row is left out."""
        return self.files.rows(path)

    def read(self, row: Row) -> TextExample[LabelT]:
        """See `Task`."""
        return self.files.read(row)

    def read_all(self, rows: Iterable[Row]) -> Iterator[TextExample[LabelT]]:
        """See `Task`."""
        return map(self.read, rows)

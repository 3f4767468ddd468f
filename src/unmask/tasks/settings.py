"""Settings of the fine-tuning tasks and their data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from unmask.config import Settings

TaskName = Literal["classification", "sst2", "snli", "nsmc"]


class TaskSettings(Settings):
    """What is learned from labelled examples."""

    name: TaskName = "classification"
    """`classification` for files with columns named by `data.columns`, or the id of a published data set."""
    max_length: int = Field(128, ge=4)
    """Tokens of an example, special ones included."""
    truncation: bool = True
    """True: longer inputs are cut from the end of the longer text, and counted; False: they are refused."""
    labels: list[str] | None = Field(None, min_length=2)
    """The labels in the order of their ids; null takes the data set's, or those of the training file, sorted."""
    classifier_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout before the classifier; null takes the encoder's."""

    @model_validator(mode="after")
    def _each_label_once(self) -> TaskSettings:
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels names one twice: {', '.join(self.labels)}")
        return self


class ColumnSettings(Settings):
    """Names of the columns (or JSON fields) of the examples."""

    text: str | None = None
    """The one text of an example."""
    text_a: str | None = None
    """The first text of a pair."""
    text_b: str | None = None
    """The second text of a pair."""
    label: str = "label"
    id: str | None = None
    """Kept beside each prediction; null keeps `id` where there is one."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the one or two texts; none where they are not given."""
        return tuple(name for name in (self.text, self.text_a, self.text_b) if name is not None)

    @model_validator(mode="after")
    def _one_or_two(self) -> ColumnSettings:
        if self.text is not None and (self.text_a is not None or self.text_b is not None):
            raise ValueError("text is for single texts, text_a and text_b for pairs: keep one or the other")
        if (self.text_a is None) != (self.text_b is None):
            raise ValueError("text_a and text_b belong together: give both")
        return self


class DataSettings(Settings):
    """Files of examples: .tsv and .csv with a header, or .jsonl; plain, .gz or .zst."""

    train: str
    dev: str | None = None
    """Measured during and after training; null measures nothing."""
    test: str | None = None
    """Measured once, at the end."""
    columns: ColumnSettings = ColumnSettings()
    """Null columns are found by the data set's names, or `text`, or `text_a` and `text_b`."""

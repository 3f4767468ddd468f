"""Regression: one number for a text or a pair of texts, by the mean squared error (BERT's STS-B, section 4.1).

Values of published data sets are learned as they are, as in the released code and in `transformers`; those of a user's
own file with mean 0 and standard deviation 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.rows import Row
from unmask.models.encoder import Encoder
from unmask.tasks.base import Prediction, TaskModule
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import TaskKind
from unmask.tasks.sequence_module import SequenceModule, new_sequence_module
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.text.data_sets import DATA_SETS, TextDataSet
from unmask.tasks.text.examples import TextExample, TextFiles
from unmask.tasks.text.labels import read_label, read_number
from unmask.tasks.text.metrics import ValueScore, f1_scores
from unmask.tasks.text.text_task import TextTask

ValuedText = TextExample[float]

_FEWEST_STEPS = 64
"""The standard deviation of values, in steps of 32-bit floats of their size: with fewer, answers are visibly coarse."""

_PLAIN = TextDataSet(TextFiles(), unlabelled=frozenset(), primary_metric="pearson")


def open_task(settings: TaskSettings, columns: ColumnSettings, lenient: bool = False) -> Regression:
    """See `unmask.tasks.table.open_task`."""
    data_set = DATA_SETS.get(settings.name, _PLAIN)
    return Regression(settings, data_set.files.with_columns(columns, lenient), data_set)


@dataclass(frozen=True)
class Regression(TextTask[float]):
    """The task.

    Attributes:
        data_set: which values mean no label, and which metrics there are.
    """

    data_set: TextDataSet = _PLAIN

    kind: ClassVar[TaskKind] = "regression"
    problem_type: ClassVar[str] = "regression"

    def fit_to(self, path: DataPath) -> Regression:
        return replace(self, files=self.files.fit_to(path))

    def _read_label(self, row: Row, name: str) -> float | None:
        """Refuses a value that is not a finite number, or lies outside the data set's range."""
        if read_label(row, name, may_be_empty="" in self.data_set.unlabelled) in self.data_set.unlabelled:
            return None
        value = read_number(row, name)
        low, high = self.data_set.value_range or (-math.inf, math.inf)
        if not low <= value <= high:
            raise InputError(
                f"{row.source}: the column {name!r} holds {value:g}, and the values of {self.settings.name} lie "
                f"between {low:g} and {high:g}: fix it, or take task.name=regression for values on another scale"
            )
        return value

    def _targets(self, examples: Sequence[ValuedText]) -> NDArray[np.float32]:
        values = [np.nan if example.label is None else example.label for example in examples]
        return np.array(values, dtype=np.float32)

    def check(self, training: EncodedExamples, path: DataPath) -> None:
        if fault := fault_of_values(training.unit_columns["labels"].astype(np.float32)):
            raise InputError(f"{path}: {fault}")

    def module(self, encoder: Encoder, head: nn.Module | None = None) -> SequenceModule:
        return new_sequence_module(encoder, head, 1, summed_squared_error, self.settings)

    def fit_loss(self, module: TaskModule, training: EncodedExamples, is_kept: bool) -> None:
        """See `Task`: a user's own values are learnt on a scale of 1, whatever theirs is."""
        if self.settings.name == "regression":
            assert isinstance(module, SequenceModule)
            module.standardise(training.unit_columns["labels"].astype(np.float64), is_kept=is_kept)

    def decode(self, examples: Sequence[ValuedText], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """`value`."""
        return [{"value": value} for value in outputs.squeeze(-1).tolist()]

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(outputs)).mean(0)

    def score(self) -> ValueScore:
        """See `Task`; keeps 16 bytes per example, for the ranks."""
        return ValueScore(self.data_set.primary_metric, self.data_set.binary_from)

    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        """See `Task`: always predicting the mean of the training file; for F1 always predicting true."""
        values = _known(dev)
        mean = _known(training).mean()
        floors = {
            "pearson": {"any constant": 0.0},
            "spearmanr": {"any constant": 0.0},
            "mse": {"mean of train": float(np.square(values - mean).mean())},
        }
        if self.data_set.binary_from is not None:
            true = np.array([(values >= self.data_set.binary_from).sum()])
            floors["f1"] = {"always over the threshold": float(f1_scores(true, true, np.array([len(values)]))[0])}
        return floors

    def sample(self, example: ValuedText, prediction: Prediction) -> dict[str, Any]:
        return {
            "input": self.files.shown(example),
            "label": None if example.label is None else f"{example.label:.4g}",
            "prediction": f"{prediction['value']:.4g}",
            "probability": None,
            "correct": None,
        }


def fault_of_values(values: NDArray[np.float32]) -> str | None:
    """Why nothing can be learned from values: they are equal, or their differences are lost in the steps of float32;
    None where they differ enough."""
    low, high, step = (float(each) for each in (values.min(), values.max(), np.spacing(np.abs(values).max())))
    if low == high:
        return (
            f"every value is {low:.7g} (as a 32-bit float): there is nothing to learn; give values that differ; if "
            "those of the file do, subtract a constant from all of them, or multiply all by a large number"
        )
    if values.std(dtype=np.float64) < _FEWEST_STEPS * step:
        return (
            f"as 32-bit floats the values lie between {low:,.16g} and {high:,.16g}, and answers would come in steps of "
            f"{step:,.3g}: too coarse for values so alike; subtract a constant such as {low:,.16g} from all of them"
        )
    return None


def _known(examples: EncodedExamples) -> NDArray[np.float64]:
    values: NDArray[np.float64] = examples.unit_columns["labels"].astype(np.float64)
    return values[~np.isnan(values)]


def summed_squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """() from (units, 1) and values (units,), NaN where there is no label."""
    assert outputs.shape[-1] == 1, f"{outputs.shape[-1]} outputs for one value would be broadcast"
    errors = outputs.squeeze(-1) - labels.nan_to_num()
    return errors.square().masked_fill(labels.isnan(), 0.0).sum()

"""What is done with predictions that a model is not sure of: it may abstain, and those to label next can be chosen."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from unmask.errors import SettingsError
from unmask.io.rows import Row
from unmask.tasks.base import Task
from unmask.tasks.kinds import FACTS
from unmask.tasks.text.calibration import sureness
from unmask.tasks.text.classification import Classification
from unmask.tasks.text.examples import choose_columns

logger = logging.getLogger("unmask")


def certainty(prediction: dict[str, Any], thresholds: Mapping[str, float] = MappingProxyType({})) -> float:
    """How sure a model is of a prediction, from 0 to 1: the probability of its label or choice; of several labels that
    of the least sure decision, where a probability at its label's threshold counts as even.

    Args:
        thresholds: of labels; .5 for those without.
    """
    probabilities = prediction["probabilities"]
    if "labels" in prediction:
        return min(sureness(each, thresholds.get(label, 0.5)) for label, each in probabilities.items())
    return float(max(probabilities.values() if isinstance(probabilities, dict) else probabilities))


@dataclass(frozen=True)
class Abstaining:
    """What to do with uncertain predictions of a classifier or of a task with choices. If anything is, each has its
    `certainty`.

    Attributes:
        abstain_below: below this certainty the keys of the kind's `decision` are None and `abstained` True.
        most_uncertain: only so many predictions are kept, the least certain first; of equals the earlier.

    Raises:
        SettingsError: a value is out of its range.
    """

    abstain_below: float | None = None
    most_uncertain: int | None = None

    def __post_init__(self) -> None:
        if self.abstain_below is not None and not 0 < self.abstain_below <= 1:
            raise SettingsError(f"--abstain-below {self.abstain_below:g}: expected a probability over 0, up to 1")
        if self.most_uncertain is not None and self.most_uncertain < 1:
            raise SettingsError(f"--most-uncertain {self.most_uncertain}: expected at least 1")

    def check(self, task: Task[Any]) -> None:
        """Refuses a task whose predictions have no probabilities of labels or choices, by a `SettingsError`."""
        if (self.abstain_below or self.most_uncertain) and not FACTS[task.kind].may_abstain:
            option = "--most-uncertain" if self.abstain_below is None else "--abstain-below"
            raise SettingsError(
                f"{option} is for labels and choices, and the model's task is {task.settings.name}: leave it out"
            )

    def __call__(self, predictions: Iterable[dict[str, Any]], task: Task[Any]) -> Iterator[dict[str, Any]]:
        """The predictions of a task with what was decided; to choose the least certain, all are read first, and only
        those chosen are kept in memory."""
        given = task.settings.thresholds
        thresholds = given if isinstance(given, dict) else {}
        if self.abstain_below is None and self.most_uncertain is None:
            yield from predictions
            return
        predictions = ({**each, "certainty": certainty(each, thresholds)} for each in predictions)
        if self.most_uncertain is not None:
            predictions = heapq.nsmallest(self.most_uncertain, predictions, key=itemgetter("certainty"))
        num_predictions = num_abstained = 0
        for prediction in predictions:
            if self.abstain_below is None:
                yield prediction
                continue
            has_abstained = prediction["certainty"] < self.abstain_below
            num_predictions, num_abstained = num_predictions + 1, num_abstained + has_abstained
            named = [name for name in FACTS[task.kind].decision if name in prediction and has_abstained]
            yield {**prediction, **dict.fromkeys(named), "abstained": has_abstained}
        if num_abstained:
            of_all = f"{num_abstained:,} of {num_predictions:,} inputs"
            logger.warning("the model abstained on %s, being under %g certain", of_all, self.abstain_below)

    def for_table(self, predictions: Iterable[dict[str, Any]], task: Task[Any]) -> Iterator[dict[str, Any]]:
        """The same for a table, which is filled in where the least certain are chosen: what was decided is then called
        `predicted`, and the column of a classifier's label is there, empty where the input has none, so that no guess
        is learnt as a label; what else is called like it is `predicted.NAME`. Of several labels an empty cell would say
        that there are none."""
        decision = FACTS[task.kind].decision if self.most_uncertain is not None else ()
        for prediction in self(predictions, task):
            answer = {"predicted" if name in decision else name: value for name, value in prediction.items()}
            if decision and isinstance(task, Classification):
                row = Row(answer.pop("input"), "")
                label = choose_columns(task.files.layouts, row).label
                fields = {**row.fields, **({} if label in row else {label: ""})}
                named = {f"predicted.{name}" if name == label else name: value for name, value in answer.items()}
                answer = {**named, "input": fields}
            yield answer


ALWAYS = Abstaining()
"""Every prediction is kept as it is."""

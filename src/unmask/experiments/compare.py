"""The program `compare`: whether two fine-tuned models differ on the same examples by more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.config import changed_keys
from unmask.errors import InputError
from unmask.inference.evaluation import warn_of_figures
from unmask.inference.example_sets import counted_in
from unmask.inference.predictor import Predictor, load_predictor
from unmask.inference.task_options import NOTHING_SAID, Columns, naming_columns
from unmask.io.input_files import DataPath, as_files
from unmask.io.paths import RECIPE
from unmask.io.progress import Progress
from unmask.recipe.loading import read_recipe
from unmask.tasks.base import Example, ExampleCounts, Prediction, Score, Task, chosen_last, positive_label
from unmask.tasks.rows import listed

RESAMPLES = 200
"""Enough for a standard error (Efron and Tibshirani 1993, section 6.4)."""
_DEVIATIONS = 1.96
"""Standard errors on either side of an interval of 95 %."""


@naming_columns()
def compare(
    one: str | Path | Predictor,
    other: str | Path | Predictor,
    data: str | DataPath,
    columns: Columns = NOTHING_SAID,
    *,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> dict[str, Any]:
    """Measures two fine-tuned models on the same labelled examples, and how far chance explains their difference.

    The interval of a difference is that of other examples of the same source: the standard error of the paired
    bootstrap, in which 200 times as many examples are drawn with replacement and both models are measured on them
    (Efron and Tibshirani 1993; Koehn 2004). It says nothing of another seed, which changes a model too.

    Args:
        one, other: as `model` of `unmask.inference.evaluation.evaluate`; of the same kind of task and the same labels.
        data, columns, settings, device, precision: see there; they are for both.

    Returns:
        `{"task": name, "n": examples, "metrics": {name: values}}`, where the values are `one`, `other`, `difference`
        (other less one), and the `low` and the `high` end of its interval of 95 %; `positive_label` as in `evaluate`;
        and `settings`, the keys in which the recipes of two runs differ, each with both values.

    Raises:
        UserError: as `evaluate`, or the models are not for the same.
    """
    data = as_files(data)
    if not data.can_be_read_again:
        raise InputError(f"{data}: two models read it one after the other: expected a file, not standard input")
    models = [
        load_predictor(model, device=device, precision=precision).with_options(columns, settings, "evaluate")
        for model in (one, other)
    ]
    _check_alike(*models)
    answers = [_answer(model, data) for model in models]
    task = models[0].task
    found: dict[str, Any] = {"task": task.settings.name, "n": len(answers[0].examples)}
    found["metrics"] = compare_answers(*answers)
    positive = positive_label(task)
    if positive is not None:
        found["positive_label"] = positive
    return {**found, "settings": _different_settings(one, other)}


@dataclass(frozen=True)
class Answers:
    """What a model answers to all examples of its task."""

    task: Task[Any]
    examples: Sequence[Example]
    predictions: Sequence[Prediction]

    def score(self, numbers: Sequence[int] | None = None) -> Score[Any]:
        """Of all examples, or of those with these numbers, each as often as it is there."""
        score = self.task.score()
        drawn = range(len(self.examples)) if numbers is None else numbers
        score.add([self.examples[number] for number in drawn], [self.predictions[number] for number in drawn])
        return score


def compare_answers(one: Answers, other: Answers) -> dict[str, dict[str, float]]:
    """By metric what both reach, the difference, and the ends of its interval; see `compare`."""
    rng, num_examples = np.random.default_rng(0), len(one.examples)
    first, second = (_metrics(each.score()) for each in (one, other))
    resampled: dict[str, list[float]] = {name: [] for name in first if name in second}
    with Progress("resampling", RESAMPLES, unit="resamples") as progress:
        for _ in progress.counting(range(RESAMPLES)):
            numbers = rng.integers(num_examples, size=num_examples).tolist()
            drawn, other_drawn = (_metrics(each.score(numbers)) for each in (one, other))
            for name, differences in resampled.items():
                if name in drawn and name in other_drawn:  # a rare type of entity may not be among them
                    differences.append(other_drawn[name] - drawn[name])
    found = {}
    for name, differences in resampled.items():
        difference, within = second[name] - first[name], _DEVIATIONS * float(np.std(differences, ddof=1))
        ends = {"low": difference - within, "high": difference + within}
        found[name] = {"one": first[name], "other": second[name], "difference": difference, **ends}
    return found


def _metrics(score: Score[Any]) -> dict[str, float]:
    return {name: value for name, value in chosen_last(score.metrics()).items() if not name.endswith("_thresh")}


def _answer(model: Predictor, data: DataPath) -> Answers:
    counts = ExampleCounts()
    examples: list[Example] = []
    predictions: list[Prediction] = []
    with Progress("predicting", unit="examples") as progress:
        for part in model.sets(model.task.load(data, counts), counts, str(data)):
            examples += part.examples
            predictions += model.decode(part, counted_in(len(part.examples), progress.advance))
    counts.log(data)
    found = Answers(model.task, examples, predictions)
    warn_of_figures(found.score(), data)
    return found


def _check_alike(one: Predictor, other: Predictor) -> None:
    kinds = [model.task.kind for model in (one, other)]
    if kinds[0] != kinds[1]:
        raise InputError(f"the models are for {kinds[0]} and for {kinds[1]}: expected two for the same kind of task")
    labels = [model.task.labels for model in (one, other)]
    if set(labels[0]) != set(labels[1]):
        raise InputError(
            f"the labels of the models are {listed(labels[0])} and {listed(labels[1])}: expected the same, in any order"
        )


def _different_settings(one: str | Path | Predictor, other: str | Path | Predictor) -> dict[str, list[Any]]:
    """Of two runs by their directories; nothing is known of other models."""
    runs = [Path(model) for model in (one, other) if not isinstance(model, Predictor)]
    recipes = [read_recipe(run / RECIPE) for run in runs if (run / RECIPE).is_file()]
    if len(recipes) < 2:
        return {}
    return {key: list(values) for key, values in changed_keys(*recipes).items()}

"""The program `compare`: whether two fine-tuned models differ on the same examples by more than chance."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.config import changed_keys
from unmask.errors import InputError, UserError
from unmask.inference.evaluation import warn_of_figures
from unmask.inference.example_sets import counted_in
from unmask.inference.predictor import Predictor, load_predictor
from unmask.inference.task_options import NOTHING_SAID, Columns
from unmask.io.input_files import STANDARD_INPUT, DataPath, as_files
from unmask.io.paths import RECIPE
from unmask.io.progress import Progress, listed
from unmask.recipe.loading import read_recipe
from unmask.tasks.base import DEVIATIONS, Example, ExampleCounts, Prediction, Task, chosen_last, positive_label
from unmask.tasks.kinds import FACTS

logger = logging.getLogger("unmask")

RESAMPLES = 200
"""Enough for a standard error (Efron and Tibshirani 1993, section 6.4)."""
NOT_COMPARED = ("_thresh", "total")
"""Ends of the names of figures that are no measure of quality: thresholds, and numbers of questions."""


def compare(
    one: str | Path | Predictor,
    other: str | Path | Predictor,
    data: str | DataPath,
    columns: Columns = NOTHING_SAID,
    *,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> dict[str, Any]:
    """Measures two fine-tuned models on the same labelled examples, and how far chance explains their difference.

    The interval of a difference is that of other examples of the same source: the standard error of the paired
    bootstrap, in which, 200 times, as many examples are drawn with replacement, and both models are measured on them
    (Efron and Tibshirani 1993; Koehn 2004). It says nothing of another seed, which changes a model too, and is too
    narrow where the models answer fewer than some ten examples differently.

    Args:
        one, other: as `model` of `unmask.inference.evaluation.evaluate`; of the same kind of task and the same labels.
        data, columns, settings, device, precision: see there; they are for both.

    Returns:
        `{"task": name, "n": examples, "answered_differently": number, "metrics": {name: values}}`, where the values are
        `one`, `other`, `difference` (other less one), and the `low` and the `high` end of its interval of 95 %;
        `positive_label` as in `evaluate`; and `settings`, the keys in which the recipes of two runs differ, each
        with both values.

    Raises:
        UserError: as `evaluate`, or the models are not for the same.
    """
    data = as_files(data)
    if any(path == STANDARD_INPUT or path.is_fifo() for path in data.paths):
        raise InputError(f"{data}: two models read it one after the other: expected a file, not standard input")
    models = [
        load_predictor(model, device=device, precision=precision).with_options(columns, settings, "evaluate")
        for model in (one, other)
    ]
    _check_alike(*models)
    differing = _different_settings(one, other)
    task = models[0].task
    answers = [_answer(model, data, which) for model, which in zip(models, ("one", "other"), strict=True)]
    truths = [[_truth(example, task) for example in each.examples] for each in answers]
    if truths[0] != truths[1]:
        raise InputError(
            f"{data}: the models do not read the same examples and labels: expected two of the same data set, with "
            "the same columns and units (--column label=NAME is for both)"
        )
    found: dict[str, Any] = {"task": task.settings.name, "n": len(answers[0].examples)}
    # Both by the first one's task: its labels may have another order, of which `f1` takes the second.
    examples, predictions = answers[0].examples, [each.predictions for each in answers]
    found["answered_differently"] = sum(
        _decision(first, task) != _decision(second, task) for first, second in zip(*predictions, strict=True)
    )
    found["metrics"] = compare_answers(task, examples, *predictions)
    positive = positive_label(task)
    if positive is not None:
        found["positive_label"] = positive
    return {**found, "settings": differing}


@dataclass(frozen=True)
class _Answers:
    """What a model answers to all examples."""

    examples: Sequence[Example]
    predictions: Sequence[Prediction]


def compare_answers(
    task: Task[Any], examples: Sequence[Example], one: Sequence[Prediction], other: Sequence[Prediction]
) -> dict[str, dict[str, float]]:
    """By metric what both reach, the difference, and the ends of its interval; see `compare`.

    Args:
        examples: the labelled ones.
        one, other: what each model answers to them.
    """
    rng, num_examples = np.random.default_rng(0), len(examples)

    def measure(predictions: Sequence[Prediction], numbers: Sequence[int]) -> dict[str, float]:
        score = task.score()
        score.add([examples[number] for number in numbers], [predictions[number] for number in numbers])
        metrics = chosen_last(score.metrics())
        return {name: value for name, value in metrics.items() if not name.endswith(NOT_COMPARED)}

    first, second = (measure(each, range(num_examples)) for each in (one, other))
    resampled: dict[str, list[float]] = {name: [] for name in first if name in second}
    with Progress("resampling", RESAMPLES, unit="resamples") as progress:
        for _ in progress.counting(range(RESAMPLES)):
            numbers = rng.integers(num_examples, size=num_examples).tolist()
            drawn, other_drawn = (measure(each, numbers) for each in (one, other))
            for name, differences in resampled.items():
                if name in drawn and name in other_drawn:  # a rare type of entity may not be among them
                    differences.append(other_drawn[name] - drawn[name])
    found = {}
    for name, differences in resampled.items():
        difference, within = second[name] - first[name], DEVIATIONS * float(np.std(differences, ddof=1))
        ends = {"low": difference - within, "high": difference + within}
        found[name] = {"one": first[name], "other": second[name], "difference": difference, **ends}
    return found


def _answer(model: Predictor, data: DataPath, which: str) -> _Answers:
    counts, score = ExampleCounts(), model.task.score()
    examples: list[Example] = []
    predictions: list[Prediction] = []
    with Progress(f"predicting ({which})", unit="examples") as progress:
        for part in model.sets(model.task.load(data, counts), counts, str(data)):
            found = model.decide(part, counted_in(len(part.examples), progress.advance))
            score.add(part.examples, found)
            examples += part.examples
            predictions += found
    counts.log(f"{which}: {data}")
    warn_of_figures(score, f"{which}: {data}")
    return _Answers(examples, predictions)


def _truth(example: Example, task: Task[Any]) -> tuple[str, Any]:
    """Where an example is from, and what is right."""
    return example.source, getattr(example, FACTS[task.kind].truth)


def _decision(prediction: Prediction, task: Task[Any]) -> list[Any]:
    """What a prediction says, without how probable it is."""
    found = [prediction[key] for key in FACTS[task.kind].decision if key in prediction]
    assert found, f"a prediction has none of the keys of `decision` in FACTS[{task.kind!r}]"
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
    try:
        recipes = [read_recipe(run / RECIPE) for run in runs if (run / RECIPE).is_file()]
    except UserError as error:
        logger.warning("how the recipes differ is not known: %s", error)
        return {}
    if len(recipes) < 2:
        return {}
    return {key: list(values) for key, values in changed_keys(*recipes).items()}

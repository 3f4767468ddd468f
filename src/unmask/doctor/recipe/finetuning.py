"""The doctor's look at a fine-tuning recipe: whether model and files fit together, and what a run will take."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.config import build_settings
from unmask.doctor.findings import Diagnosis, FigureTable, Finding
from unmask.doctor.recipe.checks import check_rate, steps_of
from unmask.errors import InputError, UserError
from unmask.finetuning.fitting import FEW_STEPS, fit_to_models
from unmask.finetuning.inputs import TaskInputs, open_inputs
from unmask.finetuning.search.grid import plan_trials
from unmask.inference.example_sets import ExampleSet
from unmask.io.progress import human_count, human_duration
from unmask.io.writing import temporary_directory
from unmask.recipe.loading import merged_values
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.encoded import EncodedExamples, concatenate
from unmask.tasks.settings import FIELDS_OF_KINDS
from unmask.tasks.splits import SPLITS
from unmask.training.device import Compute, choose_compute, keep_freed_memory
from unmask.training.loop import Hooks, train
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.state import TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.steps import Learner

USUAL_LEARNING_RATES = {192: (1e-4, 2e-3), 384: (5e-5, 1e-3), 640: (2e-5, 5e-4), 10**9: (5e-6, 1e-4)}
"""The largest hidden size -> usual peak rates of fine-tuning up to there: BERT 2e-5 to 5e-5, ELECTRA-Small (256 wide)
3e-4, and those of our own small models."""

FEW_DEV_EXAMPLES = 200
ONE_SIDED, MUCH_CUT = 0.9, 0.1


def examine_finetuning(name: str, overrides: Sequence[str], *, probe_s: float) -> Diagnosis:
    """Diagnoses a fine-tuning recipe; of a search, the first run is opened and measured.

    Raises:
        SettingsError: the recipe is wrong.
    """
    settings, missing = _load(name, overrides)
    findings = list(missing)
    trials = [settings]
    if settings.search.is_wanted and settings.data.dev is not None:
        trials = [trial.settings for trial in plan_trials(settings)]
    elif settings.search.is_wanted:
        findings.append(Finding("search-without-dev", "fault", "search compares runs on dev", "give data.dev=FILE"))
    if missing:
        return Diagnosis("recipe", name, tuple(findings), tables=(settings_table(trials),))
    compute = choose_compute(settings.device, settings.precision)
    with temporary_directory("unmask-doctor") as directory, torch.random.fork_rng(devices=[]):
        try:
            inputs = open_inputs(trials[0], directory, None)
        except UserError as error:
            advice = "fix it: `unmask finetune` would stop there too, before its first step"
            findings.append(Finding("inputs-unusable", "fault", str(error), advice))
            return Diagnosis("recipe", name, tuple(findings), tables=(settings_table(trials),))
        # A head on frozen features needs those of the whole file first.
        is_measured = probe_s > 0 and not settings.task.reads_features
        step_s = _measure_step(inputs, trials[0], compute, probe_s) if is_measured else None
    plan = FinetuningPlan.of(trials, inputs, step_s)
    findings += check_inputs(settings, inputs, plan)
    tables = [plan_table(plan), *examples_tables(inputs), settings_table(trials)]
    headline = (
        ("Examples", f"{len(inputs.loader.examples):,}"),
        ("Parameters", human_count(plan.num_parameters)),
        ("Runs", f"{plan.trials:,}"),
        ("Steps of a run", _between(plan.steps, plan.most_steps, ",.0f")),
        ("Time on this machine", "unknown" if plan.seconds is None else human_duration(plan.seconds)),
    )
    return Diagnosis("recipe", name, tuple(findings), headline, tuple(tables), figures=vars(plan))


def _load(name: str, overrides: Sequence[str]) -> tuple[FinetuneRecipe, list[Finding]]:
    """The recipe, and findings about what is missing before anything can be opened: the model, or files."""
    missing = []
    values = merged_values(FinetuneRecipe, name, overrides)
    has_model = "init_from" in values or (values.get("search") or {}).get("checkpoints")
    settings = build_settings(FinetuneRecipe, values if has_model else {"init_from": "MODEL", **values}, name)
    if not has_model:
        advice = "give init_from=MODEL, and the files, for checks of the examples and for the time that it will take"
        missing.append(Finding("no-model", "note", "the recipe names no model: its settings alone were read", advice))
    for split in SPLITS:
        try:
            files = settings.data.files(split)
        except InputError as error:
            missing.append(Finding(f"no-{split}-file", "note", str(error), f"give data.{split}=FILE"))
            continue
        for file in (path for path in files.paths if not path.exists()) if files else ():
            message = f"data.{split}={file}: no such file, so that no examples were read"
            missing.append(Finding(f"no-{split}-file", "note", message, f"give data.{split}=FILE"))
    if has_model:
        with suppress(UserError):  # of a model that cannot be opened, opening the inputs says so
            settings, _ = fit_to_models(settings, name, overrides)
    return settings, missing


@dataclass(frozen=True)
class FinetuningPlan:
    """The work that a recipe amounts to; None for what cannot be known."""

    num_parameters: int
    num_trained: int
    steps: float | None  # of the shortest run, as epochs are
    epochs: float | None
    most_steps: float | None  # of the longest run, as most_epochs are
    most_epochs: float | None
    trials: int  # runs in all
    step_s: float | None  # seconds of one step of the first run, measured
    seconds: float | None  # of training, for all runs one after another

    @classmethod
    def of(cls, trials: Sequence[FinetuneRecipe], inputs: TaskInputs, step_s: float | None) -> FinetuningPlan:
        """The work of all runs: `inputs` are those of the first, `step_s` is how long its steps take, and the others
        take as long for an example."""
        examples = inputs.loader.examples
        num_examples = len(examples)
        example_s = None if step_s is None else step_s / min(trials[0].train.batch_size, num_examples)
        steps, epochs, seconds = [], [], []
        for trial in trials:
            # The share of an epoch that a step shows; the last step of an epoch takes what remains.
            epochs_per_step = 1 / -(-num_examples // trial.train.batch_size)
            its_s = None if example_s is None else example_s * num_examples * epochs_per_step
            number = steps_of(trial.train, epochs_per_step * len(examples.input_ids), epochs_per_step, its_s)
            if number is not None:
                steps.append(number)
                epochs.append(number * epochs_per_step)
            if trial.train.minutes is not None:
                seconds.append(60 * trial.train.minutes)
            elif number is not None and its_s is not None:
                seconds.append(number * its_s)
        return cls(
            num_parameters=inputs.module.num_parameters,
            num_trained=sum(weight.numel() for weight in inputs.module.parameters() if weight.requires_grad),
            steps=min(steps, default=None),
            epochs=min(epochs, default=None),
            most_steps=max(steps, default=None),
            most_epochs=max(epochs, default=None),
            trials=len(trials),
            step_s=step_s,
            seconds=sum(seconds) if seconds else None,
        )


def _measure_step(inputs: TaskInputs, settings: FinetuneRecipe, compute: Compute, limit_s: float) -> float:
    """The median seconds of some real steps, without the first."""
    if compute.device.type == "cpu":
        keep_freed_memory()  # as a run does
    module: Any = compute.place(inputs.module)
    optimizer = build_optimizer(module, settings.optimizer)
    times = [time.perf_counter()]
    train(
        Learner(module, inputs.module.counts),
        inputs.loader.steps(inputs.loader.start()),
        ScheduledOptimizer(optimizer, Schedule(settings.schedule)),
        EagerStepper(module, optimizer, settings.train.max_grad_norm, compute),
        settings.train.model_copy(update={"steps": None, "tokens": None, "epochs": None, "minutes": limit_s / 60}),
        TrainState(),
        Hooks(lambda state, result: times.append(time.perf_counter())),
    )
    steps_s = np.diff(times)
    return float(np.median(steps_s[1:] if len(steps_s) > 1 else steps_s))


# ---- Checks


def check_inputs(settings: FinetuneRecipe, inputs: TaskInputs, plan: FinetuningPlan) -> Iterator[Finding]:
    """Examines what was opened; says nothing about what is as usual, except that it fits."""
    yield Finding("inputs", "good", "the model loads, and every line of the files fits the task")
    for warning in inputs.known:
        what, _, why = warning.partition(": ")
        yield Finding("files-shared", "warning", what, why)
    if settings.data.dev is None:
        yield Finding("no-dev", "warning", "nothing is measured: there is no data.dev", "give data.dev=FILE")
    elif inputs.dev is not None and (count := sum(len(part.examples) for part in inputs.dev)) < FEW_DEV_EXAMPLES:
        message = f"{count:,} dev examples: a share of them is known to about ±{1 / count**0.5:.0%} only"
        yield Finding("few-dev-examples", "note", message, "figures that differ by less do not differ")
    if plan.steps is not None and plan.steps < FEW_STEPS:
        message = f"a run has {plan.steps:,.0f} steps"
        yield Finding(
            "few-steps", "note", message, "raise train.epochs, or lower train.batch_size, if it learns little"
        )
    if not settings.from_scratch and settings.freeze_layers != "all":
        width = inputs.module.encoder.settings.hidden_size
        searched = settings.search.learning_rates
        for rate in searched or [settings.optimizer.learning_rate]:
            yield from check_rate(
                rate,
                USUAL_LEARNING_RATES,
                width,
                f"usual for fine-tuning models {width} wide are",
                too_high="lower it, or what was pre-trained is lost",
                too_low="raise it, or give more epochs",
                key="search.learning_rates" if searched else "optimizer.learning_rate",
            )
    rows = inputs.loader.examples.lengths
    full = float((rows >= settings.task.max_length).mean())
    if full > MUCH_CUT and inputs.task.kind in FIELDS_OF_KINDS["long_text"] and settings.task.long_text == "cut":
        message = f"{full:.0%} of the training examples fill task.max_length={settings.task.max_length}"
        yield Finding("many-cut", "warning", f"{message}: what is longer is cut", "raise task.max_length")
    if (counts := label_counts(inputs)) is not None and counts.max() > ONE_SIDED * counts.sum():
        label = inputs.task.labels[int(counts.argmax())]
        message = f"{counts.max() / counts.sum():.0%} of the training examples have the label {label!r}"
        advice = "accuracy says little here: look at f1 and matthews_correlation, and set train.metric to one of them"
        yield Finding("one-sided-labels", "warning", message, advice)


# ---- Tables


def label_counts(inputs: TaskInputs) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """(labels,) how many training examples have each label; None where examples do not have exactly one."""
    if inputs.task.kind != "classification" or inputs.task.problem_type != "single_label_classification":
        return None
    ids = inputs.loader.examples.unit_columns["labels"].astype(np.int64)
    return np.bincount(ids[ids >= 0], minlength=len(inputs.task.labels))


def examples_tables(inputs: TaskInputs) -> Iterator[FigureTable]:
    """How many examples there are and how long they are; the labels; what figures are to be compared with."""
    dev = _joined(inputs.dev)
    files = {"train": inputs.loader.examples, "dev": dev, "test": _joined(inputs.test)}
    rows = tuple(
        (
            name,
            f"{len(encoded):,}",
            f"{encoded.lengths.mean():.1f}",
            f"{int(np.percentile(encoded.lengths, 95)):,}",
            f"{encoded.lengths.max():,}",
        )
        for name, encoded in files.items()
        if encoded is not None
    )
    note = "Question answering and tagging read a long text as several examples."
    yield FigureTable("Examples", rows, ("file", "examples", "tokens, mean", "95 % have up to", "longest"), note)
    if (counts := label_counts(inputs)) is not None:
        order = np.argsort(-counts, kind="stable")[:20]
        shares = tuple((inputs.task.labels[i], f"{counts[i]:,}", f"{counts[i] / counts.sum():.1%}") for i in order)
        yield FigureTable("Labels of the training file", shares, ("label", "examples", "share"))
    if dev is not None:
        floors = inputs.task.floors(inputs.loader.examples, dev)
        values = tuple((name, what, f"{value:.4g}") for name, each in floors.items() for what, value in each.items())
        yield FigureTable("What figures on dev have to be better than", values, ("figure", "what gives it", "value"))


def _joined(sets: list[ExampleSet] | None) -> EncodedExamples | None:
    return None if sets is None else concatenate([part.encoded for part in sets])


def plan_table(plan: FinetuningPlan) -> FigureTable:
    """Parameters, steps and time."""
    rows = [("parameters", f"{plan.num_parameters:,}, {plan.num_trained:,} of them trained")]
    if plan.steps is not None:
        steps, epochs = _between(plan.steps, plan.most_steps, ",.0f"), _between(plan.epochs, plan.most_epochs, ",.2f")
        rows.append(("a run", f"{steps} steps, {epochs} epochs"))
    is_search = plan.trials > 1
    if plan.step_s is not None:
        rows.append(("a step of the first run" if is_search else "a step, measured", human_duration(plan.step_s)))
    if plan.seconds is not None:
        rows.append(("all runs" if is_search else "training", human_duration(plan.seconds)))
    note = "Measuring on dev and saving are not in it."
    if is_search:
        note += (
            " Runs are counted one after another, each as fast for an example as the first: search.parallel, "
            "search.ray and other sizes of search.checkpoints are left out."
        )
    return FigureTable("The run", tuple(rows), note=note)


def _between(least: float | None, most: float | None, form: str) -> str:
    """Two figures, or one where they are written alike."""
    if least is None or most is None:
        return "unknown"
    return " to ".join(dict.fromkeys(f"{value:{form}}" for value in (least, most)))


def settings_table(trials: Sequence[FinetuneRecipe]) -> FigureTable:
    """The settings that matter most, of all runs."""
    first = trials[0]
    budget = first.train.budget[0]
    rows = [
        ("task.name", first.task.name),
        ("task.max_length", f"{first.task.max_length:,}"),
        ("optimizer.learning_rate", _listed(f"{each.optimizer.learning_rate:g}" for each in trials)),
        (f"train.{budget}", _listed(f"{each.train.budget[1]:g}" for each in trials)),
        ("train.batch_size", _listed(f"{each.train.batch_size:,}" for each in trials)),
        ("runs of the search", f"{len(trials):,}"),
    ]
    return FigureTable("Settings", tuple(rows if len(trials) > 1 else rows[:-1]))


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))

"""A search: many fine-tuning runs from one recipe, their results, and the best of them as a model.

Every configuration of what `search.*` lists is run `search.restarts` times, each as a run directory of its own:

    OUT/trials/lr3e-05_batch16_epochs3_seed2/    a whole run; its checkpoints are deleted when it is finished
    OUT/summary.json  OUT/report.html            see `summary.py`; brought up to date after each trial
    OUT/model/  OUT/ensemble/                    the best run's model; the ensemble, where `search.ensemble` is true

One after another, or several at a time (`search.parallel`, `search.ray`): the results are the same in whatever order
they end.
Devlin et al. 2019, sections 4.1 and 4.2 (ensemble); Radford et al. 2018, figure 2 (layers).
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.errors import Interrupted, SettingsError, UserError
from unmask.finetuning.search.display import first_warnings, warning_once
from unmask.finetuning.search.grid import plan_trials
from unmask.finetuning.search.page import write_trials_page
from unmask.finetuning.search.parallel import run_side_by_side
from unmask.finetuning.search.summary import TrialOutcome, best_run, describe, finite, runs_of_best_point, summarise
from unmask.finetuning.search.trial import Pace, RunOne, Runs, Trial, attempt, read_results, refuse_other_settings
from unmask.inference.ensemble import check_tokenizers, keep_chosen, write_ensemble
from unmask.inference.evaluation import evaluate, score_file
from unmask.inference.predictor import load_predictor
from unmask.io.paths import CHECKPOINTS, ENSEMBLE, MODEL, RESULTS, SUMMARY, TRIALS, model_directory
from unmask.io.progress import figures_in_a_line, human_duration, human_number, listed
from unmask.io.ray_process import RayProcess
from unmask.io.writing import alone_in, refuse_foreign, write_json, writing_directory
from unmask.models.hub.files import CONFIG
from unmask.recipe.tree import FinetuneRecipe
from unmask.reports.run_page import REPORT, write_report
from unmask.tasks.base import ExampleCounts
from unmask.tasks.qa.task import QaTask
from unmask.tasks.settings import DataSettings
from unmask.tasks.table import open_task
from unmask.tasks.text.multi_label import MultiLabelClassification
from unmask.training.device import choose_compute
from unmask.training.run.best import Metric, choose_metric
from unmask.training.run.directory import opening_run
from unmask.training.run.environment import write_environment
from unmask.training.run.messages import logging_messages
from unmask.training.run.model_place import CARD, check_files, drop_card, link_or_copy
from unmask.training.run.resuming import warn_of_another_machine

logger = logging.getLogger("unmask")

_SPENT = (CHECKPOINTS, "features")
"""What a run directory does not need once the run is finished: three models' worth of disk and more, for each trial."""


def run_trials(
    settings: FinetuneRecipe,
    directory: Path,
    *,
    recipe: str,
    resume: bool,
    overwrite: bool,
    run: RunOne,
    check: Callable[[FinetuneRecipe], object],
) -> Path:
    """Runs a recipe with a `search`.

    Args:
        directory: the directory to write.
        recipe: the recipe's name, for the record.
        resume: True keeps the finished trials and continues with the others.
        overwrite: True replaces an existing search or run.
        run: makes one run; a module-level function if several run at a time.
        check: opens the inputs of a trial, so that mistakes are reported before anything is written; it is called for
            the first trial of each checkpoint and each number of layers and of examples. Its warnings are shown once.

    Returns:
        The directory of the best model on dev.

    Raises:
        UserError: recipe, examples or output are at fault, a run is there that the search does not have, or every
            trial has failed. The failure of a single trial, such as a learning rate at which it diverges, is noted, and
            the others continue.
        Interrupted: Ctrl-C or SIGTERM; finished trials and a checkpoint of each one under way are kept.
    """
    trials = plan_trials(settings)
    seen: set[str] = set()  # warnings: each is shown once
    with opening_run(directory, settings, resume=resume, overwrite=overwrite, keeps=(TRIALS,)) as changes:
        _refuse_to_leave_out(directory, trials)
        for trial in trials:
            refuse_other_settings(trial, directory / TRIALS / trial.name)
        for change in changes.lines:
            _log(directory, change)
        check_files(directory / MODEL, CONFIG, keeps_card=True)  # those of a resumed search are replaced at its end
        refuse_foreign(directory / "ensemble", (ENSEMBLE,), "an ensemble")
        if settings.search.ray is not None:
            with RayProcess(settings.search.ray, "search.ray="):
                pass  # a cluster that does not answer is reported before anything is read or written
        # Its other messages are those of the trials, which open the same inputs.
        with logging_messages(directory, echo=True), first_warnings(seen):
            checked: set[tuple[str, int | None, int | None]] = set()
            for trial in trials:
                its = trial.settings
                begins_with = (its.init_from, its.transfer_layers, its.data.train_examples)
                if begins_with not in checked:
                    check(its)
                checked.add(begins_with)
            device = choose_compute(settings.device, settings.precision).describe()
            warn_of_another_machine(directory, device, changes.cuts_otherwise)
        if settings.search.ensemble and open_task(settings.task, settings.data.columns).per_token:
            check_tokenizers([model_directory(checkpoint) for checkpoint in settings.checkpoints])
        write_environment(
            directory,
            recipe=recipe,
            command=sys.argv,
            seed=settings.seed,
            device=device,
            num_threads=torch.get_num_threads(),
        )
    try:
        with alone_in(directory), warning_once(seen):
            num_threads = max(1, torch.get_num_threads() // settings.search.parallel)
            return _run_all(settings, trials, Runs(directory, recipe, run, num_threads), seen)
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        message = f"{directory}: stopped between two trials; the same command with --resume continues"
        raise Interrupted(message, signal.SIGINT) from error


def _refuse_to_leave_out(directory: Path, trials: Sequence[Trial]) -> None:
    """Raises SettingsError if there are runs that are none of these: no figure would show them, whatever they gave."""
    there = sorted(path.name for path in (directory / TRIALS).glob("[!.]*") if path.is_dir())
    left_out = [name for name in there if name not in {trial.name for trial in trials}]
    if left_out:
        raise SettingsError(
            f"{directory / TRIALS} holds {len(there):,} runs, and this search of {len(trials):,} would leave out "
            f"{len(left_out):,} of them, which no figure would then show: {listed(left_out, 3)}. Give at least the "
            "settings and restarts of all that are there, or another --out"
        )


def _run_all(settings: FinetuneRecipe, trials: Sequence[Trial], runs: Runs, seen: set[str]) -> Path:
    directory = runs.directory
    outcomes = _outcomes(settings, trials, runs, seen)
    finished = [outcome for outcome in outcomes if outcome.error is None]
    if not finished:
        raise UserError(f"{directory}: every trial has failed, the first with: {outcomes[0].error}")
    metric = _metric_of(settings, finished[0])
    _link_model(directory / TRIALS / best_run(finished, metric).trial.name / MODEL, directory / MODEL)
    summary = summarise(outcomes, metric, len(trials))
    if settings.search.ensemble:
        summary["ensemble"] = _answer_together(runs_of_best_point(finished, metric), settings, directory)
    write_json(directory / SUMMARY, summary)
    for line in describe(summary):
        _log(directory, line)
    write_trials_page(directory, summary)
    return directory / MODEL


def _drop_ensemble(directory: Path) -> None:
    """Removes the ensemble of runs that are no longer all that the search has."""
    place = directory / "ensemble"
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
        _log(directory, f"{place} is removed: it was of earlier runs")


def _outcomes(settings: FinetuneRecipe, trials: Sequence[Trial], runs: Runs, seen: set[str]) -> list[TrialOutcome]:
    """Runs the trials that have not ended; after each one, writes a summary of all that have, in the planned order."""
    directory = runs.directory
    ended: dict[str, TrialOutcome] = {}
    for trial in trials:
        if read_results(directory / TRIALS / trial.name) is not None:
            ended[trial.name] = _outcome(trial, directory, None)
    if ended:
        _log(directory, f"{len(ended)} of {len(trials)} trials are finished already")

    def in_order() -> list[TrialOutcome]:
        return [ended[trial.name] for trial in trials if trial.name in ended]

    num_there = len(ended)

    def note_end(trial: Trial, failure: str | None) -> str:
        if len(ended) == num_there:
            with logging_messages(directory, echo=True):
                drop_card(directory / MODEL)  # it has the figures of all runs
            _drop_ensemble(directory)
        ended[trial.name] = outcome = _outcome(trial, directory, failure)
        if finished := [each for each in in_order() if each.error is None]:
            metric = _metric_of(settings, finished[0])
            write_json(directory / SUMMARY, summarise(in_order(), metric, len(trials)))
        return _describe_outcome(outcome, settings)

    left = [trial for trial in trials if trial.name not in ended]
    if left and (settings.search.parallel > 1 or settings.search.ray is not None):
        run_side_by_side(left, runs, seen, settings=settings, note_end=note_end)
    else:
        numbers = {trial.name: f"{number} of {len(trials)}" for number, trial in enumerate(trials, start=1)}
        _run_one_after_another(left, numbers, runs, note_end)
    return in_order()


def _run_one_after_another(
    trials: Sequence[Trial], numbers: Mapping[str, str], runs: Runs, note_end: Callable[[Trial, str | None], str]
) -> None:
    """Like `run_side_by_side`, but one trial at a time, in this process.

    Args:
        numbers: each trial's number among all, as text, by name.
    """
    pace = Pace()
    for place, trial in enumerate(trials):
        left_s = pace.needed_s(trials[place:])
        left = "" if left_s is None else f", {human_duration(left_s)} left"
        _log(runs.directory, f"trial {numbers[trial.name]}{left}: {trial.name}")
        began = time.monotonic()
        try:
            failure = attempt(trial, runs)
        except Interrupted as error:
            where = f"stopped in trial {numbers[trial.name]}, which has saved where it is"
            message = f"{runs.directory}: {where}; the same command with --resume continues the search"
            raise Interrupted(message, error.signal_number) from error
        pace.add(trial, time.monotonic() - began)
        _log(runs.directory, note_end(trial, failure))


def _outcome(trial: Trial, directory: Path, failure: str | None) -> TrialOutcome:
    """The outcome of a trial that has ended; deletes what a finished trial no longer needs."""
    outcome = TrialOutcome(trial, dev={}, test={}, error=failure)
    if failure is not None:
        return outcome
    place = directory / TRIALS / trial.name
    results = read_results(place)
    assert results is not None, f"{place} has no {RESULTS}"
    is_reported = (place / REPORT).is_file() and os.path.getmtime(place / REPORT) >= os.path.getmtime(place / RESULTS)
    if (place / CHECKPOINTS).exists() and not is_reported:  # it was killed between the two
        write_report(place)
    for name in _SPENT:
        shutil.rmtree(place / name, ignore_errors=True)
    test, degenerate, floors = (results.get(name) for name in ("test", "degenerate", "floors"))
    chosen = ["thresholds"] if results.get("thresholds_chosen_on") == "dev" else []
    chosen += ["temperature"] if "temperature" in results.get("calibration", {}) else []
    chosen += ["step"] if "early_stopping" in results else []
    return replace(
        outcome, dev=results["dev"], test=test or {}, degenerate=degenerate, floors=floors, chosen_on_dev=tuple(chosen)
    )


def _log(directory: Path, line: str) -> None:
    """Writes a line to the search's own log and to standard error; each trial has its own log."""
    with logging_messages(directory, echo=True):
        logger.info("%s", line)


def _describe_outcome(outcome: TrialOutcome, settings: FinetuneRecipe) -> str:
    if outcome.error is not None:
        return f"{outcome.trial.name} has failed, the others continue: {outcome.error}"
    metric = _metric_of(settings, outcome).name
    fault = "" if outcome.degenerate is None else f"; degenerate: {outcome.degenerate}"
    return f"{outcome.trial.name}: {metric} {human_number(outcome.dev[metric])} on dev{fault}"


def _metric_of(settings: FinetuneRecipe, outcome: TrialOutcome) -> Metric:
    score = open_task(settings.task, settings.data.columns).score()
    return choose_metric(outcome.dev, settings.train.metric, score.lower_is_better)


def _link_model(source: Path, target: Path) -> None:
    """The best model under its own name, beside a card that has been edited: hard links where the disk has them, else
    a copy."""
    with writing_directory(target, overwrite=True) as directory:
        files = [file for file in source.iterdir() if file.name != CARD]  # that of one run
        for file in [*files, *target.glob(CARD)]:
            link_or_copy(file, directory / file.name)


def _answer_together(runs: Sequence[TrialOutcome], settings: FinetuneRecipe, directory: Path) -> dict[str, Any] | None:
    """Makes an ensemble of runs that have not failed and measures it; None where there is only one."""
    if len(runs) < 2:
        _log(directory, f"no ensemble: of the best configuration only {runs[0].trial.name} has not failed")
        return None
    place = write_ensemble(
        [directory / TRIALS / run.trial.name / MODEL for run in runs], directory / "ensemble", overwrite=True
    )
    if "best_f1" in runs[0].dev and settings.task.null_threshold is None:
        _tune(place, settings.data, settings.device, null_threshold=None)
    elif settings.task.thresholds == "dev":
        _tune(place, settings.data, settings.device, thresholds="dev")
    figures = {
        name: evaluate(place, file, columns=columns, device=settings.device)["metrics"]
        for name, file, columns in settings.data.measured()
    }
    for name, metrics in figures.items():
        what = f"ensemble, {len(runs)} runs of {runs[0].trial.point} together on {name}"
        _log(directory, f"{what}: {figures_in_a_line(metrics)}")
    _log(directory, f"the ensemble is {place}: `unmask predict`, `evaluate` and `serve` take it")
    return {"members": [run.trial.name for run in runs], **{name: finite(metrics) for name, metrics in figures.items()}}


def _tune(place: Path, data: DataSettings, device: str, **undecided: Any) -> None:
    """Chooses an ensemble's thresholds on dev; otherwise they would be the sum or the means of those that the members
    have chosen, each for itself.

    Args:
        undecided: the setting with the value that leaves it to dev.
    """
    _, dev, columns = next(data.measured())
    predictor = load_predictor(place, device=device).with_options(columns)
    assert isinstance(predictor.task, QaTask | MultiLabelClassification)
    task: QaTask | MultiLabelClassification = predictor.task.with_settings(**undecided)
    score = score_file(replace(predictor, task=task), dev, ExampleCounts())  # reported when the ensemble is measured
    tuned = task.tuned(score).settings
    keep_chosen(place, {name: getattr(tuned, name) for name in undecided})

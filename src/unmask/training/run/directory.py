"""The run directory: made for a new run, opened again to resume one, never overwritten silently.

What it may hold is in `_OWN`.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unmask.config import Settings, build_settings, changed_keys, dump_settings, read_settings_file
from unmask.errors import CheckpointError, InputError, Interrupted, SettingsError, UserError
from unmask.io.json_text import read_object
from unmask.io.paths import CHECKPOINTS, MODEL, RECIPE, RESULTS, SAMPLES, SUMMARY, TRIALS
from unmask.io.writing import (
    REPLACED,
    UNFINISHED,
    alone_in,
    as_output_error,
    own_place,
    put_back,
    refuse_existing,
    refuse_foreign,
    remove_replaced,
    write_json,
    write_text,
    writing,
)
from unmask.training.device import without_free_memory
from unmask.training.run.budget import budget_change, check_budget
from unmask.training.run.checkpoint import STATE, find_checkpoint, list_steps, saved_recipe
from unmask.training.run.environment import (
    ENVIRONMENT,
    code_differences,
    describe_budget_change,
    read_sessions,
    write_environment,
)
from unmask.training.run.log import LOG, METRICS, TENSORBOARD, RunLog, refuse_lost_checkpoints
from unmask.training.run.model_place import check_files
from unmask.training.settings import BUDGETS

logger = logging.getLogger("unmask")

DATA = "data.json"
"""In the directory of a run or search: a fingerprint of each of its inputs."""
_WORTH_KEEPING = (CHECKPOINTS, MODEL, TRIALS)
"""What a run's directory holds once it is worth keeping."""
_OWN = (
    *(RECIPE, DATA, ENVIRONMENT, f"{METRICS}*", LOG, TENSORBOARD, "report.html", RESULTS, SAMPLES),
    *(CHECKPOINTS, "divergence", "features", "store", "tokenizer", MODEL),
    *(TRIALS, SUMMARY, "ensemble", f"{UNFINISHED}*"),
)
"""All that the directory of a run or search may hold."""

RESUMABLE_KEYS = frozenset(
    f"train.{name}"
    for name in (
        *BUDGETS,
        *("log_every", "eval_every", "eval_sequences", "save_every", "keep_last", "keep_every"),
        *("on_divergence", "spike_factor", "max_roll_backs", "rank_timeout_s", "shard", "recompute"),
        "micro_batch_size",
    )
) | {"device", "precision", "store", "search.parallel", "search.ray", "eval.pairs", "eval.pairs_sample"}
"""What may change when a run is resumed; anything else would make it another run. A store may only be at another place:
`check_unchanged` compares what it holds."""

_RESUMABLE_IN_SEARCH = frozenset(
    f"search.{name}" for name in ("restarts", "learning_rates", "batch_sizes", "epochs", "ensemble")
)
"""What may change when a search is resumed: each run has a directory of its own, and those that are there stay."""


class Changes(NamedTuple):
    """What has changed at a resume.

    Attributes:
        lines: each key, in words.
        budget: for `write_environment`; None where the rates are still those of one run.
        cuts_otherwise: whether micro-batches have another size, and with them other elements are zeroed by dropout.
    """

    lines: list[str]
    budget: dict[str, Any] | None = None
    cuts_otherwise: bool = False


@contextmanager
def opening_run(
    directory: Path, recipe: Settings, *, resume: bool, overwrite: bool, keeps: Sequence[str] = ()
) -> Iterator[Changes]:
    """Makes a run directory with its resolved recipe, or checks that the run there can continue under this recipe.

    It is a context for what has to succeed before the first step, such as opening the run's inputs. If anything goes
    wrong there, a run that was to be overwritten is put back, and the recipe and the sessions of one that was to be
    resumed; a new directory is removed again after a `UserError`.

    Args:
        resume: True continues the run there, or starts one where there is none.
        overwrite: True removes the run there.
        keeps: names of what stays of a new run that is refused; a directory that holds only these, such as a search's
            trials that were run one by one, may be resumed or overwritten as a run.

    Yields:
        What has changed at a resume.

    Raises:
        OutputError: the directory exists and neither `resume` nor `overwrite` is given, or it holds anything
            that is no part of a run.
        SettingsError: the recipe differs from the run's in a key that a resumed run cannot change, the run's is lost or
            damaged and no checkpoint has it, the budget is changed to less than the run has done or so that a phase or
            stage has begun too soon, or both `resume` and `overwrite` are given.
        CheckpointError: the budget is changed, and no checkpoint is sound; or there is none, and there has been one.
        Interrupted: Ctrl-C or SIGTERM; what is finished is kept.
        AnotherProcess: a run is under way there.
    """
    if resume and overwrite:
        raise SettingsError("--resume continues a run and --overwrite removes it: give one of them")
    directory = own_place(directory)
    saved, aside = directory / RECIPE, directory.with_name(f"{REPLACED}{directory.name}")
    with ExitStack() as held:
        for place in (aside, directory):  # a lock stays with what it was taken of, whatever the name is then
            if place.is_dir():
                held.enter_context(alone_in(place))
        if aside.is_dir() and directory.is_dir() and not _names(directory):
            directory.rmdir()  # of an attempt to replace the run that was killed
        put_back(directory)
        put_back(directory / MODEL)
        for checkpoint in (directory / CHECKPOINTS).glob(f"{REPLACED}*"):
            put_back(checkpoint.with_name(checkpoint.name.removeprefix(REPLACED)))
        is_run = saved.is_file() or bool(list_steps(directory / CHECKPOINTS))
        is_there = is_run or _holds_only(directory, keeps)
        continues, replaces = resume and is_run, overwrite and is_there
        if overwrite:
            _check_only_a_run(directory, keeps)
        elif not (resume and is_there):
            no_run = f"it is not a run ({RECIPE} is missing); choose another --out"
            advice = "choose another --out, or pass --resume or --overwrite" if is_there else no_run
            refuse_existing(directory, overwrite=False, instead=advice)
        changes = _find_changes(saved, recipe) if continues else Changes([])
        if replaces:
            _refuse_own_inputs(directory, recipe.as_written())
        is_new = replaces or not directory.is_dir()
        try:
            with _replacing(directory, aside) if replaces else nullcontext():
                with as_output_error(directory):
                    directory.mkdir(parents=True, exist_ok=True)
                if is_new:
                    held.enter_context(alone_in(directory))
                kept = (saved, directory / ENVIRONMENT)
                with _restoring(kept) if continues else _removing_refused(directory, keeps, is_new):
                    write_text(saved, dump_settings(recipe))
                    yield changes
        except KeyboardInterrupt as error:
            then = "the run there is as it was" if replaces else "the same command with --resume continues"
            number = error.signal_number if isinstance(error, Interrupted) else signal.SIGINT
            raise Interrupted(f"{directory}: stopped before the first step; {then}", number) from error


@contextmanager
def _replacing(directory: Path, aside: Path) -> Iterator[None]:
    """A block in which another directory takes the place of a run, which comes back if anything goes wrong in it."""
    with as_output_error(directory):
        if aside.exists() and not any((directory / name).exists() for name in _WORTH_KEEPING):
            shutil.rmtree(directory)  # of an attempt to replace the run that was killed
        else:
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(directory, aside)
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(aside, directory)
        raise
    remove_replaced(directory)


@contextmanager
def _restoring(paths: Sequence[Path]) -> Iterator[None]:
    """A block after which files are as they were if anything goes wrong in it."""
    former = {path: path.read_bytes() for path in paths if path.is_file()}
    try:
        yield
    except BaseException:
        for path, content in former.items():
            with writing(path) as file:
                file.write(content)
        raise


@contextmanager
def _removing_refused(directory: Path, keeps: Sequence[str], is_new: bool) -> Iterator[None]:
    """A block in which a new run may be refused: nothing but `keeps` stays of it then, and of a directory that `is_new`
    not even that where it holds nothing."""
    try:
        yield
    except UserError:
        _remove_but(directory, keeps)
        if is_new and not _names(directory):
            directory.rmdir()
        raise


def _refuse_own_inputs(directory: Path, value: Any, key: str = "") -> None:
    """Raises SettingsError if a recipe names a path within the run that is to be replaced."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_own_inputs(directory, inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            _refuse_own_inputs(directory, inner, key)
    elif isinstance(value, str) and os.path.exists(value) and Path(value).resolve().is_relative_to(directory.resolve()):
        raise SettingsError(f"{key}={value} is in the run that --overwrite removes: choose another --out")


def _check_only_a_run(directory: Path, keeps: Sequence[str]) -> None:
    """Raises OutputError if a directory that is to be replaced holds anything that is no part of a run."""
    if _holds_only(directory, keeps):  # of a run that was refused
        return
    refuse_foreign(directory, _OWN, "a run", RECIPE)
    check_files(directory / MODEL)


def check_unchanged(directory: Path, found: Mapping[str, str], places: Mapping[str, Path]) -> None:
    """`compare_inputs`, and writes down what a run's inputs hold where that is not yet written."""
    if compare_inputs(directory, found, places).keys() != found.keys():
        write_json(directory / DATA, dict(found))


def compare_inputs(directory: Path, found: Mapping[str, str], places: Mapping[str, Path]) -> dict[str, Any]:
    """Compares what a run's inputs hold with what was written when it was begun; returns that, or {} if nothing was.

    Args:
        found: a fingerprint of each input, by the key that names it in the recipe.
        places: where each is, for the message; a run and its store may be moved.

    Raises:
        CheckpointError: one differs: what came before and after it would not be one run. Or the record is damaged.
    """
    record = directory / DATA
    if not record.is_file():
        return {}
    try:
        before = read_object(record)
    except InputError as error:
        raise CheckpointError(
            f"{record}: cannot be read ({error}): remove it if the run's inputs are what they were"
        ) from error
    changed = [f"{name}={places[name]}" for name in found if before.get(name, found[name]) != found[name]]
    if changed:
        raise CheckpointError(
            f"{directory}: {' and '.join(changed)} holds something else than when this run was begun, or {DATA} was "
            "changed: restore it, or start again with --overwrite"
        )
    return before


@contextmanager
def beginning_run(
    directory: Path,
    recipe: Settings,
    *,
    name: str,
    command: Sequence[str],
    seed: int,
    device: str,
    resume: bool,
    overwrite: bool,
    keeps: Sequence[str] = (),
) -> Iterator[None]:
    """`opening_run` with the log open; logs what has changed at a resume, and writes down the environment.

    Args:
        name: of the recipe, for the record.
        command: the words of the command line, likewise.
        device: in words, likewise.
    """
    with (
        opening_run(directory, recipe, resume=resume, overwrite=overwrite, keeps=keeps) as changes,
        RunLog(directory, echo=True),
    ):
        for change in changes.lines:
            logger.info(change)
        if changes.budget is not None:
            on = "the learning rate, and what else follows the budget, continues where the new one puts it by then"
            not_alike = "the result is not that of a run which had this budget from the beginning"
            logger.warning("the budget changes %s: %s, so %s", describe_budget_change(changes.budget), on, not_alike)
        warn_of_another_machine(directory, device, changes.cuts_otherwise)
        write_environment(
            directory,
            recipe=name,
            command=command,
            seed=seed,
            device=device,
            num_threads=torch.get_num_threads(),
            budget_change=changes.budget,
        )
        yield


def warn_of_another_machine(directory: Path, device: str, cuts_otherwise: bool) -> None:
    """Warns where a run continues from a checkpoint, or a search has finished runs, elsewhere or otherwise than before:
    sums are then rounded anew."""
    sessions = read_sessions(directory / ENVIRONMENT)
    if not sessions or not (list_steps(directory / CHECKPOINTS) or any(directory.glob(f"{TRIALS}/*/{RESULTS}"))):
        return
    before, not_alike = sessions[-1].get("device"), "not bit for bit as if it had never stopped"
    if before is not None and without_free_memory(before) != without_free_memory(device):
        machine = f"continues with {device}, where it was {before}"
        logger.warning("%s: %s, for sums are rounded otherwise", machine, not_alike)
    if cuts_otherwise:
        logger.warning("continues with micro-batches of another size: %s, for dropout zeroes other elements", not_alike)
    if changed := code_differences(sessions[-1]):
        changes = ", ".join(f"{name} {now} (it was {then})" for name, (then, now) in changed.items())
        logger.warning("continues with %s: other code may compute otherwise", changes)


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def _remove_but(directory: Path, keeps: Sequence[str]) -> None:
    """Removes what a directory holds besides these names."""
    for name in _names(directory).difference(keeps):
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _holds_only(directory: Path, names: Sequence[str]) -> bool:
    """Whether a directory holds some of these names, and nothing else."""
    return directory.is_dir() and bool(found := _names(directory)) and found.issubset(names)


def _find_changes(saved: Path, recipe: Settings) -> Changes:
    """What differs from the recipe so far; refuses what cannot change since the newest checkpoint, or, where none says
    with which recipe it was made, since `saved` was written."""
    lines: list[str] = []
    begun = None
    if (values := saved_recipe(saved.parent / CHECKPOINTS)) is not None:
        try:
            begun = build_settings(type(recipe), values, STATE)
        except SettingsError as error:  # a key has another name by now
            lines.append(f"is compared with {saved} only, for the checkpoint is of another version: {error}")
    before: Any = _read_recipe(saved, type(recipe), begun, lines)
    if not list_steps(saved.parent / CHECKPOINTS):
        refuse_lost_checkpoints(saved.parent, before.train.save_every)
    changed = changed_keys(before, recipe)
    is_own = not changed  # the run's own recipe, which people edit
    if begun is not None and is_own:
        before, changed = begun, changed_keys(begun, recipe)
    are_searches = all(getattr(getattr(each, "search", None), "is_wanted", False) for each in (before, recipe))
    resumable = RESUMABLE_KEYS | (_RESUMABLE_IN_SEARCH if are_searches else set())
    if are_searches and before.search.learning_rates:
        changed.pop("optimizer.learning_rate", None)  # no run of it has that rate
    compared = changed if begun is None else changed_keys(begun, recipe)
    fixed = [f"{key}={now} (it was {then})" for key, (then, now) in compared.items() if key not in resumable]
    if fixed:
        its = f"`unmask {before.program} {saved} --out {saved.parent} --resume` has the settings of the run"
        again = "" if is_own else f" ({its}; a recipe that comes with unmask may have changed since)"
        raise SettingsError(
            f"{saved.parent} was begun with other settings: {', '.join(fixed)}. A resumed run may change its budget, "
            "logging, saving, micro-batches, what it does when it diverges, how it is divided (train.*), device, "
            "precision, where its store is, eval.pairs, search.parallel and search.ray; a search also its restarts, "
            f"rates, batch sizes and epochs: give the same settings{again}, or another --out"
        )
    budget = None
    if {f"train.{name}" for name in BUDGETS}.intersection(changed):
        checkpoint = find_checkpoint(saved.parent / CHECKPOINTS)
        if checkpoint is not None:
            check_budget(saved.parent, before, recipe, checkpoint)
            budget = budget_change(before, recipe, checkpoint)
    lines += [f"resumed with {key}={now}, where it was {then}" for key, (then, now) in changed.items()]
    return Changes(lines, budget, cuts_otherwise="train.micro_batch_size" in changed)


def _read_recipe(saved: Path, kind: type[Settings], begun: Settings | None, lines: list[str]) -> Settings:
    """A run's recipe; where its file is missing or damaged, what the checkpoint says of it, and a note in `lines`."""
    try:
        return build_settings(kind, read_settings_file(saved), str(saved))
    except SettingsError as error:
        if begun is not None:
            lines.append(f"{saved} was missing or damaged: written anew")
            return begun
        if not (steps := list_steps(saved.parent / CHECKPOINTS)):
            raise
        raise SettingsError(
            f"{saved} is missing or damaged, and checkpoints up to step {steps[-1]:,} are there: put it back, the "
            f"recipe that the run was begun with ({error})"
        ) from error

"""The run directory: made for a new run, opened again to resume one, never overwritten silently.

What it may hold is in `_OWN`.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from unmask.config import Settings, build_settings, dump_settings, read_settings_file
from unmask.errors import Interrupted, OutputError, SettingsError, UserError
from unmask.io.paths import CHECKPOINTS, ENSEMBLE, MODEL, RECIPE, RESULTS, SAMPLES, SUMMARY, TRIALS
from unmask.io.writing import (
    REPLACED,
    UNFINISHED,
    alone_in,
    as_output_error,
    own_place,
    put_back,
    refuse_existing,
    refuse_foreign,
    remove,
    remove_replaced,
    write_text,
    writing,
)
from unmask.training.run.checkpoint import Checkpoint, list_steps
from unmask.training.run.environment import ENVIRONMENT, describe_budget_change, write_environment
from unmask.training.run.log import METRICS, TENSORBOARD, RunLog
from unmask.training.run.messages import LOG
from unmask.training.run.model_place import check_files
from unmask.training.run.resuming import DATA, Changes, find_changes, warn_of_another_machine

logger = logging.getLogger("unmask")

_WORTH_KEEPING = (CHECKPOINTS, MODEL, TRIALS)
"""What a run's directory holds once it is worth keeping."""
_OWN = (
    *(RECIPE, DATA, ENVIRONMENT, f"{METRICS}*", LOG, TENSORBOARD, "report.html", RESULTS, SAMPLES),
    *(CHECKPOINTS, "divergence", "features", "store", "tokenizer", MODEL),
    *(TRIALS, SUMMARY, "ensemble", f"{UNFINISHED}*"),
)
"""All that the directory of a run or search may hold."""
_under_way = threading.RLock()
"""Is held by the thread that has a run under way."""


@contextmanager
def alone_in_process() -> Iterator[None]:
    """A block in which no other thread of this process has a run: PyTorch's generator and the logger `unmask` are one
    for all threads, so that neither run would have the result of its seed, nor a log of its own.

    Raises:
        UserError: another thread has one.
    """
    if not _under_way.acquire(blocking=False):
        raise UserError("another run is under way in this process: start this one in a process of its own")
    try:
        yield
    finally:
        _under_way.release()


@contextmanager
def opening_run(
    directory: Path, recipe: Settings, *, resume: bool, overwrite: bool, keeps: Sequence[str] = ()
) -> Iterator[Changes]:
    """Makes a run directory with its resolved recipe, or checks that the run there can continue under this recipe.

    It is a context for what has to succeed before the first step, such as opening the run's inputs. If anything goes
    wrong there, a run that was to be overwritten is put back, and the recipe and the sessions of one that was to be
    resumed; a new directory is removed again after a `UserError` or the system's.

    Args:
        resume: True continues the run there, or starts one where there is none.
        overwrite: True removes the run there.
        keeps: names of what stays of a new run that is refused; a directory that holds only these, such as a search's
            trials that were run one by one, may be resumed or overwritten as a run.

    Yields:
        What has changed at a resume.

    Raises:
        OutputError: the directory exists and neither `resume` nor `overwrite` is given, or it holds anything
            that is no part of a run, such as a recipe that no run wrote.
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
        _put_back_left(directory, aside)
        continues, replaces = _check_existing(directory, type(recipe), keeps, resume=resume, overwrite=overwrite)
        changes = find_changes(saved, recipe) if continues else Changes([])
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
        if continues or replaces:
            remove_replaced(directory)


def _put_back_left(directory: Path, aside: Path) -> None:
    """Puts back what a process that was killed has left beside its place, and removes what it had only begun."""
    if directory.is_dir():
        with as_output_error(directory):
            (directory / f"{UNFINISHED}{RECIPE}").unlink(missing_ok=True)  # of a run that was killed as it began
    if aside.is_dir() and directory.is_dir() and not _names(directory):
        directory.rmdir()  # of an attempt to replace the run that was killed
    put_back(directory)
    put_back(directory / MODEL)
    for checkpoint in (directory / CHECKPOINTS).glob(f"{REPLACED}*"):
        put_back(checkpoint.with_name(checkpoint.name.removeprefix(REPLACED)))


def _check_existing(
    directory: Path, kind: type[Settings], keeps: Sequence[str], *, resume: bool, overwrite: bool
) -> tuple[bool, bool]:
    """Whether the run there is continued, and whether it is replaced; arguments as in `opening_run`, `kind` is the
    recipe's class. Raises OutputError if there is something that can be neither."""
    saved = directory / RECIPE
    _refuse_foreign_recipe(saved, kind)
    is_run = saved.is_file() or bool(list_steps(directory / CHECKPOINTS))
    is_there = is_run or _holds_only(directory, keeps)
    if overwrite:
        _check_only_a_run(directory, keeps)
    elif not (resume and is_there):
        no_run = f"it is not a run ({RECIPE} is missing); choose another --out"
        advice = "choose another --out, or pass --resume or --overwrite" if is_there else no_run
        refuse_existing(directory, overwrite=False, instead=advice)
    return resume and is_run, overwrite and is_there


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
    except (UserError, OSError):
        for name in _names(directory).difference(keeps):
            remove(directory / name)
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


def _refuse_foreign_recipe(saved: Path, kind: type[Settings]) -> None:
    """Raises OutputError if a recipe lies where the run's own goes and no run wrote it: nothing else of one is there,
    and it is not written as a run that was killed as it began has left its own."""
    if not saved.is_file() or any(
        (saved.parent / name).exists() for name in (ENVIRONMENT, CHECKPOINTS, MODEL, RESULTS)
    ):
        return
    with suppress(SettingsError):
        text = dump_settings(build_settings(kind, read_settings_file(saved), str(saved)))
        if saved.read_bytes() == text.encode("utf-8"):
            return
    raise OutputError(
        f"{saved} is not as a run of this version writes it, and is where the run's own recipe goes: move it, or "
        "choose another --out"
    )


def _check_only_a_run(directory: Path, keeps: Sequence[str]) -> None:
    """Raises OutputError if a directory that is to be replaced holds anything that is no part of a run."""
    if _holds_only(directory, keeps):  # of a run that was refused
        return
    refuse_foreign(directory, _OWN, "a run", RECIPE)
    refuse_foreign(directory / "ensemble", (ENSEMBLE,), "an ensemble")
    check_files(directory / MODEL)


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
) -> Iterator[Checkpoint | None]:
    """`opening_run` with the log open; logs what has changed at a resume, and writes down the environment. Yields the
    checkpoint that the run continues from.

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
        if changes.budget is not None and changes.budget["was"] != changes.budget["now"]:
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
        yield changes.checkpoint


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def _holds_only(directory: Path, names: Sequence[str]) -> bool:
    """Whether a directory holds some of these names, and nothing else."""
    return directory.is_dir() and bool(found := _names(directory)) and found.issubset(names)

"""Writes checkpoints beside the steps that follow, one at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from unmask.errors import OutputError
from unmask.io.writing import UNFINISHED, describe_file, remove, write_json, writing_directory
from unmask.models.hub.files import write_tensors
from unmask.training.run.checkpoint import STATE, Snapshot, newest_first, state_digest, step_of
from unmask.training.settings import TrainSettings

logger = logging.getLogger("unmask")


class CheckpointWriter:
    """Writes the checkpoints of one run, of which `settings` say which are kept.

    Nothing is being written once its `with` block is left: an error lets the checkpoint be finished, a second Ctrl-C
    gives it up after the file that is being written.
    """

    def __init__(self, checkpoints: Path, settings: TrainSettings) -> None:
        self._checkpoints, self._settings = checkpoints, settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None
        self._is_given_up = Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._is_given_up.set()
        try:
            self._thread.shutdown()
        except KeyboardInterrupt:
            self._is_given_up.set()
            self._thread.shutdown()
            raise
        if error is None:  # else that is what is reported
            self.wait()

    def write(self, snapshot: Snapshot) -> None:
        """Begins to write, after waiting for the one before; raises what went wrong with that one."""
        self.wait()
        args = self._checkpoints, snapshot, self._settings, self._is_given_up.is_set
        self._writing = self._thread.submit(write_checkpoint, *args)

    def check(self) -> None:
        """Raises what has gone wrong with a checkpoint, if it is known yet."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Waits until everything is written. Raises OutputError where it could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.result()
            except OutputError as error:
                raise OutputError(f"{error}; then the same command with --resume continues") from error


def write_checkpoint(
    checkpoints: Path, snapshot: Snapshot, settings: TrainSettings, is_given_up: Callable[[], bool] = lambda: False
) -> Path:
    """Writes a checkpoint and removes the oldest ones beyond `train.keep_last`; warns of one that cannot be removed.

    Checkpoints of later steps, which a resumed run has passed over as damaged, are neither counted nor removed.

    Args:
        settings: say which are kept. So is the newest at a multiple of `save_every`, however often the run was stopped
            since: `find_checkpoint` looks for it when a run rolls back.
        is_given_up: is asked after each file; True leaves everything as it was.

    Raises:
        OutputError: the disk is full, or the place cannot be written; earlier checkpoints are as they were.
        CancelledError: it was given up.
    """
    target = checkpoints / f"step-{snapshot.state['step']:08d}"
    if not target.is_dir():
        _remove_if_possible(target)  # a file that has its name
    with writing_directory(target, overwrite=True) as directory:
        for name, tensors in snapshot.files.items():
            write_tensors(directory / name, tensors)
            if is_given_up():
                raise CancelledError
        files = {file.name: describe_file(file) for file in sorted(directory.iterdir())}
        saved = snapshot.state | {"files": files}
        write_json(directory / STATE, saved | {"sha256": state_digest(saved)})
    save_every, keep_every = settings.save_every, settings.keep_every
    saved_steps = [path for path in newest_first(checkpoints) if path.name <= target.name]
    due = [path for path in saved_steps if save_every is not None and step_of(path) % save_every == 0]
    for old in saved_steps[settings.keep_last :]:
        if old not in due[:1] and (keep_every is None or step_of(old) % keep_every):
            _remove_if_possible(old)
    for left in checkpoints.glob(f"{UNFINISHED}*"):  # left by a kill in the middle of a save
        _remove_if_possible(left)
    return target


def _remove_if_possible(path: Path) -> None:
    try:
        remove(path)
    except OSError as error:
        logger.warning("%s cannot be removed (%s)", path, error.strerror)

"""Writes checkpoints beside the steps that follow, one at a time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from unmask.training.run.checkpoint import Snapshot, write_checkpoint
from unmask.training.settings import TrainSettings


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
        self._thread.shutdown()
        if error is None:  # else that is what is reported
            self.wait()

    def write(self, snapshot: Snapshot) -> None:
        """Begins to write, after waiting for the one before; raises what went wrong with that one."""
        self.wait()
        train = self._settings
        args = (self._checkpoints, snapshot, train.keep_last, train.save_every, train.keep_every)
        self._writing = self._thread.submit(write_checkpoint, *args, is_given_up=self._is_given_up.is_set)

    def check(self) -> None:
        """Raises what has gone wrong with a checkpoint, if it is known yet."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Waits until everything is written. Raises OutputError where it could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

"""Writes checkpoints beside the steps that follow, one at a time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from unmask.training.run.checkpoint import Snapshot, write_checkpoint


class CheckpointWriter:
    """Writes the checkpoints of one run; arguments as of `unmask.training.run.checkpoint.write_checkpoint`."""

    def __init__(self, checkpoints: Path, keep_last: int, save_every: int | None) -> None:
        self._checkpoints, self._keep_last, self._save_every = checkpoints, keep_last, save_every
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Begins to write, after waiting for the one before; raises what went wrong with that one."""
        self.wait()
        args = (self._checkpoints, snapshot, self._keep_last, self._save_every)
        self._writing = self._thread.submit(write_checkpoint, *args)

    def check(self) -> None:
        """Raises what has gone wrong with a checkpoint, if it is known yet."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Waits until everything is written. Raises OutputError where it could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

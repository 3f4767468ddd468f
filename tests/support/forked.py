"""Commands of `unmask` in processes of their own, forked from one that has imported everything: to start Python and
import PyTorch takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("unmask.cli.main", "unmask.cli.training", "unmask.pretraining.run", "unmask.finetuning.run"),
        *("unmask.reports.run_page", "unmask.objectives.masked_lm", "torch.utils.tensorboard"),
    ]
)


def forks() -> ForkServerContext:
    """What starts processes that have imported everything, itself started where no signal is held back: each of its
    processes would hold them back too."""
    forkserver.ensure_running()
    return _FORKS


class Forked:
    """A command that is running or has ended, with what a `Popen` has.

    Args:
        words: after `unmask`.
        variables: of its environment.
        before: called there first.
    """

    returncode: int | None = None

    def __init__(
        self, words: Sequence[str], variables: Mapping[str, str] = {}, before: Callable[[], object] | None = None
    ) -> None:
        self._place = TemporaryDirectory()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        self._process = _FORKS.Process(target=_run, args=(self._place.name, list(words), environment, before))
        self._process.start()

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            assert self._process.pid is not None, "it has been started"
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for its end; what it wrote to standard output and standard error. Raises TimeoutError."""
        self._process.join(timeout)
        self.returncode = self._process.exitcode
        if self.returncode is None:
            raise TimeoutError(f"it runs for over {timeout} s")
        with self._place as place:
            output, errors = ((Path(place) / name).read_text("utf-8") for name in _STREAMS)
        return output, errors


_STREAMS = ("output", "errors")


def _run(place: str, words: list[str], environment: dict[str, str], before: Callable[[], object] | None) -> None:
    import torch

    for number, name in enumerate(_STREAMS, start=1):
        with open(Path(place) / name, "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = ["unmask", *words]
    if before is not None:
        before()
    from unmask.cli.main import main

    main()

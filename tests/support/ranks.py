"""Several processes that train together on this machine, each a command of its own, as `torchrun` starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from subprocess import PIPE, Popen
from types import MappingProxyType

from support.forked import Forked

WAIT_S = 240


@dataclass(frozen=True)
class Ended:
    """What one process has left."""

    exit_code: int
    errors: str


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """This one's, with one thread a process."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def start_ranks(
    words: Sequence[Sequence[str]],
    before: Mapping[int, Callable[[], object]] = MappingProxyType({}),
    *,
    report: bool = False,
) -> list[Forked]:
    """Starts `unmask` once for each list of words, as the ranks of one run; `before` is what a rank calls first.

    A report takes longer than many a run of a test, and is written on request.
    """
    place = {"WORLD_SIZE": str(len(words)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first = {
        rank: before.get(rank) if report else partial(_without_report, before.get(rank)) for rank in range(len(words))
    }
    return [Forked(own, {"RANK": str(rank), **place}, first[rank]) for rank, own in enumerate(words)]


def _without_report(before: Callable[[], object] | None) -> None:
    for kind in ("pretraining", "finetuning"):
        import_module(f"unmask.{kind}.run").write_report = lambda *_, **__: None  # type: ignore[attr-defined]
    if before is not None:
        before()


def wait_for(processes: Sequence[Popen[str] | Forked]) -> list[Ended]:
    """What all of them leave; they are ended if that takes too long."""
    try:
        outputs = [process.communicate(timeout=WAIT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        Ended(-1 if process.returncode is None else process.returncode, errors)
        for process, errors in zip(processes, outputs, strict=True)
    ]


def run_ranks(*words: Sequence[str], report: bool = False) -> list[Ended]:
    return wait_for(start_ranks(words, report=report))


def torchrun(number: int, words: Sequence[str], *options: str) -> Popen[str]:
    """Starts `torchrun` with a number of processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}", *options]
    return Popen([*launcher, "-m", "unmask", *words], env=environment(), stdout=PIPE, stderr=PIPE, text=True)


def children_of(process: Popen[str]) -> list[int]:
    """The processes that it has started, in their order."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def wait_until(happens: Callable[[], bool]) -> None:
    """Looks until something has happened in another process."""
    until = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < until, "it has not happened"
        time.sleep(0.02)

"""A worker process that is killed is noticed, whatever it was doing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest

from unmask.errors import SettingsError
from unmask.io import processes
from unmask.io.processes import WorkerProcess, is_own_process


def answer(number: int) -> int:
    return number


def die_in_the_middle_of_the_answer() -> None:
    """Of a megabyte, of which five bytes have been written."""
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), (1 << 20).to_bytes(4, "big") + b"x")
    os.kill(os.getpid(), signal.SIGKILL)


def test_several_threads_may_each_have_one() -> None:
    with ThreadPoolExecutor(2) as threads:
        processes = list(threads.map(lambda _: WorkerProcess(os.getpid), range(4)))
    assert sorted(each.submit(os.getpid).result(30) for each in processes) == sorted(
        each.process.pid or 0 for each in processes
    )
    for process in processes:
        process.close()


def test_it_is_a_process_of_ours() -> None:
    process = WorkerProcess(os.getpid)
    assert process.submit(is_own_process).result(30)
    process.close()


@pytest.mark.parametrize(("is_own", "advises"), [(False, True), (True, False)])
def test_a_script_whose_workers_end_as_they_begin_is_advised(
    is_own: bool, advises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command has no script of the user's."""
    monkeypatch.setattr(processes, "_is_own", is_own)
    process = WorkerProcess(os.getpid)
    process.submit(os._exit, 1)
    found = process.how_it_ended()
    assert (found.startswith("ended with exit code 1"), "__main__" in found) == (True, advises)


def test_a_daemon_may_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a `multiprocessing.Pool` is one."""
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    with pytest.raises(SettingsError, match="ProcessPoolExecutor"):
        WorkerProcess(os.getpid)


def test_a_process_that_is_killed_while_it_answers_is_noticed() -> None:
    process = WorkerProcess(os.getpid)
    assert [process.submit(answer, number).result() for number in range(4)] == [0, 1, 2, 3]
    with pytest.raises(BrokenProcessPool):
        process.submit(die_in_the_middle_of_the_answer).result(30)
    assert process.exit_code() == -signal.SIGKILL

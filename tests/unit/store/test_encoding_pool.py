"""Worker processes that are killed are noticed, whatever they were doing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from unmask.store.encoding_pool import result_of


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


def test_a_worker_that_is_killed_while_it_answers_is_noticed() -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert [result_of(pool.submit(answer, number), pool) for number in range(4)] == [0, 1, 2, 3]
        with pytest.raises(BrokenProcessPool):
            result_of(pool.submit(die_in_the_middle_of_the_answer), pool)

"""Encodes chunks in several processes of this machine, in order, with few chunks in memory at any time."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from unmask.errors import OutputError
from unmask.io.processes import end_with_parent, signals_held_back
from unmask.io.signals import Interruption
from unmask.store.encoding import Chunk, Encoder, EncodingSettings
from unmask.store.shard_writer import EncodedChunk

_CHUNKS_IN_FLIGHT = 4
"""Chunks per worker that are being encoded or waiting to be written."""

_LOOK_AT_WORKERS_S = 2.0

T = TypeVar("T")


@contextmanager
def encoder_pool(
    encoder: Encoder, settings: EncodingSettings, workers: int, interruption: Interruption
) -> Iterator[Callable[[Iterator[Chunk]], Iterator[EncodedChunk]]]:
    """Yields a function that encodes chunks in order: here, or in worker processes.

    Args:
        encoder: encodes here if there is one worker.
        settings: make the same encoder in every worker.
        workers: 1 starts no process.
        interruption: knows whether a broken pool was ended by a signal.

    Raises:
        OutputError: a worker was killed.
    """
    if workers == 1:
        yield lambda chunks: (encoder.encode(chunk) for chunk in chunks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(settings,))
    try:
        yield lambda chunks: _encode_ahead(pool, chunks, workers * _CHUNKS_IN_FLIGHT)
    except BrokenProcessPool as error:
        _kill_workers(pool)  # one that was just being started is not ended by the pool, which waits for it for ever
        interruption.check()  # a SIGTERM to the whole process group ends the workers first
        raise OutputError("a worker process was killed (out of memory?): try fewer --workers") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _encode_ahead(pool: ProcessPoolExecutor, chunks: Iterator[Chunk], most: int) -> Iterator[EncodedChunk]:
    waiting: deque[Future[EncodedChunk]] = deque()
    for chunk in chunks:
        with signals_held_back(signal.SIGINT):  # the pool starts its processes when work is submitted
            waiting.append(pool.submit(_encode_in_worker, chunk))
        if len(waiting) >= most:
            yield result_of(waiting.popleft(), pool)
    while waiting:
        yield result_of(waiting.popleft(), pool)


def result_of(future: Future[T], pool: ProcessPoolExecutor) -> T:
    """What a worker gives, waited for. Raises BrokenProcessPool if one was killed, in the middle of an answer too.

    The pool's own thread would wait for the rest of that answer for ever, since others could still write to the pipe.
    """
    while True:
        done, _ = wait([future], _LOOK_AT_WORKERS_S)
        if done:
            return future.result()
        if not all(worker.is_alive() for worker in list((pool._processes or {}).values())):
            _kill_workers(pool)
            # The last end that is open: the pool's thread gets to the end of the pipe.
            pool._result_queue._writer.close()  # type: ignore[attr-defined]  # a SimpleQueue of multiprocessing


def _kill_workers(pool: ProcessPoolExecutor) -> None:
    for worker in list((pool._processes or {}).values()):
        worker.kill()


_encoder_of_worker: Encoder | None = None


def _start_worker(settings: EncodingSettings) -> None:
    """Makes a worker leave Ctrl-C to its parent process, and end when that does."""
    global _encoder_of_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    _encoder_of_worker = Encoder.load(settings)


def _encode_in_worker(chunk: Chunk) -> EncodedChunk:
    assert _encoder_of_worker is not None
    return _encoder_of_worker.encode(chunk)

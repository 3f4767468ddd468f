"""Encodes chunks in several processes of this machine, in order, with few chunks in memory at any time."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import cycle

from unmask.errors import OutputError
from unmask.io.processes import WorkerProcess
from unmask.store.encoding import Chunk, ChunkEncoder, EncodingSettings
from unmask.store.shard_writer import EncodedChunk

_CHUNKS_IN_FLIGHT = 4
"""Chunks per worker that are being encoded or waiting to be written."""


@contextmanager
def encoder_pool(
    encoder: ChunkEncoder, settings: EncodingSettings, workers: int
) -> Iterator[Callable[[Iterator[Chunk]], Iterator[EncodedChunk]]]:
    """Yields a function that encodes chunks in order: here, or in worker processes.

    Args:
        encoder: encodes here if there is one worker.
        settings: make the same encoder in every worker.
        workers: 1 starts no process.

    Raises:
        OutputError: a worker was killed, or has ended.
    """
    if workers == 1:
        yield lambda chunks: (encoder.encode(chunk) for chunk in chunks)
        return
    processes: list[WorkerProcess] = []
    try:
        for _ in range(workers):
            processes.append(WorkerProcess(_load_encoder, settings))
        yield lambda chunks: _encode_ahead(processes, chunks)
    finally:
        for process in processes:
            process.close()


def _encode_ahead(processes: list[WorkerProcess], chunks: Iterator[Chunk]) -> Iterator[EncodedChunk]:
    """Gives the chunks to the processes in turn, and each result as soon as it is the first and there."""
    waiting: deque[tuple[WorkerProcess, Future[EncodedChunk]]] = deque()
    for chunk, process in zip(chunks, cycle(processes), strict=False):
        waiting.append((process, process.submit(_encode_in_worker, chunk)))
        while waiting and (waiting[0][1].done() or len(waiting) >= len(processes) * _CHUNKS_IN_FLIGHT):
            yield _result(*waiting.popleft())
    while waiting:
        yield _result(*waiting.popleft())


def _result(process: WorkerProcess, future: Future[EncodedChunk]) -> EncodedChunk:
    try:
        return future.result()
    except BrokenProcessPool as error:
        advice = ": try fewer --workers" if process.exit_code() == -signal.SIGKILL else ""
        raise OutputError(f"a worker process {process.how_it_ended()}{advice}") from error


_encoder_of_worker: ChunkEncoder | None = None


def _load_encoder(settings: EncodingSettings) -> None:
    global _encoder_of_worker
    _encoder_of_worker = ChunkEncoder.load(settings)


def _encode_in_worker(chunk: Chunk) -> EncodedChunk:
    assert _encoder_of_worker is not None
    return _encoder_of_worker.encode(chunk)

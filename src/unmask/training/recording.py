"""What a GPU does for some function, recorded as a CUDA graph; elsewhere the function itself.

Before a recording the function runs a few times, so that kernels are chosen, loaded and compiled; what it changes, and
the generator, are put back.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from unmask.training.compilation import compiled_parts
from unmask.training.restoring import renew_generator, restoring

logger = logging.getLogger("unmask")

_WARM_UPS = 3
"""Passes before a recording."""

_BROKEN: list[torch.cuda.CUDAGraph] = []
"""Recordings that have not come to their end: PyTorch's allocator of pinned memory may go on asking them which of it is
theirs."""

_SIGNS_OF_WANT = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""In errors of CUDA and cuBLAS, and of compilers that have met PyTorch's own."""


class Recorder:
    """Makes recordings that share a pool of memory, and a stream: what one has freed, others find on the same stream
    alone.

    Args:
        module: what is recorded runs.
        device: where it is.
        compiles: whether its blocks are compiled first.
    """

    def __init__(self, module: nn.Module, device: torch.device, compiles: bool) -> None:
        self._module = module
        self._device = device
        self._compiles = compiles
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            gc.collect()  # pools of earlier runs; see `_collecting_nothing`
        self._stream = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.MemPool() if self._is_cuda else None

    def forget(self) -> None:
        """Frees the memory of all recordings that nobody holds any more."""
        if self._is_cuda:
            self._pool = torch.cuda.MemPool()

    def record(self, body: Callable[[], None], kept: Sequence[Tensor], clear: Callable[[], None]) -> Callable[[], None]:
        """A function that does what `body` does.

        Args:
            kept: what `body` changes; it is afterwards as it was before, whatever happens.
            clear: takes back what else `body` has begun, where it has broken off.

        Raises:
            RuntimeError: it cannot be recorded. Where it only cannot be compiled, it is recorded without.
        """
        with restoring(kept, self._device):
            try:
                return self._record(body)
            except _CompilerError as error:
                logger.warning("blocks cannot be compiled here, and are not: %s", error)
                self._compiles = False
                clear()
        return self.record(body, kept, clear)

    def _record(self, body: Callable[[], None]) -> Callable[[], None]:
        if self._is_cuda:
            return self._capture(body)

        def compute() -> None:
            with self._compiling():
                body()

        if self._compiles:
            self._warm_up(compute)
        return compute

    def _capture(self, body: Callable[[], None]) -> Callable[[], None]:
        assert self._stream is not None
        assert self._pool is not None
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        num_holders = self._pool.use_count()
        self._stream.wait_stream(current)
        # What PyTorch has in reserve outside the pool it does not give back while the pool is in use.
        torch.cuda.empty_cache()
        # The backward pass in this thread too: `use_mem_pool` is for one thread, and so are handles of cuBLAS.
        with self._compiling(), torch.autograd.set_multithreading_enabled(False), _collecting_nothing():
            try:
                with torch.cuda.stream(self._stream), torch.cuda.use_mem_pool(self._pool):
                    self._warm_up(body)
            finally:
                current.wait_stream(self._stream)
            try:
                pool: Any = self._pool.id
                with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                    body()
            except Exception as error:
                # A capture that breaks leaves its stream in place, and the generator waiting for its end.
                torch.cuda.set_stream(current)
                torch.cuda.synchronize(self._device)
                renew_generator(self._device)
                _end(graph, self._pool, num_holders)
                if (wanting := _out_of_memory(error)) is not None:
                    raise wanting from None
                raise
        return graph.replay

    def _warm_up(self, body: Callable[[], None]) -> None:
        """Passes before a recording.

        Raises:
            _CompilerError: they fail, and may not where nothing is compiled.
        """
        try:
            for _ in range(_WARM_UPS if self._is_cuda else 1):
                body()
        except Exception as error:
            if (wanting := _out_of_memory(error)) is not None:
                raise wanting from None
            if self._compiles:
                raise _CompilerError(first_line(error)) from error
            raise

    def _compiling(self) -> AbstractContextManager[None]:
        return compiled_parts(self._module) if self._compiles else nullcontext()


class _CompilerError(RuntimeError):
    """Blocks that are compiled fail."""


def _end(graph: torch.cuda.CUDAGraph, pool: torch.cuda.MemPool, num_holders: int) -> None:
    """Ends a capture that has broken, and gives up what it holds of the pool.

    Some versions of PyTorch leave a capture open that CUDA does not end: nothing in reserve is ever given back then,
    and the process is aborted where the pool is freed. None gives up the pool itself.

    Args:
        num_holders: of the pool, before the capture.
    """
    index = torch.cuda.current_device()
    with suppress(RuntimeError):  # it has been ended
        torch._C._cuda_endAllocateToPool(index, pool.id)
    graph.reset()
    if pool.use_count() > num_holders:
        torch._C._cuda_releasePool(index, pool.id)
    _BROKEN.append(graph)


def _out_of_memory(error: Exception) -> torch.OutOfMemoryError | None:
    """The error where it says that memory is wanting, in whatever way, as PyTorch's own; None where it does not."""
    for each in (error, error.__context__):  # the end of a capture that has broken is an error too
        if isinstance(each, torch.OutOfMemoryError):
            return each
    wants = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS_OF_WANT)
    return torch.OutOfMemoryError(first_line(error)) if wants else None


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """A context without the collection of garbage: PyTorch aborts the process where the pool of an earlier run, which
    nobody but a cycle has held, is freed while another is in use."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def first_line(error: Exception) -> str:
    """What went wrong, for the log; errors of compilers and of CUDA have many lines."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

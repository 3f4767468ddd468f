"""What a GPU does for some function, recorded as a CUDA graph; elsewhere the function itself.

Before a recording the function runs a few times, so that kernels are chosen, loaded and compiled; what it changes, and
the generator, are put back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from unmask.training.compilation import compiled_parts
from unmask.training.restoring import renew_generator, restoring

logger = logging.getLogger("unmask")

_WARM_UPS = 3
"""Passes before a recording."""

_BROKEN: list[torch.cuda.CUDAGraph] = []
"""Recordings that have not come to their end: PyTorch's allocator may go on asking them which memory is theirs."""


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
        self._stream.wait_stream(current)
        # The backward pass in this thread too: `use_mem_pool` is for one thread, and so are handles of cuBLAS.
        with self._compiling(), torch.autograd.set_multithreading_enabled(False):
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
                _BROKEN.append(graph)
                if isinstance(error.__context__, torch.OutOfMemoryError):  # the end of such a capture is an error too
                    raise error.__context__ from None
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
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if self._compiles:
                raise _CompilerError(first_line(error)) from error
            raise

    def _compiling(self) -> AbstractContextManager[None]:
        return compiled_parts(self._module) if self._compiles else nullcontext()


class _CompilerError(RuntimeError):
    """Blocks that are compiled fail."""


def first_line(error: Exception) -> str:
    """What went wrong, for the log; errors of compilers and of CUDA have many lines."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

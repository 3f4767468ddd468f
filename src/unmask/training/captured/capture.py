"""Captures what a function does on a GPU as a CUDA graph; on other devices the function is simply called.

Before a capture the function runs a few times, so that kernels are chosen, loaded and compiled; what it changes, and
the random generator, are then restored.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import first_line
from unmask.training.captured.compilation import compiled_parts

logger = logging.getLogger("unmask")

_WARM_UPS = 3
"""Warm-up runs before a capture."""

_BROKEN: list[torch.cuda.CUDAGraph] = []
"""Captures that failed, kept alive: PyTorch's allocator of pinned memory may still ask them which blocks are theirs."""

_SIGNS_OF_SHORTAGE = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Parts of the messages by which CUDA, cuBLAS and compilers (which quote PyTorch's) say that memory has run out."""


Work = Callable[[], None]


class Capturer:
    """Captures CUDA graphs that share a memory pool and a stream: only on that stream can one reuse what another freed.

    Args:
        module: what the captured functions run.
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
        """Lets go of the memory of all graphs: it is freed once nothing refers to them."""
        if self._is_cuda:
            self._pool = torch.cuda.MemPool()

    def capture(self, body: Work, kept: Sequence[Tensor], clear: Work) -> Work:
        """Returns a function that does what `body` does.

        Args:
            kept: the tensors that `body` changes; they are restored afterwards, whatever happens.
            clear: undoes whatever else `body` has changed, if it breaks off.

        Raises:
            RuntimeError: `body` cannot be captured. If only compiling fails, it is captured uncompiled.
        """
        with restoring(kept, self._device):
            try:
                return self._capture(body)
            except _CompilerError as error:
                logger.warning("blocks cannot be compiled here, and are not: %s", error)
                self._compiles = False
                clear()
        return self.capture(body, kept, clear)

    def _capture(self, body: Work) -> Work:
        if self._is_cuda:
            return self._capture_graph(body)

        def compute() -> None:
            with self._compiling():
                body()

        if self._compiles:
            self._warm_up(compute)
        return compute

    def _capture_graph(self, body: Work) -> Work:
        assert self._stream is not None
        assert self._pool is not None
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        num_holders = self._pool.use_count()
        self._stream.wait_stream(current)
        # While the pool is in use, PyTorch does not give back what it holds in reserve outside it.
        torch.cuda.empty_cache()
        # The backward pass runs in this thread too: `use_mem_pool` and cuBLAS handles are for one thread.
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
                # A failed capture leaves its stream current, and the generator waiting for the end of the capture.
                torch.cuda.set_stream(current)
                torch.cuda.synchronize(self._device)
                renew_generator(self._device)
                _end(graph, self._pool, num_holders)
                if (shortage := _out_of_memory(error)) is not None:
                    raise shortage from None
                raise
        return graph.replay

    def _warm_up(self, body: Work) -> None:
        """Runs `body` a few times before it is captured. Raises _CompilerError if it fails with compiled blocks, and
        might not without."""
        try:
            for _ in range(_WARM_UPS if self._is_cuda else 1):
                body()
        except Exception as error:
            if (shortage := _out_of_memory(error)) is not None:
                raise shortage from None
            if self._compiles:
                raise _CompilerError(type_and_line(error)) from error
            raise

    def _compiling(self) -> AbstractContextManager[None]:
        return compiled_parts(self._module) if self._compiles else nullcontext()


class _CompilerError(RuntimeError):
    """Compiled blocks fail."""


def _end(graph: torch.cuda.CUDAGraph, pool: torch.cuda.MemPool, num_holders: int) -> None:
    """Ends a failed capture, and gives up its hold on the pool.

    If CUDA does not end a capture, some versions of PyTorch leave it open: reserved memory is then never given back,
    and the process is aborted when the pool is freed. No version gives up the pool itself.

    Args:
        num_holders: the pool's use count before the capture.
    """
    index = torch.cuda.current_device()
    with suppress(RuntimeError):  # it has been ended
        torch._C._cuda_endAllocateToPool(index, pool.id)
    graph.reset()
    if pool.use_count() > num_holders:
        torch._C._cuda_releasePool(index, pool.id)
    _BROKEN.append(graph)


def _out_of_memory(error: Exception) -> torch.OutOfMemoryError | None:
    """An error that reports a lack of memory, in whatever way, as PyTorch's own; None for any other."""
    for each in (error, error.__context__):  # ending a failed capture raises as well
        if isinstance(each, torch.OutOfMemoryError):
            return each
    is_shortage = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS_OF_SHORTAGE)
    return torch.OutOfMemoryError(type_and_line(error)) if is_shortage else None


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """A context without garbage collection: PyTorch aborts the process if the pool of an earlier run, kept alive only
    by a reference cycle, is freed while another is in use."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def type_and_line(error: Exception) -> str:
    """An error's type and first line, for the log."""
    return f"{type(error).__name__}: {first_line(error)}"


@contextmanager
def restoring(tensors: Sequence[Tensor], device: torch.device) -> Iterator[None]:
    """A context after which tensors, and the generator of the device, are as they were before."""
    random, before = random_state(device), [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        set_random_state(random, device)


def random_state(device: torch.device) -> Tensor:
    """The state of the device's generator, which decides what it draws next."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Restores the state of the device's generator."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def renew_generator(device: torch.device) -> None:
    """Gives a GPU's generator a state that belongs to no capture; its state has to be set before it draws again."""
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(device))

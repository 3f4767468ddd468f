"""What a capture does with a GPU's memory, and how it leaves it where the capture breaks.

A GPU is replaced by the records that PyTorch's allocator keeps of pools: who holds one, and for which of them memory
is being allocated. The process is aborted where a pool is freed while memory is being allocated for any.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from unmask.training.captured import capture as module_under_test
from unmask.training.captured.capture import Capturer

CUDA = torch.device("cuda")
PoolId = tuple[int, int]


class FakeCuda:
    """The allocator's records, and what was done.

    Attributes:
        holders: of each pool.
        underway: pools for which memory is being allocated.
        ends_what_breaks: False is PyTorch 2.11, which leaves a capture open that CUDA does not end.
        invalid: an error after which CUDA does not end a capture.
        faults: that would abort the process.
        events: in order.
    """

    def __init__(self, *, ends_what_breaks: bool = False) -> None:
        self.holders: Counter[PoolId] = Counter()
        self.underway: list[PoolId] = []
        self.ends_what_breaks = ends_what_breaks
        self.invalid: type[Exception] = RuntimeError
        self.fails_at_end: Exception | None = None
        self.faults: list[str] = []
        self.events: list[str] = []

    def begin(self, pool: PoolId) -> None:
        assert pool not in self.underway, "beginAllocateToPool: already recording to mempool_id"
        self.holders[pool] += 1
        self.underway.append(pool)

    def end(self, index: int, pool: PoolId) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release(self, index: int, pool: PoolId) -> None:
        self.holders[pool] -= 1
        if self.holders[pool] < 0:
            self.faults.append("uc >= 0")


@pytest.fixture(params=["2.11", "later"])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """`torch.cuda` as far as `Capturer` uses it."""
    books = FakeCuda(ends_what_breaks=request.param == "later")

    class MemPool:
        def __init__(self) -> None:
            self.id = (0, len(books.holders) + 1)
            books.holders[self.id] += 1

        def use_count(self) -> int:
            return books.holders[self.id]

        def __del__(self) -> None:
            if books.underway:
                books.faults.append("captures_underway.empty()")
            books.release(0, self.id)

    class CUDAGraph:
        pool: PoolId | None = None

        def reset(self) -> None:
            if self.pool is not None:
                books.release(0, self.pool)
            self.pool = None

        __del__ = reset

        def replay(self) -> None:
            books.events.append("replay")

    class Stream:
        def __init__(self, device: torch.device) -> None: ...
        def wait_stream(self, stream: Any) -> None: ...

    class Graph:
        def __init__(self, graph: CUDAGraph, pool: PoolId, stream: Stream, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            self.graph, self.pool = graph, pool

        def __enter__(self) -> None:
            books.begin(self.pool)
            books.events.append("capture")

        def __exit__(self, kind: type[Exception] | None, *_: object) -> None:
            is_invalid = kind is not None and issubclass(kind, books.invalid)
            if not is_invalid or books.ends_what_breaks:
                books.end(0, self.pool)
            if is_invalid:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            self.graph.pool = self.pool
            if books.fails_at_end is not None:
                raise books.fails_at_end

    @contextmanager
    def use_mem_pool(pool: MemPool) -> Iterator[None]:
        books.begin(pool.id)
        books.events.append("warm up")
        try:
            yield
        finally:
            books.end(0, pool.id)
            books.release(0, pool.id)

    def note(event: str) -> Callable[..., None]:
        return lambda *_: books.events.append(event)

    replaced: dict[str, Any] = {
        "MemPool": MemPool,
        "CUDAGraph": CUDAGraph,
        "Stream": Stream,
        "graph": Graph,
        "use_mem_pool": use_mem_pool,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device: Stream(device),
        "current_device": lambda: 0,
        "set_stream": note("set stream"),
        "synchronize": note("synchronize"),
        "empty_cache": note("empty cache"),
        "get_rng_state": lambda device: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device: None,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", books.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", books.release, raising=False)
    monkeypatch.setattr(module_under_test, "renew_generator", note("renew generator"))
    monkeypatch.setattr(module_under_test, "_BROKEN", [])
    return books


def capture(capturer: Capturer, body: Callable[[], None]) -> Callable[[], None]:
    return capturer.capture(body, [], lambda: None)


def capturer(compiles: bool = False) -> Capturer:
    return Capturer(nn.Identity(), CUDA, compiles)


def fails_in_the_capture(error: Exception) -> Callable[[], None]:
    """The fourth pass, after the three of the warm-up."""
    passes = iter(range(4))

    def body() -> None:
        if next(passes) == 3:
            raise error

    return body


def test_warm_up_and_capture_share_a_pool_and_replaying_launches_the_graph(cuda: FakeCuda) -> None:
    one = capturer()
    seen = []

    def body() -> None:
        seen.append((list(cuda.underway), gc.isenabled()))

    replays = [capture(one, body) for _ in range(2)]
    assert seen == [([(0, 1)], False)] * 8
    assert gc.isenabled()
    assert cuda.events[:3] == ["empty cache", "warm up", "capture"]  # in reserve nothing is given back after that
    replays[0]()
    assert cuda.events[-1] == "replay"
    assert cuda.holders == {(0, 1): 3}
    del replays
    one.forget()
    assert cuda.holders == {(0, 1): 0, (0, 2): 1}
    assert not cuda.faults


ENDED = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("is_invalid", [True, False])
@pytest.mark.parametrize("error", [RuntimeError("operation not permitted when stream is capturing"), ENDED])
def test_a_capture_that_breaks_gives_up_the_pool(cuda: FakeCuda, error: Exception, is_invalid: bool) -> None:
    """Whether or not CUDA ends it: nothing is being allocated for afterwards, and the next run's pool is another."""
    cuda.invalid = type(error) if is_invalid else KeyError
    one = capturer()
    with pytest.raises(RuntimeError) as raised:
        capture(one, fails_in_the_capture(error))
    assert isinstance(raised.value, torch.OutOfMemoryError) == isinstance(error, torch.OutOfMemoryError)
    del raised
    assert cuda.events[-3:] == ["set stream", "synchronize", "renew generator"]
    assert gc.isenabled()
    assert not cuda.underway
    assert cuda.holders == {(0, 1): 1}
    one.forget()
    assert cuda.holders == {(0, 1): 0, (0, 2): 1}
    capture(one, lambda: None)
    assert not cuda.faults


def test_a_graph_that_there_is_no_memory_for_is_a_lack_of_memory(cuda: FakeCuda) -> None:
    cuda.fails_at_end = RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'")
    one = capturer()
    with pytest.raises(torch.OutOfMemoryError, match=r"^RuntimeError: CUDA error: out of memory$"):
        capture(one, lambda: None)
    assert cuda.holders == {(0, 1): 1}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB"),  # by Inductor
    ],
)
def test_a_warm_up_without_memory_is_no_fault_of_the_compiler(cuda: FakeCuda, error: Exception) -> None:
    def body() -> None:
        raise error

    with pytest.raises(torch.OutOfMemoryError):
        capture(capturer(compiles=True), body)
    assert not cuda.underway
    assert "capture" not in cuda.events


def test_no_garbage_of_an_earlier_run_is_found_while_a_pool_is_in_use(cuda: FakeCuda) -> None:
    cycle: list[Any] = [capturer()]
    cycle.append(cycle)
    later = capturer()
    del cycle
    capture(later, lambda: None)
    gc.collect()
    assert cuda.holders[0, 1] == 0
    assert not cuda.faults
    cycle = [later]
    cycle.append(cycle)
    del later, cycle
    capture(capturer(), collect)
    assert not cuda.faults


def collect() -> None:
    """As PyTorch's compiler does."""
    gc.collect()

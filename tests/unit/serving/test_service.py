"""What endpoints share: a model that is being loaded keeps nobody waiting for what is there, and a deadline is kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unmask.serving.batching import Batcher, Refused, Work
from unmask.serving.metrics import Metrics
from unmask.serving.models import ServedModel
from unmask.serving.service import Service
from unmask.serving.settings import Limits


class Slow(ServedModel):
    """A model whose checkpoints take long to load."""

    began, gate = threading.Event(), threading.Event()

    @cached_property
    def masks(self) -> Any:
        self.loaded_by = threading.current_thread()
        return "masks"

    @cached_property
    def checkpoints(self) -> Any:
        self.began.set()
        assert self.gate.wait(10)
        return "checkpoints"


class Waiting:
    """Work that takes as long as somebody keeps it waiting."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def compute(self, options: Any, payloads: Any) -> Any:
        assert self.gate.wait(10)
        return payloads


@contextmanager
def service(timeout_s: float) -> Iterator[Service]:
    limits, metrics = Limits(timeout_s=timeout_s), Metrics()
    service = Service({}, Batcher(limits, metrics), metrics, limits)
    yield service
    service.batcher.close()


async def ask(service: Service, read: Any) -> Any:
    return await service.compute(SimpleNamespace(receive=asyncio.Event().wait), read)  # type: ignore[arg-type]


def test_what_is_loaded_is_used_while_something_else_is_loaded() -> None:
    model = Slow("m", Path("model"), "fp32")
    with ThreadPoolExecutor(3) as threads:
        loading = threads.submit(model.use, "checkpoints")
        assert model.began.wait(10)
        assert threads.submit(model.use, "masks").result(5) == "masks", "also where it is not loaded yet"
        assert threads.submit(model.use, "masks").result(5) == "masks"
        model.gate.set()
        assert loading.result(5) == "checkpoints"


def test_no_thread_stays_that_has_loaded_a_model() -> None:
    """PyTorch's helpers end with the thread that used them; with too many, each answer took twice as long."""
    model = Slow("m", Path("model"), "fp32")
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(model.use, "masks").result(5) == "masks"
        assert not model.loaded_by.is_alive()


@pytest.mark.parametrize("what", ["read", "computed"])
def test_a_deadline_is_kept(what: str) -> None:
    use = Waiting()

    def read() -> Work:
        assert what == "computed" or use.gate.wait(10)
        return Work(use, None, 1, 1, [0])

    async def asked(service: Service) -> None:
        try:
            with pytest.raises(Refused, match=r"not answered within 0\.05 s"):
                await ask(service, read)
        finally:
            use.gate.set()
        while True:
            with suppress(Refused):  # until the first is computed, or on a busy machine
                assert (await ask(service, read))[0] == 1
                break

    with service(0.05) as serving:
        asyncio.run(asked(serving))


def test_what_only_reads_is_given_up_in_time_too() -> None:
    gate = threading.Event()
    with service(timeout_s=0.05) as its:
        with pytest.raises(Refused, match=r"not answered within 0\.05 s"):
            asyncio.run(its.in_thread(gate.wait))
        gate.set()

"""One thread computes for everyone: requests wait in a queue, and those that ask the same of the same model are
computed together, as many as the tokens of a batch allow.

There is no timer: an idle thread takes a request at once, and what arrives while it computes is the next batch. Batches
are packed without padding, so a short text costs nothing beside a long one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unmask.serving.metrics import Metrics
from unmask.serving.settings import Limits

logger = logging.getLogger("unmask")


class Busy(Exception):  # noqa: N818  an answer to a client, not a fault
    """So much waits already that a request is turned away; `retry_after_s` says for how long."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many requests are waiting: try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class TooMuch(Exception):  # noqa: N818
    """One request has more tokens than may wait in all, or than can be computed in its time."""


class TooSlow(Exception):  # noqa: N818
    """A request was not answered in its time."""


class Stopping(Exception):  # noqa: N818
    """The server is being stopped and takes no more work."""


class Computes(Protocol):
    """What answers requests of one kind; see `unmask.serving.uses`."""

    def compute(self, options: Any, payloads: Sequence[Any]) -> Sequence[Any]:
        """The results of some requests with equal options, in their order."""


@dataclass(frozen=True)
class Work:
    """What a request asks: to be computed with others of the same use and options.

    Attributes:
        options: hashable.
        payload: what `use` made of the request's inputs.
        tokens: how many it reads.
        left_out: for each input, how many of its tokens are not read.
    """

    use: Computes
    options: Hashable
    payload: Any
    tokens: int
    left_out: list[int]


_LARGE_BATCH = 512
"""A batch of fewer says little of how long a larger one takes: most of its time is the same for any."""


@dataclass(eq=False)
class _Job:
    work: Work
    future: asyncio.Future[Any]
    arrived: float
    seconds: float  # that it will take, as far as is known

    def finish(self, result: Any) -> None:
        """Hands the result, or an exception, over to the loop that waits for it."""

        def hand_over() -> None:
            if not self.future.done():
                if isinstance(result, BaseException):
                    self.future.set_exception(result)
                else:
                    self.future.set_result(result)

        try:
            self.future.get_loop().call_soon_threadsafe(hand_over)
        except RuntimeError:  # the loop has ended, and the client with it
            logger.debug("an answer came after the server's end")


class Batcher:
    """The queue, and the thread that owns the models."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._condition = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._tokens = 0  # of those that wait
        self._rates: dict[Computes, float] = {}  # tokens a second, of late; 0: not known yet
        self._began = self._ends = 0.0  # the batch that is computed, the latter as far as is known; 0: there is none
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="unmask-models", daemon=True)
        self._thread.start()

    async def compute(self, work: Work) -> Any:
        """The result of some work.

        Raises:
            Busy: too much waits, or is being computed.
            TooMuch: it alone is more than may wait, or than can be computed in time.
            TooSlow: it was not computed in `Limits.timeout_s`.
            Stopping: the server is being stopped.
        """
        if work.tokens > (most := self._limits.queue_tokens):
            raise TooMuch(
                f"{work.tokens:,} tokens to compute: a request has at most {most:,}: send fewer, or shorter inputs"
            )
        timeout_s, now = self._limits.timeout_s, time.monotonic()
        with self._condition:
            if self._is_closed:
                raise Stopping("the server is being stopped")
            rate = self._rates.get(work.use)
            job = _Job(work, asyncio.get_running_loop().create_future(), now, work.tokens / rate if rate else 0.0)
            if job.seconds > timeout_s:
                raise TooMuch(
                    f"{work.tokens:,} tokens to compute take about {job.seconds:.0f} s here, and a request is given "
                    f"up after {timeout_s:g} s: send fewer, or shorter inputs"
                )
            wait_s = sum(each.seconds for each in self._waiting)
            if self._began:  # where nothing is known of it, it is taken to last as long again as it has lasted
                wait_s += max(self._ends - now, now - self._began)
            # Turned away at once rather than given up late.
            if self._tokens + work.tokens > most or wait_s > timeout_s / 2:
                raise Busy(max(1, round(wait_s)))
            self._waiting.append(job)
            self._tokens += work.tokens
            self._condition.notify()
        try:
            return await asyncio.wait_for(job.future, timeout_s)
        except TimeoutError:
            raise TooSlow(f"not answered within {timeout_s:g} s: send fewer or shorter inputs") from None
        finally:
            with self._condition:
                if job in self._waiting:  # it is too late, or the client has left
                    self._waiting.remove(job)
                    self._tokens -= work.tokens

    @property
    def queue_size(self) -> int:
        """How many requests wait."""
        with self._condition:
            return len(self._waiting)

    def close(self) -> None:
        """Takes no more work, and returns when all that waits is done."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            for job in batch:
                self._metrics.queued(self._began - job.arrived)
            self._answer(batch)
            took, tokens = time.monotonic() - self._began, sum(job.work.tokens for job in batch)
            with self._condition:
                self._began = 0.0
                if tokens >= _LARGE_BATCH:
                    use, rate = batch[0].work.use, tokens / max(took, 1e-6)
                    before = self._rates.get(use)  # none for its first, which also makes what later ones use
                    self._rates[use] = 0.0 if before is None else 0.8 * (before or rate) + 0.2 * rate
            self._metrics.computed(len(batch), tokens, took)

    def _take(self) -> list[_Job]:
        """The oldest request, and as many others of its kind as fit; waits for one. Empty at the end."""
        with self._condition:
            while not self._waiting and not self._is_closed:
                self._condition.wait()
            batch: list[_Job] = []
            rest: deque[_Job] = deque()
            left = self._limits.batch_tokens
            for job in self._waiting:
                first = batch[0].work if batch else job.work
                is_alike = job.work.use is first.use and job.work.options == first.options
                if is_alike and (not batch or job.work.tokens <= left):
                    batch.append(job)
                    left -= job.work.tokens
                else:
                    rest.append(job)
            self._waiting = rest
            self._tokens = sum(job.work.tokens for job in rest)
            self._began = time.monotonic()
            self._ends = self._began + sum(job.seconds for job in batch)
            return batch

    def _answer(self, batch: Sequence[_Job]) -> None:
        """Computes a batch; where that fails, each by itself, so that one request's fault is no other's."""
        work = batch[0].work
        try:
            results = list(work.use.compute(work.options, [job.work.payload for job in batch]))
            assert len(results) == len(batch), "one for each request"
        except Exception as error:
            if len(batch) == 1:
                batch[0].finish(error)
            else:
                for job in batch:
                    self._answer([job])
            return
        for job, result in zip(batch, results, strict=True):
            job.finish(result)

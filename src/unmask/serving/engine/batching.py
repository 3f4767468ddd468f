"""One thread computes for everyone: requests wait in a queue, and those that ask the same of the same model are
computed together, as many as the tokens of a batch allow.

There is no timer: an idle thread takes a request at once, and what arrives while it computes is the next batch. Batches
are packed without padding, so a short text costs nothing beside a long one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from unmask.serving.engine.asks import Refused, end, too_much
from unmask.serving.engine.metrics import BatchMetrics
from unmask.serving.settings import Limits
from unmask.training.device import give_freed_memory_back


class Abandoned(Exception):  # noqa: N818
    """Nobody waits any more for what is being computed."""


class Computes(Protocol):
    """What answers requests of one kind; see `unmask.serving.engine.answerers`."""

    def compute(self, options: Any, payloads: Sequence[Any]) -> Sequence[Any]:
        """The results of some requests with equal options, in their order."""


@dataclass(frozen=True)
class Work:
    """What a request asks: to be computed with others of the same answerer and options.

    Attributes:
        options: hashable.
        payload: what `answerer` made of the request's inputs.
        tokens: how many the model reads for it: what computing it costs, so that it is more where a text is read again.
        input_tokens: how many its inputs have.
        left_out: for each input, how many of its tokens are not read.
        answered: makes what is replied of the result; None: the result itself.
        unknown: for each input, how many of its tokens are unknown; see `Reply`.
    """

    answerer: Computes
    options: Hashable
    payload: Any
    tokens: int
    input_tokens: int
    left_out: list[int]
    answered: Callable[[Any], Any] | None = None
    unknown: list[int] | None = None


@dataclass(eq=False)
class _Job:
    work: Work
    future: Future[Any]
    arrived: float
    is_computed: bool = False

    def finish(self, result: Any) -> None:
        """Hands the result, or an exception, over to whoever waits for it."""
        self.is_computed = not isinstance(result, BaseException)
        end(self.future, result)


_computing = threading.local()
"""Of the thread that computes: `jobs`, those under way."""


def stop_if_abandoned(*_: Any) -> None:
    """Raises `Abandoned` in the thread that computes if nobody waits any more for what it does."""
    jobs: Sequence[_Job] = getattr(_computing, "jobs", ())
    if jobs and all(job.future.done() for job in jobs):
        raise Abandoned


GIVEN_BACK_EVERY_S = 10.0
"""Freed memory: batches of ever new sizes, and thousands of requests that wait, leave more and more of it in pieces."""


class Batcher:
    """The queue, and the thread that owns the models.

    Args:
        limits: of what waits, and of a batch.
        metrics: count what it does.
        shares: whether one core of several is left to others while requests are computed that came together.
    """

    def __init__(self, limits: Limits, metrics: BatchMetrics, shares: bool = False) -> None:
        self._limits, self._metrics = limits, metrics
        self._shares = shares and torch.get_num_threads() > 1
        self._condition = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._tokens = 0  # of those that wait
        self._rate = 0.0  # tokens a second, of late, while others wait; 0: not known
        self._began: float | None = None  # that is, what is computed
        self._under_way = 0  # its tokens
        self._took = 0.0  # to compute a batch, of which nobody has the results yet
        threading.Thread(target=self._run, name="unmask-models", daemon=True).start()

    def submit(self, work: Work) -> Future[Any]:
        """The result of some work; to cancel the future gives it up.

        Raises:
            Refused: it alone is more than may wait, too much waits already, or what is being computed has taken long.
        """
        if work.tokens > (most := self._limits.queue_tokens):
            raise too_much(work.tokens, most)
        job = _Job(work, Future(), time.monotonic())
        with self._condition:
            wait_s = self._tokens / self._rate if self._rate else 0.0
            began = self._began  # the thread that computes may change it at any moment
            if began is not None:
                lasted_s, expected_s = time.monotonic() - began, self._under_way / self._rate if self._rate else 0.0
                # What takes longer than its tokens would is taken to last as long again as it has lasted.
                wait_s += expected_s - lasted_s if lasted_s < expected_s else lasted_s
            if self._tokens + work.tokens > most or wait_s > self._limits.timeout_s / 2:
                after_s = max(1, round(wait_s))
                message = f"too many requests are waiting: try again in {after_s} s"
                # At once, rather than given up late.
                raise Refused(429, message, "busy", headers={"Retry-After": str(after_s)})
            self._waiting.append(job)
            self._tokens += work.tokens
            self._condition.notify()
        job.future.add_done_callback(lambda future: self._forget(job))
        return job.future

    def _forget(self, job: _Job) -> None:
        """Where it still waits, nobody does for it: it is too late, or the client has left."""
        if not job.future.cancelled():
            return
        with self._condition:
            if job in self._waiting:
                self._waiting.remove(job)
                self._tokens -= job.work.tokens

    @property
    def queue_size(self) -> int:
        """How many requests wait."""
        with self._condition:
            return len(self._waiting)

    def _run(self) -> NoReturn:
        given_back, threads = time.monotonic(), torch.get_num_threads()
        while True:
            batch, others_wait = self._take()
            if self._shares:
                torch.set_num_threads(threads - (len(batch) > 1))
            started, self._took = time.monotonic(), 0.0
            for job in batch:
                self._metrics.queued(started - job.arrived)
            self._answer(batch)
            took, tokens = self._took, sum(job.work.tokens for job in batch)
            # A short text with the server to itself takes nearly as long as many, and what fails no time at all.
            rate = tokens / max(took, 1e-6)
            was_thought_long = 0 < self._rate < min(rate, tokens)  # over a second, in which others are turned away
            if tokens and (others_wait or was_thought_long) and all(job.is_computed for job in batch):
                self._rate += (rate - self._rate) * (0.2 if self._rate else 1.0)
            self._metrics.computed(len(batch), tokens, took)
            if started - given_back >= GIVEN_BACK_EVERY_S:
                give_freed_memory_back()
                given_back = started

    def _take(self) -> tuple[list[_Job], bool]:
        """The oldest request, and as many others of its kind as fit; waits for one. Then whether others wait still."""
        with self._condition:
            while not self._waiting:
                self._condition.wait()
            batch: list[_Job] = []
            rest: deque[_Job] = deque()
            left = self._limits.batch_tokens
            for job in self._waiting:
                first = batch[0].work if batch else job.work
                is_alike = job.work.answerer is first.answerer and job.work.options == first.options
                if is_alike and (not batch or job.work.tokens <= left):
                    batch.append(job)
                    left -= job.work.tokens
                else:
                    rest.append(job)
            self._waiting = rest
            self._tokens = sum(job.work.tokens for job in rest)
            return batch, bool(rest)

    def _answer(self, batch: Sequence[_Job]) -> None:
        """Computes a batch; where that fails, each by itself, so that one request's fault is no other's."""
        work = batch[0].work
        try:
            with self._counted_as_under_way(batch):
                results = list(work.answerer.compute(work.options, [job.work.payload for job in batch]))
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

    @contextmanager
    def _counted_as_under_way(self, batch: Sequence[_Job]) -> Iterator[None]:
        """While a batch is computed, which ends before anybody has its results."""
        # Called before each part of a model, so that a text of minutes ends with the wait for it.
        hook = register_module_forward_pre_hook(stop_if_abandoned)
        self._under_way = sum(job.work.tokens for job in batch)
        self._began, _computing.jobs = time.monotonic(), batch
        try:
            yield
        finally:
            self._took += time.monotonic() - self._began
            self._began, _computing.jobs = None, ()
            hook.remove()

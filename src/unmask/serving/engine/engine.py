"""Answers what is asked: reads in threads, and lets one thread compute for everyone."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

from unmask.errors import ColumnError, InputError, UserError
from unmask.io.paths import CHECKPOINTS
from unmask.serving.engine.asks import Ask, Fault, ModelFacts, Refused, Reply, end
from unmask.serving.engine.batching import Abandoned, Batcher, Work
from unmask.serving.engine.metrics import BatchMetrics
from unmask.serving.engine.models import ServedModel
from unmask.serving.engine.readers import READERS
from unmask.serving.settings import Limits

_SMALL = 2000
"""Characters of what is read where it arrives: handing it to a thread would take longer."""

_READ_AT_ONCE = 4
"""Longer texts, each of which takes up to a gigabyte."""

_CHARACTERS_A_TOKEN = 4
"""A request of so many for each token that may wait is refused unread: reading a text costs more than keeping it."""


class Engine:
    """Models, and the threads that read and compute for them; see `unmask.serving.engine.asks.Answers`.

    Args:
        models: by name.
        limits: of what they compute.
        shares: see `Batcher`.
    """

    takes_work = True

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits, *, shares: bool = False) -> None:
        self.served = models
        self.models: Mapping[str, ModelFacts] = {name: model.facts() for name, model in models.items()}
        self.metrics = BatchMetrics()
        self.limits = limits
        self.batcher = Batcher(self.limits, self.metrics, shares)
        self.metrics.queue_size = lambda: self.batcher.queue_size
        self._readers = ThreadPoolExecutor(_READ_AT_ONCE, "unmask-reading")
        self._loader = ThreadPoolExecutor(1, "unmask-loading")  # of checkpoints: nobody else waits for them

    def ask(self, ask: Ask) -> Future[Reply]:
        reply: Future[Reply] = Future()
        of_checkpoints = READERS[ask.reader].answerer == CHECKPOINTS
        size, most = _size(ask.arguments), _CHARACTERS_A_TOKEN * self.limits.queue_tokens
        if size > most:
            message = f"{size:,} characters: a request has at most {most:,}: send fewer, or shorter inputs"
            end(reply, Refused(413, message, "too_large"))
        elif size <= _SMALL and not of_checkpoints:
            self._read(ask, reply)
        else:
            waiting = [ask]
            reply.add_done_callback(lambda _: waiting.clear())  # what nobody waits for takes no memory until its turn
            (self._loader if of_checkpoints else self._readers).submit(self._read_next, waiting, reply)
        return reply

    def _read_next(self, waiting: list[Ask], reply: Future[Reply]) -> None:
        try:
            ask = waiting.pop()
        except IndexError:
            return
        self._read(ask, reply)

    def _read(self, ask: Ask, reply: Future[Reply]) -> None:
        started = time.monotonic()
        try:
            work = READERS[ask.reader].read(self.served[ask.model], ask.arguments)
            if isinstance(work, Reply):
                end(reply, work)
                return
            self.metrics.read(work.input_tokens, time.monotonic() - started)
            computed = self.batcher.submit(work)
        except Exception as error:
            end(reply, _passed_on(ask, error))
            return
        computed.add_done_callback(lambda _: _pass_on(ask, work, computed, reply))
        reply.add_done_callback(lambda _: computed.cancel())

    def figures(self) -> Future[bytes]:
        found: Future[bytes] = Future()
        found.set_result(self.metrics.text())
        return found


def _pass_on(ask: Ask, work: Work, computed: Future[Any], reply: Future[Reply]) -> None:
    if computed.cancelled():
        return
    try:
        result = computed.result()
        result = result if work.answered is None else work.answered(result)
    except Abandoned:
        return
    except Exception as error:
        end(reply, _passed_on(ask, error))
        return
    end(reply, Reply(result, work.input_tokens, work.left_out, work.unknown))


def _size(value: Any) -> int:
    """Characters of all texts and keys in it; whatever has none counts as one."""
    if isinstance(value, str):
        return max(1, len(value))
    if isinstance(value, Mapping):
        return max(1, sum(map(_size, chain(value, value.values()))))
    return max(1, sum(map(_size, value))) if isinstance(value, list | tuple) else 1


def _passed_on(ask: Ask, error: Exception) -> Exception:
    """What the client's side is to know; it may be in another process."""
    if isinstance(error, ColumnError):  # its advice is for the command line
        return InputError(error.problem)
    if isinstance(error, UserError | Refused):
        return error
    trace = "".join(traceback.format_exception(error)).rstrip()
    return Fault(f"{ask.reader} of {ask.model}:\n{trace}")

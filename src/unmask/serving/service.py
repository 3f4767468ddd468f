"""What endpoints share: they find the model, let its inputs be read in a thread, wait for the batch, and stop waiting
where the client has left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request

from unmask.serving.batching import Batcher, Refused, Work
from unmask.serving.metrics import Metrics
from unmask.serving.models import ServedModel
from unmask.serving.settings import Limits

Result = TypeVar("Result")


class ClientLeft(Exception):  # noqa: N818
    """Nobody waits for the answer any more."""


@dataclass(frozen=True)
class Service:
    """The models of a server and the thread that computes for them."""

    models: dict[str, ServedModel]
    batcher: Batcher
    metrics: Metrics
    limits: Limits

    def model(self, name: str | None, *endpoints: str) -> ServedModel:
        """The model of that name, if it has one of these endpoints; the first that has one where no name is given.

        Raises:
            Refused: there is none.
        """
        if name is None:
            for model in self.models.values():
                if not set(endpoints).isdisjoint(model.endpoints):
                    return model
            raise Refused(404, f"no model here is for {' or '.join(endpoints)}: GET /v1/models lists what each is for")
        model = self.named(name)
        if set(endpoints).isdisjoint(model.endpoints):
            uses = ", ".join(f"/v1/models/{name}/{each}" for each in model.endpoints)
            raise Refused(
                409, f"the model {name} is not for {' or '.join(endpoints)}: it answers at {uses}", "wrong_endpoint"
            )
        return model

    def named(self, name: str) -> ServedModel:
        """The model of that name; raises Refused if there is none."""
        if name not in self.models:
            there = ", ".join(sorted(self.models))
            raise Refused(404, f"no model {name[:80]!r} here: there are {there}", "model_not_found", "model")
        return self.models[name]

    async def compute(self, request: Request, read: Callable[[], Work]) -> tuple[Any, Work]:
        """The result of a request.

        Args:
            read: tokenizes its inputs; runs in a thread. It may load the model first.

        Raises:
            UserError: from `read`.
            Refused: it is turned away, or was not read and computed in `Limits.timeout_s`.
            ClientLeft: nobody waits for the result.
        """
        async with self._in_time():
            return await self._compute(request, read)

    async def in_thread(self, function: Callable[[], Result]) -> Result:
        """What a function returns, from a thread; raises Refused as `compute`."""
        async with self._in_time():
            return await to_thread.run_sync(function, abandon_on_cancel=True)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                yield
        except TimeoutError:
            message = f"not answered within {self.limits.timeout_s:g} s: send fewer or shorter inputs, or try again"
            raise Refused(503, message, "timeout") from None

    async def _compute(self, request: Request, read: Callable[[], Work]) -> tuple[Any, Work]:
        started = time.monotonic()
        work = await to_thread.run_sync(read, abandon_on_cancel=True)
        self.metrics.read(time.monotonic() - started)
        answer = asyncio.ensure_future(self.batcher.compute(work))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientLeft
            return answer.result(), work
        finally:
            for task in (answer, leaving):
                task.cancel()


async def _left(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

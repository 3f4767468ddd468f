"""What endpoints share: they find the model, ask the engine, and stop waiting where the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request
from starlette.exceptions import HTTPException

from unmask.io.encodings import normalized
from unmask.serving.engine.asks import Answers, Ask, ModelFacts, Refused, Reply
from unmask.serving.metrics import RequestMetrics
from unmask.serving.settings import Limits

DEADLINE = "unmask.deadline"
"""In the scope of a request: when it is given up, by the loop's clock."""


class ClientLeft(HTTPException):
    """Nobody waits for the answer any more: its status is for the metrics."""

    def __init__(self) -> None:
        super().__init__(499, "the client has left")


@dataclass(frozen=True)
class Service:
    """What answers, and how requests to it are counted and limited."""

    engine: Answers
    metrics: RequestMetrics
    limits: Limits

    @property
    def models(self) -> Mapping[str, ModelFacts]:
        return self.engine.models

    def model(self, name: str | None, *endpoints: str) -> ModelFacts:
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
            uses = ", ".join(f"/v1/models/{model.name}/{each}" for each in model.endpoints)
            raise Refused(
                409,
                f"the model {model.name} is not for {' or '.join(endpoints)}: it answers at {uses}",
                "wrong_endpoint",
            )
        return model

    def named(self, name: str) -> ModelFacts:
        """The model of that name, however its characters are composed; raises Refused if there is none."""
        name = normalized("NFC", name)
        if name not in self.models:
            there = ", ".join(sorted(self.models))
            raise Refused(404, f"no model {name[:80]!r} here: there are {there}", "model_not_found", "model")
        return self.models[name]

    async def figures(self, within_s: float) -> bytes:
        """All metrics; raises Refused where what computes does not answer within so many seconds."""
        try:
            async with asyncio.timeout(within_s):
                computing = await asyncio.wrap_future(self.engine.figures())
        except TimeoutError:
            raise Refused(503, "what computes does not answer: the server needs a restart", "timeout") from None
        return self.metrics.text() + computing

    async def compute(self, request: Request, ask: Ask) -> Reply:
        """What was computed for a request.

        Raises:
            UserError: its inputs cannot be used.
            Refused: it is turned away, or was not answered in time.
            Fault: an error of ours.
            ClientLeft: nobody waits for the result.
        """
        answer = asyncio.wrap_future(self.engine.ask(ask))
        leaving = asyncio.ensure_future(_left(request))
        try:
            async with asyncio.timeout_at(request.scope[DEADLINE]):
                await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientLeft
            return answer.result()
        except TimeoutError:
            message = f"not answered within {self.limits.timeout_s:g} s: send fewer or shorter inputs, or try again"
            raise Refused(503, message, "timeout") from None
        finally:
            answer.cancel()
            leaving.cancel()


async def _left(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

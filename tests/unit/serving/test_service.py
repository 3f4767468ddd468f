"""What endpoints share: a deadline is kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from unmask.serving.app import build_app
from unmask.serving.engine.asks import Ask, ModelFacts, Refused, Reply
from unmask.serving.metrics import RequestMetrics
from unmask.serving.service import DEADLINE, Service
from unmask.serving.settings import Limits

ASK = Ask("m", "scores", (["a"],))


class Slow:
    """What answers when it is let."""

    models: Mapping[str, ModelFacts] = {}
    takes_work = True

    def __init__(self) -> None:
        self.asked: list[Future[Reply]] = []

    def ask(self, ask: Ask) -> Future[Reply]:
        self.asked.append(Future())
        return self.asked[-1]

    def figures(self) -> Future[bytes]:
        return Future()

    def close(self) -> None:
        raise NotImplementedError


async def compute(service: Service, left_s: float) -> Reply:
    deadline = asyncio.get_running_loop().time() + left_s
    request: Any = SimpleNamespace(receive=asyncio.Event().wait, scope={DEADLINE: deadline})
    return await service.compute(request, ASK)


def test_a_deadline_is_kept_and_what_is_late_is_given_up() -> None:
    engine = Slow()
    service = Service(engine, RequestMetrics(), Limits(timeout_s=20))
    with pytest.raises(Refused, match=r"not answered within 20 s"):
        asyncio.run(compute(service, 0.05))  # the body took the rest
    assert engine.asked[0].cancelled()


def test_what_is_in_time_is_answered() -> None:
    engine, reply = Slow(), Reply(1, 1, [0])
    service = Service(engine, RequestMetrics(), Limits())

    async def ask() -> Reply:
        answer = asyncio.ensure_future(compute(service, 20))
        await asyncio.sleep(0)
        threading.Thread(target=engine.asked[0].set_result, args=(reply,)).start()
        return await answer

    assert asyncio.run(ask()) == reply


def test_it_is_not_ready_where_what_computes_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.serving.app._ALIVE_S", 0.05)
    with TestClient(build_app(Slow(), Limits())) as client:
        told = client.get("/ready")
        assert (told.status_code, client.get("/health").status_code) == (503, 200)
    assert told.json()["error"]["message"] == "what computes does not answer: the server needs a restart"

"""What stands before the endpoints."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from starlette.testclient import TestClient

from support.serving import app_of
from unmask.serving.guards import failure_body
from unmask.serving.settings import Limits


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    app = app_of({}, Limits(timeout_s=0.05))
    sent: list[Any] = []
    parts = iter([{"type": "http.request", "body": b'{"inputs"', "more_body": True}])

    async def receive() -> Any:
        for part in parts:
            return part
        return await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/embed", "headers": [], "query_string": b""}
    asyncio.run(asyncio.wait_for(app({**scope, "http_version": "1.1", "scheme": "http"}, receive, send), 10))
    assert sent[0]["status"] == 408
    assert b"the body did not arrive within 0.05 s" in sent[1]["body"]


def test_answers_that_clients_do_not_take_are_few() -> None:
    sizes = iter([30_000, 30_000, 10_000, 30_000])
    guards = app_of({}, Limits(bodies_bytes=50_000))

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body = b"a" * next(sizes)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def ask(is_taken: asyncio.Event) -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await is_taken.wait()
            sent.append(message)

        await guards({"type": "http", "method": "GET", "path": "/", "headers": []}, asyncio.sleep, send)
        return sent

    async def clients() -> list[list[Any]]:
        taken, late = asyncio.Event(), asyncio.Event()
        taken.set()
        slow = asyncio.ensure_future(ask(late))
        await asyncio.sleep(0)
        others = [await ask(taken), await ask(taken)]
        late.set()
        return [await slow, *others, await ask(taken)]

    guards._app = answer
    answers = asyncio.run(clients())
    assert [each[0]["status"] for each in answers] == [200, 429, 200, 200]
    assert (b"retry-after", b"1") in answers[1][0]["headers"]
    assert json.loads(answers[1][1]["body"])["error"]["code"] == "busy"


def test_every_address_that_is_posted_to_is_counted_by_its_name() -> None:
    app = app_of({})
    with TestClient(app) as client:
        paths = [path for path, methods in client.get("/openapi.json").json()["paths"].items() if "post" in methods]
        for path in (*paths, "/made-up"):
            client.post(path.replace("{name}", "none"), json={})
        counted = re.findall(r'te_request_count\{method="([^"]*)",model=""\}', client.get("/metrics").text)
    assert set(counted) == {*(path.rpartition("/")[2] for path in paths), "other"}
    assert {"classify", "score", "token-scores", "embed"} < set(counted)


def test_a_compressed_body_is_named() -> None:
    app = app_of({})
    with TestClient(app) as client:
        refused = client.post("/embed", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert refused.status_code == 415
    assert refused.json()["error"]["message"] == "the body is in the content-encoding 'gzip': send it as it is"


def test_the_application_and_its_guards_write_failures_alike() -> None:
    with TestClient(app_of({})) as client:
        from_guards = client.post("/embed", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
        from_application = client.post("/embed", json={"inputs": "a"})
    for answer in (from_guards, from_application):
        error = answer.json()["error"]
        expected = failure_body(answer.status_code, error["message"], error["code"], error["param"])
        assert answer.content == expected
        assert answer.headers["content-type"] == "application/json"


def test_half_of_a_surrogate_pair_is_spelt_out_in_a_failure() -> None:
    assert json.loads(failure_body(422, "\ud83d"))["error"]["message"] == r"\ud83d"
    assert json.loads(failure_body(503, "é"))["error"] == {
        "message": "é",
        "type": "server_error",
        "param": None,
        "code": None,
    }

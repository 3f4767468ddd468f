"""Clients that are slow or send too much, at a real socket: each is told or left, and others are answered meanwhile."""

from __future__ import annotations

import http.client
import json
import re
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from support.ranks import wait_until
from support.serving import app_of
from unmask.serving.engine.batching import Work
from unmask.serving.engine.models import ServedModel, open_models
from unmask.serving.engine.readers import READERS, Reader
from unmask.serving.server import Server, settings_of
from unmask.serving.settings import Limits

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENIZE = "/v1/models/encoder/tokenize"


@dataclass(frozen=True)
class Served:
    """A server that waits a second for its clients."""

    server: Server
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def ask(self) -> int:
        """The status of a request of somebody else."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", TOKENIZE, json.dumps({"inputs": ["a"]}), {"content-type": "application/json"})
        try:
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served(served_models: dict[str, ServedModel]) -> Iterator[Served]:
    with serving(served_models, Limits(timeout_s=1)) as served:
        yield served


@contextmanager
def serving(models: dict[str, ServedModel], limits: Limits) -> Iterator[Served]:
    app = app_of(models, limits)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(settings_of(app, limits))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.02)
        try:
            yield Served(server, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    parts = []
    while part := connection.recv(2**16):
        parts.append(part)
    return b"".join(parts)


def test_pieces_of_several_clients_are_received_into_the_same_memory(served: Served) -> None:
    texts = ["a" * 90_000, "b" * 90_000]  # each in several pieces
    requests = []
    for text in texts:
        body = json.dumps({"inputs": [text]}).encode()
        head = f"POST {TOKENIZE} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        requests.append(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    clients = [served.connect() for _ in texts]
    for start in range(0, 90_000, 10_000):
        for client, request in zip(clients, requests, strict=True):
            client.sendall(request[start : start + 10_000])
    connections: Any = served.server.server_state.connections
    while len(connections) < 2:
        time.sleep(0.02)
    assert len({id(each.get_buffer(-1).obj) for each in connections}) == 1
    for client, request, text in zip(clients, requests, texts, strict=True):
        client.sendall(request[90_000:])
        answer = read_all(client)
        assert answer.startswith(b"HTTP/1.1 200")
        assert {"a": b"bb", "b": b"aa"}[text[0]] not in answer
        client.close()


def read_until(end: bytes, connection: socket.socket, at_once: int = 2**16) -> bytes:
    """What comes, as far as the end of something."""
    found = b""
    while not found.endswith(end):
        found += connection.recv(at_once)
    return found


def told_of(answer: bytes) -> tuple[int, str]:
    """The status of an answer, and the message of its error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (b"", "no request within 1 s"),
        (b"GET /health HTTP/1.1\r\nx: ", "no request within 1 s"),
        (b"GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\nx: ", "no request within 1 s"),
        (
            f"POST {TOKENIZE} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 99999\r\n\r\n".encode(),
            "the body did not arrive within 1 s",
        ),
    ],
)
def test_a_request_that_trickles_is_given_up(begin: bytes, message: str, served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(begin)
        if begin.count(b"GET") == 2:
            assert read_until(b"}", connection).startswith(b"HTTP/1.1 200")
        while not select.select([connection], [], [], 0.1)[0]:
            if begin:
                connection.sendall(b"a")
            assert served.ask() == 200
        answer = read_until(b"}}", connection)
    assert told_of(answer) == (408, message)


def test_half_a_body_is_nobodys_fault(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for size in (1, 10**7):
        with served.connect() as connection:
            connection.sendall(
                f"POST {TOKENIZE} HTTP/1.1\r\ncontent-length: {size}\r\n\r\n".encode() + b"{" * (size // 2)
            )
            connection.shutdown(socket.SHUT_WR)
            read_all(connection)
        assert served.ask() == 200
    assert not caplog.records
    counted = served.server.config.app.service.metrics.text()
    assert b'te_request_failure{err="499",method="tokenize",model="encoder"} 1' in counted  # the other is too large


def test_bodies_that_together_are_too_large_are_turned_away(served_models: dict[str, ServedModel]) -> None:
    with serving(served_models, Limits(timeout_s=5, bodies_bytes=10_000)) as served, served.connect() as slow:
        begun = f"POST {TOKENIZE} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 9000\r\n\r\n".encode()
        slow.sendall(begun + b" " * 8_990)
        assert served.ask() == 200
        with served.connect() as other:
            other.sendall(begun + b" " * 8_990)
            answer = read_until(b"}}", other)
        assert told_of(answer) == (429, "too many large bodies at once: send this again later")
        assert b"\r\nretry-after: 1\r\n" in answer
        slow.sendall(b'{"inputs":')  # is whole now, and no JSON
        assert told_of(read_until(b"}}", slow))[0] == 400
        assert served.ask() == 200


def test_headers_end_somewhere(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 12_000)
        assert told_of(read_all(connection)) == (431, "the headers are over 65,536 bytes")
    assert served.ask() == 200


def test_a_body_does_not_count_as_headers_of_the_request_behind_it(served: Served) -> None:
    body = json.dumps({"inputs": ["a b " * 25_000]}).encode()
    with served.connect() as connection:
        head = f"POST {TOKENIZE} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode())
        time.sleep(0.1)  # the body comes in pieces of its own
        connection.sendall(body + b"GET /health HTTP/1.1\r\nconnection: close\r\n")
        time.sleep(0.1)
        connection.sendall(b"\r\n")
        assert re.findall(rb"HTTP/1\.1 (\d+)", read_all(connection)) == [b"200", b"200"]


@pytest.mark.parametrize(("requests", "statuses"), [(9, [200] * 9), (100, [400])])
def test_only_some_requests_wait_behind_another(requests: int, statuses: list[int], served: Served) -> None:
    with served.connect() as connection:
        begin = b"GET /health HTTP/1.1\r\n"
        connection.sendall((begin + b"\r\n") * (requests - 1) + begin + b"connection: close\r\n\r\n")
        answers = read_all(connection)
    assert [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", answers)] == statuses
    if 400 in statuses:
        assert told_of(answers)[1] == "over 8 requests wait for their answers: read answers before sending more"
    assert served.ask() == 200


def test_many_headers_are_received_in_pieces(served_models: dict[str, ServedModel]) -> None:
    """And a body is not."""
    with serving(served_models, Limits(timeout_s=60)) as served, served.connect() as connection:
        wait_until(lambda: bool(served.server.server_state.connections))
        [its] = served.server.server_state.connections
        assert len(cast(Any, its).get_buffer(-1)) == 2**14
        connection.sendall(f"POST {TOKENIZE} HTTP/1.1\r\ncontent-length: 99999\r\n\r\n".encode())
        wait_until(lambda: len(cast(Any, its).get_buffer(-1)) == 2**18)


def test_what_is_no_request_of_ours_leaves_no_line_in_the_log(
    served_models: dict[str, ServedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(served_models, Limits(timeout_s=1)) as served:
        with served.connect() as connection:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # a browser that was told https://
            answer = read_all(connection)
            assert told_of(answer) == (400, "this is not a request in HTTP/1.1")
            assert b"\r\nx-content-type-options: nosniff\r\n" in answer
        with served.connect() as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert served.ask() == 200
    assert not capsys.readouterr().err


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_of_100_mb_is_refused_and_the_next_request_answered(is_chunked: bool, served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    parts = (b" " * 10**6 for _ in range(100))
    headers = {"content-type": "application/json", **({} if is_chunked else {"content-length": "100000000"})}
    connection.request("POST", TOKENIZE, parts, headers, encode_chunked=is_chunked)
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["error"]["message"][:31]) == (413, "the body is over 8,388,608 byte")
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


def test_who_closes_after_the_answer_gets_it(served: Served) -> None:
    """As Python's `urllib`, which sends all of the body before it reads."""
    head = f"POST {TOKENIZE} HTTP/1.1\r\nconnection: close\r\ncontent-length: 20000000\r\n\r\n"
    with served.connect() as connection:
        connection.sendall(head.encode() + b" " * 20_000_000)
        assert told_of(read_all(connection))[0] == 413
    assert served.ask() == 200


def test_an_answer_that_is_not_read_is_dropped(served_models: dict[str, ServedModel]) -> None:
    """What is not sent is 10 MB here: more than the system takes over. Its tokens alone take a second."""
    body = json.dumps({"inputs": ["a " * 250_000]}).encode()
    head = f"POST {TOKENIZE} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with serving(served_models, Limits(timeout_s=5)) as served:
        with served.connect() as connection:
            connection.sendall(head.encode() + body)
            begin = read_until(b"\r\n\r\n", connection, 1)
            [length] = re.findall(rb"content-length: (\d+)", begin)
            guards: Any = served.server.config.app
            assert guards._unread_bytes == int(length)
            while served.server.server_state.connections:
                time.sleep(0.02)
            wait_until(lambda: guards._unread_bytes == 0)
            assert 0 < len(read_all(connection)) < int(length)
        assert served.ask() == 200


def test_a_model_that_is_removed_while_it_is_served(model_directories: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(model_directories["masked"], tmp_path / "model")
    app = app_of(open_models([f"m={directory}"], "fp32"))
    shutil.rmtree(directory)
    with TestClient(app) as client:
        for path, text in (("fill-mask", "the [MASK] is blue"), ("features", "the sky"), ("score", "the sky")):
            assert client.post(f"/v1/models/m/{path}", json={"inputs": [text]}).status_code == 200


class Gated:
    """A use that computes while the gate is open; each request has six tokens."""

    def __init__(self) -> None:
        self.began, self.gate = threading.Event(), threading.Event()

    def read(self, texts: Sequence[str]) -> Work:
        return Work(self, object(), len(texts), 6, 6, [0] * len(texts))  # never alike: each is a batch

    def compute(self, options: Any, payloads: Sequence[int]) -> list[list[float]]:
        self.began.set()
        assert self.gate.wait(30)
        return [[0.0] * number for number in payloads]


@contextmanager
def gated(monkeypatch: pytest.MonkeyPatch, models: dict[str, ServedModel], **limits: Any) -> Iterator[tuple[Any, Any]]:
    """A server whose thread is computing the request of a first client, and the service behind it."""
    use = Gated()
    monkeypatch.setitem(READERS, "scores", Reader("masks", lambda masks, texts: use.read(texts)))
    with serving({"masked": models["masked"]}, Limits(**limits)) as served:
        try:
            first = score(served)
            assert use.began.wait(10)
            yield served, use
            use.gate.set()
            assert first.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 503")
            first.close()
        finally:
            use.gate.set()


def score(served: Served) -> socket.socket:
    """A connection on which a request was sent."""
    body = b'{"inputs": ["a"]}'
    head = "POST /v1/models/masked/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection = served.connect()
    connection.sendall(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def service_of(served: Served) -> Any:
    return cast(Any, served.server.config.app).service


def test_a_full_queue_turns_away(served_models: dict[str, ServedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    with gated(monkeypatch, served_models, queue_tokens=10) as (served, use), score(served) as second:
        wait_until(lambda: service_of(served).engine.batcher.queue_size == 1)
        with score(served) as third:
            answer = read_all(third)
        assert told_of(answer) == (429, "too many requests are waiting: try again in 1 s")
        assert b"\r\nretry-after: 1\r\n" in answer
        use.gate.set()
        assert read_all(second).startswith(b"HTTP/1.1 200")


def test_what_is_not_answered_in_time_is_told(
    served_models: dict[str, ServedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    with gated(monkeypatch, served_models, timeout_s=1) as (served, _), score(served) as second:
        told = told_of(read_all(second))
        assert told == (503, "not answered within 1 s: send fewer or shorter inputs, or try again")
        wait_until(lambda: service_of(served).engine.batcher.queue_size == 0)


@pytest.mark.parametrize("by", ["a second Ctrl-C", "the time for it"])
def test_what_is_under_way_when_the_server_ends_is_refused(
    by: str, served_models: dict[str, ServedModel], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with gated(monkeypatch, served_models) as (served, _), score(served) as second:
        wait_until(lambda: service_of(served).engine.batcher.queue_size == 1)
        if by == "the time for it":
            served.server.config.timeout_graceful_shutdown = 0
        served.server.handle_exit(signal.SIGINT, None)
        if by == "a second Ctrl-C":
            wait_until(lambda: not served.server.servers[0].sockets)
            served.server.handle_exit(signal.SIGINT, None)
        answer = read_all(second)
    assert told_of(answer) == (503, "the server is being stopped")
    told = capsys.readouterr().err
    assert "2 requests under way are answered first; Ctrl-C once more stops at once" in told
    assert "Traceback" not in told


def test_who_leaves_is_not_computed_for(served_models: dict[str, ServedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    with gated(monkeypatch, served_models) as (served, _):
        service = service_of(served)
        with score(served):
            wait_until(lambda: service.engine.batcher.queue_size == 1)
        wait_until(lambda: service.engine.batcher.queue_size == 0)
        left = b'te_request_failure{err="499",method="score",model="masked"} 1'
        wait_until(lambda: left in service.metrics.text())
        assert b'te_request_success{method="score"' not in service.metrics.text()

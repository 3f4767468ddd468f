"""`unmask serve` as a process: it says where it is, answers, and ends in order."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

from support.commands import Command
from unmask.inference.features.similarity import embed
from unmask.serving.settings import Limits


def started(model: Path, most_files: int | None = None) -> tuple[subprocess.Popen[str], str]:
    words = [sys.executable, "-m", "unmask", "serve", f"m={model}", "--port", "0"]
    if most_files is not None:
        words = ["sh", "-c", f'ulimit -n {most_files}; exec "$@"', "sh", *words]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.match(r"(http://127\.0\.0\.1:\d+) answers for m; ", line)
    assert found, line
    return process, found[1]


def computing_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The process that computes; beside it is one that `multiprocessing` has."""
    children = psutil.Process(process.pid).children()
    [computing] = [each for each in children if "spawn_main" in " ".join(each.cmdline())]
    return computing


def has_not_ended(process: psutil.Process) -> bool:
    """One that has ended stays listed where nobody asks how it did."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_it_answers_until_it_is_told_to_stop(model_directories: dict[str, Path]) -> None:
    import openai  # takes a second, which no other test waits for

    process, place = started(model_directories["masked"])
    try:
        body = json.dumps({"inputs": ["the [MASK] is blue"]}).encode()
        request = urllib.request.Request(f"{place}/v1/models/m/fill-mask", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as told:
            assert len(json.load(told)["predictions"][0]) == 5
        host, port = place.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as half_sent:
            half_sent.sendall(
                b"POST /v1/models/m/fill-mask HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
            )
            time.sleep(0.05)
        client = openai.OpenAI(base_url=f"{place}/v1", api_key="any", max_retries=0)
        [model] = client.models.list()
        assert (model.id, abs(time.time() - model.created) < 600) == ("m", True)
        [vector] = client.embeddings.create(model="m", input=["the sky"]).data
        np.testing.assert_allclose(vector.embedding, embed(model_directories["masked"], ["the sky"])[0], atol=1e-6)
        with pytest.raises(openai.NotFoundError, match="no model 'nobody' here"):
            client.embeddings.create(model="nobody", input="the sky")
        client.close()
        with urllib.request.urlopen(f"{place}/health", timeout=30) as told:
            assert json.load(told) == {"status": "ok"}
        connect_beyond_its_files(process, host, int(port))
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
    assert process.returncode == 143, rest
    assert "Traceback" not in rest
    assert rest.count("a connection cannot be taken: Too many open files") == hasattr(resource, "prlimit")


def connect_beyond_its_files(process: subprocess.Popen[str], host: str, port: int) -> None:
    """As where the whole system has none left, on Linux: an idle connection makes room, and the log says so once."""
    if not hasattr(resource, "prlimit"):
        return
    with ExitStack() as opened:

        def connect() -> socket.socket:
            return opened.enter_context(socket.create_connection((host, port), timeout=30))

        def ask(connection: socket.socket) -> None:
            connection.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"

        first, _, last = connect(), connect(), connect()
        ask(last)  # all are taken
        held = max(int(each.name) for each in Path(f"/proc/{process.pid}/fd").iterdir()) + 1
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (held, held))
        ask(connect())
        assert first.recv(1) == b"", "the first is closed"


def test_a_request_under_way_is_answered_at_the_end(model_directories: dict[str, Path]) -> None:
    process, place = started(model_directories["masked"])
    try:
        host, port = place.removeprefix("http://").split(":")
        body = json.dumps({"inputs": ["the sky is blue and the sea is green " * 2] * 120}).encode()
        head = f"POST /v1/models/m/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
            metrics = f"{place}/metrics"
            while (
                b'te_request_count{method="score",model="m"} 1'
                not in urllib.request.urlopen(metrics, timeout=30).read()
            ):
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGTERM)  # to all processes at once, as a terminal sends Ctrl-C
            assert connection.recv(12) == b"HTTP/1.1 200"
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 143


def test_it_ends_where_what_computes_has_ended(model_directories: dict[str, Path]) -> None:
    """Whatever started it starts it again: it does not stay and answer nothing."""
    process, _ = started(model_directories["masked"])
    try:
        computing_of(process).kill()
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "error: the process that computes was killed by SIGKILL" in told
    assert "Traceback" not in told


def test_what_computes_ends_with_the_server(model_directories: dict[str, Path]) -> None:
    process, _ = started(model_directories["masked"])
    computing = computing_of(process)
    process.kill()
    process.communicate(timeout=30)
    until = time.monotonic() + 30
    while has_not_ended(computing):
        assert time.monotonic() < until, "it computes for nobody"
        time.sleep(0.05)


def test_more_connections_than_files(model_directories: dict[str, Path]) -> None:
    """The one that is silent longest makes room, and those that ask are answered."""
    process, place = started(model_directories["masked"], most_files=64)
    host, port = place.removeprefix("http://").split(":")
    address = host, int(port)
    opened: list[socket.socket] = []
    asking, another = (http.client.HTTPConnection(*address, timeout=30) for _ in range(2))
    try:
        for number in range(600):
            opened.append(socket.create_connection(address, timeout=30))
            opened[-1].sendall(b"GET /health HTTP/1.1\r\n")
            if number % 6 == 0:  # connections wait to be taken: it may see a request before them
                asking.request("GET", "/health")
                assert asking.getresponse().read() == b'{"status":"ok"}'
        another.request("GET", "/ready")
        assert another.getresponse().status == 200
        assert opened[0].recv(1) == b"", "the first is closed"
        opened[-1].sendall(b"\r\n")
        assert opened[-1].recv(12) == b"HTTP/1.1 200", "the last is not"
    finally:
        for each in (*opened, asking, another):
            each.close()
        process.terminate()
        _, told = process.communicate(timeout=30)
    assert told == "stopped by SIGTERM\n", "the limit of files was never met"


def test_a_port_that_is_taken(unmask: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = unmask("serve", "m=not-even-loaded", "--port", port)
    assert told.code == 2
    assert re.search(rf"127\.0\.0\.1:{port} cannot be used: .*: choose another --port or --host", told.errors)


def test_limits_can_be_set(monkeypatch: pytest.MonkeyPatch, unmask: Command) -> None:
    found: list[Limits] = []
    monkeypatch.setattr("unmask.serving.server.serve", lambda *_, limits, **__: found.append(limits))
    assert unmask("serve", "m=model", "--timeout", 90, "--batch-tokens", 65536).code == 0
    assert unmask("serve", "m=model").code == 0
    assert [(each.timeout_s, each.batch_tokens) for each in found] == [(90, 65536), (30, 8192)]
    told = unmask("serve", "m=model", "--timeout", 0)
    assert (told.code, "--timeout" in told.errors) == (2, True)


@pytest.mark.parametrize("package", ["fastapi", "httptools", "prometheus_client"])
def test_a_part_of_the_extra_that_is_missing(unmask: Command, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    told = unmask("serve", "m=model", "--port", 0)
    assert (told.code, told.errors) == (2, f"error: serving needs {package}: pip install 'unmask[serve]'\n")

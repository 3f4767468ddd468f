"""Servers in processes of their own, and loads on them: clients that wait for an answer, and arrivals that do not.

The least of HTTP/1.1 that a load needs, so that the client takes little of the processor that it shares.
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median
from tempfile import TemporaryFile
from urllib.error import URLError

_MOST_ANSWER = 2**22
IDLE_S = 20
"""After that a connection is not used again: the server closes one that has been idle for 30 seconds."""


@contextmanager
def serving(command: Sequence[str], port: int) -> Iterator[int]:
    """A server in a process of its own, from when it answers; yields the number of the process."""
    with TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        try:
            for _ in range(600):
                if process.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} ended: {log.read()[-2000:]}")
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
                    break
                except (URLError, OSError):
                    time.sleep(0.2)
            gc.collect()
            gc.freeze()  # else the client, looking for garbage among all that it has imported, counts as the server
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def post(path: str, body: bytes) -> bytes:
    """A request, as it is sent."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    return head.encode() + b"\r\n" + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


class Connection:
    """One request after another on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=_MOST_ANSWER))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer.

        Raises:
            OSError, asyncio.IncompleteReadError: the server has closed the connection.
        """
        self._writer.write(request)
        told = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(told.split(b"content-length:")[1].split(b"\r\n")[0])
        return int(told.split()[1]), await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class Load:
    """What a server did under a load: requests a second, and milliseconds of a request."""

    per_second: float
    p50: float
    p99: float


def load_of(times: Sequence[float], took: float) -> Load:
    """From the seconds of each request, and of all."""
    ordered = sorted(times)
    return Load(len(ordered) / took, 1000 * median(ordered), 1000 * ordered[int(0.99 * (len(ordered) - 1))])


async def closed_loop(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Clients that each send a request when the last is answered, with 200."""
    waiting, times = cycle(requests), list[float]()
    end = time.perf_counter() + seconds

    async def client() -> None:
        connection = await Connection.open(port)
        while time.perf_counter() < end:
            began = time.perf_counter()
            status, answer = await connection.ask(next(waiting))
            if status != 200:
                raise RuntimeError(answer.decode())
            times.append(time.perf_counter() - began)
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return load_of(times, time.perf_counter() - began)


@dataclass
class Arrivals:
    """What became of requests that came at a given rate, whatever the server did.

    Attributes:
        times: seconds from when a request was due until its answer, of those answered with 200.
        statuses: how many answers had each status.
        lost: how many had no answer: their connection was refused or broke.
    """

    times: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    lost: int = 0


async def open_loop(
    port: int,
    requests: Sequence[bytes],
    per_second: float,
    seconds: float,
    look: Callable[[int, bytes], None] | None = None,
    seed: int = 0,
) -> Arrivals:
    """Requests that arrive independently of each other and of the answers, as a Poisson process.

    Args:
        look: called with the number of each request and its answer, where that is 200.
    """
    chance, found = random.Random(seed), Arrivals()
    idle: list[tuple[float, Connection]] = []  # with when it was last used
    tasks: set[asyncio.Task[None]] = set()

    async def ask(number: int, due: float) -> None:
        since, connection = idle.pop() if idle else (0.0, None)
        if connection is not None and time.perf_counter() - since > IDLE_S:  # so are all below it
            for _, each in [*idle, (since, connection)]:
                each.close()
            idle.clear()
            connection = None
        try:
            if connection is None:
                connection = await Connection.open(port)
            status, answer = await connection.ask(requests[number % len(requests)])
        except (OSError, asyncio.IncompleteReadError):
            found.lost += 1
            return
        found.statuses[status] += 1
        if status == 200:
            found.times.append(time.perf_counter() - due)
            if look is not None:
                look(number, answer)
        idle.append((time.perf_counter(), connection))

    begin = due = time.perf_counter()
    number = 0
    while (due := due + chance.expovariate(per_second)) < begin + seconds:
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(ask(number, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
    await asyncio.gather(*tasks)
    for _, connection in idle:
        connection.close()
    return found


def figure(port: int, name: str) -> float:
    """The sum of a figure of `/metrics`, over all its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as told:
        lines = told.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.split(" ")[0].partition("{")[0] == name)

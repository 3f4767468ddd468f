"""Connections that keep nobody waiting: headers come in time and are not endless, answers are read, and where there are
as many connections as the process may open, the one that has been silent longest makes room.

uvicorn has none of these limits. What a body may be and how long it may take, the guards say.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
from functools import cache
from typing import cast

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from unmask.serving.guards import HEADERS, failure_body

_HEADER_BYTES = 2**16
_CONNECTIONS, _OTHER_FILES = 2**14, 128
"""The most connections, and how many files are left for all else; where few may be open, half of them are
connections."""

_PIPELINED = 8
"""Requests of a connection that wait while one is answered."""

_RECEIVED = memoryview(bytearray(2**18))
"""Of the connection that is being read. It is copied before another one is."""
_RECEIVED_OF_HEADERS = _RECEIVED[: 2**14]
"""The part used where no body is expected: many headers take long to parse."""

_ORDER = itertools.count()
"""Of connections and requests. (The loop's time stands still while it handles many at once.)"""


@cache
def most_connections() -> int:
    """How many connections the process may hold; lets it open as many files as the system allows it."""
    wanted = _CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        except (OSError, ValueError):  # macOS allows less than it says
            raised = soft
        soft = raised
    return _CONNECTIONS if soft < 0 else min(_CONNECTIONS, max(soft - _OTHER_FILES, soft // 2))


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """One client. It has `Config.timeout_keep_alive` seconds for the headers of a request, and to take an answer.

    What comes is received into memory that all connections share. asyncio would else take 256 KiB for each piece and
    give back what is too much, which leaves the memory full of holes while many requests wait.
    """

    _sending: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    last_request = 0  # its place, or that of the connection's beginning, among all
    _header_bytes: int | None = None  # of a request whose headers are not all there

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= most_connections():
            end_most_silent(cast(set[Connection], self.connections))
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # what the system does not take at once, the client is slow to read
        self.last_request = next(_ORDER)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._sending)
        self._stop(self._reading)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _RECEIVED if self._expects_body else _RECEIVED_OF_HEADERS

    @property
    def _expects_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_RECEIVED[:nbytes]))

    def data_received(self, data: bytes) -> None:
        is_of_body = self._expects_body  # and perhaps the beginning of the next request
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._header_bytes is not None and not is_of_body:
            self._header_bytes += len(data)
            if self._header_bytes > _HEADER_BYTES:
                self._refuse(431, f"the headers are over {_HEADER_BYTES:,} bytes")
                return
        if self.cycle is None or self.cycle.response_complete:
            self._expect_request()
        else:
            self._stop(self._sending)
            self._sending = None

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._header_bytes is not None:  # and not a trailer, after the body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _PIPELINED:
            self._refuse(400, f"over {_PIPELINED} requests wait for their answers: read answers before sending more")
            raise HttpParserError  # what comes after it is not parsed
        self._header_bytes, self.last_request = None, next(_ORDER)
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop(self._reading)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to something that is not HTTP."""
        self._refuse(400, "this is not a request in HTTP/1.1")

    def _expect_request(self) -> None:
        if self._sending is None:
            self._sending = self.loop.call_later(self.timeout_keep_alive, self._give_up)

    def _give_up(self) -> None:
        self._refuse(408, f"no request within {self.timeout_keep_alive} s")

    @property
    def is_idle(self) -> bool:
        """Whether it stands, and there is no whole request of this client that is not answered."""
        is_waiting = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        return is_waiting and not self.transport.is_closing()

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        body = failure_body(status, message)
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n".encode()
        head += b"".join(name + b": " + value + b"\r\n" for name, value in HEADERS.items())
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self.transport.close()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def end_most_silent(connections: set[Connection]) -> None:
    """Ends the connection that has been silent longest, if one is idle."""
    idle = [each for each in connections if each.is_idle]
    if idle:
        min(idle, key=lambda each: each.last_request).transport.abort()

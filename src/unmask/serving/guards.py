"""What stands before the endpoints: the size of a body, the token, the name asked, and the headers of every answer.

Plain ASGI, so that a body is refused while it arrives.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException

from unmask.io.encodings import normalized
from unmask.serving.service import DEADLINE, ClientLeft, Service

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/health", "/ready", "/", "/docs", "/openapi.json")
"""Anyone may ask these: a load balancer has no token, and the pages ask for it. The pages' files are open too."""

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}
"""Of every answer that does not set them itself."""

_SMALL_ANSWER = 2**14
"""An answer of so many bytes is sent whatever others take."""


class Guards:
    """An application behind its guards.

    Args:
        service: what the application answers with.
        token: what `Authorization: Bearer` must hold; None: anyone may ask.
        hosts: the names that requests may be sent to; None: any.
        endpoints: the last parts of the addresses that are counted by name.
    """

    def __init__(
        self, app: App, service: Service, token: str | None, hosts: Collection[str] | None, endpoints: frozenset[str]
    ) -> None:
        self._app, self.service = app, service
        self._metrics, self._limits = service.metrics, service.limits
        self._hosts = hosts
        self._token = None if token is None else token.encode()
        self._endpoints = endpoints
        self._held_bytes = 0  # of the bodies of all requests that are not answered
        self._unread_bytes = 0  # of all answers that clients have not taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, answer_bytes, is_dropped = time.monotonic(), 0, 0, False
        scope["path"] = normalized("NFC", scope["path"])  # names as macOS writes them, too
        scope[DEADLINE] = asyncio.get_running_loop().time() + self._limits.timeout_s
        headers = {name.lower(): value for name, value in scope["headers"]}

        async def send_guarded(message: Message) -> None:
            """Returns when the client has taken the answer, which may be another one."""
            nonlocal status, answer_bytes, is_dropped
            if is_dropped:
                return
            if message["type"] == "http.response.start":
                there = {name.lower(): value for name, value in message["headers"]}
                length = int(there.get(b"content-length", b"0"))
                if length > _SMALL_ANSWER and self._unread_bytes + length > self._limits.bodies_bytes:
                    await _refuse(send_guarded, 429, "too many large answers at once: send this again later", "busy")
                    is_dropped = True
                    return
                status, answer_bytes = message["status"], length
                self._unread_bytes += length
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS.items() if pair[0] not in there)]
                await send(message)
                return
            await send({**message, "more_body": True})
            if not message.get("more_body", False):
                await send({"type": "http.response.body"})  # uvicorn waits until what came before is taken

        size, is_whole = 0, False

        async def receive_limited() -> Message:
            nonlocal size, is_whole
            if is_whole:  # what comes next is that the client has left
                return await receive()
            try:
                async with asyncio.timeout_at(scope[DEADLINE]):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive within {self._limits.timeout_s:g} s") from None
            if message["type"] == "http.disconnect":
                raise ClientLeft
            arrived = len(message.get("body", b""))
            size += arrived
            self._held_bytes += arrived
            is_whole = not message.get("more_body", False)
            if size > self._limits.body_bytes:
                raise HTTPException(413, self._too_large)
            if self._held_bytes > self._limits.bodies_bytes:
                raise HTTPException(429, "too many large bodies at once: send this again later", {"Retry-After": "1"})
            return message

        is_counted = scope["method"] == "POST"
        endpoint, model = self._counted_as(scope["path"])
        if is_counted:
            self._metrics.arrived(endpoint, model)
        try:
            if (refusal := self._refusal(scope["path"], headers)) is None:
                await self._app(scope, receive_limited, send_guarded)
            else:
                code, closes = refusal[-1], headers.get(b"connection", b"").lower() == b"close"
                if code == "unsupported_encoding" or (code == "too_large" and closes):
                    await self._pass_over(receive)
                await _refuse(send_guarded, *refusal)
        except asyncio.CancelledError:  # by the server that ends; a client that leaves cancels nothing
            if not status:
                await _refuse(send_guarded, 503, "the server is being stopped", "stopping")
        except Exception:
            if status != 500:  # which only the application's handler answers, and logs: Starlette raises it once more
                raise
        finally:
            self._held_bytes -= size
            self._unread_bytes -= answer_bytes
            if is_counted:
                self._metrics.answered(endpoint, status, time.monotonic() - started, model)

    def _refusal(self, path: str, headers: Mapping[bytes, bytes]) -> tuple[int, str, str] | None:
        """Status, message and code for a request whose headers are refused; None: it is let in."""
        if self._hosts is not None and (host := _host(headers.get(b"host", b""))) not in ("", *self._hosts):
            expected = f"expected {', '.join(sorted(self._hosts))}; or start the server with a token (UNMASK_TOKEN)"
            return 403, f"the Host header is {host[:80]!r}: {expected}", "wrong_host"
        if not self._is_allowed(path, headers.get(b"authorization", b"")):
            message = "expected the header Authorization: Bearer TOKEN, with the token that the server was started with"
            return 401, message, "unauthorized"
        if (coding := headers.get(b"content-encoding", b"").decode("latin-1").lower()) not in ("", "identity"):
            message = f"the body is in the content-encoding {coding[:80]!r}: send it as it is"
            return 415, message, "unsupported_encoding"
        if int(headers.get(b"content-length", b"0")) > self._limits.body_bytes:
            return 413, self._too_large, "too_large"
        return None

    async def _pass_over(self, receive: Receive) -> None:
        """Reads a body and forgets it: closed while the client still sends, the connection would lose the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.timeout_s):
                while (await receive()).get("more_body", False):
                    pass

    @property
    def _too_large(self) -> str:
        return f"the body is over {self._limits.body_bytes:,} bytes: send fewer or shorter inputs at once"

    def _counted_as(self, path: str) -> tuple[str, str]:
        """The last part of a known address, and the model that it names, for the metrics: what clients make up is not
        repeated there."""
        rest, _, last = path.rstrip("/").rpartition("/")
        model = rest.removeprefix("/v1/models/")
        return last if last in self._endpoints else "other", model if model in self.service.models else ""

    def _is_allowed(self, path: str, authorization: bytes) -> bool:
        if self._token is None or path in OPEN_PATHS or path.startswith("/page/"):
            return True
        kind, _, given = authorization.partition(b" ")
        return hmac.compare_digest(given.strip(), self._token) and kind.lower() == b"bearer"


def _host(header: bytes) -> str:
    """The name in a header `Host`, without brackets and port."""
    name = header.decode("latin-1").strip().lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def failure_body(status: int, message: str, code: str | None = None, param: str | None = None) -> bytes:
    """`unmask.serving.schemas.Failure`, of a request that is not answered."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    plain = message.encode("utf-8", "backslashreplace").decode()
    error = {"message": plain, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}, ensure_ascii=False).encode()


_MORE_HEADERS = {401: (b"www-authenticate", b"Bearer"), 429: (b"retry-after", b"1")}


async def _refuse(send: Send, status: int, message: str, code: str) -> None:
    """The connection stays, as the client has asked, for it may still send its body."""
    body = failure_body(status, message, code)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status in _MORE_HEADERS:
        headers.append(_MORE_HEADERS[status])
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""The application: endpoints, guards, and what an error becomes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from unmask import __version__
from unmask.errors import ModelError, UserError
from unmask.serving import compatible, endpoints, inspecting
from unmask.serving.engine.asks import Answers, Refused
from unmask.serving.guards import Guards, failure_body
from unmask.serving.metrics import RequestMetrics
from unmask.serving.pages import add_pages
from unmask.serving.service import Service
from unmask.serving.settings import Limits

_ALIVE_S = 3.0
"""Within which what computes says that it lives; HEALTHCHECK in deploy/Containerfile waits for 4."""

logger = logging.getLogger("unmask")


def build_app(
    engine: Answers, limits: Limits, token: str | None = None, hosts: Collection[str] | None = None
) -> Guards:
    """The application that serves the models of an engine.

    Args:
        engine: answers what is asked; whoever has made it closes it.
        token: what clients must send as `Authorization: Bearer TOKEN`; None: nothing.
        hosts: the names that requests may be sent to; None: any.
    """
    service = Service(engine, RequestMetrics(), limits)
    app = FastAPI(
        title="unmask",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        description="Masked and left-to-right language models, and what was fine-tuned from them.",
    )
    app.state.service = service
    for each in (compatible, endpoints, inspecting):  # those asked most come first: addresses are tried in order
        app.include_router(each.router)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Whether the server runs")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", summary="Whether the server takes requests")
    async def ready() -> dict[str, Any]:
        if not engine.takes_work:
            message = "the server computes nothing any more: it is being stopped, or needs a restart"
            raise Refused(503, message, "stopping")
        await service.figures(_ALIVE_S)
        return {"status": "ready", "models": list(engine.models)}

    @app.get("/metrics", summary="Figures in Prometheus' text format", response_class=Response)
    async def figures() -> Response:
        return Response(await service.figures(limits.timeout_s), media_type="text/plain; version=0.0.4")

    add_pages(app, engine.models)
    _answer_errors(app)
    posted = (path for path, methods in app.openapi()["paths"].items() if "post" in methods)
    return Guards(app, service, token, hosts, frozenset(path.rpartition("/")[2] for path in posted))


def _answer_errors(app: FastAPI) -> None:
    """Every error becomes a status and a message; nothing of our code is shown."""

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: UserError) -> Response:
        return _failure(422, str(error))

    @app.exception_handler(ModelError)
    async def model_error(request: Request, error: ModelError) -> Response:
        logger.error("%s: %s", request.url.path, error)  # it names places of this machine
        return _failure(500, "the model cannot be used; the server's log says why", "model")

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return _failure(error.status, str(error), error.code, error.param, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first: dict[str, Any] = error.errors()[0]
        if isinstance(error.body, bytes):
            return _failure(422, "the body is not read as JSON: send the header content-type: application/json")
        if first["type"] == "json_invalid":
            what = str(first["ctx"]["error"]).lower()
            return _failure(400, f"the body is not JSON: at character {first['loc'][-1] + 1:,}, {what}")
        if first["type"] == "too_many":
            return _failure(413, _sentence(first["loc"][:2], first["msg"]), "too_large")
        what = _IN_WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
        return _failure(422, _sentence(first["loc"], what))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        known = {
            400: "the body cannot be read: expected JSON in UTF-8, nested less deep, with shorter numbers",
            404: "no such address: /docs lists all",
            405: "this address is asked with another method: see /docs",
        }
        message = known.get(error.status_code, str(error.detail))
        code = {413: "too_large", 429: "busy"}.get(error.status_code)
        return _failure(error.status_code, message, code, headers=error.headers)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        logger.error("%s %s: a fault in unmask", request.method, request.url.path, exc_info=error)
        return _failure(500, "a fault in the server, not in your request; its log has the details", "fault")


def _failure(
    status: int, message: str, code: str | None = None, param: str | None = None, headers: Any = None
) -> Response:
    return Response(failure_body(status, message, code, param), status, headers, "application/json")


_IN_WORDS = {
    "missing": "missing, and expected",
    "list_type": "expected a list",
    "model_attributes_type": "expected a JSON object",
    "too_short": "expected at least one, and there is none",
    "extra_forbidden": "no key of this address: /docs lists those that exist",
    "none_required": "not done here: leave it out",
}
"""What is wrong with a body, by pydantic's name for it."""


def _sentence(place: Sequence[Any], what: str) -> str:
    """`inputs.0.text: missing`, where a place is inside the body."""
    parts = [str(part) for part in place if part != "body"]
    return f"{'.'.join(parts)}: {what}" if parts else f"the body: {what}"

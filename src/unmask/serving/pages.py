"""The pages of a server; everything that they show or run comes from the server itself."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from unmask.reports.layout import render, style_sheet
from unmask.serving.engine.asks import ModelFacts

_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def _policy() -> str:
    """The style sheet of all pages stands inside each, and is named by its hash; everything else is files of ours."""
    style = base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'self' 'sha256-{style}'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def add_pages(app: FastAPI, models: Mapping[str, ModelFacts]) -> None:
    """Adds the pages `/` and `/docs`, and the files that they load, to an application."""
    headers = {"content-security-policy": _policy()}

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        return Response(render("playground.html"), media_type="text/html", headers=headers)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        groups = describe_endpoints(app.openapi(), models)
        page = render("endpoints.html", title="Endpoints of this server", above="unmask serve", groups=groups)
        return Response(page, media_type="text/html", headers=headers)

    for name, content in _files(files("unmask.serving").joinpath("page")):
        _add_file(app, name, content)


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """The scripts and style sheets of a folder and those inside it, with their paths."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, f"{prefix}{each.name}/")
        elif Path(each.name).suffix in _KINDS:
            yield f"{prefix}{each.name}", each.read_bytes()


def _add_file(app: FastAPI, name: str, content: bytes) -> None:
    @app.get(f"/page/{name}", include_in_schema=False, name=name)
    async def file() -> Response:
        return Response(content, media_type=_KINDS[Path(name).suffix])


def describe_endpoints(
    schema: Mapping[str, Any], models: Mapping[str, ModelFacts]
) -> list[tuple[str, list[dict[str, Any]]]]:
    """What an OpenAPI schema lists, for the page: the endpoints of a model that some model here has, and the rest."""
    groups: dict[str, list[dict[str, Any]]] = {
        "Uses of a model": [],
        "As other servers are asked": [],
        "The server": [],
    }
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            use = path.removeprefix("/v1/models/{name}").strip("/")
            is_use = path.startswith("/v1/models/{name}")
            names = [name for name, model in models.items() if not use or use in model.endpoints] if is_use else []
            if is_use and not names:
                continue
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            body = _example(content)
            group = "Uses of a model" if use and is_use else "The server"
            if not is_use and body is not None:
                group = "As other servers are asked"
            groups[group].append(
                {
                    "method": method.upper(),
                    "path": path,
                    "summary": operation.get("summary", ""),
                    "names": names,
                    "body": "" if body is None else json.dumps(body, ensure_ascii=False),
                }
            )
    return [(name, addresses) for name, addresses in groups.items() if addresses]


def _example(content: Mapping[str, Any]) -> Any:
    """The example of a body, or None if there is no body."""
    if "example" in content or not content:
        return content.get("example")
    return content["schema"]["examples"][0]

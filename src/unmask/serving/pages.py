"""The pages of a server; everything that they show or run comes from the server itself."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from unmask.reports.layout import render, style_sheet
from unmask.serving.compatible import answering
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


_MODEL = "/v1/models/{name}"


def describe_endpoints(
    schema: Mapping[str, Any], models: Mapping[str, ModelFacts]
) -> list[tuple[str, list[dict[str, Any]]]]:
    """What an OpenAPI schema lists, for the page: the addresses that some model here answers at, with an example for
    each of these models."""
    groups: dict[str, list[dict[str, Any]]] = {
        "Uses of a model": [],
        "As other servers are asked": [],
        "The server": [],
    }
    for path, methods in schema["paths"].items():
        use = path.removeprefix(_MODEL).strip("/") if path.startswith(_MODEL) else ""
        wanted = {use} if use else {*answering(path)}
        fitting = [model for model in models.values() if not wanted or not wanted.isdisjoint(model.endpoints)]
        group = "Uses of a model" if use else "As other servers are asked" if wanted else "The server"
        for method, operation in methods.items() if fitting else ():
            examples = _examples(operation.get("requestBody", {}).get("content", {}).get("application/json", {}))
            groups[group].append(
                {
                    "method": method.upper(),
                    "path": path,
                    "summary": operation.get("summary", ""),
                    "has_name": path.startswith(_MODEL),
                    "bodies": {model.name: _fitted(examples, model) for model in fitting},
                }
            )
    return [(name, addresses) for name, addresses in groups.items() if addresses]


def _examples(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of a body; none if there is no body."""
    if "examples" in content:
        return [each["value"] for each in content["examples"].values()]
    found: list[dict[str, Any]] = content["schema"]["examples"] if content else []
    return found


def _fitted(examples: Sequence[dict[str, Any]], model: ModelFacts) -> str:
    """The example that a model can answer: a pair where it reads pairs, with its name and its mask; "" of none."""
    if not examples:
        return ""
    body = examples[-1 if len(next(iter(model.description.get("columns", [])), ())) == 2 else 0]
    named = {**body, "model": model.name} if "model" in body else body
    mask = json.dumps(model.description.get("mask_token", "[MASK]"), ensure_ascii=False)[1:-1]
    return json.dumps(named, ensure_ascii=False).replace("[MASK]", mask)

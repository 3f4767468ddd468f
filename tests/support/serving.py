"""A real server, for a browser, and what is looked for on its page."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unmask.serving.app import build_app
from unmask.serving.engine.engine import Engine
from unmask.serving.engine.models import ServedModel
from unmask.serving.guards import Guards
from unmask.serving.settings import Limits

OUTSIDE = """[...document.querySelectorAll(".answer svg text")].filter((text) => {
  const [its, figure] = [text, text.ownerSVGElement].map((each) => each.getBoundingClientRect());
  return its.left < figure.left - 1 || its.right > figure.right + 1 || its.bottom > figure.bottom + 3;
}).map((text) => text.textContent)"""
"""A script: the texts that stand outside their figure."""


def app_of(models: dict[str, ServedModel], limits: Limits | None = None, **options: Any) -> Guards:
    """The application of models in this process."""
    limits = limits or Limits()
    return build_app(Engine(models, limits), limits, **options)


@contextmanager
def serving(models: dict[str, ServedModel], token: str | None = None) -> Iterator[str]:
    """The address of a real server, in a thread."""
    import uvicorn

    app = app_of(models, token=token)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:  # else a test that fails hangs
        server.should_exit = True
        thread.join()


def expect_value(box: Any, value: str) -> None:
    from playwright.sync_api import expect

    expect(box).to_have_value(value)

"""How the pages ask for a server's token, and ask again for another."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from support.serving import app_of, serving
from unmask.serving.engine.models import ServedModel

ASKED, REFUSED = "The server's token", "That is not the server's token. The server's token"


def test_a_token_is_asked_for_by_the_page_itself(served_models: dict[str, ServedModel]) -> None:
    app = app_of(served_models, token="secret")
    with TestClient(app) as client:
        for path in ("/", "/page/playground.js", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200, path
        assert client.get("/v1/models").status_code == 401


def test_the_page_of_endpoints_asks_for_the_token_once(served_models: dict[str, ServedModel], browser: Any) -> None:
    page, asked = browser.new_page(), []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept("secret")))
    with serving(served_models, "secret") as address:
        page.goto(f"{address}/docs")
        form = page.locator("form[data-path$=tokenize]").first
        for _ in range(2):
            form.get_by_role("button").click()
            page.get_by_text("200 OK").wait_for()
        page.close()
    assert asked == ["The server's token"]


@pytest.mark.parametrize("wrong", ["wrong", "비밀토큰"])
def test_a_wrong_token_is_asked_for_again(served_models: dict[str, ServedModel], browser: Any, wrong: str) -> None:
    page, asked = browser.new_page(), []
    answers = iter([wrong, " secret "])
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept(next(answers))))
    with serving(served_models, "secret") as address:
        page.goto(address)
        page.locator(".answer[aria-busy=false] svg").first.wait_for()
        assert asked == [ASKED, REFUSED]
        page.reload()
        page.locator(".answer[aria-busy=false] svg").first.wait_for()
        assert len(asked) == 2
        page.close()


def test_who_gives_no_token_may_try_again(served_models: dict[str, ServedModel], themed_page: Any) -> None:
    page = themed_page
    page.once("dialog", lambda dialog: dialog.dismiss())
    with serving(served_models, "secret") as address:
        page.goto(address)
        told = page.get_by_role("alert")
        told.wait_for()
        assert "expected the header Authorization" in told.inner_text()
        page.on("dialog", lambda dialog: dialog.accept("secret"))
        page.get_by_role("button", name="Try again").click()
        page.locator(".answer[aria-busy=false] svg").first.wait_for()
        assert told.count() == 0

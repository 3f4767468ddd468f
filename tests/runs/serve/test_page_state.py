"""What is in the fields of the page at `/`: what is asked, what a person types, and what the address keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from support.serving import serving
from support.untrained import save_masked_lm, save_task_model
from unmask.serving.engine.models import open_models


@pytest.mark.parametrize(
    ("panel", "first", "second"), [("classes", "classify", "words"), ("learning", "checkpoints", "")]
)
def test_an_answer_of_two_requests_is_about_one_text(
    address: str, browser: Any, panel: str, first: str, second: str
) -> None:
    page, asked = browser.new_page(), []

    def type_meanwhile(route: Any) -> None:
        page.get_by_label("Text", exact=True).fill("another [MASK]")
        route.continue_()

    page.goto(f"{address}/#{panel}?text=the+sky+is+[MASK]&method=erasure")
    page.locator(".answer[aria-busy=false] svg").first.wait_for()
    page.on("request", lambda request: asked.append(request) if "text" in (request.post_data or "") else None)
    page.route(f"**/{first}", type_meanwhile)
    page.get_by_role("button", name="Show").click()
    page.locator(".answer.changed[aria-busy=false] svg").first.wait_for()
    assert [request.url.rpartition("/")[2] for request in asked] == [first, second or first]
    assert all("the sky is" in request.post_data for request in asked)
    page.close()


def test_what_is_typed_stays_when_a_sample_is_late(of_masks: str, page: Any) -> None:
    held = []
    text = page.get_by_label("Text", exact=True)
    page.route("**/tokenize", lambda route: held.append(route))

    def type_and_release(typed: str) -> None:
        text.fill(typed)
        for route in held:
            route.continue_()
        held.clear()
        page.locator(".answer[aria-busy=false]:not(.changed) svg").first.wait_for()
        assert text.input_value() == typed

    page.goto(f"{of_masks}/#fill?model=run")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    page.locator('nav a[href="#layers"]').click()
    page.wait_for_timeout(100)  # the model is asked how much of the samples it knows
    type_and_release("He was [MASK] .")
    page.get_by_role("button", name="a verb").click()
    page.wait_for_timeout(100)
    type_and_release("She was [MASK] .")


def test_the_browser_s_way_back_shows_the_panel_before(address: str, page: Any) -> None:
    text, shown = page.get_by_label("Text", exact=True), page.locator(".answer[aria-busy=false]:not(.changed) svg")
    current = page.locator("nav [aria-current]")
    page.goto(f"{address}/#tokens?text=the+sea")
    shown.get_by_text("sea").first.wait_for()
    page.locator('nav a[href="#matrix"]').click()
    shown.get_by_text("guitar").first.wait_for()
    page.locator('nav a[href="#tokens"]').click()
    text.fill("the sky")
    text.press("Control+Enter")
    shown.get_by_text("sky").first.wait_for()
    page.go_back()
    shown.get_by_text("guitar").first.wait_for()
    assert current.inner_text() == "Similarity"
    page.go_back()
    shown.get_by_text("sea").first.wait_for()
    assert text.input_value() == "the sea"
    page.go_forward()
    page.go_forward()
    shown.get_by_text("sky").first.wait_for()
    with page.context.expect_page() as opened:
        page.locator('nav a[href="#attention"]').click(modifiers=["Control"])
    assert opened.value.url.partition("?")[0] == f"{address}/#attention"
    assert current.inner_text() == "Tokens"
    opened.value.close()


def test_a_link_names_its_model_though_it_is_the_first(address: str, of_masks: str, page: Any) -> None:
    page.goto(f"{address}/#fill")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    assert "model=masked&" in f"{page.url.partition('?')[2]}&"
    page.goto("about:blank")
    page.goto(f"{of_masks}/#learning?at=4")
    page.get_by_text("Checkpoint: step 4").wait_for()


def test_a_text_is_continued_as_asked(address: str, page: Any) -> None:
    page.goto(f"{address}/#continue?prompt=the+sky&tokens=3")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Temperature").fill("0.5")
    with page.expect_request("**/generate") as asked:
        page.get_by_role("button", name="Show").click()
    sent = {"inputs": ["the sky"], "num_tokens": 3, "temperature": 0.5, "top_k": 40, "seed": 7}
    assert asked.value.post_data_json == sent
    [found] = asked.value.response().json()["predictions"]
    page.locator(".answer[aria-busy=false]:not(.changed) svg").wait_for()
    drawn = "".join(page.locator(".answer svg text").all_text_contents())
    assert drawn == "thesky" + "".join(found["text"].split())
    page.locator('nav a[href="#pairs"]').click()
    page.get_by_text("the others given").wait_for()
    page.get_by_label("Model").select_option("causal")
    page.get_by_role("button", name="Show").click()
    page.locator(".answer svg text").get_by_text("not scored").first.wait_for()
    assert page.get_by_text("those before it given").is_visible()


def test_tokens_that_a_model_does_not_know_are_told(page: Any, tmp_path: Path) -> None:
    korean = save_masked_lm(tmp_path / "korean", "bert", ["그는 서울에서 태어났다 ."] * 40)
    english = save_masked_lm(tmp_path / "english", "bert", ["the sky is blue and the sea is green ."] * 40)
    with serving(open_models([f"korean={korean}", f"english={english}"], "fp32")) as address:
        page.goto(f"{address}/#fill?model=korean&text=ж+ш+щ+[MASK]+.")
        page.get_by_text(
            "3 of 5 tokens, such as “ж”, are unknown to korean, and all the same to it", exact=True
        ).wait_for()
        page.goto("about:blank")
        page.goto(f"{address}/#matrix?model=korean&sentences=그는 서울에서 태어났다 .%0A서울에서😡")
        page.get_by_text("1 of 5 tokens, such as “서울에서😡”, is unknown to korean", exact=True).wait_for()
        page.goto("about:blank")
        page.goto(f"{address}/#fill?model=korean&text=the+sky+is+[MASK]+.")
        page.get_by_text("3 of 5 tokens, such as “the”, are unknown to korean: choose english").wait_for()
        page.get_by_label("Model").select_option("english")
        page.get_by_role("button", name="Show").click()
        page.locator(".answer[aria-busy=false]:not(.changed) svg").wait_for()
        page.wait_for_timeout(200)
        assert page.get_by_text("unknown to").count() == 0


def test_an_unknown_token_is_shown_as_the_text_that_it_stands_for(page: Any, tmp_path: Path) -> None:
    text, base = "😂 ж sky e\u0301", save_masked_lm(tmp_path / "base", "bert", ["the sky is blue ."] * 40)
    judge = save_task_model(tmp_path / "judge", base, name="classification", labels=["dull", "warm"], max_length=32)
    with serving(open_models([f"judge={judge}"], "fp32")) as address:
        for panel in ("tokens", "attention", "classes"):
            page.goto("about:blank")
            page.goto(f"{address}/#{panel}?{urlencode({'model': 'judge', 'text': text, 'method': 'erasure'})}")
            page.locator(".answer[aria-busy=false] svg text").get_by_text("😂", exact=True).first.wait_for()
            drawn = page.locator(".answer svg text").all_text_contents()
            assert {"😂", "ж", "sky"} <= {*drawn}
            assert "[UNK]" not in drawn
            assert page.locator(".answer svg title").get_by_text("[UNK]").count() >= 2

"""Each panel of the page at `/`, by mouse and by keyboard alone, light and dark, wide and narrow."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from support.serving import OUTSIDE, expect_value

PANELS = {
    "fill": "Text",
    "learning": "Text",
    "layers": "Text",
    "pairs": "First sentence",
    "continue": "Beginning",
    "classes": "Text",
    "entities": "Text",
    "answers": "Question",
    "matrix": "Sentences, one a line",
    "attention": "Text",
    "tokens": "Text",
}
"""Each with the field that is typed into."""


@pytest.fixture(scope="module")
def axe() -> Any:
    from axe_playwright_python.sync_playwright import Axe

    return Axe()


def serious(axe: Any, page: Any) -> list[tuple[str, ...]]:
    """What breaks axe-core's rules for people who see little, hear the page or use no mouse."""
    return [
        (page.url, each["id"], node["html"], node["failureSummary"])
        for each in axe.run(page).response["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), pytest.param("dark", 1100, marks=pytest.mark.slow)])
def test_every_panel_works(address: str, browser: Any, axe: Any, scheme: str, width: int) -> None:
    from playwright.sync_api import expect

    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 800}, reduced_motion="reduce"
    )
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(address)
    page.locator("nav a").first.wait_for()
    shown = page.locator("nav a").evaluate_all("links => links.map((link) => link.hash.slice(1))")
    assert shown == list(PANELS), "a panel of the page needs its row in PANELS of this file"
    for panel, field in PANELS.items():
        page.locator(f'nav a[href="#{panel}"]').click()
        expect(page.locator("nav [aria-current]")).to_be_in_viewport(ratio=0.9)
        page.locator(".answer svg").first.wait_for()
        box = page.get_by_label(field, exact=True).first
        box.press("End")
        box.type(" warm" if panel != "fill" else " [MASK]")
        box.press("Control+Enter")
        page.locator(".answer[aria-busy=false] svg").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{panel} is wider than the window"
        assert page.evaluate(OUTSIDE) == [], f"texts of {panel} stand outside their figure"
        assert "warm" in page.url or "MASK" in page.url
        assert serious(axe, page) == []
    box.fill("page\x0cone is warm")  # a form feed, as in text from a PDF: XML has none
    box.press("Control+Enter")
    page.locator(".answer[aria-busy=false] svg").first.wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as SVG").first.click()
    figure = Path(saved.value.path()).read_text("utf-8")
    assert figure.startswith("<svg")
    assert "var(" not in figure, "its colours are those of a style sheet that is not there"
    card = {"light": "#ffffff", "dark": "#1d1f23"}[scheme]
    assert re.search(f'<rect width="100%" height="100%" fill="{card}"', figure), "it has no ground"
    told = [text.text for text in fromstring(figure).iter("{http://www.w3.org/2000/svg}text")]
    assert any("text: page" in (line or "") for line in told), "of what it is"
    again = context.new_page()
    again.goto(page.url)
    again.locator(".answer svg").first.wait_for()
    assert again.get_by_label("Text", exact=True).first.input_value().endswith(" warm"), "a link restores the state"
    expect(again.locator("nav [aria-current]")).to_be_in_viewport(ratio=0.9)
    assert faults == []
    context.close()


def reach(page: Any, selector: str, key: str = "Tab") -> Any:
    """Goes by Tab, or Shift+Tab, to what the selector names."""
    for _ in range(60):
        page.keyboard.press(key)
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return page.locator(":focus")
    raise AssertionError(f"{key} does not lead to {selector}")


def test_every_panel_works_by_keyboard_alone(address: str, browser: Any) -> None:
    from playwright.sync_api import expect

    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    shown = page.locator(".answer[aria-busy=false] svg").first
    page.goto(address)

    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    def show() -> None:
        """Types into the field at hand and presses the button of the form."""
        press("End")
        page.keyboard.type(" warm")
        with page.expect_response(lambda answer: "/v1/models/" in answer.url):
            reach(page, "button.main")
            press("Enter")
        shown.wait_for()
        assert "warm" in page.url
        assert page.evaluate("document.activeElement.matches('button.main')"), "the button has lost the focus"

    for panel in PANELS:
        reach(page, f'nav a[href="#{panel}"]', "Shift+Tab")
        press("Enter")
        expect(page.locator("#title")).to_be_focused()
        shown.wait_for()
        reach(page, "form :is(input, textarea)")
        show()
        if panel == "classes":
            assert page.get_by_text("What speaks for").count() == 0, "it costs as many passes as there are words"
            reach(page, "label:nth-of-type(3) select", "Shift+Tab")
            with page.expect_response(lambda answer: answer.url.endswith("/words")) as asked:
                page.keyboard.type("by integrated")
                reach(page, "button.main")
                press("Enter")
            assert asked.value.request.post_data_json["method"] == "integrated_gradients"
            assert asked.value.ok
            page.get_by_text("What speaks for").wait_for()
        if panel == "learning":
            reach(page, "input[type=range]")
            for key, step in {"ArrowLeft": 4, "Home": 2, "ArrowRight": 4, "End": 6}.items():
                press(key)
                page.get_by_text(f"Checkpoint: step {step}", exact=True).wait_for()
            assert page.url.endswith("at=6"), "the step"
        if panel == "attention":
            before = page.locator(".answer line").evaluate_all("lines => lines.map((line) => line.outerHTML)")
            for label, chosen in {"Layer": "2", "Head": "mean of all"}.items():
                reach(page, ".answer select")
                page.keyboard.type(chosen)
                expect(page.get_by_label(label).locator("option:checked")).to_have_text(chosen)
            reach(page, ".answer input[type=range]")
            press("ArrowLeft", "ArrowLeft")
            page.get_by_text("At least 0 %").wait_for()
            assert all(part in page.url for part in ("layer=1", "head=-1", "least=0"))
            assert page.locator(".answer line").evaluate_all("lines => lines.map((line) => line.outerHTML)") != before
        if panel == "tokens":
            reach(page, "label:nth-of-type(3) select", "Shift+Tab")
            page.keyboard.type("causal")
            reach(page, "button.main")
            press("Enter")
            expect(page.locator(".answer svg")).to_have_count(2)
    reach(page, ".foot button")
    press("Enter")
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    context.close()


def test_a_figure_of_other_fields_is_dim_until_asked_again(address: str, page: Any) -> None:
    page.goto(f"{address}/#classes")
    shown, dim = page.locator(".answer[aria-busy=false]:not(.changed) svg"), page.locator(".answer.changed svg")
    shown.wait_for()
    page.get_by_label("Words that carried it").select_option("erasure")
    dim.wait_for()
    assert page.get_by_role("status").get_by_text("Changed: press Show").is_visible()
    page.get_by_role("button", name="Show").click()
    page.get_by_text("What speaks for").wait_for()
    assert dim.count() == 0
    assert page.get_by_text("Changed: press Show").count() == 0
    assert page.get_by_text("falls with the token hidden").is_visible()
    page.get_by_label("Text", exact=True).press("a")
    dim.first.wait_for()
    page.get_by_role("button", name="blame").click()
    shown.first.wait_for()


def test_a_character_of_two_tokens_is_drawn_once(address: str, page: Any) -> None:
    chances = [0.1] * 4
    reply = {"starts": [0, 0, 1, 3], "ends": [1, 1, 2, 4], "begins": chances, "stops": chances, "model": "qa"}
    page.route("**/spans", lambda route: route.fulfill(json=reply))
    page.goto(f"{address}/#answers?question=Where%3F&context=집은 서")
    page.locator(".answer[aria-busy=false] svg").first.wait_for()
    assert page.locator(".answer svg").first.locator("text").all_text_contents() == ["집", "", "은", "서"]
    boxes = [each.bounding_box() for each in page.locator(".answer svg").first.locator("rect[fill^=var][rx]").all()]
    assert [round(after["x"] - before["x"] - before["width"]) for before, after in pairwise(boxes)] == [0, 0, 4]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 390)])
def test_axe_finds_nothing_serious_beside_the_panels(
    address: str, of_masks: str, browser: Any, axe: Any, scheme: str, width: int
) -> None:
    """In the page of endpoints, and in a panel without a model."""
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800}, reduced_motion="reduce")
    for place, awaited in {f"{address}/docs": "form[data-path]", f"{of_masks}/#answers": ".about"}.items():
        page.goto(place)
        page.locator(awaited).first.wait_for()
        assert serious(axe, page) == []
    page.close()


def test_a_model_that_is_chosen_brings_its_example(of_masks: str, page: Any) -> None:
    """What was written is kept."""
    page.goto(f"{of_masks}/docs")
    form = page.locator("form[data-path$=fill-mask]")
    name, body = form.locator("select"), form.locator("textarea")
    for model, mask in (("run", "[MASK]"), ("roberta", "<mask>")):
        name.select_option(model)
        expect_value(body, f'{{"inputs": ["The sky is {mask} ."], "top_k": 3}}')
    body.fill("mine")
    name.select_option("run")
    expect_value(body, "mine")

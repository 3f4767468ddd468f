"""The panel that labels a text or a pair, or gives its number."""

from __future__ import annotations

from typing import Any

import pytest

from support.serving import expect_value, serving
from unmask.inference.predictor import predict
from unmask.serving.engine.models import ServedModel


def test_a_pair_is_given_to_a_model_of_pairs(of_labels: str, page: Any) -> None:
    page.goto(f"{of_labels}/#classes")
    shown, model = page.locator(".answer[aria-busy=false] svg").first, page.locator("select").first
    second = page.get_by_label("Second text")
    shown.wait_for()
    expect_value(model, "single")
    assert second.count() == 0
    model.select_option("pair")
    second.fill("A man is asleep .")
    page.get_by_role("button", name="Show").click()
    shown.wait_for()
    for sample, name in {"praise": "single", "a pair": "pair", "blame": "single"}.items():
        page.get_by_role("button", name=sample).click()
        expect_value(model, name)
        shown.wait_for()
        assert page.get_by_role("alert").count() == 0
        assert second.count() == (name == "pair")
    page.goto("about:blank")
    page.goto(f"{of_labels}/#classes?second=A+man+is+asleep+.")
    shown.wait_for()
    expect_value(model, "pair")


def test_a_model_of_regression_gives_its_number(served_models: dict[str, ServedModel], themed_page: Any) -> None:
    page = themed_page
    with serving({"regression": served_models["regression"]}) as address:
        page.goto(f"{address}/#classes")
        value = page.locator(".answer[aria-busy=false] .big")
        value.wait_for()
        pair = {"text_a": "A man plays the guitar on a stage .", "text_b": "A man is asleep ."}
        expect_value(page.get_by_label("Text", exact=True), pair["text_a"])
        expect_value(page.get_by_label("Second text"), pair["text_b"])
        [told] = list(predict(served_models["regression"].directory, [pair]))
        assert float(value.inner_text()) == pytest.approx(told["value"], rel=1e-4)
        assert page.get_by_label("Words that carried it").count() == 0


def test_labels_that_reach_their_threshold_are_marked(of_labels: str, page: Any) -> None:
    def several(route: Any) -> None:
        answer = route.fetch().json()
        answer["predictions"] = [{"labels": labels, "probabilities": {"warm": 0.4, "dull": 0.3}}]
        route.fulfill(json=answer)

    labels = ["warm"]
    page.route("**/classify", several)
    page.goto(f"{of_labels}/#classes")
    page.locator(".answer svg text").get_by_text("✓ warm", exact=True).wait_for()
    assert page.locator(".answer svg text").get_by_text("dull", exact=True).count() == 1
    labels.clear()
    page.get_by_role("button", name="Show").click()
    page.get_by_text("none reaches its label’s threshold").wait_for()

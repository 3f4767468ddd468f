"""What the page at `/` writes: long names stay inside the window, and numbers and names are as a person writes them."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from support.serving import OUTSIDE, serving
from unmask.serving.engine.models import open_models

LONG = "aVeryLongNameOfARunThatNobodyDaresToRename" * 3


def draw(page: Any, address: str, figure: str) -> None:
    """Draws a figure of figures.js alone on the page."""
    page.goto(address)
    page.locator(".answer svg").wait_for()
    page.evaluate(f"""async () => {{
      const {{ bars, flow, grid, lines, links }} = await import("/page/figures.js");
      const {{ render }} = await import("/page/vendor/preact.js");
      const place = document.createElement("div");
      place.className = "answer";
      document.body.replaceChildren(place);
      render({figure}, place);
    }}""")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_name_of_a_model_stays_inside_the_window(
    model_directories: dict[str, Path], browser: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    with serving(open_models([f"{LONG}={model_directories['masked']}"], "fp32")) as address:
        for place, awaited in (("#fill", ".answer svg"), ("#tokens", ".answer svg"), ("docs", "form[data-path]")):
            page.goto("about:blank")
            page.goto(f"{address}/{place}")
            page.locator(awaited).first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, place
    page.close()


def test_panels_have_their_titles_and_the_endpoints_a_way_back(address: str, page: Any) -> None:
    page.goto(f"{address}/docs")
    page.get_by_role("link", name="for people").click()
    page.locator('nav a[href="#tokens"]').click()
    page.locator(".answer[aria-busy=false] svg").wait_for()
    assert page.title() == "Tokens – unmask"


def test_lines_are_told_apart_by_dashes_and_their_names_by_quotes(address: str, page: Any) -> None:
    draw(page, address, 'lines([1, 2], ["sea", ","].map((name) => ({ name, values: [1, 0] })), 1, 600, "lines")')
    dashes = page.locator("polyline").evaluate_all("all => all.map((each) => each.getAttribute('stroke-dasharray'))")
    assert len({*dashes}) == 2
    written = page.locator(".answer text").all_text_contents()
    assert {"sea", "“,”", "0 %"} < {*written}
    named = page.get_by_text("“,”").bounding_box()
    axis = page.get_by_text("0 %", exact=True).bounding_box()
    assert named["y"] < axis["y"] + 4, "not below the axis"


def test_a_long_token_is_cut_to_its_side(address: str, page: Any) -> None:
    draw(page, address, f'links([{{ text: "{LONG}" }}, {{ text: "sea" }}], [[1, 0], [0, 1]], 0.1, 320, "links")')
    assert page.evaluate(OUTSIDE) == []
    assert page.locator("g > title").first.text_content() == LONG


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ('bars([{label: "sea", values: [0.4, "not asked"]}], 600, "it", ["en", "ko"])', "sea: en 40 %, ko not asked"),
        ('flow([{text: "the"}, {text: "sea", note: "LOC"}], 600, "it")', "the sea (LOC)"),
        ('lines([1, 2], [{name: "sea", values: [0.1, 0.4]}], 1, 600, "it")', "sea: 10 % at step 1, 40 % at step 2"),
        (
            'links([{text: "the"}, {text: "sea"}], [[0.9, 0.1], [0.2, 0.8]], 0.5, 600, "it")',
            "the → the: 90 %; sea → sea: 80 %",
        ),
    ],
)
def test_who_does_not_see_a_figure_is_given_its_content(address: str, page: Any, figure: str, said: str) -> None:
    draw(page, address, figure)
    assert page.get_by_role("img").get_attribute("aria-label") == f"it: {said}"


def test_who_does_not_see_similarities_is_given_a_table(address: str, page: Any) -> None:
    draw(page, address, 'grid(["a b", "c"], [[1, 0.7], [0.7, 1]], 600, "grid")')
    rows = page.get_by_role("row").all()
    assert [row.get_by_role("rowheader").inner_text() for row in rows[1:]] == ["a b", "c"]
    assert rows[1].get_by_role("cell").all_inner_texts() == ["1.000", "0.700"]


@pytest.mark.parametrize("character", [unicodedata.normalize("NFD", "한"), "👨\u200d👩\u200d👧"])
def test_a_cut_is_between_characters(address: str, page: Any, character: str) -> None:
    label = json.dumps(character * 40)
    for figure, drawn in (
        (f'bars([{{ label: {label}, values: [0.5] }}], 300, "bars")', ".answer text >> nth=0"),
        (f'links([{{ text: {label} }}], [[1]], 0.1, 320, "links")', ".answer text >> nth=0"),
        (f'flow([{{ text: {label} }}], 300, "flow")', ".answer text"),
    ):
        draw(page, address, figure)
        parts = [part for text in page.locator(drawn).all_text_contents() for part in text.split("…")]
        assert len(parts) > 1
        assert not any(part.replace(character, "") for part in parts), parts


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_of_the_similarities_can_be_read(address: str, browser: Any, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    draw(page, address, 'grid(["a", "b"], [[1, 0.7], [0.7, 1]], 600, "grid")')
    grounds = page.locator(".answer rect").evaluate_all(
        "all => all.map((each) => Number(each.getAttribute('fill-opacity')))"
    )
    assert max(grounds) == 0.5, "more of the colour has too little contrast with ink"
    page.close()


def test_the_end_of_an_entity_is_said_to_be_outside_it(address: str, page: Any) -> None:
    found = {"entities": [{"start": 7, "end": 12, "label": "LOC"}], "tags": []}
    reply = {"predictions": [found], "tokens_left_out": [0], "model": "tagging"}
    page.route("**/tag", lambda route: route.fulfill(json=reply))
    page.goto(f"{address}/#entities?text=Off to Paris !")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    assert page.locator("th").all_text_contents() == ["entity", "kind", "from character", "before"]
    assert page.locator("td").all_text_contents() == ["Paris", "LOC", "7", "12"]


def test_one_token_is_not_plural_and_nothing_is_minus_zero(address: str, page: Any) -> None:
    page.route(
        "**/tokenize",
        lambda route: route.fulfill(
            json={
                "predictions": [{"tokens": ["a"], "ids": [7], "offsets": [[0, 1]]}],
                "tokens_left_out": [0],
                "model": "m",
            }
        ),
    )
    page.goto(f"{address}/#tokens?text=a&model=masked")
    page.get_by_text("masked: 1 token", exact=True).wait_for()
    page.route("**/token-scores", lambda route: route.fulfill(json={"tokens": ["a"], "scores": [-0.01]}))
    page.goto("about:blank")
    page.goto(f"{address}/#pairs")
    page.get_by_text("First sentence: 0.0", exact=True).wait_for()
    assert "-0.0" not in page.inner_text("main")

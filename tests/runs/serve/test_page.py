"""The page at `/`: what it loads is there and nothing else is, and each panel works by mouse and by keyboard."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.serving import OUTSIDE, expect_value, serving
from support.untrained import save_masked_lm
from unmask.serving.engine.models import open_models

PAGE = Path(str(files("unmask.serving"))) / "page"


def test_it_loads_only_what_the_server_has(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    waiting, seen = re.findall(r'(?:src|href)="(/page/[^"]+)"', page.text), set()
    while waiting:
        address = waiting.pop()
        if address in seen:
            continue
        seen.add(address)
        answer = client.get(address)
        assert answer.status_code == 200, address
        if address.endswith(".js"):
            assert answer.headers["content-type"].startswith("text/javascript")
            for imported in re.findall(r'from ?"([^"]+)"', answer.text):
                assert imported.startswith("."), f"{address} imports {imported}"
                waiting.append(str(Path(address).parent / imported).replace("panels/../", ""))
    there = {f"/page/{path.relative_to(PAGE).as_posix()}" for path in PAGE.rglob("*") if path.is_file()}
    unused = {address for address in there - seen if not address.endswith((".txt", "endpoints.js"))}
    assert not unused, unused


def test_nothing_of_ours_names_another_place() -> None:
    for path in [*PAGE.glob("*.*"), *PAGE.glob("panels/*")]:
        places = re.findall(r"https?://[\w./-]+", path.read_text("utf-8"))
        assert set(places) <= {"http://www.w3.org/2000/svg"}, path


def test_every_panel_asks_for_a_use_that_there_is(client: TestClient) -> None:
    known = {address.rpartition("/")[2] for address in client.get("/openapi.json").json()["paths"]}
    for path in (PAGE / "state.js", *PAGE.glob("panels/*.js")):
        named = re.findall(r'(?:\buse[=:] ?|JUDGING = \[)("[\w-]+"(?:, "[\w-]+")*)', path.read_text("utf-8"))
        assert named or path.stem in ("classes", "state"), path.name
        for use in re.findall(r'"([\w-]+)"', " ".join(named)):
            assert use in known, (path.name, use)


def test_names_of_lines_that_end_at_the_bottom_stand_inside_their_figure(address: str, page: Any) -> None:
    page.goto(address)
    page.locator(".answer svg").wait_for()
    page.evaluate("""async () => {
      const { lines } = await import("/page/figures.js");
      const { render } = await import("/page/vendor/preact.js");
      const series = [..."abcde"].map((name) => ({ name, values: [1, 0] }));
      const place = document.createElement("div");
      place.className = "answer";
      document.body.replaceChildren(place);
      render(lines([1, 2], series, 1, 600, "lines"), place);
    }""")
    names = [name.bounding_box()["y"] for name in page.locator(".answer g > text").all()]
    assert len(names) == 5
    assert page.evaluate(OUTSIDE) == []
    assert all(following - name > 10 for name, following in pairwise(names))


def test_a_refusal_is_told_where_it_was_asked(address: str, page: Any) -> None:
    page.goto(f"{address}/#layers?text=no+blank")
    page.get_by_role("alert").wait_for()
    assert "no [MASK] in 'no blank'" in page.get_by_role("alert").inner_text()


def test_what_a_proxy_answers_in_html_is_shown_by_its_status(address: str, page: Any) -> None:
    page.route(
        "**/layers", lambda route: route.fulfill(status=413, content_type="text/html", body="<h1>too large</h1>")
    )
    page.goto(f"{address}/#layers")
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text() == "no answer of the server: 413 Payload Too Large"


def test_a_model_of_another_language_begins_with_a_text_that_it_reads(page: Any, tmp_path: Path) -> None:
    korean = save_masked_lm(
        tmp_path / "korean", "bert", ["그는 대학교를 졸업한 뒤 미국으로 건너갔다 .", "그는 서울에서 태어났다 ."] * 20
    )
    with serving(open_models([f"korean={korean}"], "fp32")) as address:
        for panel, text in (
            ("", "그는 대학교를 [MASK] 뒤 미국으로 건너갔다 ."),
            ("#fill?text=the+[MASK]", "the [MASK]"),
        ):
            page.goto("about:blank")
            page.goto(f"{address}/{panel}")
            page.locator(".answer[aria-busy=false] svg").wait_for()
            assert page.get_by_label("Text", exact=True).input_value() == text
        page.get_by_role("button", name="a door").click()
        expect_value(page.get_by_label("Text", exact=True), "She opened the [MASK] and went out .")
        link = page.url
        page.goto("about:blank")
        page.goto(link)
        page.locator(".answer[aria-busy=false] svg").wait_for()
        assert page.get_by_label("Text", exact=True).input_value() == "She opened the [MASK] and went out ."


def test_a_link_to_a_model_that_is_not_here_says_so(address: str, page: Any) -> None:
    page.goto(f"{address}/#fill?model=gone&text=the+[MASK]")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    assert page.get_by_text("No model gone is here for this.").is_visible()
    page.get_by_label("Model").select_option("masked")
    assert not page.get_by_text("No model gone is here for this.").is_visible()


def test_what_belongs_to_a_name_stays_at_it(address: str, page: Any) -> None:
    found = {"entities": [{"start": 0, "end": 2, "label": "LC"}, {"start": 5, "end": 6, "label": "LC"}], "tags": []}
    reply = {"predictions": [found], "tokens_left_out": [0], "model": "tagging"}
    page.route("**/tag", lambda route: route.fulfill(json=reply))
    page.goto(f"{address}/#entities?text=%EC%84%9C%EC%9A%B8%EC%97%90%EC%84%9C+%EB%82%98")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    boxes = [each.bounding_box() for each in page.locator(".answer svg rect").all()]
    assert [round(after["x"] - before["x"] - before["width"]) for before, after in pairwise(boxes)] == [0, 4]


def test_a_text_from_right_to_left_is_drawn_so(address: str, page: Any) -> None:
    text = "ذهب إلى London Bridge مع محمد."
    found = {"entities": [{"start": 25, "end": 27, "label": "PS"}], "tags": []}
    reply = {"predictions": [found], "tokens_left_out": [0], "model": "tagging"}
    page.route("**/tag", lambda route: route.fulfill(json=reply))
    page.goto(f"{address}/#entities?text={text}")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    shown = page.locator(".answer svg text:not([font-size='11'])").all()
    drawn = [(each.bounding_box()["x"], each.text_content()) for each in shown]
    assert [word for _, word in sorted(drawn, reverse=True)] == [
        *("ذهب", "إلى", "Bridge", "London", "مع"),
        *("مح\u200d", "\u200dمد."),  # a joiner at the edges of pieces of one word, so that its letters join
    ]
    figure = page.locator(".answer svg").bounding_box()
    assert 0 <= figure["x"] + figure["width"] - max(x for x, _ in drawn) < 60, "it begins at the right"
    assert page.evaluate(OUTSIDE) == []
    marked, word = page.locator(".answer svg rect[fill^=var]").bounding_box(), shown[-2].bounding_box()
    assert 0 <= word["x"] - marked["x"] <= marked["width"] - word["width"]
    assert page.evaluate("getComputedStyle(document.querySelector('textarea')).direction") == "rtl"


def test_the_likeliest_words_are_drawn_from_the_left(address: str, page: Any) -> None:
    words = ["ذهب", "محمد", "London"]
    reply = {"layers": [{"layer": 0, "tokens": words, "scores": [0.5, 0.3, 0.1]}], "model": "masked"}
    page.route("**/layers", lambda route: route.fulfill(json=reply))
    page.goto(f"{address}/#layers")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    places = [page.locator(".answer svg").get_by_text(word, exact=True).bounding_box()["x"] for word in ["0", *words]]
    assert places == sorted(places)


@pytest.mark.parametrize("entities", [[], [{"start": 5, "end": 105, "label": "OG"}]])
def test_a_word_that_is_longer_than_a_line_is_broken(address: str, browser: Any, entities: list[Any]) -> None:
    page, text = browser.new_page(viewport={"width": 390, "height": 800}), "서울 " + "가나다라마" * 280
    reply = {"predictions": [{"entities": entities, "tags": []}], "tokens_left_out": [0], "model": "tagging"}
    page.route("**/tag", lambda route: route.fulfill(json=reply))
    page.goto(f"{address}/#entities?text={text}")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    assert page.evaluate(OUTSIDE) == []
    drawn = page.locator(".answer svg text:not([font-size='11'])").all_text_contents()
    assert "".join(drawn) == text.replace(" ", "")
    assert page.locator(".answer svg text[font-size='11']").all_text_contents() == [each["label"] for each in entities]
    page.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1120), ("dark", 390)])
def test_two_checkpoints_and_a_model_with_another_mask_are_compared(
    of_masks: str, browser: Any, scheme: str, width: int
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(of_masks)
    text, shown = page.get_by_label("Text", exact=True), page.locator(".answer[aria-busy=false] svg")
    model, other = page.get_by_label("Model"), page.get_by_label("Beside it")
    shown.wait_for()
    assert text.input_value() == "She opened the <mask> and went out ."
    model.focus()
    for letter in "run":  # as from the keyboard: the choice that begins so
        page.keyboard.press(letter)
    expect_value(text, "She opened the [MASK] and went out .")
    other.select_option(label="run, step 2")
    page.get_by_role("button", name="Show").click()
    page.locator(".answer[aria-busy=false] svg").get_by_text("run, step 2").wait_for()
    model.select_option(label="run, step 4")
    text.press("Enter")
    page.locator(".answer[aria-busy=false] svg").get_by_text("run, step 4").wait_for()
    again = context.new_page()
    again.goto(page.url)
    again.locator(".answer svg").get_by_text("run, step 2").wait_for()
    again.close()
    other.select_option(label="roberta")  # one text, though the two write their blank otherwise
    text.press("Enter")
    page.locator(".answer[aria-busy=false] svg").get_by_text("roberta").wait_for()
    assert page.get_by_role("alert").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_samples_have_the_mask_of_the_model(of_masks: str, page: Any) -> None:
    page.goto(f"{of_masks}/#fill?model=roberta")
    page.get_by_role("button", name="a verb").click()
    text, edited = page.get_by_label("Text", exact=True), page.get_by_label("The same, edited (optional)")
    expect_value(edited, "The child <mask> in the garden .")
    assert text.input_value() == "The children <mask> in the garden ."
    page.locator('nav a[href="#layers"]').click()
    page.locator(".answer svg").wait_for()
    expect_value(page.get_by_label("Text", exact=True), "He was born in the <mask> of London .")
    page.locator('nav a[href="#learning"]').click()
    expect_value(page.get_by_label("Text", exact=True), "The king and the [MASK] went to London .")


def test_what_is_not_looked_at_is_told(of_masks: str, page: Any) -> None:
    page.goto(f"{of_masks}/#fill?model=run&edited=He+opened+a+[MASK]+.")
    further, beside = page.get_by_text("Only the first blank"), page.get_by_text("The edited text is not looked at")
    page.locator(".answer svg").wait_for()
    assert further.count() + beside.count() == 0
    page.get_by_label("Text", exact=True).fill("A [MASK] and a [MASK] .")
    further.wait_for()
    page.get_by_label("Beside it").select_option(label="roberta")
    beside.wait_for()
    page.goto("about:blank")
    page.goto(f"{of_masks}/#layers?model=roberta&text=A+[MASK]+and+a+[MASK]+.")
    further.wait_for()


def test_a_word_outside_the_likeliest_is_drawn_as_likely_as_it_is(of_masks: str, page: Any) -> None:
    def few(route: Any) -> None:
        """Unless words are asked for, two words of each checkpoint, which the others do not have among theirs."""
        found = route.fetch().json()["checkpoints"]
        if "targets" not in route.request.post_data_json:
            for number, each in enumerate(found):
                for part in ("tokens", "scores"):
                    each[part] = each[part][2 * number : 2 * number + 2]
        route.fulfill(json={"checkpoints": found})

    page.route("**/checkpoints", few)
    page.goto(f"{of_masks}/#learning?text=she+wrote+a+[MASK]+.")
    page.locator(".answer polyline").first.wait_for()
    heights = """() => [...document.querySelectorAll(".answer polyline")].flatMap((line) =>
      line.getAttribute("points").split(" ").map((point) => Number(point.split(",")[1])))"""
    assert max(page.evaluate(heights)) < 214, "the height of 0"
    page.goto("about:blank")
    page.goto(f"{of_masks}/#fill?model=run&other=roberta")
    shown = page.locator(".answer[aria-busy=false] svg")
    shown.get_by_text("not one of its tokens").first.wait_for()
    assert shown.get_by_text("0.0 %").count() == 0


def test_a_panel_without_a_model_says_which_to_serve(of_labels: str, page: Any) -> None:
    page.route("**/v1/models", lambda route: (page.get_by_text("Asking the server").wait_for(), route.continue_()))
    page.goto(of_labels)
    page.locator(".answer svg").wait_for()
    assert page.get_by_text("JavaScript").count() == 0
    absent = page.locator("nav a.absent")
    assert absent.count() >= 4
    for panel in absent.all():
        panel.click()
        page.locator(".about").get_by_text(re.compile("^Serve an? ")).wait_for()


def test_what_is_cut_is_told(address: str, page: Any) -> None:
    def cut(route: Any) -> None:
        route.fulfill(json={**route.fetch().json(), "truncated": True, "tokens_left_out": [1234]})

    for panel, use in {"classes": "classify", "entities": "tag", "answers": "answer"}.items():
        page.goto("about:blank")
        page.goto(f"{address}/#{panel}")
        page.locator(".answer svg").first.wait_for()
        assert page.get_by_text("Too long").count() == 0, panel
        page.route(f"**/{use}", cut)
        page.get_by_role("button", name="Show").click()
        page.get_by_text("Too long for this model: 1,234 tokens were not read.", exact=True).wait_for()


def refuse(route: Any) -> None:
    route.fulfill(status=429, json={"error": {"message": "too many requests are waiting"}})


def test_a_sample_that_cannot_be_tried_is_told(of_masks: str, page: Any) -> None:
    page.goto(f"{of_masks}/#fill")
    page.locator(".answer svg").wait_for()
    page.route("**/tokenize", refuse)
    page.get_by_role("button", name="a verb").click()
    page.get_by_role("alert").wait_for()
    assert "too many requests are waiting" in page.get_by_role("alert").inner_text()


def test_of_two_samples_the_last_is_shown(of_masks: str, page: Any) -> None:
    held = []
    page.goto(f"{of_masks}/#fill?model=roberta")
    page.locator(".answer svg").wait_for()
    page.route("**/tokenize", lambda route: held.append(route) if len(held) < 2 else route.continue_())
    page.get_by_role("button", name="a verb").click()
    page.wait_for_timeout(100)  # both models are asked how much of it they know
    text, edited = page.get_by_label("Text", exact=True), page.get_by_label("The same, edited (optional)")
    text.fill("nothing yet")
    page.get_by_role("button", name="a door").click()
    expect_value(text, "She opened the <mask> and went out .")
    for route in held:
        route.continue_()
    page.wait_for_timeout(300)
    expect_value(text, "She opened the <mask> and went out .")
    expect_value(edited, "")


def test_an_answer_without_its_spans_says_why(address: str, page: Any) -> None:
    page.route("**/spans", refuse)
    page.goto(f"{address}/#answers")
    page.locator(".answer[aria-busy=false] svg").wait_for()
    told = page.locator(".answer").inner_text()
    assert "Where it may begin and end is not shown: too many requests are waiting" in told
    assert "The best answers" in told


def test_the_part_of_a_passage_that_is_shown_is_told(address: str, page: Any) -> None:
    def cut(route: Any) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, **{name: found[name][5:9] for name in ("starts", "ends", "begins", "stops")}})

    passage = "Ada wrote a warm paper in Bath and a dull one in London"
    page.goto(f"{address}/#answers?question=Where%3F&context={passage.replace(' ', '+')}")
    shown, told = page.get_by_text("The best answers").first, page.get_by_text("A long passage is read in parts.")
    shown.wait_for()
    assert told.count() == 0
    page.route("**/spans", cut)
    page.get_by_role("button", name="Show").click()
    told.wait_for()
    assert "from “in Bath" in told.inner_text()


def test_a_link_is_shown_where_a_page_has_no_clipboard(address: str, browser: Any) -> None:
    page, shown = browser.new_page(), []
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.on("dialog", lambda dialog: (shown.append(dialog.default_value), dialog.dismiss()))
    page.goto(f"{address}/#tokens")
    page.locator(".answer[aria-busy=false] svg").wait_for()  # which moves the button
    page.get_by_role("button", name="Copy link").click()
    assert shown == [page.url]
    page.close()


def test_a_small_lead_has_digits(address: str, page: Any) -> None:
    scores = []
    page.route("**/token-scores", lambda route: route.fulfill(json={"tokens": ["cats"], "scores": [scores.pop()]}))
    for lead, told in ((0.034, "0.034"), (0.25, "0.25"), (7.25, "7.3"), (123.45, "123.5")):
        scores += [-1 - lead, -1]
        page.goto("about:blank")
        page.goto(f"{address}/#pairs")
        said = page.get_by_text("It prefers the first, by")
        said.wait_for()
        assert said.inner_text() == f"It prefers the first, by {told}"

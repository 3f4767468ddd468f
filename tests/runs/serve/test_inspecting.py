"""What can be seen inside a model over HTTP agrees with what it answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from support.serving import app_of
from support.untrained import save_masked_lm
from unmask.serving.engine.models import ServedModel, open_models
from unmask.serving.settings import Limits

pytestmark = pytest.mark.usefixtures("one_thread")

SKY = "the [MASK] is blue and the sea is green"


def ask(client: TestClient, model: str, what: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(f"/v1/models/{model}/{what}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_models_list_what_can_be_seen_of_them(client: TestClient) -> None:
    uses = {each["id"]: each["uses"] for each in client.get("/v1/models").json()["data"]}
    assert {"attention", "layers", "token-scores"} <= set(uses["masked"])
    assert {"attention", "words"} <= set(uses["classification"])
    assert {"attention", "spans"} <= set(uses["qa"])
    assert "checkpoints" not in uses["masked"], "it is no run's"
    assert "words" not in uses["regression"]


def test_attention_has_a_square_for_each_layer_and_head(client: TestClient) -> None:
    seen = ask(client, "classification", "attention", text="she wrote a warm letter")
    assert seen["tokens"][0] == "[CLS]"
    size = len(seen["tokens"])
    for layer in seen["weights"]:
        for head in layer:
            assert len(head) == size
            assert all(sum(row) == pytest.approx(1000, abs=size) for row in head)


def test_the_last_layer_and_the_model_agree(client: TestClient) -> None:
    [filled] = ask(client, "masked", "fill-mask", inputs=[SKY], top_k=3)["predictions"]
    last = ask(client, "masked", "layers", text=SKY, top_k=3)["layers"][-1]
    assert last["tokens"] == [each["token_str"] for each in filled]
    assert last["scores"] == pytest.approx([each["score"] for each in filled], abs=1e-5)


@pytest.mark.parametrize("model", ["masked", "causal"])
def test_scores_of_tokens_add_up_to_the_text_s(client: TestClient, model: str) -> None:
    text = "the sky is blue"
    [whole] = ask(client, model, "score", inputs=[text])["predictions"]
    seen = ask(client, model, "token-scores", text=text)
    first = seen["scores"][0]
    assert (first is None) == (model == "causal"), "a model that reads bare text has nothing before the first token"
    assert sum(seen["scores"][model == "causal" :]) == pytest.approx(whole["score"], abs=1e-4)
    [whole] = ask(client, model, "tokenize", inputs=[text])["predictions"]
    assert seen["tokens"] == whole["tokens"]
    assert len(seen["tokens"]) == len(seen["scores"])


def test_tokens_of_bytes_are_given_as_text(tmp_path: Path) -> None:
    roberta = save_masked_lm(tmp_path / "roberta", "roberta", ["هل تحب الكتاب؟ نعم"] * 20)
    app = app_of(open_models([f"roberta={roberta}"], "fp32"))
    with TestClient(app, raise_server_exceptions=False) as client:
        expected = ["هل", "␣تحب", "␣", "é", "é"]  # two bytes, a token each
        [cut] = ask(client, "roberta", "tokenize", inputs=["هل تحب é"])["predictions"]
        assert cut["tokens"] == expected
        assert ask(client, "roberta", "token-scores", text="هل تحب é")["tokens"] == expected
        assert ask(client, "roberta", "attention", text="هل تحب é")["tokens"] == ["<s>", *expected, "</s>"]


@pytest.mark.parametrize("method", ["erasure", "integrated_gradients"])
def test_words_carry_the_label(client: TestClient, method: str) -> None:
    text = "Ada Lovelace wrote a warm paper in London"
    [label] = ask(client, "classification", "classify", inputs=[text])["predictions"]
    seen = ask(client, "classification", "words", input=text, method=method)
    assert seen["label"] == label["label"]
    assert len(seen["tokens"]) == len(seen["weights"])
    assert any(seen["weights"])


def test_words_have_their_places_in_their_text(labellers: dict[str, Path]) -> None:
    app = app_of(open_models([f"{name}={path}" for name, path in labellers.items()], "fp32"))
    first, second = "Ada  wrote 최악이다😡", "a warm letter"
    with TestClient(app, raise_server_exceptions=False) as client:
        for model, given in (("single", {"text": first}), ("pair", {"premise": first, "hypothesis": second})):
            seen = ask(client, model, "words", input=given)
            tokens, offsets, texts = seen["tokens"], seen["offsets"], [first, first, second]
            for token, place in zip(tokens, offsets, strict=True):
                if place is None:
                    texts.pop(0)  # a special token ends one
                    assert token in ("[CLS]", "[SEP]")
                else:
                    piece = texts[0][slice(*place)]
                    assert piece == "최악이다😡" if token == "[UNK]" else piece.lower() == token.removeprefix("##")
            assert (tokens.count("[UNK]"), offsets.count(None)) == (1, 2 + (model == "pair"))


def test_an_answer_s_place_is_seen(client: TestClient) -> None:
    seen = ask(client, "qa", "spans", question="Where did Ada write?", context="Ada wrote a warm paper in Bath")
    assert len(seen["starts"]) == len(seen["begins"]) == len(seen["stops"])
    assert 0 < sum(seen["begins"]) <= 1.0001


def test_a_look_counts_as_many_tokens_as_the_model_reads(served_models: dict[str, ServedModel]) -> None:
    app = app_of(served_models, Limits(queue_tokens=200))
    with TestClient(app) as client:
        assert ask(client, "classification", "words", input="a paper")
        assert ask(client, "qa", "spans", question="who?", context="Ada wrote a warm paper")
        assert ask(client, "causal", "token-scores", text="the sky is blue " * 3)
        for model, what, body in (
            ("classification", "words", {"input": "a warm paper " * 5}),
            ("masked", "token-scores", {"text": "the sky is blue " * 4}),
        ):
            assert "tokens to compute" in ask(client, model, what, 413, **body)["error"]["message"]


@pytest.mark.parametrize(
    ("model", "what", "body", "status", "told"),
    [
        ("masked", "layers", {"text": "no mask"}, 422, "no [MASK] in 'no mask'"),
        ("masked", "attention", {"text": "sky " * 50}, 422, "tokens"),
        ("masked", "words", {"input": "a"}, 409, "is not for words"),
        ("classification", "words", {"input": "a", "method": "guess"}, 422, "erasure"),
        ("masked", "checkpoints", {"text": SKY}, 409, "is not for checkpoints"),
        ("masked", "token-scores", {"text": ""}, 422, "too few tokens"),
        ("qa", "spans", {"question": "who"}, 422, "context"),
    ],
)
def test_what_cannot_be_seen_is_refused(
    client: TestClient, model: str, what: str, body: dict[str, Any], status: int, told: str
) -> None:
    import re

    message = ask(client, model, what, status, **body)["error"]["message"]
    assert re.search(told.replace("[", r"\[").replace("]", r"\]"), message), message


def test_masks_are_filled_in_the_server_s_precision(run_of_checkpoints: Path) -> None:
    app = app_of(open_models([f"run={run_of_checkpoints}"], "bf16"))
    model = app.service.engine.served["run"]
    with TestClient(app, raise_server_exceptions=False) as client:
        [filled] = ask(client, "run", "fill-mask", inputs=[SKY], top_k=2)["predictions"]
        last = ask(client, "run", "layers", text=SKY, top_k=2)["layers"][-1]
        assert last["scores"] == pytest.approx([each["score"] for each in filled], rel=0.05)
        assert len(ask(client, "run", "checkpoints", text=SKY)["checkpoints"]) == 3
    for use in (model.answerer("masks"), *model.answerer("checkpoints").values()):
        assert {weight.dtype for weight in use.filler.encoder.parameters()} == {torch.bfloat16}


@pytest.fixture(scope="module")
def learning(run_of_checkpoints: Path) -> Iterator[TestClient]:
    app = app_of(open_models([f"run={run_of_checkpoints}"], "fp32"))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_every_checkpoint_answers_and_the_last_as_the_model(learning: TestClient) -> None:
    seen = ask(learning, "run", "checkpoints", text="the [MASK] is blue .", top_k=2)["checkpoints"]
    assert [each["step"] for each in seen] == [2, 4, 6]
    [filled] = ask(learning, "run", "fill-mask", inputs=["the [MASK] is blue ."], top_k=2)["predictions"]
    assert seen[-1]["tokens"] == [each["token_str"] for each in filled]
    assert seen[-1]["scores"] == pytest.approx([each["score"] for each in filled], abs=1e-5)
    assert seen[0]["scores"] != seen[-1]["scores"]
    refused = ask(learning, "run", "fill-mask", 422, inputs=["[MASK]" + " " * 40_000], top_k=1000)
    assert "answers that repeat their texts" in refused["error"]["message"]


def test_checkpoints_say_how_likely_words_are_that_none_finds_likely(learning: TestClient) -> None:
    text = "the [MASK] is blue ."
    every = ask(learning, "run", "fill-mask", inputs=[text], top_k=1000)["predictions"][0]
    asked = [every[-1]["token_str"], every[0]["token_str"]]
    seen = ask(learning, "run", "checkpoints", text=text, targets=asked, top_k=1)["checkpoints"]
    scores = [dict(zip(each["tokens"], each["scores"], strict=True)) for each in seen]
    assert [set(each) for each in scores] == [set(asked)] * 3
    assert scores[-1] == pytest.approx({each["token_str"]: each["score"] for each in (every[-1], every[0])}, abs=1e-5)
    [filled] = ask(learning, "run", "fill-mask", inputs=[text], targets=asked, step=2)["predictions"]
    assert {each["token_str"]: each["score"] for each in filled} == pytest.approx(scores[0], abs=1e-5)


def test_a_word_to_score_that_is_no_token_is_told(learning: TestClient) -> None:
    text, absent = "the [MASK] is blue .", {"score": None, "token": None, "sequence": None, "token_str": "zyx"}
    assert ask(learning, "run", "fill-mask", inputs=[text], targets=["zyx"])["predictions"] == [[absent]]
    asked = {"inputs": [f"{text} [MASK]"], "targets": ["zyx", "blue", "zyx"]}
    [filled] = ask(learning, "run", "fill-mask", **asked)["predictions"]
    assert [(each["mask"], each["token_str"], each["score"] is None) for each in filled] == [
        (0, "blue", False), (1, "blue", False), (0, "zyx", True), (1, "zyx", True)
    ]  # fmt: skip
    seen = ask(learning, "run", "checkpoints", text=text, targets=["zyx"])["checkpoints"]
    assert [(each["tokens"], each["scores"]) for each in seen] == [(["zyx"], [None])] * 3


def test_one_checkpoint_fills_masks_as_the_model_does(learning: TestClient) -> None:
    [told] = learning.get("/v1/models").json()["data"]
    assert (told["steps"], told["mask_token"]) == ([2, 4, 6], "[MASK]")
    asked = {"inputs": ["the [MASK] is blue ."], "top_k": 2}
    every = ask(learning, "run", "checkpoints", text=asked["inputs"][0], top_k=2)["checkpoints"]
    for each in every:
        [filled] = ask(learning, "run", "fill-mask", step=each["step"], **asked)["predictions"]
        assert each["tokens"] == [one["token_str"] for one in filled]
        assert each["scores"] == pytest.approx([one["score"] for one in filled], abs=1e-5)
    refused = ask(learning, "run", "fill-mask", 422, step=3, **asked)
    assert "no checkpoint of step 3 here: there are 2, 4, 6" in refused["error"]["message"]


def test_all_checkpoints_have_one_tokenizer(run_of_checkpoints: Path) -> None:
    [model] = open_models([f"run={run_of_checkpoints}"], "fp32").values()
    uses = [model.answerer("masks"), *model.answerer("checkpoints").values()]
    assert len({id(use.filler.tokenizer) for use in uses}) == 1


def test_checkpoints_that_are_removed_while_they_are_served(run_of_checkpoints: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_of_checkpoints, tmp_path / "run")
    app = app_of(open_models([f"run={run}"], "fp32"))
    with TestClient(app, raise_server_exceptions=False) as client:
        shutil.rmtree(run / "checkpoints")
        assert client.get("/v1/models").json()["data"][0]["steps"] == [2, 4, 6]
        told = client.post("/v1/models/run/checkpoints", json={"text": "the [MASK] is blue ."})
        assert (told.status_code, "no checkpoint of this model's run can be read" in told.text) == (422, True)


def test_one_checkpoint_is_nothing_to_compare(run_of_checkpoints: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_of_checkpoints, tmp_path / "run")
    for older in sorted((run / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(older)
    [model] = open_models([f"run={run}"], "fp32").values()
    assert len(model.steps) == 1
    assert "checkpoints" not in model.endpoints


def test_a_model_without_checkpoints_says_so(client: TestClient) -> None:
    refused = ask(client, "masked", "fill-mask", 409, inputs=[SKY], step=2)
    assert "is not for checkpoints" in refused["error"]["message"]

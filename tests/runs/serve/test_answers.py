"""What a server answers is what the command line writes, whatever else it is asked at the same time."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from support.serving import app_of
from support.untrained import save_masked_lm
from unmask.inference.features.similarity import embed, similarities
from unmask.inference.left_to_right.generation import generate
from unmask.inference.mask_filling import fill_mask
from unmask.inference.pairs import open_scorer
from unmask.inference.predictor import predict
from unmask.serving.engine.models import ServedModel, open_models
from unmask.serving.metrics import RequestMetrics
from unmask.serving.settings import Limits
from unmask.tasks.kinds import FACTS
from unmask.tasks.minimal_pairs.scorers import score_sentences
from unmask.tokenization import offsets
from unmask.tokenization.tokenizer import TextTokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

Directories = dict[str, Path]


def ask(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("kind", FACTS)
def test_predictions_are_those_of_predict(
    kind: str, client: TestClient, model_directories: Directories, task_models: Any
) -> None:
    rows = [json.loads(line) for line in task_models.examples[kind].splitlines()]
    told = ask(client, f"/v1/models/{kind}/{FACTS[kind].endpoint}", inputs=rows)
    assert told["predictions"] == json.loads(json.dumps(list(predict(model_directories[kind], rows))))
    assert (told["model"], told["truncated"], told["tokens_left_out"]) == (kind, False, [0] * len(rows))


def test_a_text_by_itself_is_an_input(client: TestClient) -> None:
    by_name = ask(client, "/v1/models/classification/classify", inputs=[{"text": "a warm paper"}])
    assert ask(client, "/v1/models/classification/classify", inputs=["a warm paper"]) == by_name


def test_masks_are_filled_as_by_fill_mask(client: TestClient, model_directories: Directories) -> None:
    texts = ["the [MASK] is blue", "she [MASK] a [MASK] letter"]
    told = ask(client, "/v1/models/masked/fill-mask", inputs=texts, top_k=3)
    expected = [fill_mask(model_directories["masked"], text, 3) for text in texts]
    for its, theirs in zip(told["predictions"], expected, strict=True):
        assert [{**one, "score": pytest.approx(one["score"], abs=1e-6)} for one in theirs] == its


def test_many_texts_are_filled_in_several_batches(client: TestClient) -> None:
    texts = [f"the [MASK] is {'blue ' * (number % 30)}" for number in range(300)]
    told = ask(client, "/v1/models/masked/fill-mask", inputs=texts, top_k=1)["predictions"]
    for number in (0, 150, 299):
        [alone] = ask(client, "/v1/models/masked/fill-mask", inputs=[texts[number]], top_k=1)["predictions"]
        assert told[number] == rounded(alone)


@pytest.mark.parametrize("pool", ["mean", "max", "cls", "mean-with-special"])
def test_features_are_those_of_embed(pool: str, client: TestClient, model_directories: Directories) -> None:
    """Also of a text without a token, and of one that is read in windows."""
    texts = ["a dull paper", "", "who wrote a paper in oslo " * 20]
    told = ask(client, "/v1/models/encoder/features", inputs=texts, pool=pool, layers="second-to-last")
    expected = embed(model_directories["encoder"], texts, pool=pool, layers="second-to-last", normalise=False)
    np.testing.assert_allclose(told["predictions"], expected, atol=1e-6)
    is_cut = pool in ("cls", "mean-with-special")
    assert told["truncated"] == is_cut
    assert [bool(count) for count in told["tokens_left_out"]] == [False, False, is_cut]


def test_similarities_are_those_of_the_command(client: TestClient, model_directories: Directories) -> None:
    pairs = [("a dull paper", "a warm paper"), ("a paper", "")]
    body = [{"text_a": first, "text_b": second} for first, second in pairs]
    told = ask(client, "/v1/models/encoder/similarity", inputs=body)
    assert told["predictions"] == list(similarities(model_directories["encoder"], pairs))


def test_texts_are_continued_as_by_generate(client: TestClient, model_directories: Directories) -> None:
    body: dict[str, Any] = {"num_tokens": 8, "temperature": 0.7, "seed": 3}
    told = ask(client, "/v1/models/causal/generate", inputs=["the sky", "she"], **body)
    for one in told["predictions"]:
        assert one["text"] == generate(model_directories["causal"], one["prompt"], 8, temperature=0.7, seed=3)


@pytest.mark.parametrize("model", ["masked", "causal"])
def test_pairs_are_scored_as_by_evaluate(model: str, client: TestClient, model_directories: Directories) -> None:
    good, bad = "the sky is blue", "the sky are blue"
    scorer = open_scorer(model_directories[model])
    expected = score_sentences(scorer, scorer.encode([good, bad]))
    [told] = ask(client, f"/v1/models/{model}/pairs", inputs=[{"good": good, "bad": bad}])["predictions"]
    assert [told["score_good"], told["score_bad"]] == pytest.approx(expected.tolist(), abs=1e-5)
    assert told["prefers"] == ("good" if expected[0] > expected[1] else "bad")
    [told] = ask(client, f"/v1/models/{model}/pairs", inputs=[{"good": good, "bad": good}])["predictions"]
    assert told["prefers"] is None, "evaluate counts such a pair as wrong"
    blimp = [{"sentence_good": good, "sentence_bad": good}]
    assert ask(client, f"/v1/models/{model}/pairs", inputs=blimp)["predictions"] == [told]
    scores = ask(client, f"/v1/models/{model}/score", inputs=[good, bad])["predictions"]
    assert [one["score"] for one in scores] == pytest.approx(expected.tolist(), abs=1e-5)


def test_nothing_is_cut_silently(client: TestClient) -> None:
    long = "Ada Lovelace wrote a dull paper in London " * 20
    [count] = ask(client, "/v1/models/classification/tokenize", inputs=[long])["predictions"]
    told = ask(client, "/v1/models/classification/classify", inputs=["a paper", long])
    assert told["truncated"]
    assert told["tokens_left_out"] == [0, len(count["ids"]) + 2 - 32], "task.max_length is 32"
    choice = {"context": long, "choices": ["Oslo", "Bath"]}
    assert ask(client, "/v1/models/choice/choose", inputs=[choice])["tokens_left_out"][0] > 100
    assert not ask(client, "/v1/models/tagging/tag", inputs=[long])["truncated"], "it is read in windows"
    question = {"question": "Who wrote?", "context": long}
    assert not ask(client, "/v1/models/qa/answer", inputs=[question])["truncated"]


@pytest.mark.parametrize(
    ("path", "inputs", "unknown"),
    [
        ("classification/classify", ["a paper", "최고다👍 최악이다😡"], [0, 2]),
        ("tagging/tag", [{"tokens": ["Ada", "최고다👍"]}], [1]),
        ("masked/fill-mask", ["the [MASK]", "최고다👍 [MASK]"], [0, 1]),
        ("masked/score", ["the sky", "the 최고다👍"], [0, 1]),
        ("masked/pairs", [{"good": "the ж", "bad": "ж ж"}, {"good": "the sky", "bad": "the sky ж"}], [3, 1]),
        ("encoder/features", ["a paper", "", "최고다👍"], [0, 0, 1]),
        ("encoder/similarity", [{"text_a": "최고다👍", "text_b": "최악이다😡"}], [2]),
        ("encoder/tokenize", ["a 최고다👍"], [1]),
    ],
)
def test_unknown_tokens_are_counted(path: str, inputs: list[Any], unknown: list[int], client: TestClient) -> None:
    told = ask(client, f"/v1/models/{path}", inputs=inputs)
    assert (told["tokens_unknown"], len(told["tokens_left_out"])) == (unknown, len(inputs))


def test_a_vocabulary_of_bytes_has_no_unknown_tokens(tmp_path: Path) -> None:
    roberta = save_masked_lm(tmp_path / "roberta", "roberta", ["the sky is blue"] * 20)
    with TestClient(app_of(open_models([f"roberta={roberta}"], "fp32"))) as client:
        for use, text in (("features", "최고다👍"), ("fill-mask", "최고다👍 <mask>"), ("tokenize", "최고다👍")):
            assert ask(client, f"/v1/models/roberta/{use}", inputs=[text])["tokens_unknown"] is None


def test_tokens_have_their_places(client: TestClient) -> None:
    [told] = ask(client, "/v1/models/encoder/tokenize", inputs=["a  dull paper"])["predictions"]
    assert next("a  dull paper"[start:end] for start, end in told["offsets"]) == "a"
    assert len(told["tokens"]) == len(told["ids"]) == len(told["offsets"])


@pytest.mark.parametrize(
    ("model", "use"), [("encoder", "features"), ("classification", "classify"), ("masked", "score")]
)
def test_a_vocabulary_that_does_not_fit_is_warned_of_once(
    model: str, use: str, model_directories: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of(open_models([f"m={model_directories[model]}"], "fp32"))
    with TestClient(app) as client:
        for _ in range(3):
            ask(client, f"/v1/models/m/{use}", inputs=["ж щ ю"])
    assert caplog.text.count("(3 of 3) are [UNK], such as 'ж': the vocabulary does not cover these texts") == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("masked/score", {"inputs": ["the sky is blue"]}),
        ("causal/pairs", {"inputs": [{"good": "the sky is blue", "bad": "the sky are blue"}]}),
        ("causal/generate", {"inputs": ["the sky"], "num_tokens": 2}),
        ("masked/attention", {"text": "the sky"}),
        ("masked/layers", {"text": "the [MASK] is blue"}),
        ("masked/token-scores", {"text": "the sky"}),
        ("classification/words", {"input": "a warm paper"}),
        ("qa/spans", {"question": "who wrote?", "context": "Ada wrote a warm paper"}),
    ],
)
def test_the_thread_that_computes_tokenizes_nothing(
    path: str, body: dict[str, Any], client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noting(function: Any) -> Any:
        def noted(*arguments: Any, **options: Any) -> Any:
            threads.append(threading.current_thread().name)
            return function(*arguments, **options)

        return noted

    monkeypatch.setattr(TextTokenizer, "encode_batch", noting(TextTokenizer.encode_batch))
    monkeypatch.setattr(offsets, "align_with", noting(offsets.align_with))
    ask(client, f"/v1/models/{path}", **body)
    assert threads
    assert "unmask-models" not in threads


# ---- Many at once


def requests_to_mix(task_models: Any) -> list[tuple[str, dict[str, Any]]]:
    chance, found = random.Random(0), []
    for kind, facts in FACTS.items():
        rows = [json.loads(line) for line in task_models.examples[kind].splitlines()]
        for _ in range(8):
            inputs = chance.sample(rows, chance.randint(1, 4))
            found.append((f"/v1/models/{kind}/{facts.endpoint}", {"inputs": inputs}))
    for length in range(1, 9):
        found.append(("/v1/models/encoder/features", {"inputs": ["a dull paper in london " * length, ""]}))
        found.append(("/v1/models/masked/fill-mask", {"inputs": ["the [MASK] is blue " * length][:1]}))
        found.append(("/v1/models/causal/score", {"inputs": ["the sky is blue " * min(length, 3)]}))
    chance.shuffle(found)
    return [(path, body) for path, body in found if "fill-mask" not in path or body["inputs"][0].count("[MASK]") < 5]


def rounded(value: Any) -> Any:
    """A JSON value whose floats are equal if they are within the tolerance: sums over more rows round differently."""
    if isinstance(value, float):
        return pytest.approx(value, abs=2e-5)
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {name: rounded(each) for name, each in value.items()} if isinstance(value, dict) else value


def test_answers_beside_others_are_those_alone(served_models: dict[str, ServedModel], task_models: Any) -> None:
    """Random mixtures, in batches of many sizes."""
    asked = requests_to_mix(task_models)

    async def mix() -> tuple[list[Any], list[Any], str]:
        app = app_of(served_models)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=60) as client:
            alone = [await client.post(path, json=body) for path, body in asked]
            before = (await client.get("/metrics")).text
            together = await asyncio.gather(*(client.post(path, json=body) for path, body in asked))
            after = (await client.get("/metrics")).text
        batches = [float(text.split("te_batch_next_size_count ")[1].split()[0]) for text in (before, after)]
        assert batches[1] - batches[0] < len(asked), "some were computed together"
        return alone, together, after

    alone, together, _ = asyncio.run(mix())
    for one, other in zip(alone, together, strict=True):
        assert (one.status_code, other.status_code) == (200, 200), one.text
        assert other.json() == rounded(one.json())


# ---- The shapes of others


def test_openai_embeddings(client: TestClient, model_directories: Directories) -> None:
    texts = ["a dull paper", "a warm one"]
    told = ask(client, "/v1/embeddings", model="encoder", input=texts)
    vectors = np.array([one["embedding"] for one in told["data"]])
    np.testing.assert_allclose(vectors, embed(model_directories["encoder"], texts), atol=1e-6)
    assert told["usage"]["prompt_tokens"] > 4
    coded = ask(client, "/v1/embeddings", model="encoder", input=texts[0], encoding_format="base64", dimensions=5)
    vector = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, vectors[0, :5] / np.linalg.norm(vectors[0, :5]), atol=1e-6)


def test_the_shapes_of_text_embeddings_inference(client: TestClient, model_directories: Directories) -> None:
    expected = embed(model_directories["encoder"], ["a dull paper", "a warm one"])
    told = ask(client, "/embed", inputs=["a dull paper", "a warm one"], model="encoder")
    np.testing.assert_allclose(told, expected, atol=1e-6)
    [cut] = ask(client, "/embed", inputs="a dull paper", model="encoder", dimensions=5)
    np.testing.assert_allclose(cut, expected[0, :5] / np.linalg.norm(expected[0, :5]), atol=1e-6)
    [whole] = ask(client, "/embed", inputs="a dull paper", model="encoder", normalize=False, dimensions=None)
    [cut] = ask(client, "/embed", inputs="a dull paper", model="encoder", normalize=False, dimensions=5)
    np.testing.assert_allclose(cut, whole[:5], atol=1e-6)
    assert np.linalg.norm(cut) != pytest.approx(1)
    body = {"source_sentence": "a dull paper", "sentences": ["a warm one"]}
    [cosine] = ask(client, "/similarity", inputs=body, model="encoder")
    assert cosine == pytest.approx(float(expected[0] @ expected[1]), abs=1e-6)
    single = ask(client, "/predict", inputs="a warm paper")
    assert [set(one) for one in single] == [{"score", "label"}] * 2
    assert single[0]["score"] >= single[1]["score"]
    assert len(ask(client, "/predict", inputs="a paper " * 90, truncate=True)) == 2, "as asked, only its beginning"
    batch = ask(client, "/predict", inputs=[["a warm paper"], ["a dull paper"]])
    assert rounded(single) == batch[0]
    [tokens] = ask(client, "/tokenize", inputs="Unpaperly", model="encoder")
    assert "".join(one["text"] for one in tokens[1:-1]) == "Unpaperly", "pieces of the text, not of the vocabulary"
    [tokens] = ask(client, "/tokenize", inputs="a paper", model="encoder")
    assert [one["special"] for one in tokens] == [True, *[False] * (len(tokens) - 2), True]
    assert (
        len(ask(client, "/tokenize", inputs="a paper", model="encoder", add_special_tokens=False)[0]) == len(tokens) - 2
    )


def test_the_client_of_hugging_face(of_labels: str, labellers: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends `parameters`, and the direction in small letters."""
    ask = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub").InferenceClient
    # Tests forbid all of its requests; these go to our server alone.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    texts = ["a dull paper", "a warm one"]
    expected = embed(labellers["single"], texts)
    options = {"normalize": True, "truncate": True, "truncation_direction": "right"}
    told = ask(f"{of_labels}/embed").feature_extraction(texts, **options)
    np.testing.assert_allclose(told, expected, atol=1e-6)
    [cosine] = ask(f"{of_labels}/similarity").sentence_similarity(texts[0], texts[1:])
    assert cosine == pytest.approx(float(expected[0] @ expected[1]), abs=1e-6)
    client = ask(f"{of_labels}/predict")
    both = client.text_classification(texts[0])
    assert {one.label for one in both} == {"n", "y"}
    assert client.text_classification(texts[0], top_k=1) == both[:1]
    from huggingface_hub.errors import HfHubHTTPError

    with pytest.raises(HfHubHTTPError, match="not done here: leave it out"):
        client.text_classification(texts[0], function_to_apply="sigmoid")


@pytest.mark.parametrize("order", [("single", "pair"), ("pair", "single")])
def test_predict_takes_the_first_model_that_reads_as_many_texts(order: Any, labellers: Directories) -> None:
    app = app_of(open_models([f"{name}={labellers[name]}" for name in order], "fp32"))
    with TestClient(app) as client:
        columns = {each["id"]: each["columns"] for each in client.get("/v1/models").json()["data"]}
        assert columns == {"single": [["text"]], "pair": [["premise", "hypothesis"], ["text_a", "text_b"]]}
        for model, inputs in {"single": [["a paper"], ["a dull one"]], "pair": [["a paper", "a dull one"]]}.items():
            expected = ask(client, "/predict", inputs=inputs, model=model)
            assert ask(client, "/predict", inputs=inputs) == expected
        refused = client.post("/predict", json={"inputs": [["a"], ["a", "b"]]})
        assert refused.status_code == 422
        message = "single reads single texts" if order[0] == "single" else "pair reads pairs"
        assert message in refused.json()["error"]["message"]


def test_it_tells_what_it_has(client: TestClient) -> None:
    models = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert models["classification"] == client.get("/v1/models/classification").json()
    assert models["classification"]["labels"] == ["n", "y"]
    assert models["masked"]["uses"][0] == "fill-mask"
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    assert client.head("/health").status_code == client.head("/ready").status_code == 200
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/models/{name}/fill-mask", "/v1/models/{name}/tag", "/v1/embeddings"} <= set(paths)
    assert "te_queue_size 0" in client.get("/metrics").text


def test_what_nobody_waited_for_is_no_success() -> None:
    metrics = RequestMetrics()
    metrics.answered("score", 0, 0.1, "")
    assert b'te_request_failure{err="499",method="score",model=""} 1' in metrics.text()
    assert b"te_request_success{" not in metrics.text()


def test_it_is_ready_while_its_engine_takes_work(served_models: dict[str, ServedModel]) -> None:
    app = app_of(served_models)
    with TestClient(app) as client:
        assert client.get("/ready").status_code == 200
        app.service.engine.takes_work = False
        told = client.get("/ready")
        assert told.status_code == 503
        assert told.json()["error"]["code"] == "stopping"
        assert client.get("/health").status_code == 200


def test_what_reads_each_token_once_is_counted_so(served_models: dict[str, ServedModel]) -> None:
    """A masked model reads a text as often as it has tokens, one from left to right once."""
    app = app_of(served_models, Limits(queue_tokens=400))
    with TestClient(app) as client:
        body = {"inputs": ["the sky is blue " * 6]}
        found = [client.post(f"/v1/models/{name}/score", json=body).status_code for name in ("masked", "causal")]
    assert found == [413, 200]


def test_limits_are_those_given(served_models: dict[str, ServedModel]) -> None:
    app = app_of(served_models, Limits(body_bytes=2000, new_tokens=5, queue_tokens=50))
    with TestClient(app) as client:
        for path in ("/v1/models/encoder/tokenize", "/tokenize"):
            told = client.post(path, json={"inputs": ["a " * 30] * 2})
            assert (told.status_code, "60 tokens to compute: a request has at most 50" in told.text) == (413, True)
            assert client.post(path, json={"inputs": ["a " * 25] * 2}).status_code == 200
        assert client.post("/v1/models/encoder/features", json={"inputs": ["a" * 2000]}).status_code == 413
        parts = iter([b'{"inputs": ["', b"a" * 2000, b'"]}'])
        told = client.post("/v1/models/encoder/features", content=parts, headers={"content-type": "application/json"})
        assert (told.status_code, "is over 2,000 bytes" in told.text) == (413, True), "its length is not said before"
        body = {"inputs": ["the"], "num_tokens": 6}
        assert client.post("/v1/models/causal/generate", json=body).status_code == 413
        assert client.post("/v1/models/encoder/features", json={"inputs": ["a"]}).status_code == 200

"""Whatever is sent: the right status with a message, no trace of our code, and the next request is answered."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import reduce
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.testclient import TestClient

from support.serving import app_of
from unmask.errors import SettingsError
from unmask.serving.engine.models import ServedModel, open_models
from unmask.serving.schemas import (
    EmbedRequest,
    FeaturesRequest,
    OpenAIEmbeddings,
    PredictRequest,
    TaskRequest,
    TokenizeRequest,
)
from unmask.serving.server import check_address, hosts_of

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSIFY, WORDS, FILL, FEATURES = (
    f"/v1/models/{end}"
    for end in ("classification/classify", "classification/words", "masked/fill-mask", "encoder/features")
)

JSON = {"content-type": "application/json"}


def send(client: TestClient, path: str, body: Any) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers=JSON)


def nested(levels: int) -> list[Any]:
    """An empty list in lists."""
    return reduce(lambda inner, _: [inner], range(levels - 1), [])


def is_well(client: TestClient) -> bool:
    return send(client, CLASSIFY, {"inputs": ["a warm paper"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (CLASSIFY, {"inputs": []}, 422, "inputs: expected at least one, and there is none"),
        (CLASSIFY, {"inputs": [7]}, 422, r"inputs\.0: expected a text, or an object with named fields"),
        (CLASSIFY, {"inputs": [{"txt": "a"}]}, 422, r"^input 1: no column 'text': .*there is txt\.( .*meant\?)?$"),
        (CLASSIFY, {"inputs": [{"x Name it with data.columns.y": 0, "z": 0}]}, 422, r"there is x Name .*, z\.$"),
        (CLASSIFY, {"inputs": [{"text": 7}]}, 422, "input 1"),
        (CLASSIFY, {"input": ["a"]}, 422, "inputs: missing, and expected"),
        (CLASSIFY, {"inputs": ["a"], "topk": 1}, 422, "topk: no key of this address: /docs lists those that exist"),
        (CLASSIFY, b'{"inputs": ["\\ud83d"]}', 422, r"inputs\.0: half of a surrogate pair"),
        (CLASSIFY, b'{"inputs": [{"text": "a", "more": [{"b": NaN}]}]}', 422, "NaN and infinite numbers"),
        (CLASSIFY, b'{"inputs": [{"text": "a", "more": 1e999}]}', 422, "NaN and infinite numbers"),
        (CLASSIFY, {"inputs": [{"text": "a", "more": nested(65)}]}, 422, "in each other: expected at most 64 levels"),
        (CLASSIFY, {"inputs": [{"text": "a", "more": nested(900)}]}, 422, "in each other: expected at most 64 levels"),
        (CLASSIFY, {"inputs": [{"text": "a", "more": [{}] * 50_000}] * 2}, 413, "inputs: over 100,000 values in lists"),
        (WORDS, {"input": {"text": "a", "more": [""] * 100_000}}, 413, "input: over 100,000 values in lists"),
        (CLASSIFY, b'{"inputs": ["\xff"]}', 400, "the body cannot be read: expected JSON in UTF-8"),
        (CLASSIFY, b"[" * 100_000, 400, "nested less deep"),
        (CLASSIFY, b'{"inputs"', 400, "the body is not JSON: at character 10, expecting ':' delimiter"),
        (CLASSIFY, b"hello", 400, "the body is not JSON: at character 1, expecting value"),
        (CLASSIFY, {"inputs": [7] * 513}, 413, "inputs: 513 entries: a request has at most 512: send several"),
        (CLASSIFY, {"inputs": ["a"], **{f"key{number}": 1 for number in range(100)}}, 422, "the body: 101 keys: /docs"),
        ("/embed", {"inputs": ["a"] * 513}, 413, "inputs: 513 entries: a request has at most 512: send several"),
        ("/predict", {"inputs": [["a"]] * 513}, 413, "inputs: 513 entries: a request has at most 512: send several"),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["a"] * 513}},
            413,
            "513 entries: a request has",
        ),
        ("/predict", {"inputs": "a " * 90, "model": "classification"}, 422, "tokens would not be"),
        ("/predict", {"inputs": "a " * 90, "truncate": None, "model": "classification"}, 422, "or truncate=true"),
        (FILL, {"inputs": ["[MASK]"], "targets": ["a"] * 513}, 413, "^targets: 513 entries: a request has at most 512"),
        ("/predict", {"inputs": [["a"], [7]]}, 422, "expected a text, or a list of texts"),
        (CLASSIFY, b"", 422, "^the body: missing, and expected"),
        (CLASSIFY, [1], 422, "^the body: expected a JSON object"),
        ("/v1/models/encoder/similarity", {"inputs": ["a"]}, 422, r"^inputs\.0: expected a JSON object"),
        (FILL, {"inputs": ["a dull paper"]}, 422, r"input 1: no \[MASK\] in 'a dull paper'"),
        (FILL, {"inputs": ["[MASK] " * 200]}, 422, "input 1: the text has 202 tokens and the model takes 40"),
        (FILL, {"inputs": ["[MASK]"], "top_k": 0}, 422, "top_k: Input should be greater than or equal to 1"),
        (FILL, {"inputs": ["[MASK] [MASK] "] * 6, "top_k": 1000}, 422, "12,000 answers, 1,000 for each mask"),
        (FILL, {"inputs": ["[MASK]" + " " * 10**5], "top_k": 1000}, 422, "1,000 answers .* have 100,008,000 bytes"),
        (FILL, {"inputs": ["[MASK]" + "\x01" * 3000], "top_k": 1000}, 422, "1,000 answers .* have 18,008,000 bytes"),
        (FILL, {"inputs": ["[MASK]"], "targets": ["a" * 201]}, 422, r"targets\.0: String should have at most 200"),
        ("/v1/models/masked/score", {"inputs": ["a " * 37] * 500}, 413, "tokens to compute: a request has at most"),
        (FEATURES, {"inputs": ["a"], "normalise": 1}, 422, "normalise: Input should be a valid boolean"),
        (FEATURES, {"inputs": ["a"], "pool": "none"}, 422, "pool=none gives a vector for each token"),
        (FEATURES, {"inputs": ["a"], "pool": "sum"}, 422, "no pool 'sum'"),
        (FEATURES, {"inputs": ["a"], "pool": "s" * 201}, 422, "pool: String should have at most 200"),
        (FEATURES, {"inputs": ["a"], "layers": "s" * 201}, 422, "layers: String should have at most 200"),
        (FEATURES, {"inputs": ["a"], "layers": "weighted-all"}, 422, "layers=weighted-all"),
        ("/v1/models/qa/answer", {"inputs": [{"question": "who?"}]}, 422, "input 1"),
        ("/v1/models/choice/choose", {"inputs": [{"context": "a", "choices": []}]}, 422, "input 1"),
        ("/v1/models/choice/choose", {"inputs": [{"context": "a", "choices": "b"}]}, 422, r'such as \["a", "b"\]\.$'),
        ("/v1/models/tagging/tag", {"inputs": [{"tokens": 7}]}, 422, "input 1"),
        ("/v1/models/tagging/tag", {"inputs": [{"word": "a"}]}, 422, r"and none 'text': there is word\.$"),
        ("/v1/models/causal/generate", {"inputs": ["the", ""], "num_tokens": 2}, 422, "^input 2: .* holds no token"),
        ("/v1/models/masked/score", {"inputs": ["the sky", ""]}, 422, "^input 2: '': too few tokens"),
        ("/v1/models/masked/score", {"inputs": ["the", "a " * 99]}, 422, "^input 2: .*, and at most 40 are read"),
        (
            "/v1/models/masked/pairs",
            {"inputs": [{"good": "the sky", "bad": "a"}, {"good": "the", "bad": ""}]},
            422,
            "^input 2: '': too few tokens",
        ),
        ("/v1/models/causal/generate", {"inputs": ["the"], "temperature": -1}, 422, "temperature"),
        ("/v1/models/causal/generate", {"inputs": ["a"] * 11, "num_tokens": 10**4299}, 422, "num_tokens: .* less than"),
        ("/v1/models/causal/generate", {"inputs": ["a"], "top_k": 10**20}, 422, "top_k: .* less than"),
        ("/v1/models/encoder/classify", {"inputs": ["a"]}, 409, "is not for classify: it answers at .*/features"),
        ("/v1/models/nobody/classify", {"inputs": ["a"]}, 404, "no model 'nobody' here: there are causal"),
        ("/v1/embeddings", {"model": "nobody", "input": "a"}, 404, "no model 'nobody'"),
        ("/v1/embeddings", {"model": "encoder", "input": [1, 2]}, 422, r"input: expected a text, .*\(token ids are"),
        ("/v1/embeddings", {"model": "encoder", "input": []}, 422, "no texts"),
        ("/v1/embeddings", {"model": "encoder", "input": "a", "dimensions": 10**6}, 422, "dimensions is 1000000"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "an input of 3 texts"),
        (
            "/predict",
            {"inputs": ["a", "b"], "model": "classification"},
            422,
            "classification reads single texts: send several",
        ),
        ("/embed", {"inputs": "a", "dimension": 5}, 422, "dimension: no key of this address"),
        ("/embed", {"inputs": "a", "dimensions": 10**6}, 422, "dimensions is 1000000"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "^prompt_name: not done here: leave it out"),
        ("/embed", {"inputs": "a", "truncation_direction": "left"}, 422, "direction: Input should be 'right' or 'R"),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["a"]}, "parameters": {"prompt_name": "query"}},
            422,
            r"^parameters\.prompt_name: not done here: leave it out",
        ),
        ("/predict", {"inputs": "a", "parameters": {"top_k": 0}}, 422, r"^parameters\.top_k: Input should be greater"),
        ("/v1/embeddings", {"model": "encoder", "input": "a", "task": "x"}, 422, "task: no key of this address"),
        ("/v2/embed", {"inputs": "a"}, 404, "no such address"),
        ("/embed/", {"inputs": "a"}, 404, "no such address"),
        ("/health", {}, 405, "another method"),
    ],
)
def test_what_cannot_be_answered_is_told(path: str, body: Any, status: int, message: str, client: TestClient) -> None:
    told = send(client, path, body)
    assert told.status_code == status, told.text
    error = told.json()["error"]
    assert told.headers["x-content-type-options"] == "nosniff"
    assert error["type"] == "invalid_request_error"
    assert re.search(message, error["message"]), error["message"]
    assert "Traceback" not in told.text
    assert is_well(client)


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [7] * 300_000},
        {"inputs": ["a"] * 300_000},
        {"inputs": [["a", 7]] * 150_000},
        {"inputs": "a", **{f"key{number}": 1 for number in range(200_000)}},
    ],
)
@pytest.mark.parametrize("path", [CLASSIFY, FEATURES, "/embed", "/predict", "/tokenize", "/v1/embeddings"])
def test_a_body_of_many_wrong_values_makes_one_error(path: str, body: Any) -> None:
    """Each error is an object, and building them stops the whole server."""
    shapes = {CLASSIFY: TaskRequest, FEATURES: FeaturesRequest, "/embed": EmbedRequest, "/predict": PredictRequest}
    shape = {**shapes, "/tokenize": TokenizeRequest, "/v1/embeddings": OpenAIEmbeddings}[path]
    with pytest.raises(ValidationError) as raised:
        shape.model_validate({**body, "input": body["inputs"], "model": "encoder"})
    assert raised.value.error_count() <= 3


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/json", "application/json, text/plain"])
def test_a_body_that_is_not_called_json(kind: str, client: TestClient) -> None:
    """The first as `curl -d` sends it."""
    told = client.post(FILL, content=b'{"inputs": ["[MASK]"]}', headers={"content-type": kind})
    assert (told.status_code, "content-type: application/json" in told.json()["error"]["message"]) == (422, True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(text=st.text(st.characters(), max_size=60), more=VALUES)
def test_any_text_and_any_fields_are_answered_or_refused(client: TestClient, text: str, more: Any) -> None:
    bodies = {
        CLASSIFY: {"inputs": [{"text": text, "more": more}]},
        FILL: {"inputs": [f"{text}[MASK]"]},
        FEATURES: {"inputs": [text, text * 40]},
        "/v1/models/tagging/tag": {"inputs": [text, {"tokens": more}]},
        "/v1/models/qa/answer": {"inputs": [{"question": text, "context": text * 10}]},
        "/v1/models/masked/score": {"inputs": [text]},
    }
    for path, body in bodies.items():
        told = send(client, path, body)
        assert told.status_code in (200, 400, 422), (path, told.text)
        assert told.json()


def test_a_long_passage_is_read_in_windows(client: TestClient) -> None:
    passage = "Ada wrote a warm paper in Oslo. " * 3000
    told = send(client, "/v1/models/qa/answer", {"inputs": [{"question": "Who wrote?", "context": passage}]})
    [answer] = told.json()["predictions"]
    assert passage[answer["start"] : answer["end"]] == answer["answer"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a ", id="300,000 tokens", marks=pytest.mark.slow),
        pytest.param("\u0301", id="none"),
        pytest.param("\u200b ", id="words without any"),
    ],
)
def test_many_characters_are_answered_or_refused(text: str, client: TestClient) -> None:
    """More words than a request may have tokens."""
    text = (text * 600_000)[:600_000]
    bodies = {
        CLASSIFY: {"inputs": [text]},
        FILL: {"inputs": [text]},
        FEATURES: {"inputs": [text]},
        "/v1/models/tagging/tag": {"inputs": [text]},
        "/v1/models/qa/answer": {"inputs": [{"question": "who?", "context": text}]},
        "/v1/models/causal/generate": {"inputs": [text], "num_tokens": 2},
    }
    for path, body in bodies.items():
        told = client.post(path, content=json.dumps(body, ensure_ascii=False).encode(), headers=JSON)
        # 503: a busy machine may need longer than the limit.
        assert told.status_code in (200, 413, 422, 503), (path, told.text[:300])
        assert told.status_code == 200 or len(told.json()["error"]["message"]) < 400, path
    assert is_well(client)


def test_a_token_is_asked_for(served_models: dict[str, ServedModel]) -> None:
    app = app_of(served_models, token="s3cret")
    with TestClient(app) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"}):
            told = client.post(FEATURES, json={"inputs": ["a"]}, headers=headers)
            assert (told.status_code, told.headers["www-authenticate"]) == (401, "Bearer")
            assert client.get("/metrics", headers=headers).status_code == 401
        assert client.get("/health").status_code == 200
        told = client.post(FEATURES, json={"inputs": ["a"]}, headers={"authorization": "Bearer s3cret"})
        assert told.status_code == 200


@pytest.mark.parametrize(("host", "token", "insecure"), [("0.0.0.0", None, False), ("example.org", None, False)])
def test_other_machines_are_not_let_in_without_a_token(host: str, token: str | None, insecure: bool) -> None:
    with pytest.raises(SettingsError, match=r"lets other machines in, and there is no token: set UNMASK_TOKEN"):
        check_address(host, token, insecure)
    for words in ((host, "secret", False), (host, None, True), ("127.0.0.1", None, False), ("localhost", None, False)):
        check_address(*words)


@pytest.mark.parametrize("token", ["비밀토큰", "caf\u00e9", " secret", "secret\n", "se\tcret"])
def test_a_token_that_no_client_can_send_is_refused_at_the_start(token: str) -> None:
    with pytest.raises(SettingsError, match="UNMASK_TOKEN holds a token that no client can send: expected letters"):
        check_address("127.0.0.1", token, False)
    check_address("127.0.0.1", "two words, and signs: ~!", False)


def test_a_foreign_name_is_not_answered_without_a_token(served_models: dict[str, ServedModel]) -> None:
    assert hosts_of("127.0.0.1", "secret") is None
    assert hosts_of("0.0.0.0", None) is None
    app = app_of(served_models, hosts=hosts_of("127.0.0.2", None))
    with TestClient(app) as client:
        for host in ("localhost:8000", "127.0.0.1", "127.0.0.2:1", "[::1]:8000", "LocalHost"):
            assert client.get("/health", headers={"host": host}).status_code == 200, host
        told = client.get("/v1/models", headers={"host": "evil.example:8000"})
        assert told.status_code == 403
        assert "the Host header is 'evil.example': expected " in told.json()["error"]["message"]


def test_a_fault_of_ours_tells_nothing(
    served_models: dict[str, ServedModel], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of(served_models)
    vectors = served_models["encoder"].answerer("vectors")
    with TestClient(app) as client:  # which raises what a server would log once more
        with monkeypatch.context() as patch:
            patch.setattr(type(vectors), "compute", lambda *arguments: 1 / 0)
            told = client.post(FEATURES, json={"inputs": ["a"]})
        assert (told.status_code, told.headers["x-content-type-options"]) == (500, "nosniff")
        assert 'te_request_failure{err="500",method="features",model="encoder"} 1' in client.get("/metrics").text
        assert told.json()["error"]["message"] == "a fault in the server, not in your request; its log has the details"
        assert "ZeroDivisionError" in caplog.text
        assert client.post(FEATURES, json={"inputs": ["a"]}).status_code == 200


def test_models_have_names_that_differ(model_directories: Any) -> None:
    encoder = model_directories["encoder"]
    with pytest.raises(SettingsError, match=r"are both called base: give one of them as NAME=DIR"):
        open_models([str(encoder), str(encoder)], "fp32")
    with pytest.raises(SettingsError, match="the name 'a/b' does not fit into an address"):
        open_models([f"a/b={encoder}"], "fp32")


def test_a_name_may_be_korean(model_directories: Any) -> None:
    written_by_macos = unicodedata.normalize("NFD", "리뷰-2")
    app = app_of(open_models([f"{written_by_macos}={model_directories['encoder']}"], "fp32"))
    with TestClient(app) as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["리뷰-2"]
        for written in ("리뷰-2", written_by_macos):
            told = client.post(f"/v1/models/{quote(written)}/features", json={"inputs": ["a"]})
            assert (told.status_code, told.json()["model"], len(told.json()["predictions"])) == (200, "리뷰-2", 1)
            assert client.post("/embed", json={"inputs": "a", "model": written}).status_code == 200
        assert 'te_request_success{method="features",model="리뷰-2"} 2' in client.get("/metrics").text

"""Models of every use behind an application, without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.serving import app_of, serving
from support.untrained import save_bert, save_language_model, save_masked_lm
from unmask.pretraining.run import pretrain
from unmask.serving.engine.models import ServedModel, open_models

SENTENCES = ["She opened the door and went out .", "The children play in the garden ."] * 20
TEXTS = ["the sky is blue and the sea is green", "she wrote a warm letter to a dull man in london"] * 20


@pytest.fixture(scope="session")
def model_directories(tmp_path_factory: pytest.TempPathFactory, task_models: Any) -> dict[str, Path]:
    """By name: `masked`, `causal`, `encoder`, and one for each kind of task."""
    place = tmp_path_factory.mktemp("served")
    return {
        "masked": save_bert(place / "masked", TEXTS, masked_lm=True, max_position_embeddings=40, initializer_range=0.1),
        "causal": save_language_model(place / "causal", "gpt1", "bpe", TEXTS, 120, positions=32),
        "encoder": task_models.base,
        **{kind: task_models.runs / kind for kind in task_models.examples},
    }


@pytest.fixture(scope="session")
def run_of_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-training run with the checkpoints of steps 2, 4 and 6."""
    place = tmp_path_factory.mktemp("learning")
    text = place / "text.txt"
    text.write_text("\n\n".join(["the sky is blue and the sea is green.", "she wrote a letter."] * 30), "utf-8")
    words = [f"corpus={text}", "tokenizer.vocab_size=150", "train.tokens=null", "train.epochs=null", "train.steps=6"]
    words += ["train.save_every=2", "train.keep_last=5", "train.eval_every=100", "model.hidden_size=16"]
    words += ["model.num_hidden_layers=2", "model.num_attention_heads=2", "model.intermediate_size=32", "device=cpu"]
    pretrain("pretrain/modern_tiny", words, out=place / "run")
    return place / "run"


@pytest.fixture(scope="session")
def labellers(model_directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`single` labels a text, `pair` a premise with its hypothesis."""
    pair = tmp_path_factory.mktemp("labellers") / "pair"
    shutil.copytree(model_directories["classification"] / "model", pair)
    config = json.loads((pair / "config.json").read_text("utf-8"))
    config["unmask_task"]["columns"] = {"text_a": "premise", "text_b": "hypothesis", "label": "gold"}
    (pair / "config.json").write_text(json.dumps(config), "utf-8")
    return {"single": model_directories["classification"], "pair": pair}


@pytest.fixture(scope="session")
def served_models(model_directories: dict[str, Path]) -> dict[str, ServedModel]:
    return open_models([f"{name}={directory}" for name, directory in model_directories.items()], "fp32")


@pytest.fixture(scope="session")
def client(served_models: dict[str, ServedModel]) -> Iterator[TestClient]:
    app = app_of(served_models)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def address(served_models: dict[str, ServedModel], run_of_checkpoints: Path) -> Iterator[str]:
    """A server of a model of every use, and of a run with checkpoints."""
    with serving({**served_models, **open_models([f"run={run_of_checkpoints}"], "fp32")}) as address:
        yield address


@pytest.fixture(scope="session")
def of_masks(run_of_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a model whose mask is `<mask>`, and of a run with checkpoints, whose mask is `[MASK]`."""
    roberta = save_masked_lm(tmp_path_factory.mktemp("masks") / "roberta", "roberta", SENTENCES)
    with serving(open_models([f"roberta={roberta}", f"run={run_of_checkpoints}"], "fp32")) as address:
        yield address


@pytest.fixture(scope="session")
def of_labels(labellers: dict[str, Path]) -> Iterator[str]:
    """A server of a model that labels a text, and of one that labels a pair."""
    with serving(open_models([f"{name}={path}" for name, path in labellers.items()], "fp32")) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of a module, not of a session: while it is open, no other test of the process can start an event loop."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs a browser: install chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def _open_page(browser: Any) -> Any:
    return browser.new_page()


@pytest.fixture
def page(_open_page: Any) -> Iterator[Any]:
    """An empty page, which has kept the scripts of the server in its cache."""
    yield _open_page
    _open_page.unroute_all()
    _open_page.goto("about:blank")


@pytest.fixture(params=[("light", 1120), ("dark", 390)], ids=["light", "dark, a telephone's width"])
def themed_page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty page in each theme."""
    scheme, width = request.param
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    yield context.new_page()
    context.close()

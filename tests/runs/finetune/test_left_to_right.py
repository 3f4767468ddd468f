"""Left-to-right models from a pre-trained directory through fine-tuning, measuring and predicting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.files import write, write_rows
from support.model_files import edit_weights, with_one
from support.untrained import save_language_model
from unmask.errors import ModelError
from unmask.finetuning.run import finetune
from unmask.inference.evaluation import evaluate
from unmask.inference.predictor import predict

pytestmark = pytest.mark.usefixtures("without_report")

TEXTS = ["a man and a dog", "two women play with a ball", "a child eats in the street"]


@pytest.fixture(scope="module", params=["gpt1", "lstm", "bert"])
def language_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained directory: random weights."""
    kind = "wordpiece" if request.param == "bert" else "bpe"
    directory = tmp_path_factory.mktemp("causal") / request.param
    return save_language_model(directory, request.param, kind, TEXTS * 3, 120, layers=2, positions=32)


ROWS: dict[str, list[dict[str, Any]]] = {
    "sst2": [{"sentence": text, "label": number % 2} for number, text in enumerate(TEXTS)],
    "mrpc": [{"sentence1": TEXTS[0], "sentence2": text, "label": number % 2} for number, text in enumerate(TEXTS)],
    "stsb": [{"sentence1": TEXTS[0], "sentence2": text, "label": number + 0.5} for number, text in enumerate(TEXTS)],
    "choice": [{"context": TEXTS[0], "choices": TEXTS[1:], "label": number % 2} for number in range(3)],
    "tagging": [{"tokens": ["a", "man"], "tags": ["O", "B-X"]}, {"tokens": ["dog"], "tags": ["B-X"]}],
    "qa": [
        {"id": "1", "question": "who", "context": "a man eats", "answers": {"text": ["a man"], "answer_start": [0]}},
        {"id": "2", "question": "what", "context": "a dog eats", "answers": {"text": ["dog"], "answer_start": [2]}},
    ],
}


def recipe(directory: Path, init_from: Path, name: str, **settings: Any) -> Path:
    data = write_rows(directory / f"{name}.jsonl", *ROWS[name])
    limit = {"max_question_length": 8, "doc_stride": 8} if name == "qa" else {}
    task = {"name": name, "max_length": 32, **limit, **settings}
    files = f"init_from: {init_from}\ntask: {json.dumps(task)}\ndata: {{train: {data}, dev: {data}}}\n"
    how = "device: cpu\ntrain: {steps: 2, batch_size: 4}\nschedule: {warmup_steps: 0}\n"
    return write(directory / f"{name}.yaml", files + how)


WITH_TOP = [(name, top) for name in ROWS for top in ("none", "bilstm") if (name, top) != ("choice", "bilstm")]


@pytest.mark.parametrize(("name", "encoder_top"), WITH_TOP)
def test_every_task_from_fine_tuning_to_predictions(
    tmp_path: Path, language_model: Path, name: str, encoder_top: str
) -> None:
    """What is measured in the run is what `evaluate` measures of the saved model."""
    top = {"encoder_top": "bilstm", "bilstm_size": 6} if encoder_top == "bilstm" else {}
    model = finetune(recipe(tmp_path, language_model, name, **top), out=tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    data = tmp_path / f"{name}.jsonl"
    measured = evaluate(model, data, device="cpu")["metrics"]
    told = {metric: value for metric, value in results["dev"].items() if metric != "loss"}
    assert measured == pytest.approx(told, abs=1e-6)  # the same sums in batches of other sizes, fp32
    assert len(list(predict(model, ROWS[name], device="cpu"))) == len(ROWS[name])


def test_a_kept_head_is_that_of_the_same_kind(tmp_path: Path, language_model: Path) -> None:
    top = {"encoder_top": "bilstm", "bilstm_size": 6}
    model = finetune(recipe(tmp_path, language_model, "sst2", **top), out=tmp_path / "run")
    again = recipe(tmp_path, model, "sst2", **top)
    finetune(again, ["keep_head=true"], out=tmp_path / "again")
    with pytest.raises(ModelError, match=r"the recipe has task\.bilstm_size=7:"):
        finetune(again, ["keep_head=true", "task.bilstm_size=7"], out=tmp_path / "other")
    edit_weights(model, with_one("odd", torch.zeros(1)), "head.safetensors")
    with pytest.raises(ModelError, match=r"head\.safetensors: the weights do not fit config\.json: odd is left over"):
        finetune(again, ["keep_head=true"], out=tmp_path / "other")
    with pytest.raises(
        ModelError, match=r"made with task\.encoder_top=bilstm .*, and the recipe has task\.encoder_top=none"
    ):
        finetune(recipe(tmp_path, model, "sst2"), ["keep_head=true"], out=tmp_path / "other")


def test_a_head_of_both_orders_is_kept(tmp_path: Path, language_model: Path) -> None:
    orders = {"two_orders": True}
    model = finetune(recipe(tmp_path, language_model, "mrpc", **orders), out=tmp_path / "run")
    words = ["keep_head=true", "optimizer.learning_rate=1e-30"]  # at which nothing moves
    again = finetune(recipe(tmp_path, model, "mrpc", **orders), words, out=tmp_path / "again")
    before, after = (load_file(directory / "head.safetensors") for directory in (model, again))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(
        ModelError, match=r"made with task\.two_orders=true, and the recipe has task\.two_orders=false: set it"
    ):
        finetune(recipe(tmp_path, model, "mrpc", two_orders=False), words, out=tmp_path / "other")

"""What `transformers` has fine-tuned and saved answers here as it does there, in its pipelines too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer

from support.files import write_rows
from support.finetuned_exchange import KINDS, TAGS, TEXTS, assert_equal, batch_of, outputs_of
from support.untrained import save_task_model
from unmask.inference.evaluation import evaluate
from unmask.inference.predictor import predict

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
"""Of logits of order 1, as where ours are compared: some 100 roundings of fp32 (6e-8 each)."""

QUESTION = "Where did they write it?"
"""That of all examples."""


def finetune_there(name: str, base: Path, directory: Path, **changes: Any) -> Any:
    """A step of `transformers` on a fresh head, saved by it with its tokenizer."""
    kind = KINDS[name]
    torch.manual_seed(1)
    model = kind.model.from_pretrained(base, **(kind.config or {}), **changes).train()
    tokenizer = AutoTokenizer.from_pretrained(base)
    with torch.no_grad():  # fresh biases are all 0, and hide mistakes
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") and parameter_name.startswith(("classifier", "qa_outputs")):
                parameter.normal_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = batch_of(name, tokenizer, kind.rows)
    if name == "choice":
        batch = {key: value.view(-1, len(kind.rows[0]["choices"]), value.shape[-1]) for key, value in batch.items()}
    outputs = model(**batch)
    sum(tensor.square().sum() for tensor in outputs.values()).backward()
    optimizer.step()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model.eval()


@pytest.mark.parametrize("name", ["pairs", "choice"])
@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_tokenizer_that_gives_no_segments(bases: dict[str, Path], tmp_path: Path, family: str, name: str) -> None:
    """What `transformers` makes of a tokenizer of the library `tokenizers`."""
    base = Path(shutil.copytree(bases[family], tmp_path / "base"))
    config = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    del config["model_input_names"]
    (base / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(base)("a", "b")
    model = finetune_there(name, base, tmp_path / "theirs")
    assert_equal(name, tmp_path / "theirs", model)


def test_what_they_save_answers_here(bases: dict[str, Path], tmp_path: Path, family: str, name: str) -> None:
    directory, kind = tmp_path / "theirs", KINDS[name]
    model = finetune_there(name, bases[family], directory)
    if name == "qa":  # it does not say how long its windows are: each passage is one
        kind = replace(kind, rows=[row for row in kind.rows if len(row["context"]) < 60])
    else:
        assert_equal(name, directory, model)
    said = list(predict(directory, kind.rows, device="cpu"))
    labels, tokenizer = model.config.id2label, AutoTokenizer.from_pretrained(directory)
    right = []
    for row, answer in zip(kind.rows, said, strict=True):
        whole = tokenizer(QUESTION, row["context"], return_tensors="pt") if name == "qa" else None
        logits = outputs_of(name, model, batch_of(name, tokenizer, [row]) if whole is None else dict(whole))
        if name == "regression":
            assert answer["value"] == pytest.approx(float(logits), abs=TOLERANCE)
        elif name == "choice":
            assert answer["choice"] == int(logits.argmax())
            right.append(answer["choice"] == row["label"])
        elif name == "multi-label":
            assert sorted(answer["labels"]) == [labels[place] for place in range(3) if logits[0, place] > 0]
            right.append(sorted(answer["labels"]) == row["label"])
        elif name == "tagging":
            words = tokenizer(" ".join(row["tokens"])).word_ids()
            firsts = [words.index(word) for word in range(len(row["tokens"]))]
            assert answer["tags"] == [labels[int(logits[place].argmax())] for place in firsts]
        elif name == "qa":
            assert (answer["start"], answer["end"]) == best_span(tokenizer, row["context"], logits)
            right.append(answer["answer"] == row["answers"]["text"][0])
        else:
            assert answer["label"] == labels[int(logits.argmax())]
            right.append(answer["label"] == row["label"])
    measured = evaluate(directory, write_rows(tmp_path / "dev.jsonl", *kind.rows), device="cpu")
    assert measured["task"] == ("classification" if name in ("pairs", "multi-label") else name)
    assert measured["n"] == len(kind.rows)
    if right:
        expected = 100 * sum(right) / len(right) if name == "qa" else sum(right) / len(right)
        assert measured["metrics"]["exact_match" if name == "qa" else "accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "was", [{"name": "tagging", "labels": [*TAGS]}, {"name": "classification", "labels": [*"abc"], "multi_label": True}]
)
def test_a_model_of_ours_that_they_gave_another_head(bases: dict[str, Path], tmp_path: Path, was: Any) -> None:
    """They keep what `config.json` records of the task that it was fine-tuned for before."""
    ours = save_task_model(tmp_path / "ours", bases["bert"], max_length=40, **was)
    changes = {"problem_type": "single_label_classification", "ignore_mismatched_sizes": True}
    finetune_there("classification", ours, tmp_path / "theirs", **changes)
    assert "unmask_task" in json.loads((tmp_path / "theirs" / "config.json").read_text("utf-8"))
    answer = transformers.pipeline("text-classification", str(tmp_path / "theirs"), device="cpu")
    for row, said in zip(TEXTS, predict(tmp_path / "theirs", TEXTS, device="cpu"), strict=True):
        (best,) = answer(row)
        assert (said["label"], said["probabilities"][said["label"]]) == (best["label"], pytest.approx(best["score"]))


def best_span(tokenizer: Any, context: str, logits: Tensor) -> tuple[int, int]:
    """Of up to thirty of the passage's tokens, by the sum of the two logits: what `transformers`' question-answering
    pipeline, which version 5 no longer has, said where a passage is one window (it multiplied two softmaxes)."""
    read = tokenizer(QUESTION, context, return_offsets_mapping=True)
    places = [place for place, segment in enumerate(read.sequence_ids()) if segment == 1]
    spans = [(first, last) for first in places for last in places if first <= last < first + 30]
    first, last = max(spans, key=lambda span: float(logits[span[0], 0] + logits[span[1], 1]))
    return read["offset_mapping"][first][0], read["offset_mapping"][last][1]


def their_entities(directory: Path, text: str) -> Iterator[tuple[str, str, float]]:
    answer = transformers.pipeline("token-classification", str(directory), device="cpu", aggregation_strategy="first")
    for entity in answer(text):
        yield entity["entity_group"], text[entity["start"] : entity["end"]], entity["score"]


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")  # so it is with RoBERTa's
def test_their_pipeline_finds_the_same_entities(bases: dict[str, Path], tmp_path: Path, family: str) -> None:
    """Where words stand between blanks and have no marks at their edges: there the pipeline makes units of their parts
    for BERT's tokenizer, and none for RoBERTa's, and here marks are units of their own."""
    finetune_there("tagging", bases[family], tmp_path)
    texts = [" ".join(row["tokens"]) for row in KINDS["tagging"].rows]
    found = 0
    for text, said in zip(texts, predict(tmp_path, [{"text": text} for text in texts], device="cpu"), strict=True):
        ours = [(entity["label"], entity["text"]) for entity in said["entities"]]
        theirs = list(their_entities(tmp_path, text))
        assert ours == [(label, words.strip()) for label, words, _ in theirs]
        scores = [entity["score"] for entity in said["entities"]]
        assert scores == pytest.approx([score for _, _, score in theirs], abs=TOLERANCE)
        found += len(ours)
    assert found > len(texts)


@pytest.mark.parametrize("name", ["classification", "multi-label", "regression"])
def test_their_pipeline_gives_the_same_scores(bases: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Of one label and of many; a regression's value is what it calls a score."""
    finetune_there(name, bases["bert"], tmp_path)
    rows = KINDS[name].rows
    answer = transformers.pipeline("text-classification", str(tmp_path), device="cpu", top_k=None)
    for row, said in zip(rows, predict(tmp_path, rows, device="cpu"), strict=True):
        pair = {"text": row["text_a"], "text_pair": row["text_b"]} if name == "regression" else row["text"]
        (scores,) = answer([pair])
        theirs = {one["label"]: one["score"] for one in scores}
        if name == "regression":
            assert list(theirs.values()) == pytest.approx([said["value"]], abs=TOLERANCE)
        else:
            assert said["probabilities"] == pytest.approx(theirs, abs=TOLERANCE)

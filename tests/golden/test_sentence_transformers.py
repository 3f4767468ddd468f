"""Vectors of a directory that sentence-transformers saved are the ones that it would give, by its published formulas on
the hidden states of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.files import write
from support.untrained import save_bert
from unmask.errors import ModelError
from unmask.inference.features.extraction import extract_features, load_feature_model
from unmask.inference.features.similarity import embed

TEXTS = ["the man walks", "a dog and the man and a dog and a man", ""]
LENGTH = 8
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def save(directory: Path, pooling: object, modules: object = MODULES, **others: object) -> Path:
    save_bert(directory, ["the man and a dog walks"] * 9, initializer_range=0.3)
    (directory / "1_Pooling").mkdir()
    files = {"modules.json": modules, "1_Pooling/config.json": pooling}
    for name, content in {**files, "sentence_bert_config.json": {"max_seq_length": LENGTH}, **others}.items():
        write(directory / name, json.dumps(content))
    return directory


def expected(directory: Path, pool: str) -> NDArray[np.float32]:
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    given = tokenizer(TEXTS, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(directory).eval()(**given).last_hidden_state
    seen = given["attention_mask"][..., None]
    pooled = hidden[:, 0] if pool == "cls" else (hidden * seen).sum(1) / seen.sum(1)
    found: NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=1).numpy()
    return found


@pytest.mark.parametrize(
    ("pool", "pooling"),
    [
        ("cls", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
        ("mean", {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}),
        ("mean", {"pooling_mode": "mean"}),
    ],
)
def test_vectors_are_pooled_and_cut_as_the_directory_says(tmp_path: Path, pool: str, pooling: object) -> None:
    model = save(tmp_path / "model", pooling)
    np.testing.assert_allclose(embed(model, TEXTS), expected(model, pool), atol=1e-6)
    named = "cls" if pool == "cls" else "mean-with-special"
    texts = write(tmp_path / "texts.jsonl", "".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    features = np.load(extract_features(model, texts, tmp_path / "out", pool=named) / "features.npy")
    np.testing.assert_allclose(features / np.linalg.norm(features, axis=1)[:, None], expected(model, pool), atol=1e-6)
    other = embed(model, TEXTS, pool="mean")
    assert np.abs(other - expected(model, pool)).max() > 1e-3


def test_what_is_not_done_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dense = [*MODULES, {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}]
    prompts = {"config_sentence_transformers.json": {"default_prompt_name": "query"}}
    model = save(tmp_path / "model", {"pooling_mode": "lasttoken"}, dense, **prompts)
    assert load_feature_model(model).usual_pool == "mean"
    assert [record.getMessage().removeprefix(f"{model}: ") for record in caplog.records] == [
        "vectors are made without its Dense",
        "its prompt 'query' is not put before texts: write it there yourself",
        "it pools by lasttoken, and here the mean is taken",
    ]


def test_texts_that_it_lowers_first_are_told_of_a_tokenizer_that_keeps_case(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"max_seq_length": LENGTH, "do_lower_case": True}
    model = save(tmp_path / "model", {"pooling_mode": "mean"}, **{"sentence_bert_config.json": settings})
    load_feature_model(model)
    assert not caplog.text
    definition = json.loads((model / "tokenizer.json").read_text("utf-8"))
    write(model / "tokenizer.json", json.dumps({**definition, "normalizer": None}))
    load_feature_model(model)
    assert "its texts are lower-cased first: give them in lower case" in caplog.text


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"type": 1}, "expected a list of modules"),
        ([{"type": "Pooling", "path": "../1_Pooling"}], r"its path '\.\./1_Pooling' is not the name of a folder"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, modules: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_feature_model(save(tmp_path / "model", {}, modules))


def test_a_pooling_that_is_not_there_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save(tmp_path / "model", {})
    (model / "1_Pooling" / "config.json").unlink()
    assert load_feature_model(model).usual_pool == "mean"
    assert "1_Pooling/config.json is not there, so the mean is taken" in caplog.text


def test_version_6_has_the_length_with_the_tokenizer(tmp_path: Path) -> None:
    model = save(tmp_path / "model", {"pooling_mode": "mean"})
    write(model / "sentence_bert_config.json", "{}")
    config = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    write(model / "tokenizer_config.json", json.dumps({**config, "model_max_length": 7}))
    assert load_feature_model(model).max_length == 7

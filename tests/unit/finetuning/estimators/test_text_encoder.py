"""The encoder for scikit-learn keeps its model from one `transform` to the next."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from unmask.finetuning.estimators import text_encoder
from unmask.finetuning.estimators.text_encoder import TextEncoder
from unmask.inference.features.similarity import load_embedder


def test_the_model_is_loaded_once_unless_it_may_be_another(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(model: Path, layers: str, **settings: Any) -> Any:
        loaded.append(layers)
        return load_embedder(model, layers, **settings)

    monkeypatch.setattr(text_encoder, "load_embedder", load)
    encoder = TextEncoder(tiny_model)
    before = pickle.dumps(encoder)
    first = encoder.transform(["a dog"])
    assert (encoder.transform(["a dog"]) == first).all()
    assert encoder.get_feature_names_out().shape == first.shape[1:]
    assert (loaded, pickle.dumps(encoder)) == (["last"], before)
    encoder.set_params(pool="max").transform(["a dog"])
    assert loaded == ["last"]
    encoder.set_params(layers="embeddings").transform(["a dog"])
    assert loaded == ["last", "embeddings"]
    encoder.fit(["a dog"]).transform(["a dog"])
    assert loaded == ["last", "embeddings", "embeddings"]

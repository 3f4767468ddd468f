"""Texts that are read in windows: nothing is cut, and their outputs are put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.untrained import save_bert, save_task_model
from unmask.errors import InputError
from unmask.inference.predictor import Predictor, load_predictor
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.settings import TaskSettings

TEXT = "she wrote a warm letter to a dull man in london and the sky is blue"
WORDS = TEXT.split()
SETTINGS: dict[str, Any] = {"name": "classification", "labels": ["dull", "warm"], "max_length": 8}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("long")
    return save_bert(place / "base", [" ".join(WORDS)] * 20, initializer_range=0.2)


def opened(place: Path, base: Path, **settings: Any) -> Predictor:
    return load_predictor(save_task_model(place, base, std=0.5, **{**SETTINGS, **settings}))


def encode(predictor: Predictor, *texts: str) -> Any:
    counts = ExampleCounts()
    task = predictor.task
    examples = [task.read(Row({"text": text}, "here")) for text in texts]
    return task.encode(examples, predictor.tokenizer, counts, predictor.num_segments), counts


def test_learnt_weights_are_a_softmax_over_the_windows_of_a_text(tmp_path: Path, base: Path) -> None:
    predictor = opened(tmp_path / "w", base, long_text="windows", doc_stride=4, window_pooling="learnt")
    module: Any = predictor.module
    torch.nn.init.normal_(module.head.query, std=5.0, generator=torch.Generator().manual_seed(1))
    encoded, _ = encode(predictor, " ".join(WORDS), "the sky is blue", " ".join(WORDS[:9]))
    assert encoded.unit_bounds.tolist() == [0, 4, 5, 7]
    batch = encoded.batch([0, 1, 2])
    with torch.no_grad():
        found = module.outputs(batch)
        summaries = module.encoder.summary(batch)
        expected, most = [], 0.0
        for its in (summaries[:4], summaries[4:5], summaries[5:]):
            weights = torch.softmax(its @ module.head.query / its.shape[1] ** 0.5, 0)
            most = max(most, float(weights.max() - weights.min()))
            expected.append(module.head.classifier((weights @ its)[None]))
    assert most > 0.1, "windows that count alike would be a mean"
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_learnt_pooling_of_one_window_is_exact(tmp_path: Path, base: Path, kind: str) -> None:
    settings: dict[str, Any] = {"name": kind, **({} if kind == "classification" else {"labels": None})}
    learnt = opened(tmp_path / "w", base, **settings, long_text="windows", doc_stride=4, window_pooling="learnt")
    cut = opened(tmp_path / "c", base, **settings)
    head: Any = learnt.module.head
    torch.nn.init.normal_(head.query, std=5.0)
    texts = ["the sky is blue", "she wrote a letter"]
    with torch.no_grad():
        expected = cut.module.outputs(encode(cut, *texts)[0].batch([0, 1]))
        assert torch.equal(learnt.module.outputs(encode(learnt, *texts)[0].batch([0, 1])), expected)
        beside = encode(learnt, *texts, " ".join(WORDS))[0].batch([0, 1])  # one that says whose each row is
        assert torch.equal(learnt.module.outputs(beside), expected)


def test_learnt_pooling_starts_as_the_mean_and_learns(tmp_path: Path, base: Path) -> None:
    predictor = opened(tmp_path / "w", base, long_text="windows", doc_stride=4, window_pooling="learnt")
    module: Any = predictor.module
    batch = encode(predictor, " ".join(WORDS))[0].batch([0])
    with torch.no_grad():
        mean = module.encoder.summary(batch).mean(0, keepdim=True)
        torch.testing.assert_close(module.outputs(batch), module.head.classifier(mean), atol=1e-6, rtol=0)
    module.train()
    module.outputs(batch)[0, 0].backward()
    assert float(module.head.query.grad.abs().max()) > 1e-4


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_outputs_are_those_of_the_windows_together(tmp_path: Path, base: Path, pooling: str) -> None:
    windows = opened(tmp_path / "w", base, long_text="windows", doc_stride=4, window_pooling=pooling)
    cut = opened(tmp_path / "c", base)  # the same weights
    texts = [" ".join(WORDS), "the sky is blue", ""]
    encoded, counts = encode(windows, *texts)
    assert (counts.truncated, counts.num_cut, counts.examples, counts.empty) == (0, 0, 3, 1)
    assert encoded.row_lengths.max() == 8
    starts = [0, 4, 8, 12]
    assert encoded.unit_bounds.tolist() == [0, 4, 5, 6], "16 words, six of them a window, each begins four later"
    pieces = [" ".join(WORDS[start : start + 6]) for start in starts]
    with torch.no_grad():
        found = windows.module.outputs(encoded.batch([0, 1, 2]))
        alone = cut.module.outputs(encode(cut, *pieces, *texts[1:])[0].batch(range(6)))
    together = alone[:4].mean(0) if pooling == "mean" else alone[:4].amax(0)
    torch.testing.assert_close(found, torch.stack([together, alone[4], alone[5]]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "learnt"])
def test_a_book_is_computed_in_parts(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, pooling: str) -> None:
    predictor = opened(tmp_path / "w", base, long_text="windows", doc_stride=4, window_pooling=pooling)
    encoded, _ = encode(predictor, " ".join(WORDS * 9), "the sky is blue", " ".join(WORDS))
    batch = encoded.batch([0, 1, 2])
    with torch.no_grad():
        at_once = predictor.module.outputs(batch)
        monkeypatch.setattr("unmask.batch._PART_TOKENS", 50)
        sizes: list[int] = []
        predictor.module.encoder.register_forward_pre_hook(lambda _, given: sizes.append(given[0].num_tokens))  # type: ignore[union-attr]
        torch.testing.assert_close(predictor.module.outputs(batch), at_once, atol=1e-5, rtol=0)
    assert len(sizes) > 3
    assert max(sizes) <= 50


def test_pairs_are_refused(tmp_path: Path, base: Path) -> None:
    predictor = opened(tmp_path / "w", base, long_text="windows")
    pairs = predictor.with_options(type(predictor.task.files.columns)(text_a="a", text_b="b"))  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"a pair, and task\.long_text=windows reads single texts"):
        list(pairs.predict_rows([Row({"a": "she wrote", "b": "a letter"}, "here")]))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"window_pooling": "max"}, "window_pooling is for texts that are read in windows"),
        ({"long_text": "windows", "window_pooling": "learnt", "encoder_top": "bilstm"}, "and window_pooling learnt"),
        ({"doc_stride": 4}, "doc_stride is for texts that are read in windows"),
        ({"name": "regression", "long_text": "windows", "two_orders": True}, "long_text windows and two_orders do"),
        ({"name": "tagging", "long_text": "windows"}, "long_text is for classification and regression"),
    ],
)
def test_settings_that_do_not_go_together(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TaskSettings(**given)

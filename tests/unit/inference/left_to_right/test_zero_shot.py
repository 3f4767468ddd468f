"""Tasks without fine-tuning: every heuristic against its formula, thresholds, what is written and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp

from support.files import write_rows
from support.untrained import save_language_model
from unmask.batch import pack
from unmask.errors import InputError, SettingsError
from unmask.inference.left_to_right.language_model import LanguageModel, load_language_model
from unmask.inference.left_to_right.zero_shot import (
    best_threshold,
    evaluate_zero_shot,
    open_zero_shot,
    predict_zero_shot,
)

TEXTS = ["a very good film", "a bad film positive negative", "the trophy does not fit since the case is too big small"]
POSITIONS = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    directory = tmp_path_factory.mktemp("zero") / "gpt1"
    save_language_model(directory, "gpt1", "bpe", TEXTS * 5, 150, positions=POSITIONS, std=0.5)
    return load_language_model(directory, device="cpu")


def given_log_probabilities(model: LanguageModel, context: str, continuation: str) -> list[float]:
    """Token by token, each prefix by itself; the beginning of what does not fit is not read."""
    before, behind = (model.tokenizer.encode_batch([text])[0] for text in (context, continuation))
    ids = [*before, *behind][-POSITIONS:]
    first = max(1, len(ids) - len(behind))
    values = []
    for place in range(first, len(ids)):
        hidden = model.encoder(pack([ids[:place]]))[-1]
        values.append(float((model.encoder.word_embeddings @ hidden).detach().log_softmax(-1)[ids[place]]))
    return values


def softmax(*scores: float) -> list[float]:
    return torch.softmax(torch.tensor(scores), -1).tolist()


def test_sst2_appends_very_and_compares_positive_with_negative(model: LanguageModel, tmp_path: Path) -> None:
    """Tolerance here and below: fp32 sums in another order."""
    rows = [{"sentence": "a good film", "label": 1}, {"sentence": "bad", "label": 0}]
    path = write_rows(tmp_path / "dev.jsonl", *rows)
    zero_shot = open_zero_shot(model, path, "sst2")
    predictions = list(predict_zero_shot(zero_shot, path))
    for row, prediction in zip(rows, predictions, strict=True):
        words, before = (" negative", " positive"), f"{row['sentence']} very"
        negative, positive = softmax(*(sum(given_log_probabilities(model, before, word)) for word in words))
        assert prediction["input"] == row
        assert prediction["probabilities"] == pytest.approx({"0": negative, "1": positive}, abs=1e-4)
        assert prediction["label"] == ("1" if positive > negative else "0")
    right = [prediction["label"] == str(row["label"]) for row, prediction in zip(rows, predictions, strict=True)]
    measured = evaluate_zero_shot(zero_shot, path)
    assert (measured["task"], measured["n"]) == ("sst2", 2)
    assert measured["metrics"]["accuracy"] == np.mean(right)


def test_labels_are_put_in_words_after_a_pair(model: LanguageModel, tmp_path: Path) -> None:
    row = {"id": "x7", "text_a": "a film", "text_b": "the case {big}", "label": "yes"}
    path = write_rows(tmp_path / "pairs.jsonl", row, {**row, "label": "no"})
    zero_shot = open_zero_shot(
        model, path, template="{text_a} is {text_b}: {label}", words={"yes": "good", "no": "very bad"}
    )
    [first, _] = predict_zero_shot(zero_shot, path)
    sums = [sum(given_log_probabilities(model, "a film is the case {big}:", word)) for word in (" good", " very bad")]
    assert first["id"] == "x7"
    assert first["probabilities"] == pytest.approx(dict(zip(("yes", "no"), softmax(*sums), strict=True)), abs=1e-4)
    within = open_zero_shot(model, path, template="{text_a} ? {label} , {text_b}", words={"yes": "good", "no": "bad"})
    [first, _] = predict_zero_shot(within, path)
    behind = [f" {word} , the case {{big}}" for word in ("good", "bad")]  # what follows the label is scored as well
    sums = [sum(given_log_probabilities(model, "a film ?", text)) for text in behind]
    assert first["probabilities"] == pytest.approx(dict(zip(("yes", "no"), softmax(*sums), strict=True)), abs=1e-4)
    plain = open_zero_shot(model, path)
    [first, _] = predict_zero_shot(plain, path)
    sums = [sum(given_log_probabilities(model, "a film the case {big}", word)) for word in (" no", " yes")]
    assert list(first["probabilities"].values()) == pytest.approx(softmax(*sums), abs=1e-4)


@pytest.mark.parametrize(("low", "high"), [("neg", "pos"), ("2", "10")])
def test_the_order_in_which_words_are_given_changes_nothing(
    model: LanguageModel, tmp_path: Path, low: str, high: str
) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS * 2, (low, high, high) * 2, strict=True)]
    path = write_rows(tmp_path / "dev.jsonl", *rows)
    words = {low: "bad", high: "very good"}
    one = open_zero_shot(model, path, words=words)
    other = open_zero_shot(model, path, words=dict(reversed(words.items())))
    assert one.task.labels == other.task.labels == (low, high)  # so F1 is that of the same label
    assert evaluate_zero_shot(one, path) == evaluate_zero_shot(other, path)
    assert list(predict_zero_shot(one, path)) == list(predict_zero_shot(other, path))


def test_the_one_label_of_a_file_is_no_choice(model: LanguageModel, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "one.jsonl", *[{"text": "a film", "label": "good"}] * 2)
    with pytest.raises(InputError, match=r"one\.jsonl: .* only label is 'good'.* name them all .*--words LABEL=WORDS"):
        open_zero_shot(model, path)
    with pytest.raises(InputError, match="name them all"):
        open_zero_shot(model, path, words={"good": "a very good film"})
    named = open_zero_shot(model, path, words={"good": "good", "bad": "bad"})
    assert evaluate_zero_shot(named, path)["n"] == 2


def test_texts_without_a_label_are_answered_and_not_measured(model: LanguageModel, tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "new.jsonl", {"text": "a film"}, {"text": "bad", "label": None}, {"text": "", "label": "b"}
    )
    zero_shot = open_zero_shot(model, path, words={"a": "good", "b": "bad"})
    assert [one["input"]["text"] for one in predict_zero_shot(zero_shot, path)] == ["a film", "bad", ""]
    with pytest.raises(InputError, match=r"new\.jsonl:1: no column 'label'"):
        evaluate_zero_shot(zero_shot, path)


# ---- What is told of the texts


LONG = "the trophy does not fit since the case is too big " * 3


def test_examples_are_counted_not_texts(model: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The text that is too long is read twice, once with each label."""
    rows = [{"text": text, "label": label} for text, label in zip(("a film", LONG, "", " "), "abab", strict=True)]
    path = write_rows(tmp_path / "dev.jsonl", *rows)
    evaluate_zero_shot(open_zero_shot(model, path), path)
    told = "4 examples, 2 without any text, 1 longer than the model's 16 tokens, read without their beginning"
    assert f"dev.jsonl: {told}" in caplog.text


def test_pairs_without_any_text_are_told(
    model: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [{"text_a": "", "text_b": text, "label": label} for text, label in (("", "a"), ("a film", "b"))]
    path = write_rows(tmp_path / "pairs.jsonl", *pairs)
    list(predict_zero_shot(open_zero_shot(model, path), path))
    assert "pairs.jsonl: 2 examples, 1 without any text" in caplog.text


def test_unknown_tokens_are_told(model: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Counted once, though the text is read with each label, as when a fine-tuned model reads it."""
    assert model.tokenizer.unk_id is not None
    rows = [{"text": "좋 좋 좋 a film", "label": "a"}, {"text": "a film", "label": "b"}]
    num_unknown, num_tokens = 0, 0
    for ids in model.tokenizer.encode_batch([row["text"] for row in rows]):
        num_unknown, num_tokens = num_unknown + ids.count(model.tokenizer.unk_id), num_tokens + len(ids)
    assert num_unknown > 0
    path = write_rows(tmp_path / "dev.jsonl", *rows)
    caplog.set_level(logging.INFO, "unmask")
    evaluate_zero_shot(open_zero_shot(model, path), path)
    assert f"{num_unknown} of {num_tokens} tokens not in the vocabulary" in caplog.text
    assert "the vocabulary does not cover these texts" in caplog.text


def test_a_dev_file_for_the_threshold_is_told_of_too(
    model: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dev = write_rows(tmp_path / "dev.jsonl", {"sentence": LONG, "label": 1}, {"sentence": "", "label": 0})
    open_zero_shot(model, dev, "cola", dev=dev)
    told = "2 examples, 1 without any text, 1 longer than the model's 16 tokens, read without their beginning"
    assert f"dev.jsonl: {told}" in caplog.text


def test_cola_cuts_the_mean_log_probability_at_the_threshold_of_dev(model: LanguageModel, tmp_path: Path) -> None:
    texts = ["a good film", "film a very", "the case is too big", "big big big small"]
    rows = [{"sentence": text, "label": number % 2} for number, text in enumerate(texts)]
    dev = write_rows(tmp_path / "dev.jsonl", *rows)
    zero_shot = open_zero_shot(model, dev, "cola", dev=dev)
    means = np.array([np.mean(given_log_probabilities(model, "", text)) for text in texts])
    tau = best_threshold(means, np.array([False, True, False, True]))
    assert zero_shot.heuristic.threshold == pytest.approx(tau, abs=1e-4)
    for prediction, mean in zip(predict_zero_shot(zero_shot, dev), means, strict=True):
        assert prediction["mean_log_probability"] == pytest.approx(mean, abs=1e-4)
        assert prediction["label"] == str(int(mean > tau))
        assert prediction["probabilities"]["1"] == pytest.approx(1 / (1 + np.exp(tau - mean)), abs=1e-4)
        assert prediction["score"] == max(prediction["probabilities"].values())
    fixed = open_zero_shot(model, dev, "cola", threshold=-1e9)
    assert [prediction["label"] for prediction in predict_zero_shot(fixed, dev)] == ["1"] * 4
    assert evaluate_zero_shot(fixed, dev)["metrics"]["matthews_correlation"] == 0
    with pytest.raises(SettingsError, match="give a dev file"):
        open_zero_shot(model, dev, "cola")
    with pytest.raises(SettingsError, match="the threshold is given, and cola has its labels: leave it or the dev"):
        open_zero_shot(model, dev, "cola", threshold=-1e9, dev=dev)


def test_choices_go_by_their_mean_log_probability(model: LanguageModel, tmp_path: Path) -> None:
    choices = ["good", "the case is too small", "a bad film"]
    row = {"context": "the trophy", "question": "does not", "choices": choices, "label": 1}
    path = write_rows(tmp_path / "q.jsonl", row)
    zero_shot = open_zero_shot(model, path, "choice")
    [prediction] = predict_zero_shot(zero_shot, path)
    means = [np.mean(given_log_probabilities(model, "the trophy does not", f" {choice}")) for choice in choices]
    assert prediction["choice"] == int(np.argmax(means))
    assert prediction["probabilities"] == pytest.approx(softmax(*map(float, means)), abs=1e-4)
    assert evaluate_zero_shot(zero_shot, path)["metrics"] == {"accuracy": float(np.argmax(means) == 1)}


def test_a_choice_with_nothing_to_score_does_not_win_for_it(
    model: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choices = ["a", "the case is too small"]  # of one token, which nothing stands before, and of several
    assert len(model.tokenizer.encode_batch(choices)[0]) == 1
    path = write_rows(tmp_path / "q.jsonl", {"context": "", "choices": choices, "label": 1})
    [prediction] = predict_zero_shot(open_zero_shot(model, path, "choice"), path)
    chance = -float(np.log(model.encoder.settings.vocab_size))
    mean = float(np.mean(given_log_probabilities(model, "", choices[1])))
    assert prediction["probabilities"] == pytest.approx(softmax(chance, mean), abs=1e-4)
    assert "q.jsonl: 1 example, 1 texts of which no token follows another" in caplog.text


def test_a_context_that_is_too_long_loses_its_beginning(model: LanguageModel, tmp_path: Path) -> None:
    context = LONG
    path = write_rows(tmp_path / "q.jsonl", {"context": context, "choices": ["small", "a big case"], "label": 0})
    [prediction] = predict_zero_shot(open_zero_shot(model, path, "choice"), path)
    means = [float(np.mean(given_log_probabilities(model, context, text))) for text in (" small", " a big case")]
    assert prediction["probabilities"] == pytest.approx(softmax(*means), abs=1e-4)


def test_referents_are_put_in_and_what_follows_is_scored(model: LanguageModel, tmp_path: Path) -> None:
    row = {"context": "the trophy does not fit since _ is too big", "choices": ["the trophy", "the case"], "label": 0}
    path = write_rows(tmp_path / "schemas.jsonl", row)
    [prediction] = predict_zero_shot(open_zero_shot(model, path, "choice", method="referent"), path)
    means = [
        float(np.mean(given_log_probabilities(model, f"the trophy does not fit since {name}", " is too big")))
        for name in row["choices"]
    ]
    assert prediction["probabilities"] == pytest.approx(softmax(*means), abs=1e-4)
    for context in ("no blank", "_ and _ too", "it ends in _"):
        broken = write_rows(tmp_path / "broken.jsonl", {**row, "context": context})
        with pytest.raises(InputError, match=r"broken\.jsonl:1: the context .*: expected one _"):
            list(predict_zero_shot(open_zero_shot(model, broken, "choice", method="referent"), broken))


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [
        ("tagging", {}, "tagging is tagging"),
        ("sst2", {"method": "completion"}, "method 'completion' is not for classification"),
        ("choice", {"words": {"a": "b"}}, "template and words are for the method labels"),
        ("sst2", {"words": {"2": "neutral"}}, "words for '2': there is no such label; there are 0, 1"),
        ("sst2", {"template": "{text}"}, r"template '\{text\}': expected \{text\}, and \{label\} once"),
        ("sst2", {"template": "{label}"}, "template"),
        ("sst2", {"template": "{text} {more} {label}"}, "template"),
        ("sst2", {"template": "{label} {text} {label}"}, "template"),
        ("sst2", {"threshold": 1.0}, "a dev file and a threshold are for the method acceptability"),
        ("cola", {"threshold": float("nan")}, "threshold nan: expected a number"),
        ("snli", {"template": "{text} {label}"}, r"expected \{text_a\} and \{text_b\}"),
        ("snli", {"method": "acceptability"}, "acceptability has two labels, and there are 3"),
    ],
)
def test_what_cannot_be_is_told(model: LanguageModel, tmp_path: Path, task: str, options: Any, told: str) -> None:
    rows: dict[str, dict[str, Any]] = {
        "sst2": {"sentence": "a", "label": 1},
        "cola": {"sentence": "a", "label": 1},
        "snli": {"sentence1": "a", "sentence2": "b", "gold_label": "neutral"},
        "choice": {"context": "a", "choices": ["a", "b"], "label": 0},
        "tagging": {"tokens": ["a"], "tags": ["O"]},
    }
    path = write_rows(tmp_path / "x.jsonl", rows[task])
    with pytest.raises(SettingsError, match=told):
        open_zero_shot(model, path, task, **options)


def matthews(values: Any, positive: Any, threshold: float) -> float:
    """The correlation of two kinds of yes and no; 0 where one of them is always the same."""
    predicted = values > threshold
    if len(set(predicted.tolist())) == 1 or len(set(positive.tolist())) == 1:
        return 0.0
    return float(np.corrcoef(predicted, positive)[0, 1])


@given(
    stnp.arrays(np.int64, st.shared(st.integers(1, 12), key="n"), elements=st.integers(-5, 5)),
    stnp.arrays(np.bool_, st.shared(st.integers(1, 12), key="n")),
)
def test_no_threshold_is_better_than_the_best(values: Any, positive: Any) -> None:
    found = matthews(values, positive, best_threshold(values.astype(float), positive))
    others = [matthews(values, positive, cut) for cut in (*(np.unique(values) + 0.5), -9)]
    assert found == pytest.approx(max(0, *others), abs=1e-12)


def test_columns_may_be_a_dictionary(model: LanguageModel, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", {"review": "a film", "gold": "good"}, {"review": "a case", "gold": "bad"})
    assert open_zero_shot(model, path, columns={"text": "review", "label": "gold"}).task.labels == ("bad", "good")
    with pytest.raises(SettingsError, match="columns: unknown key lable"):
        open_zero_shot(model, path, columns={"lable": "gold"})


def test_examples_in_memory_are_no_file(model: LanguageModel) -> None:
    with pytest.raises(InputError, match="found a list: expected the path of a file"):
        open_zero_shot(model, [{"text": "a film"}])  # type: ignore[arg-type]

"""What is shown of a model's inside, beside `transformers`' own attentions and the sums that have to come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.family_parity import LENGTHS, draw, new_theirs, settings_of
from support.untrained import save_bert, save_task_model
from unmask.errors import InputError
from unmask.inference.inspection import (
    TokenWeights,
    answers_of_layers,
    attention_weights,
    chances_of_spans,
    read_for_weighing,
    weigh_tokens,
)
from unmask.inference.mask_filling import MaskFiller
from unmask.inference.predictor import Predictor, load_predictor
from unmask.io.rows import Row
from unmask.models.hub.directory import load_model
from unmask.models.hub.uses import MASKED
from unmask.tasks.base import ExampleCounts
from unmask.tokenization.tokenizer import load_tokenizer

TEXTS = ["she wrote a warm letter to a dull man in london", "the sky is blue and the sea is green"] * 10


@pytest.mark.parametrize(
    ("family", "class_name"),
    [("bert", "BertModel"), ("electra", "ElectraModel"), ("modernbert", "ModernBertModel"), ("gpt1", "OpenAIGPTModel")],
)
def test_attention_is_that_of_transformers(tmp_path: Path, family: Any, class_name: str) -> None:
    settings = settings_of(family)
    theirs = new_theirs(class_name, settings, attn_implementation="eager")
    theirs.save_pretrained(tmp_path)
    encoder = load_model(tmp_path).encoder.eval()
    ids = draw(settings, LENGTHS).input_ids[9:25]
    with torch.no_grad():
        expected = theirs(ids[None], output_attentions=True).attentions
    found = attention_weights(encoder, ids.tolist())  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))
    assert not [block for block in encoder.blocks if block.attention._forward_hooks], "nothing is left behind"  # type: ignore[union-attr]


def test_the_last_layer_answers_as_the_model_does(tmp_path: Path) -> None:
    directory = save_bert(tmp_path / "masked", TEXTS, masked_lm=True, initializer_range=0.1)
    loaded, tokenizer = load_model(directory, MASKED), load_tokenizer(directory)
    filler = MaskFiller(directory, device="cpu")
    text = filler.encode("the [MASK] is blue")
    assert loaded.masked_lm_head is not None
    answers = answers_of_layers(loaded.encoder.eval(), loaded.masked_lm_head.eval(), tokenizer, text.ids, 2, 4)  # type: ignore[arg-type]
    assert [each.layer for each in answers] == list(range(loaded.encoder.settings.num_hidden_layers + 1))
    [expected] = filler.answer([text], 4)
    assert answers[-1].tokens == [each["token_str"] for each in expected]
    assert answers[-1].scores == pytest.approx([each["score"] for each in expected], abs=1e-6)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    place = tmp_path_factory.mktemp("inspected")
    base = save_bert(place / "base", TEXTS, initializer_range=0.2)
    return load_predictor(
        save_task_model(
            place / "model", base, std=0.5, name="classification", labels=["dull", "warm", "none"], max_length=32
        )
    )


def probability(predictor: Predictor, text: str, label: str) -> float:
    [answer] = predictor.predict_rows([Row({"text": text}, "here")])
    return float(answer["probabilities"][label])


def weigh(predictor: Predictor, text: str, method: str) -> TokenWeights:
    return weigh_tokens(predictor, read_for_weighing(predictor, Row({"text": text}, "here"), method, 64), method)


def test_erasure_is_what_hiding_each_token_takes_away(classifier: Predictor) -> None:
    text = "she wrote a warm letter"
    found = weigh(classifier, text, "erasure")
    words = text.split()
    whole = probability(classifier, text, found.label)
    assert found.difference == pytest.approx(whole, abs=1e-6)
    hidden = [" ".join([*words[:place], "[MASK]", *words[place + 1 :]]) for place in range(len(words))]
    expected = [0, *(whole - probability(classifier, each, found.label) for each in hidden), 0]
    np.testing.assert_allclose(found.weights, expected, atol=1e-6)
    assert np.abs(found.weights).max() > 1e-3, "something rests on something"


@pytest.mark.parametrize("method", ["erasure", "integrated_gradients"])
def test_a_word_that_became_unk_has_its_weight_and_what_stands_around_the_text_has_none(
    classifier: Predictor, method: str
) -> None:
    found = weigh(classifier, "she 재밌게 wrote", method)
    assert (found.weights != 0).tolist() == [False, True, True, True, False]


def test_integrated_gradients_add_up_to_what_the_words_bring(classifier: Predictor) -> None:
    text = "she wrote a warm letter"
    found = weigh(classifier, text, "integrated_gradients")
    answer = classifier.task.labels.index(found.label)

    def logit(text: str) -> float:
        task = classifier.task
        encoded = task.encode([task.read(Row({"text": text}, ""))], classifier.tokenizer, ExampleCounts(), 2)
        with torch.no_grad():
            return float(classifier.module.outputs(encoded.batch([0]))[0, answer])

    expected = logit(text) - logit(" ".join(["[MASK]"] * 5))
    assert found.difference == pytest.approx(expected, rel=0.02, abs=0.01)
    assert abs(expected) > 0.1
    assert found.weights[0] == found.weights[-1] == 0
    embeddings: Any = classifier.module.encoder.embeddings
    assert not embeddings.word._forward_hooks


def test_an_ensemble_has_no_one_inside(classifier: Predictor) -> None:
    from dataclasses import replace

    several = replace(classifier, others=(classifier,))
    row = Row({"text": "she wrote"}, "here")
    with pytest.raises(InputError, match="an ensemble answers by several models"):
        read_for_weighing(several, row, "erasure", 64)
    with pytest.raises(InputError, match="the text has 4 tokens: up to 3 can be weighed"):
        read_for_weighing(classifier, row, "erasure", 3)
    long = Row({"text": "she wrote " * 40}, "here")
    with pytest.raises(InputError, match="the model reads 32 tokens of this text: give a shorter one"):
        read_for_weighing(classifier, long, "erasure", 64)


def test_chances_of_spans_are_of_the_window_that_answers(tmp_path: Path) -> None:
    base = save_bert(tmp_path / "base", TEXTS, initializer_range=0.2, max_position_embeddings=40)
    predictor = load_predictor(save_task_model(tmp_path / "qa", base, std=0.5, name="qa", max_length=16, doc_stride=4))
    passage = "she wrote a warm letter to a dull man in london and the sky is blue"
    task = predictor.task
    example = task.read(Row({"question": "who wrote", "context": passage}, "here"))
    encoded = task.encode([example], predictor.tokenizer, ExampleCounts(), 2)
    assert len(encoded) > 1, "several windows"
    logits = torch.randn(len(encoded.input_ids), 2, generator=torch.Generator().manual_seed(0))
    place = int(encoded.bounds[2]) - 4  # a token of the passage, in the second window
    logits[place] = 9.0
    found = chances_of_spans(encoded, logits)
    best = int(np.argmax(found.begins))
    assert (found.starts[best], found.ends[best]) == tuple(
        int(encoded.alignment[name][place]) for name in ("starts", "ends")
    )
    assert found.begins[best] > 0.9
    assert sum(found.begins) < 1.0001
    words = [passage[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    assert all(word in passage.split() for word in words)

"""The tagging task: the loss, what is decoded, and that it learns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.files import write_rows
from support.sizes import small
from support.tagging import KLUE, POS, TASK, tagging_task
from unmask.errors import InputError, ModelError
from unmask.io.rows import Row
from unmask.models.encoder import new_encoder
from unmask.models.hub.directory import load_encoder
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.tagging.examples import TaggingExample
from unmask.tasks.tagging.module import TaggingModule
from unmask.tasks.tagging.task import Tagging
from unmask.tokenization.tokenizer import TextTokenizer


def sentence(words: str, tags: str | None = None, task: Tagging = TASK) -> TaggingExample:
    example = task.read(Row({"tokens": words.split(" ")}, "x:1"))
    return replace(example, tags=None if tags is None else tuple(tags.split()))


def logits_for(
    encoded: EncodedExamples, task: Tagging, said: Sequence[str], sure: Sequence[float] = ()
) -> torch.Tensor:
    """Outputs that say these tags at the answering tokens, one after another, with these probabilities or each .9."""
    outputs = torch.zeros(len(encoded.input_ids), len(task.labels))
    answering = np.flatnonzero(encoded.alignment["num_units"])
    for token, tag, probability in zip(answering, said, sure or [0.9] * len(said), strict=True):
        odds = probability / (1 - probability) * (len(task.labels) - 1)  # to each other label 1
        outputs[token, task.labels.index(tag)] = float(np.log(odds))
    return outputs


# Encoding and answering.


def test_counts_tell_what_has_no_token(tokenizer: TextTokenizer) -> None:
    counts = ExampleCounts()
    TASK.encode([sentence("a \u200b"), TASK.read(Row({"tokens": []}, "x:2"))], tokenizer, counts)
    assert counts.summary() == "2 examples, 1 without any text, 1 words that encode to nothing"
    counts = ExampleCounts()
    KLUE.encode([KLUE.read(Row({"text": "a \u200bb\nc\td\u00a0e"}, "x:1"))], tokenizer, counts)
    assert counts.notes == {"characters that encode to nothing": 1}  # blanks are none


def test_decoded_with_places_and_probabilities(tokenizer: TextTokenizer) -> None:
    examples = [sentence("Ada Lovelace saw London"), sentence("rain")]
    encoded = TASK.encode(examples, tokenizer, ExampleCounts())
    decoded = TASK.decode(examples, encoded, logits_for(encoded, TASK, ["B-X", "I-X", "O", "B-Y", "I-X"]))
    assert [one["tags"] for one in decoded] == [["B-X", "I-X", "O", "B-Y"], ["I-X"]]  # as said
    assert decoded[0]["tokens"] == ["Ada", "Lovelace", "saw", "London"]
    near = pytest.approx(0.9, abs=1e-6)  # of float32's softmax
    assert decoded[0]["entities"] == [
        {"label": "X", "start": 0, "end": 12, "text": "Ada Lovelace", "score": near},
        {"label": "Y", "start": 17, "end": 23, "text": "London", "score": near},
    ]
    assert decoded[1]["entities"] == [{"label": "X", "start": 0, "end": 4, "text": "rain", "score": near}]
    json.dumps(decoded)


def test_words_without_token_are_in_the_entity_around_them_or_o(tokenizer: TextTokenizer) -> None:
    example = sentence("\u200b Ada \u200b \u200d Lovelace \u200b saw \u200b")
    encoded = TASK.encode([example], tokenizer, ExampleCounts())
    for said, tags in (
        (["B-X", "I-X", "O"], "O B-X I-X I-X I-X O O O"),
        (["B-X", "B-X", "I-X"], "O B-X O O B-X I-X I-X O"),
        (["B-X", "I-Y", "O"], "O B-X O O I-Y O O O"),
    ):
        (decoded,) = TASK.decode([example], encoded, logits_for(encoded, TASK, said))
        assert decoded["tags"] == tags.split()
    (decoded,) = TASK.decode([example], encoded, logits_for(encoded, TASK, ["B-X", "I-X", "O"]))
    assert [one["text"] for one in decoded["entities"]] == ["Ada \u200b \u200d Lovelace"]
    example = sentence("\u200b a \u200b man", task=POS)
    encoded = POS.encode([example], tokenizer, ExampleCounts())
    assert POS.decode([example], encoded, logits_for(encoded, POS, ["VERB", "NOUN"]))[0] == {
        "tokens": ["\u200b", "a", "\u200b", "man"],
        "tags": ["VERB", "VERB", "VERB", "NOUN"],
        "entities": [],
    }
    nothing = sentence("\u200b", task=POS)
    encoded = POS.encode([nothing], tokenizer, ExampleCounts())
    assert POS.decode([nothing], encoded, logits_for(encoded, POS, []))[0]["tags"] == ["NOUN"]


def test_tokens_spread_their_tag_over_their_characters(tokenizer: TextTokenizer) -> None:
    (man, unknown) = tokenizer.tokens([*tokenizer.encode_batch(["man"])[0], *tokenizer.encode_batch(["가나"])[0]])
    assert (man, unknown) == ("man", "[UNK]")
    example = KLUE.read(Row({"text": "man 가나 man"}, "x:1"))
    encoded = KLUE.encode([example], tokenizer, ExampleCounts())
    outputs = logits_for(encoded, KLUE, ["B-PS", "I-PS", "O"], [0.9, 0.6, 0.9])
    (decoded,) = KLUE.decode([example], encoded, outputs)
    assert decoded["tags"] == ["B-PS", *["I-PS"] * 5, *["O"] * 4]
    mean = pytest.approx((3 * 0.9 + 2 * 0.6) / 5, abs=1e-6)
    assert decoded["entities"] == [{"label": "PS", "start": 0, "end": 6, "text": "man 가나", "score": mean}]


@pytest.mark.parametrize("between", ["\n", " \r\n "])
def test_an_entity_ends_with_its_line(tokenizer: TextTokenizer, between: str) -> None:
    example = KLUE.read(Row({"text": f"man man{between}man"}, "x:1"))
    encoded = KLUE.encode([example], tokenizer, ExampleCounts())
    (decoded,) = KLUE.decode([example], encoded, logits_for(encoded, KLUE, ["B-PS", "I-PS", "I-PS"]))
    assert [one["text"] for one in decoded["entities"]] == ["man man", "man"]
    assert decoded["tags"][7:-3] == ["O"] * len(between)


words = st.lists(st.sampled_from(["a", "man", "walking", "zzz", "\u200b", "가나다", "X.", "a\u00a0b"]), max_size=40)


@given(st.lists(words, min_size=1, max_size=3), st.integers(3, 20), st.integers(1, 24), st.data())
def test_every_unit_gets_exactly_one_tag_and_gold_comes_back(
    tokenizer: TextTokenizer, sentences: list[list[str]], max_length: int, stride: int, data: st.DataObject
) -> None:
    sizes = {"max_length": max_length, "doc_stride": stride}
    task = replace(TASK, settings=TASK.settings.model_copy(update=sizes))
    tag = st.sampled_from(task.labels)
    examples = []
    for tokens in sentences:
        tags = data.draw(st.lists(tag, min_size=len(tokens), max_size=len(tokens)))
        examples.append(replace(task.read(Row({"tokens": tokens}, "x:1")), tags=tuple(tags)))
    encoded = task.encode(examples, tokenizer, ExampleCounts())
    labels = encoded.token_columns["labels"]
    outputs = torch.nn.functional.one_hot(torch.from_numpy(np.maximum(labels, 0)), len(task.labels)).float()
    for example, decoded in zip(examples, task.decode(examples, encoded, outputs), strict=True):
        assert len(decoded["tags"]) == len(example.units)
        for word, true, said in zip(example.words, example.tags or (), decoded["tags"], strict=True):
            assert said in task.labels
            assert said == true or word == "\u200b"


def test_floors_are_what_saying_o_comes_to(tokenizer: TextTokenizer) -> None:
    examples = [sentence("a man walking", "O B-X O"), sentence("zzz", "O")]
    encoded = TASK.encode(examples, tokenizer, ExampleCounts())
    floors = TASK.floors(encoded, encoded)
    assert floors == {"overall_accuracy": {"all O": 0.75}, "overall_f1": {"all O": 0.0}}
    score = TASK.score()
    score.add(examples, TASK.decode(examples, encoded, logits_for(encoded, TASK, ["O"] * 4)))
    assert {name: score.metrics()[name] for name in floors} == {"overall_accuracy": 0.75, "overall_f1": 0.0}
    assert score.degenerate() == "all 4 words are tagged O"
    characters = KLUE.read(Row({"text": "가나 man"}, "x:1"))
    characters = replace(characters, tags=("B-PS", "I-PS", "O", "O", "O", "O"))
    encoded = KLUE.encode([characters], tokenizer, ExampleCounts())
    assert KLUE.floors(encoded, encoded)["overall_accuracy"] == {"all O": 0.6}  # without the blank
    tagged = [sentence("a man walking zzz", "NOUN NOUN VERB NOUN", POS)]
    encoded = POS.encode(tagged, tokenizer, ExampleCounts())
    score = POS.score()
    score.add(tagged, POS.decode(tagged, encoded, logits_for(encoded, POS, ["NOUN"] * 4)))
    assert POS.floors(encoded, encoded) == {
        name: {"all NOUN": pytest.approx(value)} for name, value in score.metrics().items()
    }


def test_one_tag_alone_teaches_nothing(tokenizer: TextTokenizer) -> None:
    one = TASK.encode([sentence("a man", "O O")], tokenizer, ExampleCounts())
    with pytest.raises(InputError, match=r"a\.conll: every word is tagged O: nothing can be learned"):
        TASK.check(one, Path("a.conll"))
    none = TASK.encode([sentence("\u200b", "O")], tokenizer, ExampleCounts())
    with pytest.raises(InputError, match=r"a\.conll: no word has a token"):
        TASK.check(none, Path("a.conll"))
    TASK.check(TASK.encode([sentence("a", "O"), sentence("a", "B-X")], tokenizer, ExampleCounts()), Path("a"))


def test_samples_for_the_report(tokenizer: TextTokenizer) -> None:
    example = sentence("Ada saw London", "B-X O B-Y")
    encoded = TASK.encode([example], tokenizer, ExampleCounts())
    (prediction,) = TASK.decode([example], encoded, logits_for(encoded, TASK, ["B-X", "O", "O"]))
    assert TASK.sample(example, prediction) == {
        "input": {"text": "Ada saw London"},
        "label": "Ada [X], London [Y]",
        "prediction": "Ada [X]",
        "probability": pytest.approx(0.9, abs=1e-6),
    }
    example = sentence("a b", "NOUN X", POS)
    prediction = {"tokens": ["a", "b"], "tags": ["X", "X"], "entities": []}
    shown = {"label": "NOUN X", "prediction": "X X", "probability": None}
    assert POS.sample(example, prediction) == {"input": {"text": "a b"}, **shown}


# Learning.


def new_module(tiny_model: Path, task: Tagging = TASK) -> TaggingModule:
    torch.manual_seed(1)
    module = task.module(load_encoder(tiny_model).encoder)
    assert isinstance(module, TaggingModule)
    return module


def test_the_loss_counts_labels_and_reads_no_other_token(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    examples = [sentence("a man walking", "O B-X O"), sentence("\u200b", "O"), sentence("a dog", None)]
    encoded = TASK.encode(examples, tokenizer, ExampleCounts())
    module = new_module(tiny_model).eval()
    batch = encoded.batch([0, 1, 2])
    (direct,), (through_outputs,) = module(batch), module.loss(module.outputs(batch), batch)
    assert module.counts(batch) == {"task": 3}
    # The same products in another order: float32 rounding of a loss of about 5.
    assert torch.allclose(direct.total, through_outputs.total, atol=1e-4)
    (empty,) = module(encoded.batch([1, 2]))
    assert (module.counts(encoded.batch([1, 2])), float(empty.total.detach())) == ({"task": 0}, 0.0)
    empty.total.backward()
    assert [name for name, _ in module.named_children()] == ["encoder", "head"]


def learned(
    task: Tagging, examples: list[TaggingExample], tiny_model: Path, tokenizer: TextTokenizer
) -> dict[str, float]:
    """Metrics on the examples after a few steps on all of them."""
    encoded = task.encode(examples, tokenizer, ExampleCounts())
    batch = encoded.batch(range(len(encoded)))
    module = new_module(tiny_model, task).eval()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        (term,) = module(batch)
        (term.total / module.counts(batch)["task"]).backward()
        optimizer.step()
    score = task.score()
    with torch.no_grad():
        score.add(examples, task.decode(examples, encoded, module.outputs(batch)))
    return score.metrics()


def test_two_predicates_of_one_sentence_are_told_apart(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    first = replace(sentence("a man said a dog said", "B-X I-X O O O O"), predicate=2)
    second = replace(sentence("a man said a dog said", "O O O B-Y I-Y O"), predicate=5)
    assert learned(TASK, [first, second], tiny_model, tokenizer)["overall_f1"] == 1.0


def test_roles_are_nothing_for_a_causal_encoder(tiny_model: Path, tmp_path: Path) -> None:
    """No token of the sentence would see the predicate behind it; a BiLSTM over the features does."""
    sizes = small(
        architecture="gpt1",
        hidden_act="gelu_new",
        type_vocab_size=0,
        vocab=50,
        width=8,
        layers=1,
        heads=2,
        inner=32,
        positions=24,
    )
    words = write_rows(tmp_path / "b.jsonl", {"tokens": "a b", "tags": "O B-X"})
    roles = write_rows(tmp_path / "a.jsonl", {"tokens": "a b", "tags": "O B-X", "predicate": 1})
    for task in (TASK, tagging_task(labels=None)):
        with pytest.raises(ModelError, match=r"causal encoder \(gpt1\): each predicate is named behind"):
            task.fit_to(roles).module(new_encoder(sizes))
        assert task.fit_to(roles).module(load_encoder(tiny_model).encoder)
        assert task.fit_to(words).module(new_encoder(sizes))
    assert tagging_task(tagging_head="bilstm").fit_to(roles).module(new_encoder(sizes))

"""Scores as answers: the best spans against trying them all, thresholds, and answers as stretches of their passage."""

from __future__ import annotations

import json
import math
import unicodedata
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.questions import TOKENIZERS, WORDS
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.qa.decoding import decode_answers
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.qa.windows import encode_questions
from unmask.tasks.settings import TaskSettings

RULES = TaskSettings(name="qa", max_answer_length=4, n_best=3, unanswerable=True, max_length=32, doc_stride=8)
SHORT = RULES.model_copy(update={"max_length": 9, "doc_stride": 2})
"""Windows of four words from words 0, 2, 4, 6."""


def encode(
    contexts: list[str], settings: TaskSettings = RULES, kind: str = "wordpiece"
) -> tuple[list[QaExample], EncodedExamples]:
    examples = [QaExample(str(n), "who?", text, None, (), {}, f"x:{n}") for n, text in enumerate(contexts)]
    return examples, encode_questions(examples, TOKENIZERS[kind], settings, ExampleCounts())


def logits_of(encoded: EncodedExamples, start: dict[int, float], end: dict[int, float]) -> Any:
    """Given scores at some tokens, -5 elsewhere."""
    logits = np.full((len(encoded.input_ids), 2), -5.0, dtype=np.float32)
    for side, scores in enumerate((start, end)):
        for token, score in scores.items():
            logits[token, side] = score
    return logits


def test_a_span_by_hand() -> None:
    # [CLS] who ? [SEP] zero one two ... : the passage begins at token 4.
    examples, encoded = encode([WORDS])
    logits = logits_of(encoded, {0: 1.0, 5: 3.0, 9: 2.0}, {0: 0.5, 4: 9.0, 6: 2.0, 9: 1.0})
    [prediction] = decode_answers(examples, encoded, logits, RULES)
    n_best = prediction.pop("n_best")
    assert prediction == {
        "id": "0",
        "answer": "one two",
        "start": 5,
        "end": 12,
        "score": 5.0,
        "null_score": 1.5,
        "no_answer_probability": pytest.approx(1 / (1 + math.exp(3.5))),
    }
    # "zero" begins at -5 and ends at 9; "one ... five" would be a token too long.
    assert [(one["answer"], one["score"]) for one in n_best] == [("one two", 5.0), ("zero", 4.0), ("five", 3.0)]
    weights = [math.exp(score) for score in (5.0, 4.0, 3.0, 1.5)]
    assert [one["probability"] for one in n_best] == pytest.approx([weight / sum(weights) for weight in weights[:3]])
    json.dumps(prediction)


def test_the_threshold() -> None:
    examples, encoded = encode([WORDS])
    logits = logits_of(encoded, {0: 2.0, 5: 3.0}, {0: 1.0, 5: 1.0})  # 4 against 3
    for threshold, answer in ((0.0, "one"), (0.99, "one"), (1.0, ""), (-3.0, "one")):
        rules = RULES.model_copy(update={"null_threshold": threshold})
        [prediction] = decode_answers(examples, encoded, logits, rules)
        assert prediction["answer"] == answer
        assert (prediction["start"] is None) == (answer == "")
        assert prediction["score"] == (4.0 if answer else 3.0)
        assert prediction["n_best"][0]["answer"] == "one"
    [prediction] = decode_answers(
        examples, encoded, logits, RULES.model_copy(update={"unanswerable": False, "null_threshold": 5.0})
    )
    assert (prediction["answer"], prediction["no_answer_probability"]) == ("one", 0.0)


def test_no_answer_is_as_good_as_in_the_window_that_says_least_for_it() -> None:
    examples, encoded = encode([WORDS], SHORT)
    assert len(encoded) == 4
    firsts = encoded.bounds[:-1].tolist()
    logits = logits_of(encoded, dict(zip(firsts, (4.0, 1.0, 3.0, 2.0), strict=True)), dict.fromkeys(firsts, 0.0))
    assert decode_answers(examples, encoded, logits, RULES)[0]["null_score"] == 1.0


def test_a_beginning_counts_in_the_window_with_most_context_alone() -> None:
    examples, encoded = encode([WORDS], SHORT)
    # "three" is third and last of the first window, second of the second: 0 right against 1 left.
    in_first, in_second = 4 + 3, 9 + 4 + 1
    assert not encoded.alignment["max_context"][in_first]
    assert encoded.alignment["max_context"][in_second]
    logits = logits_of(encoded, {in_first: 9.0, in_second: 1.0}, {in_first: 1.0, in_second: 1.0})
    [prediction] = decode_answers(examples, encoded, logits, RULES)
    assert (prediction["answer"], prediction["score"]) == ("three", 2.0)


def test_different_texts_once_each() -> None:
    examples, encoded = encode(["one two one two one"])
    logits = logits_of(encoded, {4: 3.0, 6: 2.0, 8: 1.0}, {4: 3.0, 6: 2.0, 8: 1.0})
    n_best = decode_answers(examples, encoded, logits, RULES)[0]["n_best"]
    assert [one["answer"] for one in n_best] == ["one", "one two one", "one two"]
    assert n_best[0]["start"] == 0


def test_a_passage_without_tokens() -> None:
    examples, encoded = encode(["", "one", "\u200b"])
    logits = np.zeros((len(encoded.input_ids), 2), dtype=np.float32)
    for rules in (RULES, RULES.model_copy(update={"unanswerable": False})):
        nothing, one, invisible = decode_answers(examples, encoded, logits, rules)
        for prediction in (nothing, invisible):
            assert (prediction["answer"], prediction["start"], prediction["n_best"]) == ("", None, [])
            assert prediction["no_answer_probability"] == float(rules.unanswerable or False)
        assert one["n_best"][0]["answer"] == "one"


def test_scripts() -> None:
    """A part of a word, jamo, marks, Han characters."""
    decomposed = unicodedata.normalize("NFD", "각각 값을 café")
    examples, encoded = encode([f"{decomposed} 漢字"])
    answers = []
    for token in range(4, len(encoded.input_ids) - 1):
        logits = logits_of(encoded, {token: 9.0}, {token: 9.0})
        answers.append(decode_answers(examples, encoded, logits, RULES)[0]["answer"])
    assert "".join(answers) == decomposed.replace(" ", "") + "漢字"
    assert unicodedata.normalize("NFD", "café") in answers


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_all_spans_tried_one_by_one(kind: str, data: st.DataObject) -> None:
    alphabet = st.sampled_from([*"ab é각🙂\u200b\n漢", "one ", "two "])
    contexts = data.draw(st.lists(st.lists(alphabet, max_size=14).map("".join), min_size=1, max_size=3))
    room = data.draw(st.integers(1, 9))
    question = 3 + len(TOKENIZERS[kind].encode_batch(["who?"])[0]) + (kind == "byte_bpe")
    rules = TaskSettings(
        name="qa",
        max_length=question + room,
        doc_stride=data.draw(st.integers(1, 9)),
        max_answer_length=data.draw(st.integers(1, 5)),
        n_best=data.draw(st.integers(1, 4)),
        unanswerable=data.draw(st.booleans()),
    )
    examples, encoded = encode(contexts, rules, kind)
    generator = np.random.default_rng(data.draw(st.integers(0, 9)))
    logits = generator.normal(size=(len(encoded.input_ids), 2)).astype(np.float32)
    for number, prediction in enumerate(decode_answers(examples, encoded, logits, rules)):
        context = contexts[number]
        expected: dict[str, float] = {}
        for unit in np.flatnonzero(encoded.examples == number):
            tokens = range(encoded.tokens_of(unit).start, encoded.tokens_of(unit).stop)
            for first, last in product(tokens, tokens):
                inside = encoded.alignment["max_context"][first] and encoded.alignment["starts"][last] >= 0
                if inside and 0 <= last - first < rules.max_answer_length:
                    text = context[encoded.alignment["starts"][first] : encoded.alignment["ends"][last]].strip()
                    expected[text] = max(expected.get(text, -np.inf), logits[first, 0] + logits[last, 1])
        expected.pop("", None)
        best = sorted(expected.values(), reverse=True)[: rules.n_best]
        assert [one["score"] for one in prediction["n_best"]] == pytest.approx(best)
        for one in prediction["n_best"]:
            assert context[one["start"] : one["end"]] == one["answer"]
            assert expected[one["answer"]] == pytest.approx(one["score"])
        if prediction["answer"]:
            assert context[prediction["start"] : prediction["end"]] == prediction["answer"]

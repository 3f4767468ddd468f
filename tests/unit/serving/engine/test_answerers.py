"""What reading makes of a request, and what is computed of several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unmask.inference.opening import open_model
from unmask.serving.engine.answerers import MaskAnswerer, VectorAnswerer
from unmask.serving.engine.asks import Ask, Reading
from unmask.serving.engine.engine import Engine
from unmask.serving.engine.models import open_models
from unmask.serving.settings import Limits


def test_an_answer_for_a_mask_counts_as_a_token(tiny_model: Path) -> None:
    """So that few requests of many answers are computed together."""
    answerer = MaskAnswerer(open_model(tiny_model))
    text = f"a man is {answerer.mask_token} on the grass"
    short, long = answerer.read([text], 5), answerer.read([text] * 2, 1000)
    assert short.tokens == len(short.payload[0].ids)
    assert long.tokens == 2000


def test_a_word_that_is_no_token_is_answered_for_each_mask(tiny_model: Path) -> None:
    answerer = MaskAnswerer(open_model(tiny_model))
    work = answerer.read([f"a {answerer.mask_token} is {answerer.mask_token}"], 5, ["nosuchword"])
    [[found]] = answerer.compute(work.options, [work.payload])
    assert [each["mask"] for each in found if each["token_str"] == "nosuchword"] == [0, 1]


def test_what_is_left_out_of_a_pair_is_that_of_both_texts(tiny_model: Path) -> None:
    answerer, long = VectorAnswerer(open_model(tiny_model)), "a man " * 400
    [only] = answerer.read([long], Reading(pool="cls")).left_out
    assert only > 0
    pairs = answerer.read_pairs([("a", long), (long, "a"), (long, long)], Reading(pool="cls"))
    assert pairs.left_out == [only, only, 2 * only]


def test_requests_computed_together_have_the_vectors_that_they_have_alone(tiny_model: Path) -> None:
    answerer, reading = VectorAnswerer(open_model(tiny_model)), Reading()
    payloads = [answerer.read(texts, reading).payload for texts in (["a man", "a dog"], ["two women"], ["a"])]
    for payload, found in zip(payloads, answerer.compute(reading, payloads), strict=True):
        np.testing.assert_allclose(found, answerer.compute(reading, [payload])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("reader", "text", "more"),
    [("masks", "a [MASK] is", (900,)), ("scores", "a man is", ())],
    ids=["many answers for a mask", "a copy for each masked token"],
)
def test_a_request_is_as_long_as_its_inputs(tiny_model: Path, reader: str, text: str, more: tuple[int, ...]) -> None:
    """Whatever computing it costs."""
    engine = Engine(open_models([f"m={tiny_model}"], "fp32"), Limits())
    assert engine.ask(Ask("m", reader, ([text] * 2, *more))).result(60).tokens == 10  # [CLS] and [SEP] around each
    assert b"\nte_request_input_length_sum 10.0\n" in engine.figures().result()

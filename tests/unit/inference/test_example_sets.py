"""Running modules over examples: sets whose outputs fit into memory, the order of outputs, and losses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from support.tasks import new_task
from unmask.batch import Batch, LossTerm
from unmask.inference.example_sets import (
    MOST_EXAMPLES,
    Losses,
    encode_sets,
    in_sets,
    map_ahead,
    measure,
    run_module,
    set_size,
)
from unmask.tasks.base import ExampleCounts, Task
from unmask.tasks.encoded import EncodedExamples, concatenate
from unmask.tasks.text.examples import TextExample
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.training.device import Compute

CPU = Compute(torch.device("cpu"), torch.float32, "test")


def opened(name: str, num_labels: int | None = None, **settings: Any) -> Task[Any]:
    labels: dict[str, Any] = {} if num_labels is None else {"labels": [f"B-{number}" for number in range(num_labels)]}
    task: Task[Any] = new_task(name, **labels, **settings)
    return task


# ---- Windows


@pytest.mark.parametrize(
    ("task", "size"),
    [
        (opened("classification", 2), MOST_EXAMPLES),
        (opened("regression"), MOST_EXAMPLES),
        (opened("choice"), MOST_EXAMPLES),
        (opened("qa"), MOST_EXAMPLES),  # 2 outputs of about 100 tokens
        (opened("classification", 256), MOST_EXAMPLES),
        (opened("classification", 5000), 209),
        (opened("classification", 5000, multi_label=True), 209),
        (opened("classification", 100_000), 16),  # never fewer: a report shows a dozen examples of the first set
        (opened("tagging", 9), 1165),
    ],
    ids=lambda each: each if isinstance(each, int) else f"{each.kind}, {len(each.labels)} labels",
)
def test_a_window_holds_about_a_million_outputs_at_most(task: Task[Any], size: int) -> None:
    assert set_size(task) == size


def test_examples_of_many_labels_are_encoded_in_smaller_windows(tiny_model: Path) -> None:
    task, counts = opened("classification", 5000), ExampleCounts()
    examples = [TextExample("a man", None, f"B-{number}", {}, "x:1") for number in range(300)]
    found = list(encode_sets(task, iter(examples), load_tokenizer(tiny_model), counts, 2))
    assert [len(part.examples) for part in found] == [len(part.encoded) for part in found] == [209, 91]
    assert [example for part in found for example in part.examples] == examples
    assert counts.examples == 300


def test_unknown_tokens_are_counted_among_those_of_the_texts(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer, counts = load_tokenizer(tiny_model), ExampleCounts()
    caplog.set_level(logging.INFO, "unmask")
    texts = ["a man 국민 a dog", "a man", "[UNK] people wait [UNK]"]
    examples = [TextExample(text, None, "B-0", {}, "x:1") for text in texts]
    list(encode_sets(opened("classification", 5), iter(examples), tokenizer, counts, 2, "x.tsv"))
    num_tokens = sum(map(len, tokenizer.encode_batch(texts, specials_in_text=True)))  # without [CLS] and [SEP]
    assert counts.summary() == f"3 examples, 3 of {num_tokens} tokens not in the vocabulary ([UNK])"
    counts.log("x.tsv")
    levels, messages = zip(*[(record.levelname, record.getMessage()) for record in caplog.records], strict=True)
    assert levels == ("WARNING", "INFO"), "the warning above 5 %, and how many there are in all"
    assert messages[0].startswith(f"x.tsv: {300 / num_tokens:.0f} % of the tokens (3 of {num_tokens}) are [UNK]")
    assert messages[1] == f"x.tsv: {counts.summary()}"


@given(st.integers(0, 30), st.integers(1, 9))
def test_windows_cut_a_stream_and_lose_nothing(count: int, size: int) -> None:
    cut = list(in_sets(iter(range(count)), size))
    assert [item for part in cut for item in part] == list(range(count))
    assert all(len(part) == size for part in cut[:-1])
    assert all(cut)


def test_long_texts_end_a_set_and_change_nothing_that_is_encoded(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, tokenizer = opened("classification", 2, max_length=8), load_tokenizer(tiny_model)
    texts = ["a man", "a dog " * 30, "people wait " * 40, "a man", "a dog"]
    examples = [TextExample(text, "a man", "B-0", {}, "x:1") for text in texts]
    whole_counts, counts = ExampleCounts(), ExampleCounts()
    [whole] = encode_sets(task, examples, tokenizer, whole_counts, 2)
    monkeypatch.setattr("unmask.inference.example_sets.MOST_CHARACTERS", 150)
    cut = list(encode_sets(task, examples, tokenizer, counts, 2))
    assert [len(part.examples) for part in cut] == [2, 1, 2], "both texts of a pair count"
    assert concatenate([part.encoded for part in cut]).checksum() == whole.encoded.checksum()
    assert counts == whole_counts


# ---- Outputs


class Echo(nn.Module):
    """Says of each unit its first token, as often as that token's number says: outputs of different widths."""

    def outputs(self, batch: Batch) -> Tensor:
        said = batch.input_ids[batch.first_tokens].float()
        return said[:, None].expand(-1, int(said.max()))

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        return [LossTerm("task", outputs[:, 0].sum()), LossTerm("lm", torch.tensor(3.0), coefficient=0.5)]

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"task": batch.num_sequences, "lm": 2}


def test_outputs_are_in_the_order_of_the_units_whatever_their_lengths() -> None:
    # Every row is over half a batch of the CPU, 2,048 tokens: each is run alone, the longest first.
    lengths = (1100, 1300, 1200)
    units = EncodedExamples.from_lists([[number + 1] * length for number, length in enumerate(lengths)], lengths)
    losses = Losses()
    module: Any = Echo()
    shown: list[float] = []
    outputs = run_module(opened("choice"), module, units, CPU, losses, shown.append)
    assert shown == [1 / 3] * 3
    missing = -torch.inf
    assert outputs.tolist() == [[1.0, missing, missing], [2.0, 2.0, missing], [3.0, 3.0, 3.0]]
    assert (losses.totals, losses.counts) == ({"task": 6.0, "lm": 9.0}, {"task": 3, "lm": 6})
    assert losses.loss == 6 / 3 + 0.5 * 9 / 6
    assert torch.equal(run_module(opened("choice"), module, units, CPU), outputs)


class FirstToken(nn.Module):
    def outputs(self, batch: Batch) -> Tensor:
        return batch.input_ids[:, None].float()


def test_outputs_of_tokens_are_in_the_order_of_the_tokens() -> None:
    rows = [[1] * 900, [2] * 1200, [3, 4], [5] * 1100]
    module: Any = FirstToken()
    outputs = run_module(
        opened("tagging", 2), module, EncodedExamples.from_lists(rows, [len(row) for row in rows]), CPU
    )
    assert outputs.flatten().tolist() == [float(token) for row in rows for token in row]


def test_nothing_measured_is_no_loss() -> None:
    module: Any = Echo()
    loss, score = measure(opened("classification", 2), module, [], CPU)
    assert (loss, score.num_examples) == (0.0, 0)


def test_on_a_gpu_the_next_window_is_made_ahead() -> None:
    reading, made = set(), list[int]()

    def items() -> Iterator[int]:
        for number in range(3):
            reading.add(threading.get_ident())
            yield number
        raise ValueError("the fourth")

    def make(number: int) -> tuple[int, int]:
        made.append(number)
        return number, threading.get_ident()

    ahead = map_ahead(make, items(), torch.device("cuda"))
    (first, maker), (second, _) = next(ahead), next(ahead)
    assert (first, second) == (0, 1)
    assert maker != threading.get_ident()
    assert reading == {threading.get_ident()}  # a database may be read in the thread alone that has opened it
    with pytest.raises(ValueError, match="the fourth"):
        next(ahead)
    assert made == [0, 1, 2]
    for device in ("cuda", "cpu"):
        assert list(map_ahead(str.upper, iter("abc"), torch.device(device))) == list("ABC")
        assert list(map_ahead(str.upper, iter(""), torch.device(device))) == []


def test_what_is_left_midway_does_not_wait_for_what_is_being_made() -> None:
    going_on = threading.Event()

    def make(number: int) -> int:
        if number == 1:
            going_on.wait(60)
        return number

    ahead = map_ahead(make, range(5), torch.device("cuda"))
    assert next(ahead) == 0
    ahead.close()  # type: ignore[attr-defined]
    assert not going_on.is_set()
    going_on.set()

"""Multiple choice: cutting, the softmax over a unit's rows, scores, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.nn import functional

from support.sizes import small
from support.tasks import new_task
from unmask.errors import InputError, SettingsError
from unmask.io.rows import Row
from unmask.models.encoder import new_encoder
from unmask.models.hub.directory import load_encoder
from unmask.tasks.base import ExampleCounts
from unmask.tasks.choice.layouts import ChoiceExample
from unmask.tasks.choice.task import LONG_CHOICES, ChoiceModule, ChoiceScore, open_task
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer

TASK = new_task("choice", max_length=12)


def example(context: str, *choices: str, label: int | None = None, group: str | None = None) -> ChoiceExample:
    return ChoiceExample(context, "", choices, label, group, {}, "x:1")


# ---- Rows of tokens


def test_a_row_is_the_context_and_a_choice_with_its_question(tokenizer: TextTokenizer) -> None:
    one = ChoiceExample("A man", "Who ?", ("a dog", "a man walks"), 1, None, {}, "x:1")
    two = example("", "a", "a dog", "the man")
    counts = ExampleCounts()
    wide = new_task("choice", max_length=64)
    coded = wide.encode([one, two], tokenizer, counts)
    pairs = [("A man", "Who ? a dog"), ("A man", "Who ? a man walks"), ("", "a"), ("", "a dog"), ("", "the man")]
    expected = tokenizer.encode_inputs(pairs)
    assert coded.input_ids.tolist() == [index for row in expected for index in row.input_ids]
    assert coded.unit_bounds.tolist() == [0, 2, 5]
    batch = coded.batch([1, 0])
    assert batch.columns["unit_bounds"].tolist() == [0, 3, 5]
    assert batch.columns["labels"].tolist() == [-100, 1]
    segments = [segment for row in (*expected[2:], *expected[:2]) for segment in row.token_type_ids]
    assert batch.token_type_ids.tolist() == segments
    assert counts == ExampleCounts(examples=2)
    assert not wide.encode([one], tokenizer, counts, num_segments=1).batch([0]).token_type_ids.any()


ONE = ChoiceExample("the man went out", "who went", ("the man", "a dog"), 0, None, {}, "x:1")


@pytest.fixture(scope="module")
def gpt1() -> TextTokenizer:
    texts = ["the man went out", "who went out a man the dog"]
    return learn_tokenizer(iter(texts * 9), TokenizerSettings(kind="bpe", vocab_size=60), seed=0)[0]


def test_the_question_ends_the_context_of_gpt1(gpt1: TextTokenizer) -> None:
    coded = new_task("choice", max_length=64).encode([ONE], gpt1, ExampleCounts(), num_segments=1)
    rows = gpt1.encode_inputs([(f"{ONE.context} {ONE.question}", choice) for choice in ONE.choices])
    assert coded.input_ids.tolist() == [index for row in rows for index in row.input_ids]
    length = len(rows[0].input_ids) - 2
    cut = new_task("choice", max_length=length).encode([ONE], gpt1, ExampleCounts(), num_segments=1)
    context, question, choice = gpt1.encode_batch([ONE.context, ONE.question, ONE.choices[0]])
    ids = gpt1.encode_inputs([("", "")])[0].input_ids
    assert cut.input_ids.tolist()[:length] == [ids[0], *context[:-2], *question, ids[1], *choice, ids[2]]


def test_only_the_context_is_cut_and_the_example_counted_once(tokenizer: TextTokenizer) -> None:
    counts = ExampleCounts()
    long = example("a man " * 20, "a dog", "a dog and a man and a", label=0)
    coded = TASK.encode([long, example("a", "a", "a dog")], tokenizer, counts)
    assert counts == ExampleCounts(examples=2, truncated=1, num_cut=40 + 7 + 3 - 12)
    rows = [coded.input_ids[start:end].tolist() for start, end in zip(coded.bounds, coded.bounds[1:], strict=False)]
    choices = tokenizer.encode_batch(long.choices)
    context = tokenizer.encode_batch(["a man " * 20])[0]
    for row, choice, second in zip(rows[:2], choices, coded.second_starts[:2], strict=True):
        room = 12 - 3 - len(choice)
        assert row == [tokenizer.cls_id, *context[:room], tokenizer.sep_id, *choice, tokenizer.sep_id]
        assert second == 2 + room


def test_what_cannot_be_cut_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InputError, match=r"x:1: a choice and its question have 23 tokens.* task\.max_length is 12"):
        TASK.encode([example("a man", "a dog", "a man " * 10)], tokenizer, ExampleCounts())
    never = new_task("choice", max_length=12, truncation=False)
    with pytest.raises(InputError, match=r"x:1: 25 tokens, over task\.max_length 12, and task\.truncation is false"):
        never.encode([example("a man " * 10, "a dog", "a man")], tokenizer, ExampleCounts())
    with pytest.raises(ValueError, match="max_choice_length and truncation false do not go together: keep one"):
        new_task("choice", max_choice_length=12, truncation=False)


@pytest.mark.parametrize(
    ("max_length", "limit", "kept", "counted"),
    [
        (64, 5, ("the man", "a dog a", "the dog"), {"num_cut": 1}),  # the question has four tokens, the choice two
        (64, 1, ("the man", "", "the"), {"num_cut": 5}),
        (9, 5, ("the", "a dog a", "the dog"), {"num_cut": 2, "truncated": 1}),
        (8, 5, ("", "a dog a", "the dog"), {"num_cut": 3, "truncated": 1}),
        (6, 5, ("", "a", "the dog"), {"num_cut": 5, "truncated": 1}),
        (4, 5, ("", "", "the"), {"num_cut": 7, "truncated": 1}),
    ],
)
def test_a_question_and_its_choice_are_cut_where_asked_for(
    tokenizer: TextTokenizer, max_length: int, limit: int, kept: tuple[str, str, str], counted: dict[str, int]
) -> None:
    one = replace(example("the man", "the dog", "the dog", label=0), question="a dog a man")
    counts, task = ExampleCounts(), new_task("choice", max_length=max_length, max_choice_length=limit)
    coded = task.encode([one], tokenizer, counts)
    context, question, choice = tokenizer.encode_batch(kept)
    row = [tokenizer.cls_id, *context, tokenizer.sep_id, *question, *choice, tokenizer.sep_id]
    assert coded.input_ids.tolist() == row * 2
    assert counts == ExampleCounts(examples=1, notes={LONG_CHOICES: 1}, **counted)
    assert task.remembered()["max_choice_length"] == limit


def test_the_question_of_gpt1_is_cut_before_its_choice(gpt1: TextTokenizer) -> None:
    context, question, choice = gpt1.encode_batch([ONE.context, ONE.question, ONE.choices[0]])
    limit = len(choice) + 1
    task = new_task("choice", max_length=64, max_choice_length=limit)
    coded = task.encode([ONE], gpt1, ExampleCounts(), num_segments=1)
    ids = gpt1.encode_inputs([("", "")])[0].input_ids
    first = coded.input_ids.tolist()[: coded.bounds[1]]
    assert first == [ids[0], *context, *question[:1], ids[1], *choice, ids[2]]


def test_choices_that_encode_to_nothing_are_kept_and_counted(tokenizer: TextTokenizer) -> None:
    counts = ExampleCounts()
    behind_question = replace(example("a man", "\u200b", "\u200b"), question="a man")
    coded = TASK.encode([example("a man", "\u200b", "a dog"), behind_question], tokenizer, counts)
    assert len(coded) == 2
    assert counts.notes == {"choices without any token": 3}


# ---- The module


def new_module(tiny_model: Path) -> ChoiceModule:
    torch.manual_seed(1)
    return TASK.module(load_encoder(tiny_model).encoder)


def test_the_loss_is_cross_entropy_over_the_choices_of_each_example(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    module = new_module(tiny_model).eval()
    examples = [example("a man", "a dog", "a", label=1), example("the", "a man", "a dog", "a cat", label=0)]
    coded = TASK.encode(examples, tokenizer, ExampleCounts())
    batch = coded.batch([0, 1])
    outputs = module.outputs(batch)
    scores = module.head(module.encoder.summary(batch)).flatten()
    assert outputs[0].tolist() == [*scores[:2].tolist(), -math.inf]
    assert outputs[1].tolist() == scores[2:].tolist()
    (term,) = module(batch)
    by_hand = -scores[:2].log_softmax(0)[1] - scores[2:].log_softmax(0)[0]
    assert term.name == "task"
    assert module.counts(batch) == {"task": 2}
    assert term.total.item() == pytest.approx(by_hand.item(), abs=1e-6)  # the same sums in another order, fp32
    term.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)


def test_next_tokens_are_learned_beside_the_task_by_causal_models(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    task = new_task("choice", max_length=16, auxiliary_lm_weight=0.5)
    torch.manual_seed(0)
    settings = small(architecture="gpt1", vocab=tokenizer.vocab_size, width=32, layers=2, heads=2, positions=16)
    module = task.module(new_encoder(settings)).eval()
    examples = [example("a man", "a dog", "a", label=1), example("the", "a man", "a dog and a cat", "a", label=0)]
    batch = task.encode(examples, tokenizer, ExampleCounts()).batch([0, 1])
    right, language = module(batch)
    (measured,) = module.loss(module.outputs(batch), batch)
    torch.testing.assert_close(right.total, measured.total)  # one pass or two, without dropout
    hidden, expected = module.encoder(batch), torch.zeros(())
    for start, end in zip(batch.bounds[:-1].tolist(), batch.bounds[1:].tolist(), strict=True):
        logits = hidden[start : end - 1] @ module.encoder.word_embeddings.T
        expected = expected + functional.cross_entropy(logits, batch.input_ids[start + 1 : end])  # the mean
    torch.testing.assert_close(language.total, expected)
    assert (language.name, language.coefficient) == ("lm", 0.5)
    assert module.counts(batch) == {"task": 2, "lm": 5}
    with pytest.raises(SettingsError, match=r"task\.auxiliary_lm_weight 0\.5 asks .* init_from's \(bert\) see it"):
        task.module(load_encoder(tiny_model).encoder)


# ---- Predictions and figures


def test_predictions_are_over_an_examples_own_choices() -> None:
    examples = [example("", "a", "b"), example("", "a", "b", "c")]
    coded: Any = None
    outputs = torch.tensor([[0.0, math.log(3), -math.inf], [0.0, 0.0, math.log(2)]])
    first, second = TASK.decode(examples, coded, outputs)
    assert (first["choice"], second["choice"]) == (1, 2)
    assert first["probabilities"] == pytest.approx([0.25, 0.75])
    assert second["probabilities"] == pytest.approx([0.25, 0.25, 0.5])


@pytest.mark.parametrize("usual", [False, True])
def test_answers_are_counted_as_the_labels_of_the_models_file(usual: bool) -> None:
    columns = ColumnSettings(context="story", first_choice=1)
    task = open_task(TaskSettings(name="choice"), columns, lenient=True)
    row = Row({"context" if usual else "story": "", "choices": ["a", "b"], "label": 2}, "x:1")
    one, coded = task.read(row), cast(Any, None)
    [prediction] = task.decode([one], coded, torch.tensor([[0.0, 1.0]]))
    assert prediction["choice"] == 2
    labelled = replace(one, label=1)
    assert task.sample(labelled, prediction)["input"]["choices"] == "(1) a (2) b"
    assert task.sample(labelled, prediction)["label"] == task.sample(labelled, prediction)["prediction"] == "2"
    score = task.score()
    score.add([labelled], [prediction])
    assert score.metrics() == {"accuracy": 1.0}
    with pytest.raises(InputError, match=r"x:1: its prediction says choice 0: expected the number of a choice, 1 to 2"):
        score.add([labelled], [{"choice": 0}])


def test_a_data_sets_answers_are_counted_alike_in_every_layout() -> None:
    """Story Cloze counts from 1."""
    task = open_task(TaskSettings(name="storycloze"), ColumnSettings(), lenient=True)
    [prediction] = task.decode(
        [task.read(Row({"context": "", "choices": ["a", "b"]}, "x:1"))], cast(Any, None), torch.tensor([[0.0, 1.0]])
    )
    assert prediction["choice"] == 2


def test_accuracy_of_all_and_of_each_group() -> None:
    score = ChoiceScore()
    assert score.metrics() == {"accuracy": 0.0}
    examples = [example("", "a", "b", label=n % 2, group=group) for n, group in enumerate(["middle", "high", "high"])]
    score.add(examples, [{"choice": 0}, {"choice": 0}, {"choice": 0}])
    assert score.metrics() == {"accuracy": 2 / 3, "accuracy_high": 0.5, "accuracy_middle": 1.0}
    assert score.degenerate() == "all 3 predictions are choice 0"
    score.add(examples[:1], [{"choice": 1}])
    assert score.degenerate() is None


def test_examples_without_label_are_passed_over() -> None:
    score = ChoiceScore()
    score.add([example("", "a", "b"), example("", "a", "b", label=1)], [{"choice": 0}, {"choice": 1}])
    assert (score.num_examples, score.metrics()) == (1, {"accuracy": 1.0})


@pytest.mark.parametrize("prediction", [{}, {"choice": 2}, {"choice": "1"}, {"choice": -1}, {"choice": True}])
def test_a_prediction_that_names_no_choice_is_refused(prediction: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"x:1: its prediction .*choice.*: expected the number of a choice, 0 to 1"):
        ChoiceScore().add([example("", "a", "b", label=1)], [prediction])


def coded(tokenizer: TextTokenizer, *labels_and_sizes: tuple[int, int]) -> Any:
    examples = [example("", *("a" * size), label=label) for label, size in labels_and_sizes]
    return TASK.encode(examples, tokenizer, ExampleCounts())


def test_floors_are_chance_and_the_most_frequent_position(tokenizer: TextTokenizer) -> None:
    train, dev = [(1, 2), (1, 3), (0, 2)], [(1, 2), (0, 4), (0, 4), (0, 2)]  # labels and numbers of choices
    floors = TASK.floors(coded(tokenizer, *train), coded(tokenizer, *dev))
    assert floors == {"accuracy": {"chance": 0.375, "most frequent position of train": 0.25}}


def test_one_place_for_every_right_choice_is_told(tokenizer: TextTokenizer, caplog: pytest.LogCaptureFixture) -> None:
    TASK.check(coded(tokenizer, (0, 2), (1, 2)), Path("train.jsonl"))
    assert not caplog.records
    TASK.check(coded(tokenizer, (1, 2), (1, 2)), Path("train.jsonl"))
    assert "train.jsonl: the right choice is number 1 in every example" in caplog.text


def test_a_sample_shows_the_choices_with_their_numbers() -> None:
    one = ChoiceExample("c", "q", ("x", "y"), 1, None, {}, "x:1")
    assert TASK.sample(one, {"choice": 0, "probabilities": [0.75, 0.25]}) == {
        "input": {"context": "c", "question": "q", "choices": "(0) x (1) y"},
        "label": "1",
        "prediction": "0",
        "probability": 0.75,
    }

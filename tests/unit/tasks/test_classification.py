"""The classification task: labels, truncation, the loss, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from unmask.errors import InputError, SettingsError
from unmask.models.hub import load_encoder
from unmask.tasks.base import ExampleCounts
from unmask.tasks.classification import Classification, ClassificationModule, find_labels
from unmask.tasks.examples import Example
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task, recall_task
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

TASK = open_task(TaskSettings(labels=["no", "yes"], max_length=12), ColumnSettings())


def example(text_a: str, text_b: str | None = None, label: str | None = None) -> Example:
    return Example(text_a, text_b, label, {}, "x:1")


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> TextTokenizer:
    return load_tokenizer(tiny_model)


def new_module(tiny_model: Path, task: Classification = TASK) -> ClassificationModule:
    torch.manual_seed(1)
    return task.head(load_encoder(tiny_model).encoder)


def test_encoded_as_the_tokenizer_does(tokenizer: TextTokenizer) -> None:
    examples = [example("A man walks .", None, "yes"), example("A dog .", "A man !", "no"), example("", None, None)]
    counts = ExampleCounts()
    encoded = TASK.encode(examples, tokenizer, counts)
    batch = encoded.batch([0, 1, 2])
    inputs = tokenizer.encode_inputs([(one.text_a, one.text_b) for one in examples])
    assert batch.input_ids.tolist() == [*chain(*(one.input_ids for one in inputs))]
    assert batch.token_type_ids.tolist() == [*chain(*(one.token_type_ids for one in inputs))]
    assert batch.columns["labels"].tolist() == [1, 0, -100]
    assert counts == ExampleCounts(examples=3, empty=1)
    assert TASK.encode(examples, tokenizer, counts, num_segments=1).batch([1]).token_type_ids.sum() == 0


def test_longer_examples_are_cut_and_counted_or_refused(tokenizer: TextTokenizer) -> None:
    long, counts = [example("a man " * 20, "a dog", "no"), example("a", None, "no")], ExampleCounts()
    assert TASK.encode(long, tokenizer, counts).lengths.tolist() == [12, 3]
    assert counts == ExampleCounts(examples=2, truncated=1)
    assert counts.summary() == "2 examples, 1 longer than task.max_length and cut"
    with pytest.raises(InputError, match=r"x:1: 45 tokens, over task\.max_length 12, and task\.truncation is false"):
        replace(TASK, truncation=False).encode(long, tokenizer, counts)


def test_labels_of_the_training_file_are_sorted(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\na\tyes\nb\tno\nc\tyes\n")
    assert find_labels(open_task(TaskSettings(), ColumnSettings()), path) == ("no", "yes")


def test_an_unknown_label_is_refused_and_an_undecided_one_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = '{"sentence1": "a", "sentence2": "b", "gold_label": "%s"}\n'
    path.write_text(row % "neutral" + row % "-")
    snli, counts = open_task(TaskSettings(name="snli"), ColumnSettings()), ExampleCounts()
    assert [one.label for one in snli.load(path, counts)] == ["neutral"]
    assert counts.unlabelled == 1
    path.write_text(row % "neutral" + row % "neural")
    with pytest.raises(
        InputError, match=r"a\.jsonl:2: the label 'neural' is none of the known ones \(entailment, neutral"
    ):
        list(snli.load(path, counts))
    path.write_text(row % "-")
    with pytest.raises(InputError, match="not a single example has a label"):
        list(snli.load(path, counts))


def test_decoded_with_probabilities() -> None:
    decoded = TASK.decode(torch.tensor([[0.0, 1.0], [3.0, 3.0]]))
    assert [one["label"] for one in decoded] == ["yes", "no"]
    # 1 / (1 + e^-1), in float32
    assert decoded[0]["probabilities"] == pytest.approx({"no": 0.2689414, "yes": 0.7310586}, abs=1e-6)
    assert decoded[0]["score"] == decoded[0]["probabilities"]["yes"]


def test_the_gradient_does_not_depend_on_micro_batches(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    texts = ["a man", "a man and a dog are outside", "two women", "people", "a child plays with a ball"]
    encoded = TASK.encode([example(text, None, "yes") for text in texts], tokenizer, ExampleCounts())
    gradients = []
    for size in (5, 2, 1):
        module = new_module(tiny_model).eval()  # no dropout
        for start in range(0, 5, size):
            (term,) = module(encoded.batch(range(start, min(5, start + size))))
            (term.total / 5).backward()
        gradients.append(
            torch.cat([weight.grad.flatten() for weight in module.parameters() if weight.grad is not None])
        )
    # Sums in another order: a few units in the last place of float32, of gradients up to about 1.
    assert torch.allclose(gradients[1], gradients[0], atol=1e-5)
    assert torch.allclose(gradients[2], gradients[0], atol=1e-5)


def test_a_few_examples_are_learned_by_heart(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    words = ["a man is outside", "a dog runs", "two women talk", "people wait", "a child plays", "the boy jumps"]
    examples = [example(text, None, ["no", "yes"][place % 2]) for place, text in enumerate(words)]
    batch = TASK.encode(examples, tokenizer, ExampleCounts()).batch(range(6))
    module = new_module(tiny_model).eval()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(30):
        optimizer.zero_grad()
        (term,) = module(batch)
        term.total.backward()
        optimizer.step()
    assert float(term.total.detach()) / 6 < 0.05  # guessing costs 0.69
    assert [one["label"] for one in TASK.decode(module.logits(batch))] == [one.label for one in examples]


def test_what_a_model_remembers_of_its_task() -> None:
    config = {
        "unmask_task": {
            "name": "snli",
            "max_length": 40,
            "truncation": False,
            "columns": {"text_a": "p", "text_b": "h"},
        }
    }
    labels = ("entailment", "neutral", "contradiction")
    task = recall_task(config, labels, 512)
    assert (task.name, task.max_length, task.truncation, task.labels) == ("snli", 40, False, labels)
    assert [columns.texts for columns in task.layouts] == [
        ("p", "h"), ("premise", "hypothesis"), ("sentence1", "sentence2"), ("text_a", "text_b")
    ]  # fmt: skip
    assert task.is_pair
    other = recall_task(config, ("0", "1"), 512, "sst2")
    assert [columns.texts for columns in other.layouts] == [("sentence",), ("text",)]
    stranger = recall_task({}, ("a", "b"), 64)
    assert stranger.max_length == 64
    assert not stranger.is_pair
    with pytest.raises(SettingsError, match=r"no task 'sst'.*did you mean sst2"):
        recall_task(config, labels, 512, "sst")


def test_published_files_are_read_whole(data_dir: Path) -> None:
    for name, file, num_examples, num_empty in (
        ("sst2", "sst2/train.tsv", 67_349, 0),
        ("snli", "snli/dev.jsonl", 9_842, 0),
        ("nsmc", "nsmc/ratings_test.txt", 50_000, 3),
        ("nsmc", "nsmc/ratings_train.txt.zst", 150_000, 5),
    ):
        task = open_task(TaskSettings.model_validate({"name": name}), ColumnSettings())
        texts = [one.text_a for one in task.load(data_dir / "tasks" / file, ExampleCounts())]
        assert (len(texts), texts.count("")) == (num_examples, num_empty), file

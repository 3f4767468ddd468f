"""The classification task: labels, truncation, the loss, and that it learns."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from support.files import write_rows
from support.sizes import small
from unmask.batch import pack
from unmask.errors import InputError, SettingsError
from unmask.inference.example_sets import ExampleSet, measure
from unmask.io.rows import Row
from unmask.models.encoder import new_encoder
from unmask.models.hub.directory import load_encoder
from unmask.tasks.auxiliary_lm import next_token_term, num_continued
from unmask.tasks.base import ExampleCounts, positive_label
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.sequence_module import SequenceModule
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.text import classification, regression
from unmask.tasks.text.classification import Classification, open_task, warn_of_contradictions
from unmask.tasks.text.data_sets import DATA_SETS
from unmask.tasks.text.examples import TextExample
from unmask.tasks.text.labels import sorted_labels
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.training.device import Compute


def opened(lenient: bool = False, columns: ColumnSettings | None = None, **settings: Any) -> Classification:
    task = open_task(TaskSettings.model_validate(settings), columns or ColumnSettings(), lenient)
    assert isinstance(task, Classification)
    return task


TASK = opened(labels=["no", "yes"], max_length=12)


def example(text_a: str, text_b: str | None = None, label: str | None = None) -> TextExample[str]:
    return TextExample(text_a, text_b, label, {}, "x:1")


def of_labels(*ids: int) -> EncodedExamples:
    """Examples of one token each, with these labels."""
    return EncodedExamples.from_lists([[5]] * len(ids), [1] * len(ids), unit_columns={"labels": np.array(ids)})


def new_module(tiny_model: Path, task: Classification = TASK) -> SequenceModule:
    torch.manual_seed(1)
    return task.module(load_encoder(tiny_model).encoder)


# ---- Encoding


def test_encoded_as_the_tokenizer_does(tokenizer: TextTokenizer) -> None:
    examples = [example("A man walks .", None, "yes"), example("A dog .", "A man !", "no"), example("", None, None)]
    counts = ExampleCounts()
    units = TASK.encode(examples, tokenizer, counts)
    batch = units.batch([0, 1, 2])
    inputs = tokenizer.encode_inputs([(one.text_a, one.text_b) for one in examples])
    assert batch.input_ids.tolist() == [*chain(*(one.input_ids for one in inputs))]
    assert batch.token_type_ids.tolist() == [*chain(*(one.token_type_ids for one in inputs))]
    assert batch.columns["labels"].tolist() == [1, 0, -100]
    assert counts == ExampleCounts(examples=3, empty=1)
    assert TASK.encode(examples, tokenizer, counts, num_segments=1).batch([1]).token_type_ids.sum() == 0


def test_texts_of_no_token_are_counted_and_kept(tokenizer: TextTokenizer) -> None:
    nothing = [example(text, None, "no") for text in ("", "  ", "\u200b\u200d", "\ufe0f")] + [example(" ", "\u200b")]
    counts = ExampleCounts()
    units = TASK.encode([*nothing, example("", "a man", "no")], tokenizer, counts)
    assert len(units) == 6
    assert counts == ExampleCounts(examples=6, empty=5)


def test_longer_examples_are_cut_and_counted_or_refused(tokenizer: TextTokenizer) -> None:
    long, counts = [example("a man " * 20, "a dog", "no"), example("a", None, "no")], ExampleCounts()
    assert TASK.encode(long, tokenizer, counts).lengths.tolist() == [12, 3]
    assert counts == ExampleCounts(examples=2, truncated=1, num_cut=45 - 12)
    assert counts.summary() == "2 examples, 1 longer than task.max_length and cut"
    with pytest.raises(InputError, match=r"x:1: 45 tokens, over task\.max_length 12, and task\.truncation is false"):
        opened(labels=["no", "yes"], max_length=12, truncation=False).encode(long, tokenizer, counts)


# ---- Labels


def write(path: Path, *labels: Any) -> Path:
    return write_rows(path, *({"text": f"text {number}", "label": label} for number, label in enumerate(labels)))


def test_labels_that_differ_in_blanks_alone_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "neg", "pos", "neg", "pos ", "\u00a0pos")
    told = r"a\.jsonl:4: the label pos is written 'pos ' here and 'pos' in .*a\.jsonl:2, which look alike"
    with pytest.raises(InputError, match=told):
        opened().fit_to(path)
    assert opened().fit_to(write(path, "pos ", "neg")).labels == ("neg", "pos ")  # there is no other
    both = ["pos", "pos ", "\u00a0pos", "neg"]
    assert opened(labels=both).fit_to(write(path, "neg", "pos", "pos ")).labels == tuple(both)


@pytest.mark.parametrize(
    "labels", [("-10", "-2", "-1", "2"), ("0.5", "9.5", "10.5"), ("1", "2", "10"), ("-1", "0.5", "x"), ("1e3", "2")]
)
def test_labels_that_are_numbers_are_in_their_order(labels: tuple[str, ...]) -> None:
    assert sorted_labels(reversed(labels)) == labels


def test_labels_of_the_training_file_are_sorted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert opened().fit_to(write(path, "yes", "no", "yes")).labels == ("no", "yes")
    assert opened().fit_to(write(path, 10, 2, 1)).labels == ("1", "2", "10")
    assert opened().fit_to(write(path, 10, 2, "one")).labels == ("10", "2", "one")
    assert opened().fit_to(write(path, False, True)).labels == ("false", "true")
    assert opened(labels=["b", "a"]).fit_to(write(path, "a")).labels == ("b", "a")


def test_the_labels_of_a_long_file_are_read_with_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", 0.0)
    opened().fit_to(write(tmp_path / "a.jsonl", "yes", "no", "yes"))
    assert "reading labels: done · 3 examples" in capsys.readouterr().err


def test_labels_that_look_like_ids_are_refused_and_many_honest_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    told = (
        r"a\.jsonl: 1,000 different labels in 1,000 examples, such as 'id-0', 'id-1', 'id-10': the column 'label' "
        r"looks like ids, texts or measured values; name the right one with --column label=NAME"
    )
    with pytest.raises(InputError, match=told):
        opened().fit_to(write(path, *(f"id-{number}" for number in range(1000))))
    assert len(opened().fit_to(write(path, *range(500), *range(500))).labels) == 500
    assert len(opened().fit_to(write(path, *range(100))).labels) == 100
    monkeypatch.setattr(classification, "_MOST_LABELS", 300)
    with pytest.raises(InputError, match=r"a\.jsonl: 301 different labels in 601 examples"):  # and no further
        opened().fit_to(write(path, *(number // 2 for number in range(1000))))


def test_an_unknown_label_is_refused_and_an_undecided_one_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = '{"sentence1": "a", "sentence2": "b", "gold_label": "%s"}\n'
    path.write_text(row % "neutral" + row % "-")
    snli, counts = opened(name="snli"), ExampleCounts()
    assert [one.label for one in snli.load(path, counts)] == ["neutral"]
    assert counts.unlabelled == 1
    path.write_text(row % "neutral" + row % "neural")
    told = r"a\.jsonl:2: the label 'neural' is none of the known ones \(entailment, neutral"
    with pytest.raises(InputError, match=told):
        list(snli.load(path, counts))
    path.write_text(row % "Neutral")
    with pytest.raises(InputError, match=r"the label 'Neutral' is none of .*: write it as 'neutral'$"):
        list(snli.load(path, counts))
    path.write_text(row % "-")
    with pytest.raises(InputError, match="not a single example has a label"):
        list(snli.load(path, counts))


@pytest.mark.parametrize("cell", ["", "-1"])
def test_a_data_set_says_what_is_written_for_no_label(tmp_path: Path, cell: str) -> None:
    data_set = replace(DATA_SETS["sst2"], unlabelled=frozenset({"", "-1"}))
    path, counts = tmp_path / "a.csv", ExampleCounts()
    path.write_text(f"sentence,label\na,1\nb,{cell}\n")
    task = replace(opened(name="sst2"), data_set=data_set)
    assert [one.label for one in task.load(path, counts)] == ["1"]
    assert counts.unlabelled == 1
    values = replace(
        regression.open_task(TaskSettings(name="regression"), ColumnSettings(text="sentence")), data_set=data_set
    )
    assert [one.label for one in values.load(path, ExampleCounts(), unlabelled=True)] == [1.0, None]


def test_labels_of_ones_own_may_be_what_a_data_set_means_by_something_else(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", {"premise": "a", "hypothesis": "b", "label": "-1"})
    task = opened(name="mnli", labels=["-1", "0"])
    assert [one.label for one in task.load(path, ExampleCounts())] == ["-1"]


def test_examples_of_one_label_are_refused_and_absent_labels_told(caplog: pytest.LogCaptureFixture) -> None:
    task = opened(labels=["a", "b", "c"])
    with pytest.raises(
        InputError, match=r"train\.tsv: every example has the label 'b': there is nothing to learn; give "
    ):
        task.check(of_labels(1, 1), Path("train.tsv"))
    with caplog.at_level(logging.WARNING):
        task.check(of_labels(0, 1), Path("train.tsv"))
    assert caplog.messages == ["train.tsv: no example with the label c"]


def test_labels_that_one_example_has_are_named(caplog: pytest.LogCaptureFixture) -> None:
    def check(task: Classification, *labels: str) -> None:
        examples = [TextExample(f"t{place}", None, label, {}, f"x:{place}") for place, label in enumerate(labels)]
        task.check_examples(examples, ExampleCounts(), Path("x"))

    check(opened(), "yes", "no", "no", "yes")
    check(opened(labels=["no", "yes"]), "yes", "no", "no")
    check(opened(name="sst2"), "0", "1", "1")
    assert not caplog.messages
    check(opened(), "yes", "no", "yse", "no", "yes")
    check(opened(), *"abcdefgg")
    advice = "correct what is misspelt, or list all labels in task.labels for no warning"
    first = ", ".join(f"'{label}' (x:{place})" for place, label in enumerate("abcde"))
    assert caplog.messages == [
        f"x: a label has only one example: 'yse' (x:2); {advice}",
        f"x: 6 labels have only one example: {first} and 1 more; {advice}",
    ]


def test_pairs_that_share_one_text_do_not_contradict_each_other(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_contradictions([example("a", "b", "no"), example("a", "c", "yes")], Path("train.tsv"))
    assert not caplog.messages


def test_many_labels_for_an_example_are_refused_for_data_sets_that_have_one() -> None:
    with pytest.raises(SettingsError, match=r"task\.multi_label: true, and the examples of task\.name sst2"):
        opened(name="sst2", multi_label=True)


# ---- The module


def test_the_loss_is_cross_entropy(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    texts = ["a man", "a dog runs", "two women"]
    examples = [example(text, None, label) for text, label in zip(texts, ("yes", "no", None), strict=True)]
    batch = TASK.encode(examples, tokenizer, ExampleCounts()).batch([0, 1, 2])
    module = new_module(tiny_model).eval()
    outputs = module.outputs(batch)
    assert outputs.shape == (3, 2)
    (term,) = module(batch)
    assert (term.name, term.coefficient) == ("task", 1.0)
    assert module.counts(batch) == {"task": 2}
    expected = functional.cross_entropy(outputs[:2], torch.tensor([1, 0]), reduction="sum")
    torch.testing.assert_close(term.total, expected)


def test_the_next_token_term_does_not_depend_on_micro_batches(tokenizer: TextTokenizer) -> None:
    torch.manual_seed(0)
    settings = small(architecture="gpt1", vocab=tokenizer.vocab_size, width=16, layers=1, heads=2, positions=16)
    encoder = new_encoder(settings).eval()
    texts = ["a man and a dog", "two women", "", "a child plays with a ball"]
    units = TASK.encode([example(text) for text in texts], tokenizer, ExampleCounts())
    whole = next_token_term(encoder, encoder(batch := units.batch(range(4))), batch, 0.5)
    parts = [next_token_term(encoder, encoder(batch := units.batch(cut)), batch, 0.5) for cut in ([3], [0, 2, 1])]
    torch.testing.assert_close(whole.total, parts[0].total + parts[1].total)
    assert num_continued(pack([[5], [5, 6]])) == 1  # nothing comes after the first one's token


# ---- What comes out


def test_decoded_with_probabilities() -> None:
    decoded = TASK.decode([example("a"), example("b")], of_labels(0, 0), torch.tensor([[0.0, 1.0], [3.0, 3.0]]))
    assert [one["label"] for one in decoded] == ["yes", "no"]
    # 1 / (1 + e^-1), in float32
    assert decoded[0]["probabilities"] == pytest.approx({"no": 0.2689414, "yes": 0.7310586}, abs=1e-6)
    assert decoded[0]["score"] == decoded[0]["probabilities"]["yes"]


def test_for_a_score_no_dictionary_of_all_labels_is_made(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    """It would take longer than the model where there are thousands."""
    given = (
        [example("a", None, "no"), example("b", None, "yes")],
        of_labels(0, 1),
        torch.tensor([[0.0, 1.0], [3.0, 3.0]]),
    )
    decoded = TASK.decode(*given)
    assert TASK.decide(*given) == [{name: each[name] for name in ("label", "score")} for each in decoded]
    monkeypatch.setattr(type(TASK), "decode", None)
    module = TASK.module(load_encoder(tiny_model).encoder).eval()
    part = ExampleSet(given[0], TASK.encode(given[0], load_tokenizer(tiny_model), ExampleCounts()))
    assert measure(TASK, module, [part], Compute(torch.device("cpu"), torch.float32, "test"))[1].num_examples == 2


def test_floors_of_two_labels() -> None:
    floors = TASK.floors(of_labels(0, 0, 1), of_labels(0, 1, 1, 1))
    assert floors == {
        "accuracy": {"most frequent label of train": 0.25},
        "f1": {"always yes": pytest.approx(2 * 3 / (2 * 3 + 1))},
        "matthews_correlation": {"any constant": 0.0},
    }
    score = TASK.score()
    labels = [example("a", None, label) for label in ("no", "yes", "yes", "yes")]
    score.add(labels, [{"label": "yes"}] * 4)
    assert score.metrics()["f1"] == floors["f1"]["always yes"]


def test_f1_is_that_of_the_second_of_two_labels() -> None:
    assert positive_label(TASK) == "yes"
    others = opened(labels=["a", "b", "c"]), regression.open_task(TaskSettings(name="klue-sts"), ColumnSettings())
    assert [positive_label(task) for task in others] == [None, None]


def test_floors_of_more_labels() -> None:
    task = opened(labels=["a", "b", "c"])
    floors = task.floors(of_labels(2, 2, 1), of_labels(0, 2, 2, 1))
    score = task.score()
    score.add([example("t", None, label) for label in "accb"], [{"label": "c"}] * 4)
    metrics = score.metrics()
    assert floors["accuracy"] == {"most frequent label of train": metrics["accuracy"]}
    assert floors["f1_macro"] == {"most frequent label of train": pytest.approx(metrics["f1_macro"])}
    # The most frequent label of training may be absent from dev.
    assert task.floors(of_labels(2, 2, 1), of_labels(0, 1)) == {
        "accuracy": {"most frequent label of train": 0.0},
        "f1_macro": {"most frequent label of train": 0.0},
        "matthews_correlation": {"any constant": 0.0},
    }


def test_a_label_that_means_none_of_the_others_is_one_of_the_labels(tmp_path: Path) -> None:
    task = opened(labels=["a", "b", "none"], negative_label="none")
    assert (
        opened(**{**task.remembered(), "columns": None, "labels": ["a", "b", "none"]}).score().metrics()["f1_micro"]
        == 0
    )
    for most_frequent in (0, 2):
        score = task.score()
        score.add(
            [example("t", None, label) for label in ("a", "a", "b", "none")],
            [{"label": task.labels[most_frequent]}] * 4,
        )
        floor = task.floors(of_labels(most_frequent), of_labels(0, 0, 1, 2))["f1_micro"]
        assert floor == {"most frequent label of train": pytest.approx(score.metrics()["f1_micro"])}
    refusal = r"task\.negative_label=other: there is no such label: expected one of a, b, none"
    with pytest.raises(SettingsError, match=refusal):
        opened(labels=["a", "b", "none"], negative_label="other")
    rows = [{"text": "t", "label": label} for label in ("none", "b", "a")]
    file = write_rows(tmp_path / "train.jsonl", *rows)
    with pytest.raises(SettingsError, match=refusal):
        opened(negative_label="other", columns=ColumnSettings(text="text")).fit_to(file)
    with pytest.raises(ValueError, match="negative_label is one of the labels of which a text has one"):
        opened(negative_label="a", multi_label=True)


def test_a_sample_for_the_report() -> None:
    task = opened(name="mnli")
    read = TextExample("a", "b", "neutral", {"premise": "a"}, "x:1")
    assert task.sample(read, {"label": "entailment", "score": 0.5}) == {
        "input": {"sentence1": "a", "sentence2": "b"},
        "label": "neutral",
        "prediction": "entailment",
        "probability": 0.5,
    }


# ---- What a model remembers


def test_a_model_reads_what_it_was_trained_on_and_what_is_usual() -> None:
    columns = ColumnSettings(text_a="p", text_b="h")
    task = opened(lenient=True, columns=columns, name="snli", max_length=40, truncation=False)
    assert (task.settings.name, task.settings.max_length) == ("snli", 40)
    assert task.labels == ("entailment", "neutral", "contradiction")
    assert [layout.texts for layout in task.files.layouts] == [
        ("p", "h"), ("premise", "hypothesis"), ("sentence1", "sentence2"), ("text_a", "text_b")
    ]  # fmt: skip
    assert task.files.is_pair
    assert task.read(Row({"text_a": "a", "text_b": "b"}, "x:1")).text_b == "b"
    single = opened(lenient=True, name="sst2")
    assert [layout.texts for layout in single.files.layouts] == [("sentence",), ("text",)]
    assert not single.files.is_pair
    assert not opened(lenient=True, labels=["a", "b"]).files.is_pair


def test_what_is_remembered_opens_the_same_task(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("review,stars\ngood,1\nbad,0\n")
    columns = ColumnSettings(text="review", label="stars")
    task = opened(columns=columns, max_length=40, truncation=False).fit_to(path)
    kept, named = task.remembered(), {"text": "review", "label": "stars"}
    assert kept == {"name": "classification", "max_length": 40, "truncation": False, "columns": named}
    columns = ColumnSettings.model_validate(kept.pop("columns"))
    again = opened(lenient=True, columns=columns, **kept, labels=list(task.labels))
    assert again.files.columns == task.files.columns
    assert [one.label for one in again.load(path, ExampleCounts())] == ["1", "0"]


def test_a_label_that_looks_like_a_known_one_is_shown_with_escapes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "dev.jsonl", {"text": "a", "label": "cafe\u0301"})
    task = opened(labels=["caf\u00e9", "bar"])
    with pytest.raises(InputError, match=r"'cafe\\u0301', as it is .* but looks like 'caf\\xe9': write it so"):
        list(task.load(path, ExampleCounts()))

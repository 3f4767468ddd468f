"""Predictions and measurements of a model of tags: their context, their files, and what the figures hang on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from support.commands import type_in
from support.files import write, write_rows
from support.tasks import new_task
from support.untrained import save_task_model
from unmask.errors import InputError
from unmask.inference.evaluation import evaluate
from unmask.inference.example_sets import MOST_EXAMPLES
from unmask.inference.prediction_scoring import evaluate_predictions
from unmask.inference.predictor import predict, predict_file
from unmask.tasks.base import ExampleCounts


def test_published_txt_of_tags_is_read_as_the_model_reads_it(tiny_model: Path, tmp_path: Path) -> None:
    model = save_tagger(tmp_path / "wikiann", tiny_model, name="wikiann", labels=None)
    test = write(tmp_path / "test.txt", "en:a\tO\nen:man\tB-PER\n\nen:wait\tO\n")
    assert [one["tokens"] for one in predict_file(model, test)] == [["a", "man"], ["wait"]]
    assert scored(model, test, "wikiann") == evaluate(model, test)
    for text in ("a man wait\nen:man\tB-PER\n", "waiting\n"):
        test.write_text(text)
        assert [one["input"]["text"] for one in predict_file(model, test)] == text.splitlines()
    plain = save_tagger(tmp_path / "plain", tiny_model)
    test.write_text("people O\nwait outside\n")
    assert [one["tokens"] for one in predict_file(plain, test)] == [["people", "O"], ["wait", "outside"]]


def test_conll_in_a_txt_is_read_as_evaluate_reads_it(
    plain_tagger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = write(tmp_path / "test.txt", "a O\nman B-X\n\npeople O\nwait O\n")
    told = list(predict_file(plain_tagger, test))
    assert [one["tokens"] for one in told] == [["a", "man"], ["people", "wait"]]
    assert scored(plain_tagger, test, "tagging") == evaluate(plain_tagger, test)
    texts = list(predict_file(plain_tagger, test, format="txt"))
    assert texts[0]["input"] == {"text": "a O"}
    other = write(tmp_path / "test.part", test.read_bytes())
    assert list(predict_file(plain_tagger, other, format="conll")) == told
    type_in(monkeypatch, test.read_bytes())
    assert list(predict_file(plain_tagger, "-", format="conll")) == told
    type_in(monkeypatch, test.read_bytes())
    with pytest.raises(
        InputError, match=r"standard input:1: read as a text, and .* word with its tag.* --format conll;"
    ):
        list(predict_file(plain_tagger, "-"))


def test_entities_inside_words_are_found_at_their_places(tiny_model: Path, tmp_path: Path) -> None:
    """A tagger of characters; its predictions are scored as such without it."""
    row = {"text": "two women-like man", "entities": [[0, 9, "X"], [15, 18, "Y"]]}
    data = write_rows(tmp_path / "train.jsonl", row)
    task = new_task("tagging", max_length=24).fit_to(data)
    model = save_tagger(tmp_path / "model", tiny_model, units="characters", labels=list(task.labels))
    (told,) = predict_file(model, data)
    assert "".join(told["tokens"]) == "two women-like man"
    assert scored(model, data, "tagging") == evaluate(model, data)
    dev = write_rows(tmp_path / "dev.jsonl", {**row, "entities": [[0, 9, "X"]]})  # which does not show it
    of_others = write_rows(tmp_path / "pred.jsonl", {"input": {"text": row["text"]}, "tags": told["tags"]})
    stated = evaluate_predictions(of_others, dev, "tagging", settings={"units": "characters"})
    assert stated == evaluate(model, dev)
    (example,) = task.load(data, ExampleCounts())
    assert example.tags == ("B-X", *["I-X"] * 8, *["O"] * 6, "B-Y", "I-Y", "I-Y")


# ---- Tags


def save_tagger(directory: Path, base: Path, **changes: Any) -> Path:
    """A random tagger on the tiny model, whose tags depend on what stands around."""
    labels = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    settings: dict[str, Any] = {"name": "tagging", "max_length": 24, "labels": labels, **changes}
    return save_task_model(directory, base, seed=2, std=0.5, **settings)


@pytest.fixture(scope="module")
def contextual(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tagger(tmp_path_factory.mktemp("contextual") / "model", tiny_model, document_context=True)


DOCUMENTS = """\
a O
man B-X

two B-Y
women I-Y

-DOCSTART- O

people O
wait O
outside B-X

a O
dog O
"""


def scored(model: Path, data: Path, task: str) -> dict[str, Any]:
    """The figures of the predictions for a file."""
    return evaluate_predictions(write_rows(data.with_name("said.jsonl"), *predict_file(model, data)), data, task)


def test_predicted_with_the_context_that_is_measured_with(
    contextual: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write(tmp_path / "dev.conll", DOCUMENTS)
    assert scored(contextual, data, "tagging") == evaluate(contextual, data)
    told = list(predict_file(contextual, data))
    assert not caplog.text
    rows = [{name: value for name, value in one["input"].items() if name != "document"} for one in told]
    alone = list(predict(contextual, rows))
    assert caplog.text.count("it does not name its document") == 1
    assert [one["tags"] for one in alone] != [one["tags"] for one in told]  # so that the context matters here
    assert list(predict(contextual, [one["input"] for one in told])) == told


def test_inputs_without_document_are_read_a_window_at_a_time(contextual: Path) -> None:
    read = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal read
        for _ in range(10**9):
            read += 1
            yield {"tokens": ["a"]}

    assert len(list(islice(predict(contextual, rows()), 1))) == 1
    assert read <= MOST_EXAMPLES + 1


@pytest.fixture(scope="module")
def plain_tagger(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tagger(tmp_path_factory.mktemp("tagger") / "model", tiny_model)


def test_figures_of_tags_do_not_hang_on_what_the_data_holds(plain_tagger: Path, tmp_path: Path) -> None:
    """The model says X; a file may hold O alone, or another type alone."""
    data, words = tmp_path / "dev.jsonl", ["a", "man", "two", "women", "outside"]
    said = [tag for one in predict(plain_tagger, [{"tokens": words}]) for tag in one["tags"]]
    assert "X" in {tag[-1] for tag in said}
    for tags in ("O O O O O", "B-X O O O B-X", "B-Y I-Y O O O"):
        write_rows(data, {"tokens": words, "tags": tags.split()})
        measured = evaluate(plain_tagger, data)
        assert "overall_f1" in measured["metrics"]
        assert scored(plain_tagger, data, "tagging") == measured


def test_tags_that_are_all_o_are_those_of_entities(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", {"text": "a man.", "tags": ["O", "O", "O"]})
    path = write_rows(tmp_path / "said.jsonl", {"tags": ["O", "O", "O"]})
    assert evaluate_predictions(path, data, "tagging")["metrics"]["overall_accuracy"] == 1.0
    write_rows(path, {"tags": ["O", "O", "nonsense"]})
    write_rows(data, {"tokens": "a b c", "tags": ["O", "B-X", "O"]})
    with pytest.raises(InputError, match=r'said\.jsonl:1: .*tag 3 "nonsense": expected one of B-X, I-X, O'):
        evaluate_predictions(path, data, "tagging")


def test_tags_of_other_kinds_that_the_data_lacks(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", {"tokens": "a b", "tags": ["NOUN", "NOUN"]})
    path = write_rows(tmp_path / "said.jsonl", {"tags": ["NOUN", "VERB"]})
    # NOUN: 1 of 1 said and 1 of 2 true, 2/3; VERB 0
    metrics = evaluate_predictions(path, data, "tagging")["metrics"]
    assert metrics == pytest.approx({"accuracy": 0.5, "f1_macro": 1 / 3})


@pytest.mark.parametrize(
    "tags",
    ["B-X I-X B-X O B-Y", "I-X I-X B-X O I-Y", "B-X E-X S-X O S-Y", "B-X L-X U-X O U-Y"],
    ids=["BIO", "IOB1", "IOBES", "BILOU"],
)
@pytest.mark.parametrize("task", ["tagging", "wnut17"])
def test_a_perfect_copy_is_perfect_in_every_scheme(tmp_path: Path, tags: str, task: str) -> None:
    if task == "wnut17":
        tags = tags.replace("X", "person").replace("Y", "group")
    data = write_rows(tmp_path / "dev.jsonl", {"tokens": "a b c d e", "tags": tags.split()})
    path = write_rows(tmp_path / "said.jsonl", {"tags": tags.split()})
    metrics = evaluate_predictions(path, data, task)["metrics"]
    assert (metrics["overall_f1"], metrics["overall_accuracy"]) == (1.0, 1.0)


def test_sentences_without_tags_are_passed_over(plain_tagger: Path, tmp_path: Path) -> None:
    tagged, bare = {"tokens": ["a", "man"], "tags": ["O", "B-X"]}, {"tokens": ["two", "women"]}
    data = write_rows(tmp_path / "dev.jsonl", bare, tagged, {"tokens": ["a"], "tags": None})
    found = scored(plain_tagger, data, "tagging")
    assert found == evaluate(plain_tagger, write_rows(data, tagged))
    write_rows(data, bare)
    with pytest.raises(InputError, match=r"dev\.jsonl:1: no column 'tags' for the tags"):
        scored(plain_tagger, data, "tagging")

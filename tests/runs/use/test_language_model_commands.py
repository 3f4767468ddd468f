"""`unmask generate` and `unmask score` on a GPT-1 that was pre-trained here, and what other models are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import unmask as package
from support.commands import Command, check_refused, type_in
from support.files import write, write_rows
from support.runs import pretrain_without_report
from unmask.tasks.settings import ColumnSettings

GPT1 = ("objective.name=causal_lm", "model.architecture=gpt1", "tokenizer.kind=bpe", "packing.format=single_segment")


@pytest.fixture(scope="module")
def gpt1(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Path, tiny_text: Path) -> Path:
    """A run of 20 steps."""
    more = [f"corpus={tiny_text}", *GPT1, "train.steps=20", "train.log_every=20", "train.eval_every=20"]
    return pretrain_without_report(str(tiny_recipe), more, tmp_path_factory.mktemp("gpt1") / "run")


def test_a_text_goes_on_behind_its_prompt(unmask: Command, gpt1: Path) -> None:
    drawn = unmask("generate", gpt1, "the man", "--tokens", 12, "--seed", 3, "--top-k", 40, "--temperature", 0.9)
    assert drawn.code == 0, drawn.errors
    new_text = package.generate(gpt1, "the man", 12, seed=3, top_k=40, temperature=0.9)
    assert new_text.strip()
    assert drawn.output == f"the man{new_text}\n"
    others = unmask("generate", gpt1, "the man", "--tokens", 12, "--seed", 4, "--top-k", 40, "--temperature", 0.9)
    assert others.output != drawn.output
    likeliest = [unmask("generate", gpt1, "the man", "--top-p", 1e-9, "--seed", seed).output for seed in (0, 1)]
    assert likeliest[0] == likeliest[1] == unmask("generate", gpt1, "the man", "--temperature", 0).output


def test_a_prompt_comes_from_standard_input(unmask: Command, gpt1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def given(content: bytes) -> Any:
        type_in(monkeypatch, content)
        return unmask("generate", gpt1, "-", "--tokens", 5)

    assert given(b"the\nman\n").output == unmask("generate", gpt1, "the\nman", "--tokens", 5).output
    assert given(b"the\nman\n").output.startswith("the\nman")
    broken = given(b"the \xff man")
    assert broken.code == 2
    assert broken.errors.startswith("error: standard input:1: ")
    empty = given(b"")
    assert empty.code == 2
    assert "holds no token" in empty.errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--temperature", "-1"), "temperature -1"),
        (("--top-k", "-2"), "top_k -2"),
        (("--top-p", "0"), "top_p 0"),
        (("--tokens", "-1"), "Invalid value for '--tokens'"),
        (("--device", "tpu"), "device 'tpu': expected auto, cpu or cuda"),
        (("--precision", "fp8"), "precision 'fp8': expected fp32 or bf16"),
    ],
)
def test_values_out_of_range_are_told(unmask: Command, gpt1: Path, words: tuple[str, ...], told: str) -> None:
    finished = unmask("generate", gpt1, "the man", *words)
    assert finished.code == 2
    assert told in finished.errors


def test_labels_are_scored(unmask: Command, gpt1: Path, tmp_path: Path) -> None:
    rows = [{"id": "a", "sentence": "a warm day", "label": 1}, {"id": "b", "sentence": "a dull day", "label": 0}]
    data = write_rows(tmp_path / "dev.jsonl", *rows)
    printed = unmask("score", gpt1, data, "--task", "sst2")
    assert printed.code == 0, printed.errors
    predictions = [json.loads(line) for line in printed.output.splitlines()]
    assert [one["input"] for one in predictions] == rows
    assert all(sum(one["probabilities"].values()) == pytest.approx(1) for one in predictions)
    expected = list(package.predict_zero_shot(package.open_zero_shot(gpt1, data, "sst2"), data))
    assert predictions == expected

    written = unmask("score", gpt1, data, "--task", "sst2", "--out", tmp_path / "p.jsonl")
    assert written.output == f"{tmp_path / 'p.jsonl'}\n"
    assert (tmp_path / "p.jsonl").read_text("utf-8") == printed.output
    assert "exists" in unmask("score", gpt1, data, "--task", "sst2", "--out", tmp_path / "p.jsonl").errors
    assert unmask("score", gpt1, data, "--task", "sst2", "--out", tmp_path / "p.jsonl", "--overwrite").code == 0
    assert (
        "is needed and would be" in unmask("score", gpt1, data, "--task", "sst2", "--out", data, "--overwrite").errors
    )

    figures = json.loads(unmask("score", gpt1, data, "--task", "sst2", "--json").output)
    right = sum(one["label"] == str(row["label"]) for one, row in zip(predictions, rows, strict=True))
    assert (figures["task"], figures["n"], figures["metrics"]["accuracy"]) == ("sst2", 2, right / 2)
    named = ("evaluate", "--predictions", tmp_path / "p.jsonl", "--data", data, "--task", "sst2", "--json")
    assert json.loads(unmask(*named).output) == figures


def test_half_of_a_character_in_what_no_model_reads_comes_back(unmask: Command, gpt1: Path, tmp_path: Path) -> None:
    row = {"text": "the man", "label": "a", "note": "\ud800"}
    data = write_rows(tmp_path / "x.jsonl", row, {"text": "the day", "label": "b"})
    printed = unmask("score", gpt1, data)
    assert json.loads(printed.output.splitlines()[0])["input"] == row, printed.errors
    unmask("score", gpt1, data, "--out", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text("utf-8") == printed.output


def test_columns_labels_and_words_of_ones_own(unmask: Command, gpt1: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "mine.jsonl", {"body": "the day", "sort": "w"}, {"body": "the man", "sort": "d"})
    options = ("--column", "text=body", "--column", "label=sort", "--words", "w=warm", "--words", "d=dull = cold")
    printed = unmask("score", gpt1, data, *options, "--template", "{text}: {label}")
    assert printed.code == 0, printed.errors
    words, columns = {"w": "warm", "d": "dull = cold"}, ColumnSettings(text="body", label="sort")
    opened = package.open_zero_shot(gpt1, data, template="{text}: {label}", words=words, columns=columns)
    assert [json.loads(line) for line in printed.output.splitlines()] == list(package.predict_zero_shot(opened, data))
    assert "--column text=NAME" in unmask("score", gpt1, data).errors


def test_a_threshold_is_given_or_chosen_on_dev(unmask: Command, gpt1: Path, tmp_path: Path) -> None:
    rows = [{"sentence": "the man is in the day", "label": 1}, {"sentence": "qz zq xj", "label": 0}]
    data = write_rows(tmp_path / "dev.jsonl", *rows)
    chosen = json.loads(unmask("score", gpt1, data, "--task", "cola", "--dev", data, "--json").output)
    assert chosen["metrics"]["matthews_correlation"] == 1.0  # whatever 20 steps have taught, it is cut at its best
    low = unmask("score", gpt1, data, "--task", "cola", "--threshold", "-1000")
    assert [json.loads(line)["label"] for line in low.output.splitlines()] == ["1", "1"]
    neither = unmask("score", gpt1, data, "--task", "cola")
    assert (neither.code, "give a dev file" in neither.errors) == (2, True)


def test_texts_without_labels_have_their_log_probability(unmask: Command, gpt1: Path, tmp_path: Path) -> None:
    texts = ["the man is in the day", "the", "", "qz xj"]
    lines = write(tmp_path / "new.txt", "".join(f"{text}\n" for text in texts))
    table = write_rows(tmp_path / "new.jsonl", *({"id": text, "said": text} for text in texts))
    printed = unmask("score", gpt1, lines, "--method", "acceptability")
    scored = [json.loads(line) for line in printed.output.splitlines()]
    assert [one["input"] for one in scored] == [{"text": text} for text in texts]
    model = package.load_language_model(gpt1)
    for text, one in zip(texts, scored, strict=True):
        [ids] = model.tokenizer.encode_batch([text])
        expected = sum(
            float(model.next_logits(ids[:place]).log_softmax(-1)[ids[place]]) for place in range(1, len(ids))
        )
        assert one["log_probability"] == pytest.approx(expected, abs=1e-4)  # fp32 sums in another order
        assert one["num_tokens"] == max(0, len(ids) - 1)
    command = ("score", gpt1, table, "--method", "acceptability", "--column", "text=said")
    assert unmask(*command, "--out", tmp_path / "out.jsonl").code == 0
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == [
        {"id": text, **one, "input": {"id": text, "said": text}} for text, one in zip(texts, scored, strict=True)
    ]
    circle = unmask(*command, "--threshold", "-5")
    assert "or of texts alone for `unmask score --method acceptability`" in circle.errors
    assert "no column 'text': there is id, said. Name yours with --column" in unmask(*command[:-2]).errors
    check_refused(unmask(*command, "--column", "label=id"), "--column label")
    for more in (["--task", "cola"], ["--words", "1=good"], ["--json"]):
        check_refused(unmask(*command, *more), f"{more[0]} has no effect with --method acceptability alone: leave it")


def test_files_are_read_as_by_other_commands(unmask: Command, gpt1: Path, tmp_path: Path) -> None:
    for label in "ab":
        write(tmp_path / f"{label}.csv", f"text;label\nthe 날, {label};{label}\n".encode("cp949"))
    glob, written = tmp_path / "*.csv", ("--encoding", "cp949", "--separator", ";")
    for more in ((), ("--method", "acceptability"), ("--method", "acceptability", "--dev", glob)):
        printed = unmask("score", gpt1, glob, *written, *more)
        texts = [json.loads(line)["input"]["text"] for line in printed.output.splitlines()]
        assert texts == ["the 날, a", "the 날, b"], printed.errors
    assert json.loads(unmask("score", gpt1, tmp_path, *written, "--json").output)["n"] == 2
    told = unmask("score", gpt1, glob).errors
    assert ("--encoding NAME" in told, "data.encoding" in told) == (True, False)


def test_a_header_is_no_text(unmask: Command, gpt1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("score", gpt1, "-", "--method", "acceptability")
    type_in(monkeypatch, "text,label\nthe man,1\n")
    refused = unmask(*command)
    assert refused.code == 2
    assert "standard input:1: read as a text, and it is the header of a table (text, label): give --separator ','" in (
        refused.errors
    )
    type_in(monkeypatch, "text,label\nthe man,1\n")
    assert json.loads(unmask(*command, "--separator", ",").output)["input"] == {"text": "the man", "label": "1"}


def test_what_has_no_label_is_judged_by_a_dev_file_that_has(unmask: Command, gpt1: Path, tmp_path: Path) -> None:
    rows = [{"text": "the man is in the day", "label": "b"}, {"text": "qz xj", "label": "a"}]
    dev = write_rows(tmp_path / "dev.jsonl", *rows)
    data = write_rows(tmp_path / "new.jsonl", {"text": "qz xj"}, {"text": "the man is in the day"})
    printed = unmask("score", gpt1, data, "--method", "acceptability", "--dev", dev)
    assert [json.loads(line)["label"] for line in printed.output.splitlines()] == ["a", "b"], printed.errors
    given = unmask("score", gpt1, data, "--method", "acceptability", "--threshold", -1000, "--dev", dev)
    assert [json.loads(line)["label"] for line in given.output.splitlines()] == ["b", "b"], given.errors
    wrong = unmask("score", gpt1, dev, "--dev", dev)
    assert (wrong.code, "a dev file and a threshold are for the method acceptability" in wrong.errors) == (2, True)


def test_choices_are_ranked_and_what_is_cut_is_told(
    unmask: Command, gpt1: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"context": "the man " * 40, "choices": ["is here", "qz"], "label": 0}
    data = write_rows(tmp_path / "choices.jsonl", row)
    printed = unmask("score", gpt1, data, "--task", "choice")
    assert printed.code == 0, printed.errors
    assert len(json.loads(printed.output)["probabilities"]) == 2
    told = "1 example, 1 longer than the model's 32 tokens, read without their beginning"  # with both of its choices
    assert told in caplog.text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--task", "choise"), "choise"),
        (("--task", "qa"), "answers classification and choice"),
        (("--method", "guess"), "method 'guess' is not for classification"),
        (("--words", "positive"), "--words 'positive': expected LABEL=WORDS"),
        (("--words", "1=a", "--words", "1=b"), "names the label '1' twice"),
        (("--out", "x.csv"), "--out x.csv: expected a name that ends in .jsonl"),
        (("--json", "--out", "x.jsonl"), "--out is for predictions"),
        (("--template", "{text}"), r"template '{text}'"),
        (("--column", "texts=a"), "texts"),
    ],
)
def test_what_cannot_be_is_told(unmask: Command, gpt1: Path, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    data = write_rows(tmp_path / "x.jsonl", {"text": "a", "label": 1}, {"text": "b", "label": 0})
    finished = unmask("score", gpt1, data, *words)
    assert finished.code == 2
    assert told in finished.errors
    assert not finished.output


def test_a_model_of_another_kind_is_told_its_command(unmask: Command, gpt1: Path, task_models: Any) -> None:
    assert "no such directory" in unmask("generate", gpt1.parent / "absent", "a").errors
    wrong = unmask("fill-mask", gpt1, "the [MASK]")
    assert wrong.code == 2
    assert "(OpenAIGPTLMHeadModel) is a left-to-right language model: expected a masked language model" in wrong.errors
    assert "`unmask generate`, `unmask score`" in wrong.errors
    fine_tuned = unmask("generate", task_models.runs / "classification", "a man")
    assert fine_tuned.code == 2
    assert "is a fine-tuned model: expected a left-to-right language model" in fine_tuned.errors
    assert "`unmask predict`, `unmask evaluate`" in fine_tuned.errors
    bare = unmask("generate", task_models.base, "a man")
    assert "is an encoder without a head" in bare.errors


def test_info_tells_what_it_is(unmask: Command, gpt1: Path) -> None:
    described = json.loads(unmask("info", gpt1 / "model", "--json").output)
    assert described["is"] == "a left-to-right language model"
    assert described["commands"][:2] == ["generate", "score"]
    assert (described["hidden_size"], described["max_position_embeddings"]) == (32, 32)

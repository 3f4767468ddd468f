"""`unmask evaluate --pairs`: of a model, of the checkpoints of a run, on a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Command
from support.files import write_rows
from unmask.errors import OutputError

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = [
    {"sentence_good": "He went home.", "sentence_bad": "He home went.", "UID": "order", "linguistics_term": "<term>"},
    {"sentence_good": "She is old.", "sentence_bad": "She are old.", "UID": "agreement", "linguistics_term": "<term>"},
]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pairs.jsonl", *ROWS * 3)


def test_checkpoints_end_with_the_model(whole: Path, pairs: Path, tmp_path: Path, unmask: Command) -> None:
    page = tmp_path / "pairs.html"
    every = unmask("evaluate", whole, "--pairs", pairs, "--checkpoints", "--json", "--out", page)
    model = unmask("evaluate", whole, "--pairs", pairs, "--json")
    assert (every.code, model.code) == (0, 0)
    checkpoints = json.loads(every.output)["checkpoints"]
    assert [each.pop("step") for each in checkpoints] == [8, 12]
    assert checkpoints[-1] == json.loads(model.output)
    shown = page.read_text(encoding="utf-8")
    assert "Over the run" in shown
    assert "&lt;term&gt;" in shown
    assert "<term>" not in shown
    term = checkpoints[-1]["terms"]["<term>"]
    assert "mean {accuracy:.1f} ({low:.0f}–{high:.0f})".format(**term) in shown
    printed = unmask("evaluate", whole, "--pairs", pairs).output
    assert "  {:<56} {accuracy:5.1f}  ({low:.1f} to {high:.1f})\n".format("<term>, mean", **term) in printed


def test_checkpoints_that_are_gone_are_left_out(
    whole: Path, pairs: Path, tmp_path: Path, unmask: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """As a run under way removes them."""
    run = shutil.copytree(whole, tmp_path / "run")
    every = json.loads(unmask("evaluate", run, "--pairs", pairs, "--checkpoints", "--json").output)["checkpoints"]
    (run / "checkpoints" / "step-00000008" / "weights.safetensors").unlink()
    found = unmask("evaluate", run, "--pairs", pairs, "--checkpoints", "--json")
    assert json.loads(found.output)["checkpoints"] == every[1:]
    assert "the checkpoint of step 8 is left out: " in caplog.text
    (run / "checkpoints" / "step-00000012" / "weights.safetensors").unlink()
    refused = unmask("evaluate", run, "--pairs", pairs, "--checkpoints")
    assert (refused.code, "step-00000012" in refused.errors) == (2, True)


def test_each_pair_is_written_with_its_scores(whole: Path, pairs: Path, tmp_path: Path, unmask: Command) -> None:
    lines = tmp_path / "scores.jsonl"
    finished = unmask("evaluate", whole, "--pairs", pairs, "--json", "--out", lines)
    assert finished.code == 0, finished.errors
    scored = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    expected = [(number, row) for uid in ("agreement", "order") for number, row in given() if row["UID"] == uid]
    for one, (number, row) in zip(scored, expected, strict=True):
        assert one["place"] == f"{pairs}:{number}"
        assert [one["paradigm"], one["sentence_good"], one["sentence_bad"]] == [
            row[name] for name in ("UID", "sentence_good", "sentence_bad")
        ]
        assert one["right"] == (one["score_good"] > one["score_bad"])
    for name, its in json.loads(finished.output)["paradigms"].items():
        right = [one["right"] for one in scored if one["paradigm"] == name]
        assert its["accuracy"] == pytest.approx(100 * sum(right) / 3)
    refused = unmask("evaluate", whole, "--pairs", pairs, "--checkpoints", "--out", tmp_path / "all.jsonl")
    assert (refused.code, "lines are of one model: leave out --checkpoints" in refused.errors) == (2, True)
    for source in (pairs, pairs.parent):
        refused = unmask("evaluate", whole, "--pairs", source, "--out", pairs, "--overwrite")
        assert (refused.code, "pairs.jsonl is needed and would be overwritten" in refused.errors) == (2, True)


def given() -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of `pairs` with the numbers of their lines."""
    return enumerate(ROWS * 3, start=1)


def test_a_page_of_one_model_has_no_curve(whole: Path, pairs: Path, tmp_path: Path, unmask: Command) -> None:
    finished = unmask("evaluate", whole, "--pairs", pairs, "--out", tmp_path / "pairs.html")
    assert finished.code == 0
    assert "6 pairs in 2 paradigms" in finished.output
    assert "Over the run" not in (tmp_path / "pairs.html").read_text(encoding="utf-8")


def test_an_onnx_file_scores_no_sentences(whole: Path, pairs: Path, tmp_path: Path, unmask: Command) -> None:
    directory = shutil.copytree(whole / "model", tmp_path / "onnx")
    (directory / "model.safetensors").rename(directory / "model.onnx")
    refused = unmask("evaluate", directory, "--pairs", pairs)
    assert refused.code == 2
    assert f"{directory} holds an ONNX file, which scores no sentences: give the directory" in refused.errors


def test_another_page_stays(whole: Path, pairs: Path, tmp_path: Path, unmask: Command) -> None:
    page = tmp_path / "report.html"
    page.write_text("another page")
    refused = unmask("evaluate", whole, "--pairs", pairs, "--out", page)
    assert (refused.code, refused.output) == (2, "")
    assert "exists already and would be overwritten" in refused.errors
    assert page.read_text() == "another page"
    assert unmask("evaluate", whole, "--pairs", pairs, "--out", page, "--overwrite").code == 0
    assert page.read_text() != "another page"


@pytest.mark.parametrize("name", ["report.html", "scores.jsonl"])
def test_what_appears_meanwhile_stays(
    whole: Path, pairs: Path, tmp_path: Path, unmask: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("unmask.cli.evaluating._print_pairs", lambda *_: (tmp_path / name).write_text("another one"))
    refused = unmask("evaluate", whole, "--pairs", pairs, "--out", tmp_path / name)
    assert (refused.code, "exists already and would be overwritten" in refused.errors) == (2, True)
    assert (tmp_path / name).read_text() == "another one"


def test_one_paradigm_is_not_several(whole: Path, tmp_path: Path, unmask: Command) -> None:
    finished = unmask("evaluate", whole, "--pairs", write_rows(tmp_path / "pairs.jsonl", ROWS[0]))
    assert "1 pair in 1 paradigm; a coin" in finished.output


def test_a_page_that_cannot_be_written_loses_no_figure(
    whole: Path, pairs: Path, tmp_path: Path, unmask: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, text: str, overwrite: bool) -> None:
        raise OutputError(f"the disk is full while writing {path}")

    monkeypatch.setattr("unmask.reports.layout.write_text", fail)
    finished = unmask("evaluate", whole, "--pairs", pairs, "--json", "--out", tmp_path / "pairs.html")
    assert finished.code == 2
    assert json.loads(finished.output)["n"] == 6


def test_sentences_that_are_equal_to_the_model_are_told(
    whole: Path, tmp_path: Path, unmask: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """Words without a vocabulary: wrong, but no knowledge of grammar."""
    unknown = [{"sentence_good": "ㄱ ㄴ", "sentence_bad": "ㄷ ㄹ"}, *ROWS]
    finished = unmask("evaluate", whole, "--pairs", write_rows(tmp_path / "korean.jsonl", *unknown), "--json")
    assert "which count as wrong: 1 of 3; its vocabulary lacks words of 1, its tokenizer" in caplog.text
    assert json.loads(finished.output)["alike"] == 1


def test_sentences_that_differ_in_case_or_blanks_lack_no_word(
    whole: Path, tmp_path: Path, unmask: Command, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("a man", "A man"), ("a man", "a  man"), ("a man", "man a")]
    pairs = write_rows(tmp_path / "a.jsonl", *({"good": good, "bad": bad} for good, bad in rows))
    unmask("evaluate", whole, "--pairs", pairs, "--json")
    told = "its vocabulary lacks words of 0, its tokenizer makes no difference (case, accents, blanks) in 2: take"
    assert told in caplog.text
    caplog.clear()
    unmask("evaluate", whole, "--pairs", pairs, "--checkpoints", "--json")
    assert caplog.text.count(told) == 1, "for all checkpoints together"


def test_one_pair_of_a_hundred_may_be_equal_to_the_model(
    whole: Path, tmp_path: Path, unmask: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside those that are the same text, which have a warning of their own."""
    rows = [("a man", "A man"), ("a man", "a man"), *[("a man", "man a")] * 98]
    pairs = write_rows(tmp_path / "a.jsonl", *({"good": good, "bad": bad} for good, bad in rows))
    finished = unmask("evaluate", whole, "--pairs", pairs, "--json")
    assert json.loads(finished.output)["alike"] == 2
    assert "pairs of twice the same sentence: 1 of 100" in caplog.text
    assert "that this model reads as the same" not in caplog.text


def test_the_same_sentence_twice_is_no_fault_of_the_vocabulary(
    whole: Path, tmp_path: Path, unmask: Command, caplog: pytest.LogCaptureFixture
) -> None:
    same = [{"sentence_good": "It is old.", "sentence_bad": "It is old."}, *ROWS]
    finished = unmask("evaluate", whole, "--pairs", write_rows(tmp_path / "same.jsonl", *same), "--json")
    assert "pairs of twice the same sentence: 1 of 3" in caplog.text
    assert "vocabulary" not in caplog.text
    assert json.loads(finished.output)["alike"] == 1


def test_special_tokens_in_a_sentence_are_text(whole: Path, tmp_path: Path, unmask: Command) -> None:
    said = write_rows(tmp_path / "said.jsonl", {"sentence_good": "It is [SEP] old.", "sentence_bad": "It are [SEP]."})
    assert unmask("evaluate", whole, "--pairs", said).code == 0
    refused = unmask("evaluate", whole, "--pairs", said, "--pll", "word-left-to-right")
    assert refused.code == 2
    assert f"error: {said}:1: 'It is [SEP] old.' holds a special token of this model as text" in refused.errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pairs", "PAIRS", "--out", "pairs.txt"], "expected the name of a page, such as page.html"),
        (["--pairs", "PAIRS", "--out", "none/pairs.html"], "in a folder that exists"),
        (["--pairs", "PAIRS", "--column", "sentence_good=g"], "--column has no effect with --pairs: leave it out"),
        (["task.max_length=3", "--pairs", "PAIRS"], "task.max_length=3 has no effect with --pairs: leave it out"),
        (["--pairs", "PAIRS", "--overwrite"], "--overwrite has no effect without --out: leave it out"),
        (["--pairs", "PAIRS", "--encoding", "ascii8"], "ascii8"),
        (["--pairs", "PAIRS", "--pll", "other"], "pll=other: expected original or word-left-to-right"),
        (["--pairs", "PAIRS", "--data", "x.csv"], "--data has no effect with --pairs: leave it out"),
        (["--data", "x.csv", "--checkpoints"], "--checkpoints has no effect without --pairs: leave it out"),
        (["--pairs", "none"], "none: there is no such file or folder"),
        (["--pairs", "PAIRS", "--discriminator"], "discriminator is for ELECTRA"),
    ],
)
def test_bad_input(arguments: list[str], message: str, whole: Path, pairs: Path, unmask: Command) -> None:
    finished = unmask("evaluate", whole, *(str(pairs) if word == "PAIRS" else word for word in arguments))
    assert finished.code == 2
    assert message in finished.errors

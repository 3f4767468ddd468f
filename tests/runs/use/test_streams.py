"""Standard input and output of the command line: broken text, blank lines, a reader that goes away."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import Command, type_in
from support.sizes import small
from unmask.models.bert import BertEncoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.directory import save_model
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    directory = tmp_path_factory.mktemp("model") / "masked_lm"
    text = samples_dir / "text" / "ko-constitution.jsonl"
    tokenizer, _ = train_tokenizer([text], directory, TokenizerSettings(vocab_size=1500))
    sizes = small(vocab=tokenizer.vocab_size, width=16, layers=1, heads=2, inner=32, positions=32)
    encoder = BertEncoder(sizes, pooler=False)
    save_model(directory, encoder, {"masked_lm_head": MaskedLMHead(encoder.settings)})
    return directory


def test_blank_lines_are_passed_over(unmask: Command, monkeypatch: pytest.MonkeyPatch, masked_lm: Path) -> None:
    type_in(monkeypatch, "모든 [MASK] 은\n\n국가는 [MASK] 을\n")
    finished = unmask("fill-mask", masked_lm, "-", "--top-k", 1)
    assert finished.code == 0
    keys = ["score", "sequence", "token", "token_str"]
    assert [sorted(json.loads(line)) for line in finished.output.splitlines()] == [keys] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("모든 [MASK] 은\n없다\n".encode(), "error: standard input:2: no [MASK] in '없다'"),
        (b"x [MASK] \xff\n", "error: standard input:1: not UTF-8 at byte 9"),
        (b"\n", "error: standard input: there is nothing in it: expected inputs\n"),
    ],
    ids=["no mask", "not UTF-8", "nothing"],
)
def test_a_bad_line_is_named(
    unmask: Command, monkeypatch: pytest.MonkeyPatch, masked_lm: Path, text: bytes, message: str
) -> None:
    type_in(monkeypatch, text)
    finished = unmask("fill-mask", masked_lm, "-", "--top-k", 1)
    assert finished.code == 2
    assert finished.errors.startswith(message)


def test_a_warning_says_that_it_is_one(unmask: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    monkeypatch.setattr(logging, "lastResort", handler)  # what shows it outside of a run
    assert unmask("--version").code == 0
    for level in (logging.WARNING, logging.ERROR):
        handler.handle(logging.LogRecord("unmask", level, "", 0, "%s left out", ("1 file",), None))
    assert shown.getvalue() == "warning: 1 file left out\nerror: 1 file left out\n"


def test_a_reader_may_go_away(masked_lm: Path) -> None:
    command = f"'{sys.executable}' -m unmask fill-mask '{masked_lm}' - --top-k 1000 | head -1; exit ${{PIPESTATUS[0]}}"
    text = "모든 [MASK] 은\n" * 50
    finished = subprocess.run(["bash", "-c", command], input=text.encode(), capture_output=True)
    assert finished.returncode == 0, finished.stderr.decode()
    assert len(finished.stdout.splitlines()) == 1
    assert finished.stderr == b""


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_place_that_cannot_be_used_is_the_users(
    unmask: Command, place: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), "here")

    monkeypatch.setattr("unmask.store.preparation.prepare", refuse)
    (place / "text.txt").write_text("some words\n")
    left = unmask("prepare", "text.txt", "--tokenizer", "t", "--out", "here")
    assert (left.code, left.output) == (2, "")
    assert left.errors == f"error: here: {os.strerror(number)}: read or write somewhere else, or fix the place\n"

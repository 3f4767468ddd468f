"""What is shown of trials side by side, on a terminal and elsewhere."""

from __future__ import annotations

import io
import logging
import re
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from support.files import Terminal
from unmask.finetuning.search.display import TrialsDisplay, warning_once
from unmask.training.run.messages import logging_messages


def show_all(directory: Path, stream: io.StringIO) -> str:
    with redirect_stderr(stream), TrialsDisplay(directory, 3, 2) as display:
        display.show(["a_seed0", "a_seed1"], None)
        display.num_ended = 1
        display.log("a_seed0: accuracy 0.5 on dev")
        display.warn("a_seed1: odd")
        display.show(["a_seed1", "a_seed2"], 65.0)
    return stream.getvalue()


def test_elsewhere_there_are_lines_alone(tmp_path: Path) -> None:
    assert show_all(tmp_path, io.StringIO()).splitlines() == [
        "3 trials, 2 at a time; each has a log.txt of its own",
        "a_seed0: accuracy 0.5 on dev",
        "warning: a_seed1: odd",
    ]
    assert "WARNING a_seed1: odd" in (tmp_path / "log.txt").read_text()


def test_a_terminal_shows_what_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = show_all(tmp_path, Terminal())
    before, _, after = shown.partition("a_seed0: accuracy 0.5 on dev")
    assert "0 of 3 trials" in before
    assert re.search(r"  a_seed0 [━ ]+ 0:00:00", before)
    last = after[after.index("1 of 3 trials · 1 min 5 s left") :]
    assert "  a_seed2" in last
    assert "  a_seed0" not in last


def test_what_a_handler_of_the_program_shows_is_shown_once(tmp_path: Path) -> None:
    stream = io.StringIO()
    with redirect_stderr(stream):
        handler = logging.StreamHandler()
        logging.root.addHandler(handler)
        try:
            with TrialsDisplay(tmp_path, 3, 2) as display:
                display.log("a_seed0: accuracy 0.5 on dev")
            with warning_once({"of train"}), logging_messages(tmp_path, echo=True):
                logging.getLogger("unmask").warning("of train")
                logging.getLogger("unmask").warning("of this trial")
        finally:
            logging.root.removeHandler(handler)
    first = "3 trials, 2 at a time; each has a log.txt of its own"
    assert stream.getvalue().splitlines() == [first, "a_seed0: accuracy 0.5 on dev", "of this trial"]
    assert "WARNING of train" in (tmp_path / "log.txt").read_text()

"""The messages of a run: each once, in its file and on the screen, and a logger left as it was found."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.logging import RichHandler

from unmask.training.run.log import RunLog
from unmask.training.run.messages import logging_messages

logger = logging.getLogger("unmask")


def test_log_text_has_a_time_and_the_logger_is_left_as_it_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers, level = list(logger.handlers), logger.level
    with logging_messages(tmp_path):
        logger.info("saved %s", "말뭉치")
        logging.getLogger("unmask.data").warning("a path: \udc80")
        logger.debug("too fine")
    logger.warning("after")
    lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} INFO saved 말뭉치", lines[0])
    assert lines[1].endswith(r"WARNING a path: \udc80")
    assert (logger.handlers, logger.level) == (handlers, level)
    assert "saved" not in "".join(capsys.readouterr())


def test_the_level_that_a_program_gives_the_logger_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "unmask")
    with logging_messages(tmp_path, echo=True):
        logger.info("steps")
        logger.error("a fault")
    assert capsys.readouterr().err == "error: a fault\n"
    assert logger.level == logging.ERROR
    logger.setLevel(logging.NOTSET)
    with logging_messages(tmp_path):
        logger.setLevel(logging.WARNING)
    assert logger.level == logging.WARNING


def test_what_a_handler_of_the_program_shows_is_not_shown_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler()
    logging.root.addHandler(handler)
    with logging_messages(tmp_path, echo=True):
        logger.info("once")
    assert capsys.readouterr().err == "once\n"
    handler.setLevel(logging.ERROR)  # it does not show what is shown here
    with logging_messages(tmp_path, echo=True):
        logger.info("once more")
    handler.setLevel(logging.NOTSET)
    logger.propagate = False  # nor does what never reaches it
    with logging_messages(tmp_path, echo=True):
        logger.info("and once more")
    logger.propagate = True
    logging.root.removeHandler(handler)
    assert capsys.readouterr().err == "once more\nand once more\n"


def test_what_richs_handler_shows_is_not_shown_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = RichHandler(console=Console(stderr=True))
    logging.root.addHandler(handler)
    with logging_messages(tmp_path, echo=True):
        logger.info("once")
    logging.root.removeHandler(handler)
    assert capsys.readouterr().err.count("once") == 1


def test_of_two_logs_the_last_one_that_ends_restores_the_level(tmp_path: Path) -> None:
    level = logger.level
    (tmp_path / "first").mkdir()
    first, second = RunLog(tmp_path / "first"), RunLog(tmp_path)
    first.close()
    logger.info("of the second")
    second.close()
    assert "INFO of the second" in (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert logger.level == level

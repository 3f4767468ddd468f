"""The messages of a run or a search: to `log.txt`, and to standard error where no handler of the program shows them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from unmask.io.progress import NamingLevel, Progress, standard_error, write_line
from unmask.io.writing import as_output_error, refuse_special

LOG = "log.txt"

HIDDEN = "is_hidden"
"""The attribute of a log record that is written to files, and not shown on standard error."""

logger = logging.getLogger("unmask")

_levels: list[int] = []
"""The level of the logger as each log that is open was opened: the last one that is closed restores the first."""


@contextmanager
def logging_messages(directory: Path, echo: bool = False) -> Iterator[_Echo]:
    """A block in which what is logged to the logger `unmask` goes to `log.txt`: at INFO and above, unless the logger
    has a level of its own.

    Args:
        directory: it exists. Lines are added to those already there.
        echo: True shows them on standard error too, unless a handler of the program does, such as `basicConfig` makes.

    Yields:
        The handler that shows them there.

    Raises:
        OutputError: the disk is full, or the directory cannot be written.
    """
    shown = _Echo()
    shown.setFormatter(NamingLevel())
    handlers: list[logging.Handler] = [_LogFile(directory / LOG), *([shown] if echo and not showing_handlers() else [])]
    for handler in handlers:
        logger.addHandler(handler)
    _levels.append(logger.level)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield shown
    finally:
        former_level = _levels[0]
        _levels.pop()
        if not _levels and logger.level == logging.INFO:  # else the program has set another meanwhile
            logger.setLevel(former_level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def showing_handlers() -> list[logging.Handler]:
    """Those of the program that show what is logged, at INFO and above, on standard output or standard error."""
    return [
        handler
        for handler in (*logger.handlers, *(logging.root.handlers if logger.propagate else ()))
        if _stream_of(handler) in (sys.stdout, sys.stderr) and handler.level <= logging.INFO
    ]


def _stream_of(handler: logging.Handler) -> object:
    if isinstance(handler, logging.StreamHandler):
        return handler.stream
    return getattr(getattr(handler, "console", handler), "file", handler)  # of rich's, which is no StreamHandler


class _LogFile(logging.Handler):
    """Log messages in a file, each with its time; unlike `logging.FileHandler` it fails on a full disk."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S%z"))
        self._path = path
        self._file = open_to_append(path)

    def emit(self, record: logging.LogRecord) -> None:
        write_whole(self._file, self._path, self.format(record) + "\n")

    def close(self) -> None:
        self._file.close()
        super().close()


class _Echo(logging.Handler):
    """Log messages on standard error, above the progress bar where one is shown."""

    progress: Progress | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, HIDDEN, False):
            return
        text = self.format(record)
        if self.progress is None:
            write_line(text, None, standard_error())
        else:
            self.progress.note(text)


def open_to_append(path: Path) -> FileIO:
    """Opens a file for `write_whole`. Raises OutputError if it cannot be written, or is no regular file."""
    with as_output_error(path):
        refuse_special(path)
        return open(path, "ab", buffering=0)


def write_whole(file: FileIO, path: Path, line: str) -> None:
    """Adds a line to the file at `path`, in one piece. Raises OutputError if the disk is full."""
    rest = line.encode("utf-8", errors="backslashreplace")
    with as_output_error(path):
        while rest:  # once, unless the disk fills up within the line: the next write then says so
            rest = rest[file.write(rest) :]

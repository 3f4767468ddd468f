"""The command line: runs the command of this folder that is given, and turns errors into messages.

Nothing heavy is imported before a command runs, so that `--help` answers at once. Results go to standard output,
progress and messages to standard error. Exit codes: 0 done, 1 our fault, 2 the user's, 130 and 143 after Ctrl-C or
SIGTERM.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import tempfile
import traceback
from io import BufferedWriter, FileIO, TextIOWrapper
from itertools import pairwise
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer

from unmask import __version__
from unmask.cli import evaluating, glue, left_to_right, serving, text, training, use
from unmask.cli.options import is_one_of_several
from unmask.errors import AnotherRank, Interrupted, RankLost, SettingsError, UnmaskError
from unmask.io.cores import quota_of_cores
from unmask.io.processes import own_process
from unmask.io.progress import name_levels

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

app = typer.Typer(
    help="Raw text to a pre-trained BERT-family encoder, to fine-tuned models, to measured results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for commands in (text, training, evaluating, use, left_to_right, glue, serving):
    app.add_typer(commands.app)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        print(f"unmask {__version__}")
        raise typer.Exit


command = typer.main.get_command(app)


def main() -> None:
    """Runs the command that the words ask for; exits with its code."""
    sys.argv[0] = "unmask"  # in the record of a run, however it was started
    _open_streams()
    _set_defaults_of_libraries()
    own_process()
    name_levels()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    stopped: BaseException | None = None
    try:
        try:
            _check_folder()
            command(prog_name="unmask")
        except SystemExit as ended:
            if isinstance(ended.__context__, BrokenPipeError):
                raise ended.__context__ from None
            if ended.code != 128 + signal.SIGINT:  # what typer makes of a `KeyboardInterrupt`
                raise
            stopped = getattr(ended.__context__, "__cause__", None) or ended
        finally:
            try:
                sys.stdout.flush()
            finally:  # what is left takes no time; a further Ctrl-C would put a traceback in place of the message
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)
        if isinstance(stopped, Interrupted):
            raise stopped  # here, where it keeps its context
        if stopped is not None:
            raise Interrupted(
                "stopped at once by a second Ctrl-C: what was being written is given up, what was finished is kept; a "
                "run or a store continues with --resume",
                signal.SIGINT,
            )
    except (AnotherRank, Interrupted) as error:  # all processes have it, and the first one is there
        if isinstance(error.__context__, RankLost):  # which a signal has interrupted
            _fail(str(error.__context__), RankLost.exit_code)
        _fail(str(error), error.exit_code, sys.stderr)
    except UnmaskError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _fail(f"the disk is full ({error.filename or 'while writing'}): free some space, or write elsewhere", 2)
        if error.errno in _PLACE_ERRORS and error.filename:
            _fail(f"{error.filename}: {error.strerror}: read or write somewhere else, or fix the place", 2)
        _fail_with_log()
    except Exception as error:
        if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
            _fail(
                "not enough memory: close other programs, or take a smaller batch or model; a run continues then from "
                "its newest checkpoint with --resume",
                2,
            )
        _fail_with_log()


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise SettingsError(
            "the folder that this was started in has been removed: `cd` to one that is there"
        ) from error


def _open_streams() -> None:
    """Opens those that are closed, has text written in UTF-8, and silences all but the first of several processes."""
    # Daemons start commands with these closed. The files that we open then would be taken for them.
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 (for as long as the process lives)
            os.set_inheritable(stream.fileno(), True)  # so are they of the processes that it starts
            setattr(sys, name, stream)
    # Both are UTF-8 whatever the locale, whose encoding may lack letters.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.__stderr__ is not None:  # it was not closed
        messages = BufferedWriter(_Messages(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = TextIOWrapper(messages, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        setattr(sys, "__stderr__", sys.stderr)  # noqa: B010 (final to mypy)
    # Of several processes that train together the first one speaks; what only another can say goes to `__stderr__`.
    if is_one_of_several() and os.environ["RANK"] != "0" and sys.argv[1:2] in (["pretrain"], ["finetune"]):
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as above)


class _Messages(FileIO):
    """Standard error. What it does not take is lost, and the work continues: its reader may have left, such as `tee` or
    a terminal, or its disk is full."""

    def write(self, text: ReadableBuffer, /) -> int:
        try:
            return super().write(text)
        except OSError:
            return memoryview(text).nbytes


def _set_defaults_of_libraries() -> None:
    """Environment variables that PyTorch and its libraries read when they are imported; those that are set stay."""
    # PyTorch's threads spin while they wait, which beside other work costs most of the speed. Here they spin for some
    # ten microseconds, as long as the next kernel is away, and then sleep; in a server, which has its machine for
    # itself, for some fifty.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", "5000" if sys.argv[1:2] == ["serve"] else "1000")
    # They are as many as there are cores, of which a container's quota may be a few.
    if (cores := quota_of_cores()) is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))
    # oneDNN caches what it made for the last thousand shapes, and most shapes of a run return within half as many.
    # Those of requests return seldom, each holds megabytes, and in fp32 it is soon made again.
    in_bf16 = "--precision=bf16" in sys.argv or ("--precision", "bf16") in pairwise(sys.argv)
    kept = "16" if sys.argv[1:2] == ["serve"] and not in_bf16 else "512"
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", kept)
    # PyTorch keeps the last thousand beside them; this saves no time, and holds hundreds of megabytes.
    os.environ.setdefault("LRU_CACHE_CAPACITY", "16")


_OUT_OF_MEMORY = re.compile(
    r"out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|can't allocate memory|can't start new thread|could not create a primitive$"
)
"""How PyTorch and cuBLAS say so on a GPU, and PyTorch's allocator, Python's threads and oneDNN on the CPU: none of them
raises a MemoryError."""


_PLACE_ERRORS = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG),
    *(errno.EIO, errno.ESTALE),
)
"""Errors that are due to a path that the user named, or to its disk, not to us."""


def _stop(number: int, _: FrameType | None) -> None:
    raise Interrupted(f"stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}", number)


def _fail(message: str, code: int, stream: TextIO | None = None) -> NoReturn:
    print(f"error: {message}" if code in (1, 2) else message, file=stream or sys.__stderr__ or sys.stderr)
    sys.exit(code)


def _fail_with_log() -> NoReturn:
    """Ends after a fault of our own; the traceback goes to a file that can be sent to us."""
    trace = traceback.format_exc()
    fault = f"a fault in unmask, not in your input: {trace.strip().rsplit(chr(10), 1)[-1]}"
    try:
        with tempfile.NamedTemporaryFile("wb", prefix="unmask-", suffix=".log", delete=False) as log:
            report = f"unmask {__version__}: {' '.join(sys.argv)}\n\n{trace}"
            log.write(report.encode("utf-8", "backslashreplace"))
    except OSError:  # no space even for the log
        _fail(f"{fault}\nplease report it:\n{trace}", 1)
    _fail(f"{fault}\nthe traceback is in {log.name}: please report it", 1)

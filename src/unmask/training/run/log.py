"""What a run writes about itself: `metrics.jsonl`, the same figures as TensorBoard events, and its messages.

`metrics.jsonl` is authoritative, and valid JSON on every line: a figure that is not finite (a loss that overflowed) is
written as null. Each row is written in one piece, so that a kill cuts short at most the last line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from unmask.errors import CheckpointError, InputError, Interrupted, OutputError, UnmaskError
from unmask.io.paths import CHECKPOINTS
from unmask.io.progress import Progress
from unmask.io.writing import as_output_error, refuse_special, sha256, writing
from unmask.training.run.messages import logging_messages, open_to_append, write_whole

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS = "metrics.jsonl"
METRICS_BEFORE = f"{METRICS}.before"
"""The rows of the newest attempt that has left no checkpoint."""
TENSORBOARD = "tensorboard"

_RESTORE = "restore the file, or move it away, and the run continues without its earlier figures"

logger = logging.getLogger("unmask")


class RunLog:
    """The log of one run, open from construction to `close` (or the end of a `with` statement).

    While it is open, messages go to `log.txt`, see `logging_messages`, and so does the error that ends a `with`
    statement: its message, or the traceback where the fault is ours.

    Args:
        directory: the run directory; it exists. Rows are added to those already there.
        echo: True shows log messages on standard error too.

    Raises:
        OutputError: the disk is full, or the directory cannot be written.
        InputError: `metrics.jsonl` is damaged before its last line.
    """

    def __init__(self, directory: Path, echo: bool = False) -> None:
        self._directory = directory
        self._path = directory / METRICS
        self._purge_step: int | None = None
        self._events: SummaryWriter | None = None
        _end_whole(self._path)
        self._metrics = open_to_append(self._path)
        with ExitStack() as opened:
            opened.callback(lambda: self._metrics.close())
            self._echo = opened.enter_context(logging_messages(directory, echo))
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._write_error(error)
        finally:
            self.close()

    def _write_error(self, error: BaseException) -> None:
        """Logs the error to the file only: whoever catches it shows it."""
        logger.removeHandler(self._echo)
        level = logging.INFO if isinstance(error, Interrupted) else logging.ERROR
        is_ours = not isinstance(error, UnmaskError | KeyboardInterrupt)
        with suppress(OutputError):  # the disk may be full, which is then the error that is reported
            logger.log(level, "%s", str(error) or type(error).__name__, exc_info=error if is_ours else None)

    def close(self) -> None:
        """Flushes and closes everything; the logger `unmask` is left as it was found."""
        self._opened.close()
        self._close_events()

    def _close_events(self) -> None:
        if self._events is not None:
            with as_output_error(self._directory / TENSORBOARD):
                self._events.close()
            self._events = None

    def echo_above(self, progress: Progress) -> None:
        """Shows log messages above the bar of `progress` from now on, where they are shown at all."""
        self._echo.progress = progress

    @contextmanager
    def measuring(self, name: str, num_examples: int) -> Iterator[Progress]:
        """The progress of an evaluation, beside that of the run."""
        of_run = self._echo.progress
        with (of_run or Progress("")).aside(f"evaluating {name}", num_examples, "examples") as shown:
            self._echo.progress = shown
            try:
                yield shown
            finally:
                self._echo.progress = of_run

    def write_training(
        self,
        *,
        step: int,
        tokens: int,
        examples_hash: int,
        loss: float | None,
        terms: Mapping[str, float],
        learning_rate: float,
        gradient_norm: float,
        tokens_per_s: float,
        is_stop: bool = False,
    ) -> None:
        """Adds a training row.

        Args:
            tokens: tokens read since the run began.
            examples_hash: of what they were, see `unmask.training.state.TrainState`.
            loss: the loss of the steps since the last row; None where they had no target, and the row then has none.
            terms: the same by term, unweighted: `mlm`, `nsp` ...
            tokens_per_s: since the last row.
            is_stop: True for the row of a stop, which a resumed run removes: TensorBoard, which forgets nothing, does
                not get it.
        """
        scalars = {} if loss is None else {"loss": loss}
        scalars |= {f"loss/{name}": value for name, value in terms.items()}
        scalars |= {"learning_rate": learning_rate, "gradient_norm": gradient_norm, "tokens_per_s": tokens_per_s}
        self._write({"step": step, "tokens": tokens, "examples_hash": examples_hash}, scalars, in_events=not is_stop)

    def write_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds an evaluation row; `metrics` by name without `eval/`."""
        self._write({"step": step}, {f"eval/{name}": value for name, value in metrics.items()})

    def begin(self) -> None:
        """Puts the rows of an earlier attempt aside: there is no checkpoint, so the run begins again."""
        if rows := read_metrics(self._path):
            has_rows = _without_checkpoint(self._path, rows)
            logger.warning("%s: the run begins again, and these rows are in %s", has_rows, METRICS_BEFORE)
            with as_output_error(self._path):
                os.replace(self._path, self._directory / METRICS_BEFORE)
            self._reopen()
        self._purge_step = 0

    def rewind(self, step: int, *, is_open: bool = False, is_evaluated: bool = True) -> None:
        """Removes, atomically, the rows after `step`, which a run that continues from there writes again.

        Args:
            is_open: True removes the training row of `step` itself too: it was written at a stop, and its steps belong
                to the resumed run's next row.
            is_evaluated: False removes the evaluation of `step` itself: the checkpoint does not know of it.
        """
        self._close_events()
        kept: list[bytes] = []
        fault: InputError | None = None
        has_more = False
        for line, row in _lines(self._path):
            if isinstance(row, InputError):
                fault, has_more = fault or row, True
            elif row["step"] > step or (row["step"] == step and (is_open if is_of_training(row) else not is_evaluated)):
                has_more = True
            elif fault is not None:
                raise InputError(f"{fault}: {_RESTORE}")
            else:
                kept.append(line)
        if has_more:
            with writing(self._path) as file:
                file.writelines(kept)
            self._reopen()
        self._purge_step = step + 1

    def _reopen(self) -> None:
        self._metrics.close()
        self._metrics = open_to_append(self._path)

    def digest(self) -> str:
        """The SHA-256 of the rows so far, which are then on the disk: no checkpoint that names it outlives them."""
        with as_output_error(self._path):
            os.fsync(self._metrics.fileno())
        return sha256(self._path)

    def check_rows(self, digest: str, step: int) -> None:
        """Raises InputError if there are rows, and not those whose `digest` the checkpoint of `step` names; warns if
        there are none any more."""
        if sha256(self._path) == digest:
            return
        if not self._path.stat().st_size:
            logger.warning("%s is empty: the figures up to step %s are gone", self._path, f"{step:,}")
        else:
            raise InputError(
                f"{self._path}: its rows up to step {step:,} are not those that the run has written: {_RESTORE}"
            )

    def _write(self, place: dict[str, int], scalars: dict[str, float], *, in_events: bool = True) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        write_whole(self._metrics, self._path, json.dumps(place | finite, ensure_ascii=False, allow_nan=False) + "\n")
        if not in_events:
            return
        directory = self._directory / TENSORBOARD
        with as_output_error(directory):
            if self._events is None:
                from torch.utils.tensorboard import SummaryWriter  # slow to import

                _date_before_now(directory)
                self._events = SummaryWriter(str(directory), purge_step=self._purge_step, flush_secs=30)
            for name, value in scalars.items():
                self._events.add_scalar(name, value, place["step"])


def refuse_lost_checkpoints(directory: Path, save_every: int | None) -> None:
    """Raises CheckpointError if a run that has no checkpoint, and was to save one every `save_every` steps, has so many
    rows that there has been one."""
    path = directory / METRICS
    rows = read_metrics(path) if path.exists() else []
    if save_every is not None and any(row["step"] > 2 * save_every for row in rows):  # the first is whole by then
        raise CheckpointError(
            f"{_without_checkpoint(path, rows)} in {directory / CHECKPOINTS}: is its disk mounted? To begin again, "
            "give --overwrite"
        )


def _without_checkpoint(path: Path, rows: list[dict[str, Any]]) -> str:
    return f"{path} has rows up to step {max(row['step'] for row in rows):,}, but there is no checkpoint"


def _date_before_now(events: Path) -> None:
    """Renames event files of earlier sessions that a clock which was set back has dated later than now: TensorBoard
    reads them in the order of their names, which begin with the time."""
    date = int(time.time())
    for path in sorted(events.glob("events.out.tfevents.*"), reverse=True):
        begin, _, rest = path.name.removeprefix("events.out.tfevents.").partition(".")
        if not begin.isdecimal():
            continue
        date = min(date - 1, int(begin))
        os.replace(path, path.with_name(f"events.out.tfevents.{date:010d}.{rest}"))


def is_of_training(row: Mapping[str, Any]) -> bool:
    """Whether a row is of training; a row of an evaluation has no tokens."""
    return "tokens" in row


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, in order; a last line that was cut short is left out. Raises InputError if the
    file is missing, or a line before the last is not a row."""
    rows = []
    for _, row in _lines(path):
        if isinstance(row, InputError):
            raise InputError(f"{row}: take the line out")
        rows.append(row)
    return rows


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | InputError]]:
    """The whole lines of a metrics file, each with its line end, and the row that it holds, or what is wrong with it;
    a last line that was cut short is left out."""
    refuse_special(path, InputError)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: a run directory holds its figures there") from None
    for number, line in enumerate(lines, start=1):
        row: dict[str, Any] | InputError
        try:
            row = json.loads(line.decode("utf-8"))
            if not (isinstance(row, dict) and isinstance(row.get("step"), int)):
                raise ValueError('expected an object with a whole number as "step"')
            if not all(value is None or isinstance(value, int | float) for value in row.values()):
                raise ValueError("expected numbers and nulls only")
        except (ValueError, RecursionError) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error  # its line is always the first
            row = InputError(f"{path}, line {number}, is not a row of metrics ({reason})")
        yield line.rstrip(b"\n") + b"\n", row


def _end_whole(path: Path) -> None:
    """Rewrites a metrics file whose last line has no end, cut short by a kill: the next row would be glued to it."""
    if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        lines = [line for line, _ in _lines(path)]
        with writing(path) as file:
            file.writelines(lines)

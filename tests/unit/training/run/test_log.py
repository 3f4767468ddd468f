"""The log of a run: rows that stay valid whatever happens, what a resumed run takes back."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unmask.errors import InputError, OutputError
from unmask.io.progress import Progress
from unmask.training.run.log import RunLog, read_metrics

logger = logging.getLogger("unmask")


def write_training(log: RunLog, step: int, **changed: Any) -> None:
    row: dict[str, Any] = {
        "tokens": step * 4096,
        "examples_hash": step * 7919,
        "loss": 10.0 / step,
        "terms": {"mlm": 9.5 / step, "nsp": 0.5 / step},
        "learning_rate": 1e-4,
        "gradient_norm": 1.5,
        "tokens_per_s": 12_000.0,
    }
    log.write_training(step=step, **row | changed)


def write_steps(directory: Path, steps: range) -> None:
    with RunLog(directory) as log:
        for step in steps:
            write_training(log, step)


KEYS = [
    "step",
    "tokens",
    "examples_hash",
    "loss",
    "loss/mlm",
    "loss/nsp",
    "learning_rate",
    "gradient_norm",
    "tokens_per_s",
]


def test_rows_have_the_keys_that_everything_relies_on(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        write_training(log, 1)
        log.write_evaluation(1, {"mlm_loss": 9.0, "nsp_accuracy": 0.5})
        training, evaluation = read_metrics(tmp_path / "metrics.jsonl")  # flushed: the log is still open
    assert list(training) == KEYS
    assert training["loss/mlm"] == 9.5
    assert evaluation == {"step": 1, "eval/mlm_loss": 9.0, "eval/nsp_accuracy": 0.5}


def test_what_is_not_finite_is_null_and_the_line_stays_valid_json(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    with RunLog(tmp_path) as log:
        write_training(log, 1, loss=math.nan, gradient_norm=math.inf, terms={"mlm": -math.inf})
    row = json.loads((tmp_path / "metrics.jsonl").read_bytes(), parse_constant=refuse)
    assert row["loss"] is row["gradient_norm"] is row["loss/mlm"] is None


@pytest.mark.parametrize("rest", [b'{"step": 4, "lo', b'{"step": 4, "loss": "\xec\x95', b"\0\0\0\0", b"[1]"])
def test_a_last_line_cut_short_is_left_out_and_the_next_row_begins_a_line(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(tmp_path, range(1, 4))
    with path.open("ab") as file:
        file.write(rest)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    write_steps(tmp_path, range(4, 5))
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    write_steps(tmp_path, range(3, 4))
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


def test_events_are_read_in_their_order_where_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for begin, clock in ((1, 2_000_000_000), (11, 1_900_000_000), (21, 1_800_000_000)):
        monkeypatch.setattr("time.time", lambda clock=clock: float(clock))
        with RunLog(tmp_path) as log:
            log.rewind(begin - 1)
            for step in range(begin, begin + 10):
                write_training(log, step)
    monkeypatch.undo()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 31))


def test_tensorboard_does_not_get_the_row_of_a_stop(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        write_training(log, 1)
        write_training(log, 2, is_stop=True)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1]


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"loss": 1}', '{"step": "x"}', ""])
def test_a_damaged_line_elsewhere_is_refused_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2, is not a row of metrics .*: take the line out"):
        read_metrics(path)


def test_missing_metrics_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_rewinding_takes_out_later_rows_and_hides_their_events(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 6))
    before = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "lo')
    with RunLog(tmp_path) as log:
        log.rewind(3)
        assert (tmp_path / "metrics.jsonl").read_bytes().splitlines() == before[:3]
        write_training(log, 4, loss=0.25)
    assert [(row["step"], row["loss"]) for row in read_metrics(tmp_path / "metrics.jsonl")][3:] == [(4, 0.25)]

    events = EventAccumulator(str(tmp_path / "tensorboard"), purge_orphaned_data=True).Reload()
    assert set(events.Tags()["scalars"]) == {*KEYS} - {"step", "tokens", "examples_hash"}
    third, fourth = [(event.step, event.value) for event in events.Scalars("loss")][2:]
    assert (third, fourth) == ((3, pytest.approx(10 / 3, rel=1e-6)), (4, 0.25))  # events hold float32


def test_rewinding_takes_out_what_is_no_row_after_those_that_it_keeps(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 4))
    path = tmp_path / "metrics.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + b"\0\0\xff\n" + third + b"[\n")
    with RunLog(tmp_path) as log:
        with pytest.raises(InputError, match=r"line 3, is not a row of metrics \('utf-8'.*: restore the file"):
            log.rewind(3)
        log.rewind(2)
    assert path.read_bytes() == first + second


def test_the_rows_of_an_attempt_without_a_checkpoint_are_put_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    with RunLog(tmp_path) as log:
        log.begin()
        for step in (1, 4):
            write_training(log, step)
    rows = path.read_bytes()
    with RunLog(tmp_path) as log:
        log.begin()
        write_training(log, 5)
    assert (tmp_path / "metrics.jsonl.before").read_bytes() == rows
    assert [row["step"] for row in read_metrics(path)] == [5]
    assert [message.partition("metrics.jsonl ")[2] for message in caplog.messages] == [
        "has rows up to step 4, but there is no checkpoint: the run begins again, and these rows are in "
        "metrics.jsonl.before"
    ]


def test_the_row_that_a_stop_has_written_is_taken_out_where_its_steps_continue(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 5))
    with RunLog(tmp_path) as log:
        log.write_evaluation(3, {"mlm_loss": 1.0})
        log.rewind(3, is_open=True)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], "loss" in row) for row in rows] == [(1, True), (2, True), (3, False)]


def test_an_evaluation_that_no_checkpoint_knows_is_taken_out(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 4))
    with RunLog(tmp_path) as log:
        log.write_evaluation(2, {"mlm_loss": 2.0})
        log.write_evaluation(3, {"mlm_loss": 1.0})
        log.rewind(3, is_evaluated=False)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], "loss" in row) for row in rows] == [(1, True), (2, True), (3, True), (2, False)]


def test_a_row_of_steps_without_targets_has_no_loss_and_is_of_training(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        write_training(log, 1)
        write_training(log, 2, loss=None, terms={})
        [first, second] = read_metrics(tmp_path / "metrics.jsonl")
        assert list(second) == ["step", "tokens", "examples_hash", "learning_rate", "gradient_norm", "tokens_per_s"]
        log.write_evaluation(2, {"mlm_loss": 1.0})
        log.rewind(2, is_open=True)
    assert read_metrics(tmp_path / "metrics.jsonl") == [first, {"step": 2, "eval/mlm_loss": 1.0}]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1]


def test_rewinding_to_the_last_step_changes_nothing(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 4))
    before = (tmp_path / "metrics.jsonl").stat()
    with RunLog(tmp_path) as log:
        log.rewind(3)
    assert (tmp_path / "metrics.jsonl").stat().st_ino == before.st_ino


def test_rows_that_are_not_those_of_the_checkpoint_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped bit of a digit makes another row that is as sound; without any rows, a run may go on."""
    with RunLog(tmp_path) as log:
        write_training(log, 1)
        digest = log.digest()
        log.check_rows(digest, 1)
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(path.read_bytes().replace(b"1", b"3", 1))
        with pytest.raises(InputError, match=r"metrics\.jsonl: its rows up to step 1 are not .* or move it away"):
            log.check_rows(digest, 1)
        assert not caplog.messages
        path.write_bytes(b"")
        log.check_rows(digest, 1)
        assert caplog.messages == [f"{path} is empty: the figures up to step 1 are gone"]
        log.check_rows(log.digest(), 1)
        assert len(caplog.messages) == 1


def test_importing_configures_no_logging_and_imports_no_torch() -> None:
    code = (
        "import logging, sys, unmask.training.run.log\n"
        "sys.exit(bool(logging.getLogger('unmask').handlers or logging.root.handlers or 'torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_echo_goes_to_standard_error_and_then_above_the_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    with RunLog(tmp_path, echo=True) as log:
        logger.info("before the bar")
        logger.warning("careful")
        log.echo_above(Progress("pre-training", stream=stream))
        logger.info("above it")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "before the bar\nwarning: careful\n"
    assert stream.getvalue() == "above it\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full to stand in for a full disk")
def test_a_full_disk_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.training.run.messages.refuse_special", lambda *arguments: None)
    for name in ("metrics.jsonl", "log.txt"):
        (tmp_path / name).symlink_to("/dev/full")
    with RunLog(tmp_path) as log:
        with pytest.raises(OutputError, match=r"disk is full.*metrics\.jsonl"):
            write_training(log, 1)
        with pytest.raises(OutputError, match=r"disk is full.*log\.txt"):
            logger.info("a line")


def test_a_row_that_the_system_takes_in_parts_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class InParts(io.FileIO):
        def write(self, piece: bytes) -> int:  # type: ignore[override]
            return super().write(piece[:3])

    monkeypatch.setattr("unmask.training.run.log.open_to_append", lambda path: InParts(path, "a"))
    write_steps(tmp_path, range(1, 3))
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("name", ["metrics.jsonl", "log.txt"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(OutputError, match=rf"{name} is a device, a pipe or a socket: expected a file"):
        RunLog(tmp_path)
    if name == "metrics.jsonl":
        with pytest.raises(InputError, match="expected a file"):
            read_metrics(tmp_path / name)

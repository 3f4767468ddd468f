"""Progress: silent when short, lines when piped, a bar on a terminal, the rate of the last seconds of this session."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.files import Terminal
from unmask.io.progress import (
    Progress,
    counted,
    human_bytes,
    human_count,
    human_duration,
    listed,
    named,
    open_bars,
    write_line,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def test_nothing_is_said_of_work_under_two_seconds(clock: Clock) -> None:
    for stream in (io.StringIO(), Terminal()):
        with Progress("reading", 100, stream=stream, clock=clock) as progress:
            for _ in range(10):
                clock.now += 0.199
                progress.advance(10)
        assert stream.getvalue() == ""


def test_lines_come_after_two_seconds_then_every_ten_and_at_the_end(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("pre-training", 10_000_000, stream=stream, clock=clock) as progress:
        for _ in range(25):
            clock.now += 1.0
            progress.advance(400_000)
    assert stream.getvalue().splitlines() == [
        "pre-training: 8 % · 800k of 10M tokens · 400k tokens/s · 23 s left",
        "pre-training: 48 % · 4.8M of 10M tokens · 400k tokens/s · 13 s left",
        "pre-training: 88 % · 8.8M of 10M tokens · 400k tokens/s · 3.0 s left",
        "pre-training: done · 10M tokens · 25 s · 400k tokens/s",
    ]


def test_a_resumed_task_shows_the_rate_of_this_session_only(clock: Clock) -> None:
    stream = io.StringIO()
    resumed = Progress("pre-training", start_count=5_000_000, start_fraction=0.5, stream=stream, clock=clock)
    with resumed as progress:
        clock.now += 4.0
        progress.update(0.6, 5_002_000)
    assert stream.getvalue().splitlines() == [
        "pre-training: 60 % · 5M tokens · 500 tokens/s · 16 s left",
        "pre-training: done · 5M tokens, 2k of them in this session · 4.0 s · 500 tokens/s",
    ]


def test_items_are_counted_as_they_are_taken(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("reading", 4, "rows", stream=stream, clock=clock) as progress:
        for item in progress.counting("abcd"):
            clock.now += 2.0
            assert item in "abcd"
    assert stream.getvalue().splitlines() == [
        "reading: 50 % · 2 of 4 rows · 1 rows/s · 2.0 s left",
        "reading: done · 4 rows · 8.0 s · 0.5 rows/s",
    ]


def test_the_time_of_other_work_is_no_part_of_the_rate(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("fine-tuning", 1000, stream=stream, clock=clock) as progress:
        clock.now += 4.0
        progress.advance(400)
        with progress.aside("evaluating dev", 30, "examples") as other:
            clock.now += 60.0
            other.advance(15)
            other.advance(15)
        clock.now += 6.0
        progress.advance(600)
    assert stream.getvalue().splitlines() == [
        "fine-tuning: 40 % · 400 of 1k tokens · 100 tokens/s · 6.0 s left",
        "evaluating dev: 50 % · 15 of 30 examples · 0.25 examples/s · 1 min left",
        "evaluating dev: done · 30 examples · 1 min · 0.5 examples/s",
        "fine-tuning: 100 % · 1k of 1k tokens · 100 tokens/s · 0 ms left",
        "fine-tuning: done · 1k tokens · 10 s · 100 tokens/s",
    ]


def test_halves_are_not_counted(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("pairs", 80, "pairs", stream=stream, clock=clock) as progress:
        clock.now += 4.0
        progress.advance(6.97)
    assert stream.getvalue().splitlines()[0].startswith("pairs: 8 % · 6 of 80 pairs · 1.74 pairs/s")


def test_the_rate_forgets_a_slow_start(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("counting", 1e6, "lines", stream=stream, clock=clock) as progress:
        clock.now += 100.0
        progress.advance(1)
        for _ in range(60):
            clock.now += 1.0
            progress.advance(1000)
        assert stream.getvalue().splitlines()[-1].startswith("counting: 6 % · 60k of 1M lines · 1k lines/s")


def test_without_a_total_there_is_no_percentage_and_no_time_left(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("reading", unit="bytes", stream=stream, clock=clock) as progress:
        clock.now += 2.0
        progress.advance(3 * 2**20)
    assert stream.getvalue().splitlines()[0] == "reading: 3 MiB · 1.5 MiB/s"


def test_an_error_is_not_called_done(clock: Clock) -> None:
    stream = io.StringIO()

    def read() -> None:
        with Progress("reading", 100, stream=stream, clock=clock) as progress:
            progress.advance(99.9)
            clock.now += 3.0
            raise KeyError

    with pytest.raises(KeyError):
        read()
    assert stream.getvalue() == "reading: stopped at 99 % · 99.9 tokens · 3.0 s · 33.3 tokens/s\n"


def test_a_terminal_gets_a_bar_that_notes_stand_above_and_that_gives_way_to_the_closing_line(
    clock: Clock, terminal: Terminal
) -> None:
    with Progress("pre-training [bert]", 100, stream=terminal, clock=clock) as progress:
        clock.now += 1.0
        progress.advance(10)
        assert terminal.getvalue() == ""
        clock.now += 1.5
        progress.advance(15)
        shown = terminal.getvalue()
        assert "pre-training [bert]" in shown
        assert "━" in shown
        assert "25 % · 25 of 100 tokens · 10 tokens/s · 7.5 s left" in shown
        progress.note("saved [step 3]")
        assert "saved [step 3]\n" in terminal.getvalue()[len(shown) :]
        clock.now += 7.5
        progress.advance(75)
        assert "100 %" in terminal.getvalue()
    closing = terminal.getvalue().splitlines()[-1]
    assert closing.endswith("pre-training [bert]: done · 100 tokens · 10 s · 10 tokens/s")


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        ("89", ["pre-training 50 % · 27.6k tokens · 13.8k tokens/s · 2.0 s left"]),
        ("62", ["pre-training 50 % · 27.6k tokens · 13.8k tokens/s · 2.0 s left"]),
        ("60", ["pre-training 50 % · 27.6k tokens · 13.8k tokens/s · 2.0 s", "left"]),
    ],
)
def test_a_narrow_terminal_gets_all_of_the_line_without_its_bar(
    columns: str, lines: list[str], clock: Clock, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with Progress("pre-training", stream=terminal, clock=clock) as progress:
        clock.now += 2.0
        progress.update(0.5, 27_600)
        shown = terminal.getvalue()
    assert "━" not in shown
    assert [line.strip() for line in shown.rpartition("\x1b[2K")[2].splitlines()] == lines


def test_a_bar_without_a_total(clock: Clock, terminal: Terminal) -> None:
    with Progress("reading", stream=terminal, clock=clock) as progress:
        clock.now += 2.0
        progress.advance(10)
    assert "10 tokens · 5 tokens/s" in terminal.getvalue()


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    clock: Clock, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Progress("reading", 4, "files", stream=terminal, clock=clock) as progress:
        clock.now += 2.0
        progress.advance(2)
    assert terminal.getvalue().startswith("reading: 50 % · 2 of 4 files · 1 files/s · 2.0 s left\n")


def test_bars_are_for_terminals_that_can_move_their_cursor(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = open_bars(terminal)
    assert bars is not None
    write_line("a line [of] its own", bars, terminal)
    assert terminal.getvalue() == "a line [of] its own\n"
    assert open_bars(io.StringIO()) is None
    monkeypatch.setenv("TERM", "dumb")
    assert open_bars(terminal) is None


def test_it_writes_to_standard_error(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("reading", 4, clock=clock) as progress:
        progress.note("a line of its own")
        clock.now += 5.0
        progress.advance(4)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("a line of its own\nreading: 100 %")


class Words:
    """What a program may put in the place of standard error, to send its lines to a log."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_standard_error_may_be_something_else_or_nothing(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Words()
    for stream in (words, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress("reading", 4, clock=clock) as progress:
            clock.now += 5.0
            progress.advance(4)
    assert words.text.startswith("reading: 100 %")
    assert capsys.readouterr().out == ""


def test_rich_is_imported_only_for_a_bar() -> None:
    code = (
        "import sys; from unmask.io.progress import Progress\n"
        "with Progress('x', 3) as p: p.advance(3)\n"
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


COUNTS = {
    0: "0", 7: "7", 0.25: "0.25", 999: "999", 999.6: "1k", 1000: "1k", 12_345: "12.3k", 999_960: "1M",
    1_234_567: "1.23M", 110_000_000: "110M", 3.3e9: "3.3B", 2e12: "2T", 5e15: "5000T",
}  # fmt: skip
BYTES = {
    0: "0 B", 512: "512 B", 1000: "1000 B", 1024: "1 KiB", 1536: "1.5 KiB", 417 * 2**20: "417 MiB",
    1023.9 * 2**20: "1 GiB", 3 * 2**50: "3072 TiB",
}  # fmt: skip
SECONDS = {
    0: "0 ms", 0.0354: "35 ms", 0.0999: "0.1 s", 4.2: "4.2 s", 9.97: "10 s", 59.4: "59 s", 59.7: "1 min",
    200: "3 min 20 s", 599.9: "10 min", 3599: "1 h 00 min", 7500: "2 h 05 min", 86_399: "1 d 0 h", 273_600: "3 d 4 h",
}  # fmt: skip


@pytest.mark.parametrize(
    ("tell", "value", "text"),
    [
        *((human_count, value, text) for value, text in COUNTS.items()),
        *((human_bytes, value, text) for value, text in BYTES.items()),
        *((human_duration, value, text) for value, text in SECONDS.items()),
    ],
)
def test_quantities_for_people(tell: Callable[[float], str], value: float, text: str) -> None:
    assert tell(value) == text


@given(st.floats(0.001, 1e14))
def test_human_count_reads_back_within_half_a_unit_of_its_third_digit(value: float) -> None:
    text = human_count(value)
    letters = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    back = float(text.rstrip("kMBT")) * letters.get(text[-1], 1.0)
    # Three digits: at worst 1.005 is written as 1.00, half of a hundredth, relative .005.
    assert back == pytest.approx(value, rel=0.00501)


def test_labels_with_commas_can_be_told_apart_in_a_line() -> None:
    labels = ["연기/배우, 음악", "소리", "재미"]
    assert named(labels) == "'연기/배우, 음악', 소리, 재미"
    assert listed(labels, 2) == "'연기/배우, 음악', 소리 and 1 more"


def test_one_is_not_plural() -> None:
    assert [counted(number, "file") for number in (0, 1, 1234)] == ["0 files", "1 file", "1,234 files"]

"""The first signal is noted, the second Ctrl-C stops at once, and the former handlers come back."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from unmask.errors import Interrupted
from unmask.io.signals import Interruption, ended_by_signals


def handlers() -> list[object]:
    return [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_is_noted_and_reported_when_asked(number: int, name: str) -> None:
    former = handlers()
    with Interruption() as interruption:
        interruption.check()
        assert interruption.signal_number is None
        signal.raise_signal(number)
        assert interruption.signal_number == number
        with pytest.raises(Interrupted, match=f"^stopped by {name}$") as stopped, contextlib.suppress(Exception):
            interruption.check()
    assert stopped.value.exit_code == 128 + number
    assert handlers() == former


def test_a_second_ctrl_c_stops_at_once() -> None:
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interruption.signal_number == signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_passes_through_what_catches_every_exception(number: int) -> None:
    with Interruption(at_once=True) as interruption:
        with pytest.raises(KeyboardInterrupt), contextlib.suppress(Exception):
            signal.raise_signal(number)
        with pytest.raises(Interrupted) as stopped:
            interruption.check()
    assert stopped.value.exit_code == 128 + number


def test_handlers_come_back_after_an_error() -> None:
    former = handlers()
    with pytest.raises(ValueError, match="a bug"), Interruption():
        raise ValueError("a bug")
    assert handlers() == former


def test_outside_the_main_thread_nothing_is_noted() -> None:
    former = handlers()
    seen = []

    def work() -> None:
        with Interruption() as interruption:
            seen.append(handlers())
            interruption.check()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [former]


def test_a_handler_set_outside_python_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could be put back in its place at the end."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: pytest.fail("it is replaced"))
    with Interruption() as interruption, ended_by_signals():
        interruption.check()
    assert interruption.signal_number is None

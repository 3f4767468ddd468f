"""How processes find each other."""

from __future__ import annotations

import multiprocessing
import os
import socket
from typing import Any

import pytest

from unmask.errors import AnotherRank, Interrupted, RankLost, SettingsError, UserError
from unmask.training.distributed import Ranks, joined_ranks


def test_a_port_that_another_program_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        told = rf"cannot join the others at 127\.0\.0\.1:{port} .*: another program has this port: take another one"
        with pytest.raises(UserError, match=told), joined_ranks(os.environ):
            pass


def test_a_script_that_its_own_processes_run_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """While `multiprocessing` imports it there, as it notes itself."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SettingsError, match="__main__"), joined_ranks({"RANK": "0", "WORLD_SIZE": "2"}):
        pass


GLOO = """[/__w/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:52103: Connection reset by \
peer. This is typically caused by the remote process exiting. GLHF!
Exception raised from readAny"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [(GLOO, r"Read error \[127\.0\.0\.1\]:52103: Connection reset by peer"), ("", "RuntimeError")],
)
def test_of_what_gloo_says_the_reason_alone_is_given(message: str, reason: str) -> None:
    with pytest.raises(RankLost, match=rf"another process has ended \({reason}\); the run"), Ranks(1, 2).answered():
        raise RuntimeError(message)


@pytest.mark.parametrize(("rank", "raised"), [(0, Interrupted), (1, AnotherRank)])
def test_a_signal_in_one_process_ends_all(rank: int, raised: type[BaseException]) -> None:
    class Stopped(Ranks):
        """One of two processes, which end a block alike."""

        def gather(self, value: Any) -> list[Any]:
            return [value] * 2

    with pytest.raises(raised, match="stopped") as ended, Stopped(rank, 2).agreeing():
        raise Interrupted("stopped", 2)
    assert getattr(ended.value, "exit_code", None) == 130

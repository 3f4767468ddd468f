"""An engine in another process answers as one in this, and nobody waits for one that has ended."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.ranks import wait_until
from unmask.errors import ColumnError, ModelError
from unmask.serving.engine.asks import Ask, Fault, Reading, Refused, Reply
from unmask.serving.engine.engine import Engine
from unmask.serving.engine.models import open_models
from unmask.serving.engine.process import EngineProcess
from unmask.serving.settings import Limits

SKY = "the sky is blue"
VECTORS = Ask("m", "vectors", ([SKY], Reading()))


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[EngineProcess]:
    with closing(EngineProcess([f"m={tiny_model}"], "fp32", Limits())) as engine:
        yield engine


def rounded(value: Any) -> Any:
    """Floats in lists and objects to five digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 5) if isinstance(value, float) else value


def test_it_answers_as_an_engine_of_this_process(engine: EngineProcess, tiny_model: Path) -> None:
    here = Engine(open_models([f"m={tiny_model}"], "fp32"), Limits())
    assert engine.models["m"].endpoints == here.models["m"].endpoints
    for ask in (VECTORS, Ask("m", "masks", (["the [MASK]"], 2, [])), Ask("m", "tokens", ([SKY], 100))):
        found, expected = engine.ask(ask).result(60), here.ask(ask).result(60)
        assert (found.tokens, found.left_out) == (expected.tokens, expected.left_out)
        if ask is VECTORS:
            np.testing.assert_allclose(found.result, expected.result, atol=1e-6)
        else:
            assert rounded(found.result) == rounded(expected.result)
    assert b"te_batch_next_size_count" in engine.figures().result(60)


@pytest.mark.parametrize(
    "error",
    [
        Refused(429, "too many", "busy", "input", {"Retry-After": "1"}),
        ColumnError("no column", "name it"),
        Fault("Traceback ..."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_goes_wrong_passes_between_processes(error: Exception) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found)) == (type(error), str(error))
    assert getattr(found, "headers", None) == getattr(error, "headers", None)


def test_what_cannot_be_answered_is_told(engine: EngineProcess) -> None:
    with pytest.raises(Refused, match="6 tokens to compute: a request has at most 1") as refused:
        engine.ask(Ask("m", "tokens", ([SKY], 1))).result(60)
    assert (refused.value.status, refused.value.code) == (413, "too_large")
    with pytest.raises(Fault, match=r"masks of m:\n(.*\n)*TypeError: .*missing"):
        engine.ask(Ask("m", "masks", ())).result(60)


def test_what_is_given_up_waits_no_longer(engine: EngineProcess) -> None:
    """While what was asked before is computed, which takes seconds."""

    def figure(name: bytes) -> float:
        return float(engine.figures().result(60).split(b"\n" + name + b" ")[1].split()[0])

    def asked(number: int) -> Future[Reply]:
        return engine.ask(Ask("m", "scores", ([SKY + " and green" * 6] * number,)))

    asked(1).result(60)  # it is loaded
    read = figure(b"te_request_tokenization_duration_count")
    first = asked(200)
    wait_until(lambda: figure(b"te_request_tokenization_duration_count") > read)
    second = asked(1)
    wait_until(lambda: figure(b"te_queue_size") == 1)
    assert second.cancel()
    wait_until(lambda: figure(b"te_queue_size") == 0)
    assert not first.done()
    assert first.cancel()
    assert engine.ask(VECTORS).result(60).tokens == 8


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: no such directory"):
        EngineProcess([str(tmp_path / "nowhere")], "fp32", Limits())


def test_no_process_is_left_where_one_cannot_be_used(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_another(thread: threading.Thread) -> None:
        if thread.name == "unmask-replies":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_another)
    before = multiprocessing.active_children()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        EngineProcess([f"m={tiny_model}"], "fp32", Limits())
    assert multiprocessing.active_children() == before


def test_a_program_that_closes_none_ends(tiny_model: Path) -> None:
    script = """
import sys
from unmask.serving.engine.process import EngineProcess
from unmask.serving.settings import Limits
if __name__ == "__main__":
    engine = EngineProcess(sys.argv[1:], "fp32", Limits())
"""
    done = subprocess.run([sys.executable, "-c", script, f"m={tiny_model}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_nobody_waits_for_a_process_that_has_ended(tiny_model: Path) -> None:
    lost = threading.Event()
    with closing(EngineProcess([f"m={tiny_model}"], "fp32", Limits())) as engine:
        engine.when_lost(lost.set)
        assert engine.takes_work
        assert engine.loss() is None
        os.kill(engine.pid or 0, signal.SIGSTOP)
        waiting: Any = engine.ask(VECTORS)
        os.kill(engine.pid or 0, signal.SIGKILL)
        with pytest.raises(Refused) as refused:
            waiting.result(60)
        assert refused.value.status == 503
        assert lost.wait(10)
        wait_until(lambda: not engine.takes_work)
        assert str(engine.loss()) == (
            "the process that computes was killed by SIGKILL (out of memory?): start the server again"
        )
        with pytest.raises(Refused):
            engine.ask(VECTORS).result(60)
        late = threading.Event()
        engine.when_lost(late.set)
        assert late.is_set(), "it has ended before"


def test_a_fault_in_a_thread_ends_the_process() -> None:
    script = """
import sys, threading
from unmask.serving.engine.process import _end_process
threading.excepthook = _end_process
waiting = threading.Event()
threading.Thread(target=sys.exit).start()
waiting.wait(60)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "SystemExit")

"""What is asked is read and computed, and what goes wrong is passed on as the client's side understands it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from unmask.errors import ColumnError, InputError
from unmask.serving.engine import engine as engine_module
from unmask.serving.engine.asks import Ask, Fault, ModelFacts, Refused, Reply
from unmask.serving.engine.batching import Work, stop_if_abandoned
from unmask.serving.engine.engine import Engine
from unmask.serving.engine.readers import Reader
from unmask.serving.settings import Limits


class Upper:
    """Writes texts in capitals."""

    def __init__(self) -> None:
        self.readers: list[str] = []
        self.began, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def read(self, text: str) -> Work | Reply:
        self.readers.append(threading.current_thread().name)
        if text == "column":
            raise ColumnError("no column text", "name it with --columns")
        if text == "fault":
            raise ZeroDivisionError("thirteen")
        if text == "at once":
            return Reply("AT ONCE", 0, [0])
        return Work(self, None, text, len(text), len(text), [2], lambda result: f"{result}!")

    def compute(self, options: None, payloads: Sequence[str]) -> list[str]:
        self.began.set()
        if payloads[0] == "for ever":
            while True:
                stop_if_abandoned()
                time.sleep(0.001)
        assert self.gate.wait(10)
        return [text.upper() for text in payloads]


class Model:
    """A model whose checkpoints are not loaded."""

    def __init__(self) -> None:
        self.upper, self._late = Upper(), Upper()
        self.may_load = threading.Event()
        self.may_load.set()

    def facts(self) -> ModelFacts:
        return ModelFacts("m", ("upper",), [], {})

    def answerer(self, name: str) -> Upper:
        if name == "upper":
            return self.upper
        assert self.may_load.wait(10)
        return self._late


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(engine_module, "READERS", {name: Reader(name, Upper.read) for name in ("upper", "checkpoints")})
    return Model()


@pytest.fixture
def engine(model: Any) -> Engine:
    return Engine({"m": model}, Limits(queue_tokens=3000))


def asked(engine: Engine, text: Any, reader: str = "upper") -> Any:
    return engine.ask(Ask("m", reader, (text,))).result(10)


def test_what_is_computed_comes_with_what_was_read(engine: Engine) -> None:
    assert asked(engine, "word") == Reply("WORD!", 4, [2])
    assert asked(engine, "at once") == Reply("AT ONCE", 0, [0])
    assert b"te_batch_next_size_count 1.0" in engine.figures().result()


def test_what_takes_long_to_read_is_read_by_others(engine: Engine, model: Model) -> None:
    """A text that is long, and what may have to be loaded first."""
    asked(engine, "word")
    asked(engine, "w" * 2500)
    asked(engine, "word", "checkpoints")
    here, *others = model.upper.readers + model._late.readers
    assert here == threading.current_thread().name
    assert [name.partition("_")[0] for name in others] == ["unmask-reading", "unmask-loading"]


def test_what_is_loaded_keeps_no_other_text_waiting(engine: Engine, model: Model) -> None:
    asked(engine, "word")
    model.may_load.clear()
    late = [engine.ask(Ask("m", "checkpoints", ("word",))) for _ in range(8)]
    assert asked(engine, "w" * 2500).tokens == 2500
    assert not any(each.done() for each in late)
    model.may_load.set()
    assert [each.result(10).result for each in late] == ["WORD!"] * 8


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        pytest.param([{}] * 12_001, Refused, "12,001 characters", id="empty objects"),
        pytest.param([[]] * 12_001, Refused, "12,001 characters", id="empty lists"),
        pytest.param([""] * 12_001, Refused, "12,001 characters", id="empty texts"),
        pytest.param({"k" * 12_000: ""}, Refused, "12,001 characters", id="keys"),
        ("column", InputError, "^no column text$"),
        ("fault", Fault, r"^upper of m:\nTraceback .*\n(.*\n)*ZeroDivisionError: thirteen$"),
        ("w" * 3001, Refused, "3,001 tokens to compute"),
        ("w" * 12_001, Refused, "12,001 characters: a request has at most 12,000: send fewer"),
    ],
    ids=str,
)
def test_what_goes_wrong_is_passed_on(engine: Engine, text: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        asked(engine, text)
    assert asked(engine, "word").result == "WORD!"


def test_what_nobody_waits_for_is_not_computed(engine: Engine, model: Model) -> None:
    model.upper.gate.clear()
    first, second = (engine.ask(Ask("m", "upper", (text,))) for text in ("one", "two"))
    assert model.upper.began.wait(10)
    second.cancel()
    assert engine.batcher.queue_size == 0
    model.upper.gate.set()
    assert first.result(10).result == "ONE!"


def test_what_is_computed_ends_where_nobody_waits(engine: Engine, model: Model) -> None:
    long = engine.ask(Ask("m", "upper", ("for ever",)))
    assert model.upper.began.wait(10)
    assert long.cancel()
    assert asked(engine, "word").result == "WORD!"


def test_what_nobody_waits_for_takes_no_memory_until_it_is_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_loader", SimpleNamespace(submit=lambda *_: None, shutdown=lambda **_: None))
    ask = Ask("m", "checkpoints", ("text",))
    there = weakref.ref(ask)
    reply = engine.ask(ask)
    del ask
    reply.cancel()
    gc.collect()
    assert there() is None

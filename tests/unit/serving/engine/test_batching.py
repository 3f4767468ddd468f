"""The queue: what is computed together, who is turned away, and whose fault is whose."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module

from unmask.batch import pack
from unmask.inference import onnx_model
from unmask.inference.opening import open_model
from unmask.serving.engine import batching as batching_module
from unmask.serving.engine.answerers import LikelihoodAnswerer
from unmask.serving.engine.asks import Refused
from unmask.serving.engine.batching import Batcher, Work
from unmask.serving.engine.metrics import BatchMetrics
from unmask.serving.settings import Limits
from unmask.tasks.encoded import BATCH_TOKENS
from unmask.tasks.minimal_pairs.scorers import MaskedScorer


class Doubling:
    """Doubles numbers; keeps the batches that it was given. 13 is a fault."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate, self.began = threading.Event(), threading.Event()
        self.gate.set()

    def work(self, number: int, tokens: int = 1, options: str = "") -> Work:
        return Work(self, options, number, tokens, tokens, [0])

    def compute(self, options: Any, payloads: Sequence[int]) -> list[int]:
        self.began.set()
        assert self.gate.wait(10)
        self.batches.append(list(payloads))
        if 13 in payloads:
            raise ZeroDivisionError("thirteen")
        return [2 * number for number in payloads]


async def compute(batcher: Batcher, work: Work) -> Any:
    return await asyncio.wrap_future(batcher.submit(work))


async def behind_a_gate(use: Doubling, batcher: Batcher, ask: Callable[[], list[Any]]) -> list[Any]:
    """What coroutines give that wait while the thread computes something else; they are computed after it."""
    use.gate.clear()
    use.began.clear()
    first = asyncio.ensure_future(compute(batcher, use.work(0)))
    assert await asyncio.to_thread(use.began.wait, 10)
    waiting = [asyncio.ensure_future(each) for each in ask()]
    await asyncio.sleep(0.01)
    use.gate.set()
    return list(await asyncio.gather(first, *waiting, return_exceptions=True))[1:]


async def given_up(batcher: Batcher, work: Work) -> None:
    """Asks, and waits a moment only."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(compute(batcher, work), 0.05)


async def press(use: Doubling, batcher: Batcher, number: int = 1, tokens: int = 1) -> None:
    """Has something computed while another kind of work waits."""

    def ask() -> list[Any]:
        return [compute(batcher, use.work(number, tokens)), compute(batcher, use.work(2, tokens, "other"))]

    await behind_a_gate(use, batcher, ask)


def test_what_waits_is_computed_together_as_far_as_its_tokens_fit() -> None:
    use, other = Doubling(), Doubling()
    batcher = Batcher(Limits(batch_tokens=10), BatchMetrics())

    def ask() -> list[Any]:
        works = [use.work(1, 4), other.work(9), use.work(2, 5), use.work(3, 4), use.work(4, 1), use.work(5, 1, "b")]
        return [compute(batcher, work) for work in works]

    assert asyncio.run(behind_a_gate(use, batcher, ask)) == [2, 18, 4, 6, 8, 10]
    assert use.batches == [[0], [1, 2, 4], [3], [5]], "of one use and equal options, the oldest first"
    assert other.batches == [[9]]


def test_one_request_of_more_tokens_than_a_batch_is_computed_alone() -> None:
    use = Doubling()
    batcher = Batcher(Limits(batch_tokens=10), BatchMetrics())
    assert asyncio.run(behind_a_gate(use, batcher, lambda: [compute(batcher, use.work(1, 99))])) == [2]


def test_a_fault_in_one_request_is_no_other_s() -> None:
    use = Doubling()
    batcher = Batcher(Limits(), BatchMetrics())
    answers = asyncio.run(
        behind_a_gate(use, batcher, lambda: [compute(batcher, use.work(number)) for number in (1, 13, 2)])
    )
    assert [answers[0], answers[2]] == [2, 4]
    assert isinstance(answers[1], ZeroDivisionError)
    assert asyncio.run(compute(batcher, use.work(7))) == 14, "and the next one is answered"


def test_over_the_limit_a_request_is_turned_away_at_once() -> None:
    use = Doubling()
    batcher = Batcher(Limits(queue_tokens=10), BatchMetrics())
    answers = asyncio.run(
        behind_a_gate(use, batcher, lambda: [compute(batcher, use.work(number, 6)) for number in (1, 2)])
    )
    assert answers[0] == 2
    assert answers[1].code == "busy"
    assert int(answers[1].headers["Retry-After"]) >= 1


def test_when_to_come_back_counts_what_is_left_of_the_batch_under_way() -> None:
    use = Doubling()

    async def crowd(batcher: Batcher) -> Refused:
        batcher._rate = 10
        use.gate.clear()
        under_way = asyncio.ensure_future(compute(batcher, use.work(1, 100)))
        assert await asyncio.to_thread(use.began.wait, 10)
        batcher._began = time.monotonic() - 4
        waiting = asyncio.ensure_future(compute(batcher, use.work(2, 60)))
        await asyncio.sleep(0)
        with pytest.raises(Refused) as refused:
            await compute(batcher, use.work(3, 60))
        use.gate.set()
        await asyncio.gather(under_way, waiting)
        return refused.value

    batcher = Batcher(Limits(queue_tokens=100, timeout_s=60), BatchMetrics())
    headers = asyncio.run(crowd(batcher)).headers or {}
    assert 11 <= int(headers["Retry-After"]) <= 12, "ten seconds under way, of which four have passed, and six waiting"


def test_who_would_be_answered_too_late_is_turned_away() -> None:
    """A batch takes a microsecond at least, so a thousand million tokens take a thousand seconds."""
    use = Doubling()

    async def crowd(batcher: Batcher) -> list[Any]:
        await press(use, batcher)
        tokens = (10**9, 1)
        return await behind_a_gate(use, batcher, lambda: [compute(batcher, use.work(2, each)) for each in tokens])

    batcher = Batcher(Limits(queue_tokens=10**10, timeout_s=30), BatchMetrics())
    answered, turned_away = asyncio.run(crowd(batcher))
    assert answered == 4, "an idle queue takes it, whatever its size"
    assert int(turned_away.headers["Retry-After"]) >= 1000


@pytest.mark.parametrize("number", [1, 13])
def test_who_has_an_answer_or_a_fault_no_longer_counts(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[float | None] = []
    finish = batching_module._Job.finish
    batcher = Batcher(Limits(), BatchMetrics())

    def look(job: Any, result: Any) -> None:
        began.append(batcher._began)
        finish(job, result)

    async def ask() -> None:
        await asyncio.gather(compute(batcher, Doubling().work(number)), return_exceptions=True)

    monkeypatch.setattr(batching_module._Job, "finish", look)
    asyncio.run(ask())
    assert began == [None]


def test_what_fails_says_nothing_about_how_fast_others_are() -> None:
    """A batch takes a microsecond at least, so those that give an answer have at most a million tokens a second."""
    use = Doubling()
    batcher = Batcher(Limits(queue_tokens=10**10), BatchMetrics())
    asyncio.run(press(use, batcher))
    asyncio.run(press(use, batcher, 13, 10**9))
    assert asyncio.run(compute(batcher, use.work(2))) == 4, "which begins after the one before it is reckoned with"
    assert 0 < batcher._rate <= 10**6


@pytest.mark.parametrize("tokens", [0, 8])
def test_who_has_the_server_alone_does_not_slow_what_is_expected_of_it(tokens: int) -> None:
    """A short text alone takes as long as many together, and one without tokens takes time for nothing."""
    use = Doubling()
    batcher = Batcher(Limits(), BatchMetrics())
    asyncio.run(press(use, batcher))
    rate = batcher._rate
    for _ in range(100):
        assert asyncio.run(compute(batcher, use.work(1, tokens))) == 2
    asyncio.run(press(use, batcher, 1, 0))
    assert batcher._rate == rate > 8


def test_the_first_batch_says_what_is_expected_and_another_one_changes_it_by_a_fifth() -> None:
    seen: list[tuple[float, int]] = []

    class Watched(BatchMetrics):
        def computed(self, size: int, tokens: int, took_s: float) -> None:
            seen.append((tokens / max(took_s, 1e-6), batcher._tokens))

    use, batcher = Doubling(), Batcher(Limits(), Watched())
    asyncio.run(press(use, batcher))
    assert seen[1] == (batcher._rate, 1), "of the batch while which another waits, with one token"
    batcher._rate = 2.0
    asyncio.run(press(use, batcher))
    assert batcher._rate == pytest.approx(2 + (seen[4][0] - 2) / 5)


def test_one_slow_batch_turns_nobody_away_for_long() -> None:
    """What one request at a time takes shows that it is over."""
    use, num_tokens = Doubling(), 10**6

    async def ask(batcher: Batcher) -> list[Any]:
        batcher._rate = 1.0
        await compute(batcher, use.work(1, num_tokens))
        return await behind_a_gate(use, batcher, lambda: [compute(batcher, use.work(2, num_tokens // 100))])

    assert asyncio.run(ask(Batcher(Limits(queue_tokens=10**7, timeout_s=30), BatchMetrics()))) == [4]


def test_what_is_being_computed_for_long_counts_as_what_waits() -> None:
    use = Doubling()

    async def ask(batcher: Batcher) -> tuple[Any, Any]:
        use.gate.clear()
        first = asyncio.ensure_future(compute(batcher, use.work(1)))
        assert await asyncio.to_thread(use.began.wait, 10)
        await asyncio.sleep(0.6)  # over half of the time
        [late] = await asyncio.gather(compute(batcher, use.work(2)), return_exceptions=True)
        use.gate.set()
        answer = await first
        assert await compute(batcher, use.work(3)) == 6, "which counts no longer when it is answered"
        return answer, late

    batcher = Batcher(Limits(timeout_s=1.0), BatchMetrics())
    answered, turned_away = asyncio.run(ask(batcher))
    assert answered == 2
    assert turned_away.code == "busy"


def test_what_nobody_waits_for_any_more_is_computed_no_further() -> None:
    """Between two parts of a model; in other threads models compute on."""

    class Deep(Doubling):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.calls = nn.Identity(), 0

        def compute(self, options: Any, payloads: Sequence[int]) -> list[int]:
            for self.calls in range(1, 1 + payloads[0]):
                self.part(torch.zeros(1))
                self.gate.wait(0.01)
            return list(payloads)

    hooks = dict(module._global_forward_pre_hooks)  # of servers of other tests
    use = Deep()
    use.gate.clear()

    async def ask(batcher: Batcher) -> Any:
        await given_up(batcher, use.work(100_000))
        use.part(torch.zeros(1))
        await asyncio.sleep(0.1)
        return await compute(batcher, use.work(1))

    batcher = Batcher(Limits(), BatchMetrics())
    assert asyncio.run(ask(batcher)) == 1
    assert use.calls == 1
    assert module._global_forward_pre_hooks == hooks, "nothing is left behind"


def test_scoring_in_several_threads_ends_where_nobody_waits(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use, scored = LikelihoodAnswerer(open_model(tiny_model)), []
    work = use.read(["a man is asleep on the grass . " * 3])

    def score(self: MaskedScorer, rows: Any, copies: Sequence[Any], found: Any) -> None:
        scored.append(len(copies))
        time.sleep(0.05)

    monkeypatch.setitem(BATCH_TOKENS, "cpu", 1)  # a batch for each copy of the sentence
    monkeypatch.setattr(MaskedScorer, "_score", score)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batcher = Batcher(Limits(), BatchMetrics())
        asyncio.run(given_up(batcher, work))
    finally:
        torch.set_num_threads(num_threads)
    assert 0 < len(scored) < 12 < len(work.payload[0].ids), "what was under way, not all copies"


def test_an_onnx_file_is_run_no_further_where_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Session:
        """As ONNX Runtime's."""

        def __init__(self) -> None:
            self.runs = 0

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(name="input_ids")]

        def get_outputs(self) -> list[Any]:
            return [SimpleNamespace(name="logits")]

        def get_modelmeta(self) -> Any:
            return SimpleNamespace(producer_name="")

        def run(self, names: list[str], given: dict[str, Any], options: Any) -> list[Any]:
            self.runs += 1
            time.sleep(0.05)
            return [np.zeros((1, 2), np.float32)]

    class Repeating(Doubling):
        def compute(self, options: Any, payloads: Sequence[int]) -> list[Any]:
            return [[graph(pack([[1, 2]]), graph.outputs) for _ in range(number)] for number in payloads]

    session = Session()
    monkeypatch.setattr(onnx_model, "new_session", lambda path: session)
    monkeypatch.setattr(onnx_model, "import_module", lambda name: SimpleNamespace(RunOptions=SimpleNamespace))
    graph = onnx_model.OnnxGraph(Path("model"))
    batcher = Batcher(Limits(), BatchMetrics())
    asyncio.run(given_up(batcher, Repeating().work(1000)))
    assert session.runs < 100  # one, or some more on a machine that is busy


def test_one_request_of_more_than_may_wait_is_refused() -> None:
    told = "11 tokens to compute: a request has at most 10"
    batcher = Batcher(Limits(queue_tokens=10), BatchMetrics())
    with pytest.raises(Refused, match=told):
        asyncio.run(compute(batcher, Doubling().work(1, 11)))


def test_a_use_that_gives_too_few_results_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    use, wrong = Doubling(), Doubling()
    monkeypatch.setattr(wrong, "compute", lambda options, payloads: [])
    batcher = Batcher(Limits(), BatchMetrics())
    with pytest.raises(AssertionError):
        asyncio.run(compute(batcher, wrong.work(1)))
    assert asyncio.run(compute(batcher, use.work(1))) == 2


def test_who_has_left_is_not_computed() -> None:
    use = Doubling()

    async def leave(batcher: Batcher) -> list[Any]:
        def ask() -> list[Any]:
            async def left() -> None:
                task = asyncio.ensure_future(compute(batcher, use.work(1)))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

            return [left(), compute(batcher, use.work(2))]

        return await behind_a_gate(use, batcher, ask)

    batcher = Batcher(Limits(), BatchMetrics())
    assert asyncio.run(leave(batcher)) == [None, 4]
    assert use.batches == [[0], [2]]


def test_the_tokens_of_who_has_left_wait_no_longer() -> None:
    use = Doubling()
    use.gate.clear()
    batcher = Batcher(Limits(queue_tokens=10), BatchMetrics())
    batcher.submit(use.work(0))
    assert use.began.wait(10)
    batcher.submit(use.work(1, 8)).cancel()
    stays = batcher.submit(use.work(2, 8))
    use.gate.set()
    assert stays.result(10) == 4


def test_freed_memory_is_given_back_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ten seconds; what comes next is answered behind it."""
    now, given_back = [0.0], []
    monkeypatch.setattr(batching_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(batching_module, "give_freed_memory_back", lambda: given_back.append(now[0]))
    batcher, use = Batcher(Limits(), BatchMetrics()), Doubling()
    for now[0] in (0, 9, 10, 11, 19, 25, 26):
        for _ in range(2):
            assert batcher.submit(use.work(1)).result(10) == 2
    assert given_back == [10, 25]


def test_one_core_is_left_to_others_where_requests_came_together(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    use, batcher = Doubling(), Batcher(Limits(), BatchMetrics(), shares=True)
    asyncio.run(behind_a_gate(use, batcher, lambda: [compute(batcher, use.work(number)) for number in (1, 2)]))
    assert taken == [4, 3]

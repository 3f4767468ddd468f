"""Whole sessions where the memory is short: they go on with the halved size, and find the largest micro-batch."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unmask.batch import Batch, LossTerm
from unmask.errors import UserError
from unmask.io.signals import Interruption
from unmask.training import memory
from unmask.training.device import Compute, Gpu
from unmask.training.memory import GpuMemory
from unmask.training.optimizers.adamw import AdamW
from unmask.training.run.checkpoint import WEIGHTS, find_checkpoint
from unmask.training.run.log import RunLog, read_metrics
from unmask.training.session import RunContext, run_session
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.steps import Learner

COMPUTE = Compute(torch.device("cpu"), torch.float32, "a test")
LONGEST = 32


class Settings:
    """The part of a recipe that a session reads."""

    optimizer = OptimizerSettings(learning_rate=0.01)
    schedule = ScheduleSettings(warmup_steps=2)

    def __init__(self, micro_batch_size: Any, steps: int) -> None:
        self.train = TrainSettings(
            steps=steps, batch_size=8, log_every=1, save_every=3, micro_batch_size=micro_batch_size
        )


@pytest.fixture
def sit(sequences: type[Any], tagger: type[Any]) -> Callable[..., Any]:
    """A session in a directory, resumed where one has been begun there."""

    class Interrupting(tagger):  # type: ignore[misc]
        """Fails once, at a forward pass of its life, and lets a signal arrive at another."""

        def __init__(self, interruption: Interruption, fails_at: int | None, stops_at: int | None) -> None:
            super().__init__()
            self.interruption, self.fails_at, self.stops_at = interruption, fails_at, stops_at
            self.dropout = nn.Dropout(0.3)

        def forward(self, batch: Batch) -> list[LossTerm]:
            number = len(self.seen) + 1
            if number == self.stops_at:
                self.interruption.signal_number = 15
            if number == self.fails_at:
                self.seen.append(0)
                self._fail()
            (term,) = super().forward(batch)
            return [LossTerm("task", term.total + self.dropout(self.embedding).pow(2).sum() * len(batch.lengths), 1)]

    def sit(
        directory: Path,
        *,
        fails_at: int | None = None,
        stops_at: int | None = None,
        module: Any | None = None,
        micro_batch_size: Any = None,
        source: Any | None = None,
        steps: int = 8,
    ) -> Any:
        """So many steps, or what is left of them."""
        interruption = Interruption()
        module = module or Interrupting(interruption, fails_at, stops_at)
        directory.mkdir(exist_ok=True)
        torch.manual_seed(5)
        with RunLog(directory) as log:
            run_session(
                Learner(module, lambda batch: {"task": batch.num_tokens}),
                source or sequences(),
                Settings(micro_batch_size, steps),
                RunContext(
                    "testing", directory, COMPUTE, log, interruption, find_checkpoint(directory / "checkpoints")
                ),
            )
        return module

    return sit


def left_behind(directory: Path) -> tuple[bytes, list[dict[str, Any]]]:
    rows = read_metrics(directory / "metrics.jsonl")
    weights = (directory / "checkpoints" / "step-00000008" / WEIGHTS).read_bytes()
    return weights, [{name: value for name, value in row.items() if name != "tokens_per_s"} for row in rows]


@pytest.mark.parametrize("stop", [4, 6])
def test_a_resumed_run_goes_on_with_the_halved_size(tmp_path: Path, stop: int, sit: Callable[..., Any]) -> None:
    """Steps 1 to 3 are whole, the fourth is not; what dropout takes depends on the size, and is as in one sitting."""
    sit(tmp_path / "whole", fails_at=4)
    with pytest.raises(Exception, match="everything is saved"):
        sit(tmp_path / "run", fails_at=4, stops_at=stop + 1 + (stop > 4) * (stop - 4))
    saved = find_checkpoint(tmp_path / "run" / "checkpoints")
    assert saved is not None
    assert saved.step == stop
    assert saved.state["micro_batch_tokens"] == 4 * LONGEST
    resumed = sit(tmp_path / "run")
    assert max(resumed.seen) <= 4 * LONGEST
    assert left_behind(tmp_path / "run") == left_behind(tmp_path / "whole")


def test_memory_that_is_wanting_elsewhere_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sit: Callable[..., Any], tagger: type[Any]
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError(tagger.error)

    monkeypatch.setattr(AdamW, "step", fail)
    expected = "the update or an evaluation after step 1 (CUDA out of memory. Tried to allocate 2.00 GiB), with a model"
    with pytest.raises(UserError, match=re.escape(expected)):
        sit(tmp_path / "run")


# The largest that fits


class FakeGpu:
    """A memory where a pass takes 5,000 bytes, and 100 a token."""

    def __init__(self, module: Any, free: int) -> None:
        self.module, self.free = module, free
        self.num_released = 0

    def peak_of(self, work: Callable[[], None]) -> int:
        work()
        return 5000 + 100 * self.module.seen[-1]

    def release(self) -> None:
        self.num_released += 1


def fitting(tokens: float, num_parameters: int = 228) -> int:
    """Bytes that are free where so many tokens fit: of nine tenths, beside the moments of the weights."""
    return round((5000 + 8 * num_parameters + 100 * tokens) / 0.9) + 1


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (fitting(64 * LONGEST), 64),
        (fitting(33 * LONGEST), 32),
        (fitting(31 * LONGEST), 22),  # in three parts
        (fitting(LONGEST / 2), 1),
        (0, 1),
    ],
)
def test_the_largest_micro_batch_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free: int,
    expected: int,
    sit: Callable[..., Any],
    sequences: type[Any],
    tagger: type[Any],
) -> None:
    module, plain = tagger(), tagger()
    gpu = FakeGpu(module, free)
    monkeypatch.setattr(memory, "_PROBED_TOKENS", 128)
    monkeypatch.setattr(memory, "memory_of", lambda device: gpu)
    with caplog.at_level(logging.INFO, "unmask"):
        sit(tmp_path / "auto", module=module, micro_batch_size="auto", source=sequences(64, 64))
    monkeypatch.undo()
    told = [record.getMessage() for record in caplog.records if "train.micro_batch_size" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f"train.micro_batch_size: {expected} of 64 sequences: ")
    assert told[0].endswith("3.1 KiB a sequence of 32 tokens") or told[0].endswith("3.12 KiB a sequence of 32 tokens")
    assert gpu.num_released == 2
    sit(tmp_path / "given", module=plain, source=sequences(64, expected))
    assert left_behind(tmp_path / "auto") == left_behind(tmp_path / "given")  # nothing is left of the measuring


def test_it_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sit: Callable[..., Any], sequences: type[Any], tagger: type[Any]
) -> None:
    """A GPU that is fuller at the resume changes nothing."""
    monkeypatch.setattr(memory, "_PROBED_TOKENS", 128)
    module, sizes = tagger(), []
    for steps, free in ((4, fitting(33 * LONGEST)), (8, 0)):
        gpu = FakeGpu(module, free)
        monkeypatch.setattr(memory, "memory_of", lambda device, gpu=gpu: gpu)
        sit(tmp_path / "run", module=module, micro_batch_size="auto", source=sequences(64, 64), steps=steps)
        saved = find_checkpoint(tmp_path / "run" / "checkpoints")
        assert saved is not None
        sizes.append((saved.step, saved.state["micro_batch_tokens"]))
    assert sizes == [(4, sizes[0][1]), (8, sizes[0][1])]
    assert 33 * LONGEST <= sizes[0][1] < 34 * LONGEST
    assert gpu.num_released == 0


def test_that_few_are_asked_for_is_remembered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sit: Callable[..., Any], sequences: type[Any], tagger: type[Any]
) -> None:
    """A resume, maybe in a phase of longer sequences, measures nothing: the run that never stopped has not either."""
    module = tagger()
    for steps, probed in ((4, 64 * LONGEST), (8, 128)):
        gpu = FakeGpu(module, 0)
        monkeypatch.setattr(memory, "_PROBED_TOKENS", probed)
        monkeypatch.setattr(memory, "memory_of", lambda device, gpu=gpu: gpu)
        source = sequences(64, 64)
        sit(tmp_path / "run", module=module, micro_batch_size="auto", source=source, steps=steps)
        saved = find_checkpoint(tmp_path / "run" / "checkpoints")
        assert saved is not None
        assert source.cut(None, saved.state["micro_batch_tokens"]).micro_batch_size == 64
        assert (saved.step, gpu.num_released) == (steps, 0)


def test_what_is_found_and_does_not_fit_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sit: Callable[..., Any], sequences: type[Any], tagger: type[Any]
) -> None:
    module = tagger(20 * LONGEST)
    monkeypatch.setattr(memory, "_PROBED_TOKENS", 128)
    monkeypatch.setattr(memory, "memory_of", lambda device: FakeGpu(module, fitting(33 * LONGEST)))
    sit(tmp_path / "run", module=module, micro_batch_size="auto", source=sequences(64, 64))
    assert module.num_failures == 1
    assert 8 * LONGEST < module.seen[-1] <= 16 * LONGEST


def test_where_not_even_the_measured_ones_fit_it_begins_small(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sit: Callable[..., Any],
    sequences: type[Any],
    tagger: type[Any],
) -> None:
    module = tagger(3 * LONGEST)
    monkeypatch.setattr(memory, "_PROBED_TOKENS", 128)
    monkeypatch.setattr(memory, "memory_of", lambda device: FakeGpu(module, 10**9))
    with caplog.at_level(logging.INFO, "unmask"):
        sit(tmp_path / "run", module=module, micro_batch_size="auto", source=sequences(64, 64))
    assert "train.micro_batch_size: 2 of 64 sequences: 954 MiB free, and 4 do not fit" in caplog.text
    assert module.num_failures == 1


def test_on_the_processor_it_is_the_whole_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sit: Callable[..., Any]
) -> None:
    with caplog.at_level(logging.INFO, "unmask"):
        sit(tmp_path / "run", micro_batch_size="auto")
    assert "train.micro_batch_size: 8 of 8 sequences, on the CPU" in caplog.text


def test_a_gpu_is_asked_for_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(name: str, number: int) -> Callable[[torch.device], int]:
        def tell(device: torch.device) -> int:
            asked.append(name)
            return number

        return tell

    for name, number in (("reset_peak_memory_stats", 0), ("memory_allocated", 300), ("max_memory_allocated", 1000)):
        monkeypatch.setattr(torch.cuda, name, answer(name, number))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty_cache"))
    monkeypatch.setattr(memory, "look_at_gpu", lambda which: Gpu("A", (9, 0), 0, 1, 12345, 20000))
    gpu = memory.memory_of(torch.device("cuda"))
    assert isinstance(gpu, GpuMemory)
    assert gpu.peak_of(lambda: asked.append("work")) == 700
    assert gpu.free == 12345
    gpu.release()
    assert asked == ["reset_peak_memory_stats", "memory_allocated", "work", "max_memory_allocated", "empty_cache"]
    assert memory.memory_of(torch.device("cpu")) is None

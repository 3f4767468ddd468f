"""Whole sessions where the memory is short: they continue with the halved size, and find the largest micro-batch."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.memory_toy import LONGEST, Sequences, Tagger
from support.runs import rows_of
from support.sessions import sit
from unmask.batch import Batch, LossTerm, StepBatches
from unmask.errors import Interrupted, UserError
from unmask.packing.loader import Position
from unmask.training import memory
from unmask.training.device import Gpu
from unmask.training.distributed import Ranks
from unmask.training.memory import GpuMemory
from unmask.training.optimizers.adamw import AdamW
from unmask.training.run.checkpoint import WEIGHTS, Checkpoint, find_checkpoint
from unmask.training.settings import OptimizerSettings, ScheduleSettings


class Failing(Tagger):
    """With dropout; it fails once, at a forward pass of its life."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.fails_at = fails_at
        self.dropout = nn.Dropout(0.3)

    def forward(self, batch: Batch) -> list[LossTerm]:
        if len(self.seen) + 1 == self.fails_at:
            self.seen.append(0)
            self._fail()
        (term,) = super().forward(batch)
        return [LossTerm("task", term.total + self.dropout(self.embedding).pow(2).sum() * len(batch.lengths))]


def run(
    directory: Path,
    module: Tagger,
    source: Sequences | None = None,
    *,
    stops_at: int | None = None,
    micro_batch_size: int | str | None = None,
    steps: int = 8,
) -> None:
    """So many steps, or what is left of them; a signal arrives at the batch `stops_at`."""
    numbers = iter(range(1, 1000))
    sit(
        directory,
        module,
        source or Sequences(),
        {"steps": steps, "batch_size": 8, "log_every": 1, "save_every": 3, "micro_batch_size": micro_batch_size},
        stops=lambda batch: next(numbers) == stops_at,
        optimizer=OptimizerSettings(learning_rate=0.01),
        schedule=ScheduleSettings(warmup_steps=2),
    )


def newest(directory: Path) -> Checkpoint:
    saved = find_checkpoint(directory / "checkpoints")
    assert saved is not None
    return saved


def left_behind(directory: Path) -> tuple[bytes, list[dict[str, Any]]]:
    return (directory / "checkpoints" / "step-00000008" / WEIGHTS).read_bytes(), rows_of(directory)


@pytest.mark.parametrize("stop", [4, 6])
def test_a_resumed_run_continues_with_the_halved_size(tmp_path: Path, stop: int) -> None:
    """Steps 1 to 3 are whole, the fourth is not; what dropout takes depends on the size, and is as in one sitting."""
    run(tmp_path / "whole", Failing(fails_at=4))
    with pytest.raises(Interrupted, match="everything is saved"):
        run(tmp_path / "run", Failing(fails_at=4), stops_at=stop + 1 + (stop > 4) * (stop - 4))
    saved = newest(tmp_path / "run")
    assert (saved.step, saved.state["micro_batch_tokens"]) == (stop, 4 * LONGEST)
    resumed = Failing()
    run(tmp_path / "run", resumed)
    assert max(resumed.seen) <= 4 * LONGEST
    assert left_behind(tmp_path / "run") == left_behind(tmp_path / "whole")


def test_a_halved_step_goes_by_the_first_processs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates and phases follow from the share of `train.minutes` that is done: all processes need the same."""
    done: list[float] = []

    class Noting(Sequences):
        def steps(
            self, progress: Callable[[], float], position: Any, most_tokens: int | None
        ) -> Iterator[StepBatches[Position]]:
            done.append(progress())
            return super().steps(progress, position, most_tokens)

    def from_first(ranks: Ranks, value: Any) -> Any:
        return 30.0 if isinstance(value, float) else value

    monkeypatch.setattr(Ranks, "from_first", from_first)
    with pytest.raises(Interrupted):
        sit(
            tmp_path,
            Failing(fails_at=1),
            Noting(),
            {"minutes": 1, "batch_size": 8},
            stops=lambda batch: len(done) > 1,
            optimizer=OptimizerSettings(learning_rate=0.01),
            schedule=ScheduleSettings(),
        )
    assert done == [0.0, 0.5]


def test_memory_that_runs_out_elsewhere_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError(Tagger.error)

    monkeypatch.setattr(AdamW, "step", fail)
    expected = "the update or an evaluation after step 1 (CUDA out of memory. Tried to allocate 2.00 GiB), with a model"
    with pytest.raises(UserError, match=re.escape(expected)):
        run(tmp_path / "run", Failing())


# The largest that fits


class FakeGpu:
    """A memory where a pass takes 5,000 bytes, and 100 a token."""

    def __init__(self, module: Tagger, free: int) -> None:
        self.module, self.free = module, free
        self.num_released = 0

    def peak_of(self, work: Callable[[], None]) -> int:
        work()
        return 5000 + 100 * self.module.seen[-1]

    def release(self) -> None:
        self.num_released += 1


def run_by_memory(directory: Path, module: Tagger, free: float, *, probed: int = 128, steps: int = 8) -> FakeGpu:
    """Steps of 64 sequences, in the largest micro-batches that fit into so many free bytes."""
    gpu = FakeGpu(module, round(free))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(memory, "_PROBED_TOKENS", probed)
        patched.setattr(memory, "memory_of", lambda device: gpu)
        run(directory, module, Sequences(64, 64), micro_batch_size="auto", steps=steps)
    return gpu


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
    tmp_path: Path, caplog: pytest.LogCaptureFixture, free: int, expected: int
) -> None:
    with caplog.at_level(logging.INFO, "unmask"):
        gpu = run_by_memory(tmp_path / "auto", Tagger(), free)
    [line] = [message for message in caplog.messages if "train.micro_batch_size" in message]
    assert line.startswith(f"train.micro_batch_size: {expected} of 64 sequences: ")
    assert line.endswith(("3.1 KiB a sequence of 32 tokens", "3.12 KiB a sequence of 32 tokens"))
    assert gpu.num_released == 2
    run(tmp_path / "given", Tagger(), Sequences(64, expected))
    assert left_behind(tmp_path / "auto") == left_behind(tmp_path / "given")  # nothing is left of the measuring


def test_it_is_remembered(tmp_path: Path) -> None:
    """A GPU that is fuller at the resume changes nothing."""
    module, sizes = Tagger(), []
    for steps, free in ((4, fitting(33 * LONGEST)), (8, 0)):
        gpu = run_by_memory(tmp_path, module, free, steps=steps)
        assert newest(tmp_path).step == steps
        sizes.append(newest(tmp_path).state["micro_batch_tokens"])
    assert 33 * LONGEST <= sizes[0] == sizes[1] < 34 * LONGEST
    assert gpu.num_released == 0


def test_that_few_are_requested_is_remembered_too(tmp_path: Path) -> None:
    """A resume, maybe in a phase of longer sequences, measures nothing: the run that never stopped has not either."""
    for steps, probed in ((4, 64 * LONGEST), (8, 128)):
        gpu = run_by_memory(tmp_path, Tagger(), 0, probed=probed, steps=steps)
        saved = newest(tmp_path)
        assert Sequences(64, 64).cut(None, saved.state["micro_batch_tokens"]).micro_batch_size == 64
        assert (saved.step, gpu.num_released) == (steps, 0)


def test_what_is_found_and_does_not_fit_is_halved(tmp_path: Path) -> None:
    module = Tagger(20 * LONGEST)
    run_by_memory(tmp_path, module, fitting(33 * LONGEST))
    assert module.num_failures == 1
    assert 8 * LONGEST < module.seen[-1] <= 16 * LONGEST


def test_where_not_even_the_measured_ones_fit_it_begins_small(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = Tagger(3 * LONGEST)
    with caplog.at_level(logging.INFO, "unmask"):
        run_by_memory(tmp_path, module, 10**9)
    assert "train.micro_batch_size: 2 of 64 sequences: 954 MiB free, and 4 do not fit" in caplog.text
    assert module.num_failures == 1


def test_on_the_processor_it_is_the_whole_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "unmask"):
        run(tmp_path, Failing(), micro_batch_size="auto")
    assert "train.micro_batch_size: 8 of 8 sequences, on the CPU" in caplog.text


def test_a_gpu_reports_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def answer(name: str, number: int) -> Callable[[torch.device], int]:
        def note(device: torch.device) -> int:
            called.append(name)
            return number

        return note

    for name, number in (("reset_peak_memory_stats", 0), ("memory_allocated", 300), ("max_memory_allocated", 1000)):
        monkeypatch.setattr(torch.cuda, name, answer(name, number))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: called.append("empty_cache"))
    monkeypatch.setattr(memory, "look_at_gpu", lambda which: Gpu("A", (9, 0), 0, 1, 12345, 20000))
    gpu = memory.memory_of(torch.device("cuda"))
    assert isinstance(gpu, GpuMemory)
    assert gpu.peak_of(lambda: called.append("work")) == 700
    assert gpu.free == 12345
    gpu.release()
    assert called == ["reset_peak_memory_stats", "memory_allocated", "work", "max_memory_allocated", "empty_cache"]
    assert memory.memory_of(torch.device("cpu")) is None

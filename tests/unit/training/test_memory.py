"""Steps that do not fit into the memory are halved with the same gradient; the largest micro-batch is found."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch, LossTerm, pack
from unmask.data.loader import LoadedStep, Position
from unmask.errors import UserError
from unmask.filling import NO_LABEL, TOKENS, Filling
from unmask.interruption import Interruption
from unmask.training import memory
from unmask.training.adamw import AdamW
from unmask.training.checkpoint import WEIGHTS, find_checkpoint
from unmask.training.device import Compute, Gpu
from unmask.training.loop import TrainState, train
from unmask.training.memory import Cut, GpuMemory, MicroBatches
from unmask.training.optimizer import Schedule
from unmask.training.recorded_stepper import RecordedStepper
from unmask.training.run_log import RunLog, read_metrics
from unmask.training.session import run_session
from unmask.training.settings import MOST_TOKENS_AT_ONCE, OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.stepper import EagerStepper, Stepper

COMPUTE = Compute(torch.device("cpu"), torch.float32, "a test")
LONGEST = 32
ERROR = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB. Of the memory ..."
STEPPERS = ("eager", "recorded")


@dataclass
class Sequences:
    """Steps of random sequences of 20 to 32 tokens, and of 32 the first."""

    batch_size: int = 8
    micro_batch_size: int = 8
    opened: list[tuple[int, int | None]] = field(default_factory=list)

    def cut(self, position: Any, most_tokens: int | None) -> Cut:
        return Cut(self.batch_size, self.micro_batch_size, LONGEST).at_most(most_tokens)

    def steps(self, progress: Callable[[], float], position: Any, most_tokens: int | None) -> Iterator[LoadedStep]:
        start = position if isinstance(position, Position) else Position(**(position or {}))
        self.opened.append((start.sequence, most_tokens))
        size, first = self.cut(position, most_tokens).micro_batch_size, start.sequence
        while True:
            rows = [self.sequence(number) for number in range(first, first + self.batch_size)]
            batches = [_labelled(rows[place : place + size]) for place in range(0, len(rows), size)]
            first += self.batch_size
            yield LoadedStep(batches, Position(sequence=first), first / 100)

    def sequence(self, number: int) -> list[int]:
        generator = torch.Generator().manual_seed(number)
        length = LONGEST - int(torch.randint(13, (), generator=generator)) * (number % self.batch_size > 0)
        return torch.randint(1, 50, (length,), generator=generator).tolist()


def _labelled(rows: list[list[int]]) -> Batch:
    batch = pack(rows)
    return batch.with_columns(labels=batch.input_ids % 7)


class Tagger(nn.Module):
    """Raises what a GPU would where a batch has more tokens than fit: before, or amid, its backward pass."""

    fillings: ClassVar = {"labels": Filling(TOKENS, NO_LABEL)}

    def __init__(self, most_tokens: int = 10**9, raises_in_backward: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(50, 4, generator=generator))
        self.weight = nn.Parameter(torch.randn(7, 4, generator=generator))
        self.most_tokens, self.raises_in_backward = most_tokens, raises_in_backward
        self.num_failures = 0
        self.seen: list[int] = []

    def forward(self, batch: Batch) -> list[LossTerm]:
        self.seen.append(batch.num_tokens)
        hidden = torch.tanh(self.embedding[batch.input_ids])
        if batch.num_tokens > self.most_tokens:
            if not self.raises_in_backward:
                self._fail()
            hidden.register_hook(self._fail)  # type: ignore[no-untyped-call]
        losses = nn.functional.cross_entropy(
            hidden @ self.weight.T, batch.columns["labels"], ignore_index=IGNORE_INDEX, reduction="sum"
        )
        return [LossTerm("task", losses, batch.num_tokens)]

    def _fail(self, _: Tensor | None = None) -> None:
        self.num_failures += 1
        raise torch.OutOfMemoryError(ERROR)


def count(batch: Batch) -> dict[str, int]:
    return {"task": batch.num_tokens}


def new_stepper(name: str, module: Any, optimizer: Any) -> Stepper:
    if name == "eager":
        return EagerStepper(module, optimizer, 1.0, COMPUTE.device, COMPUTE.autocast)
    return RecordedStepper(module, optimizer, 1.0, None, COMPUTE, module.fillings, LONGEST, False)


@dataclass
class Outcome:
    losses: list[float]
    weights: list[Tensor]
    state: TrainState


def run(name: str, module: Tagger, source: Sequences, reads_ahead: bool = False) -> Outcome:
    """Six steps by the loop."""
    settings, state, losses = TrainSettings(steps=6), TrainState(), list[float]()
    optimizer = AdamW([{"params": list(module.parameters())}], 0.01, (0.9, 0.999), 1e-6)
    micro_batches = MicroBatches(source, module, COMPUTE, lambda: state.progress(settings))
    train(
        module,
        micro_batches.steps(state),
        lambda batch: batch,
        count,
        optimizer,
        Schedule(ScheduleSettings(name="constant")),
        settings,
        state,
        COMPUTE.device,
        COMPUTE.autocast,
        lambda state, result: losses.append(state.take_means()["task"]),
        before_step=lambda state, schedule: micro_batches.begin_step(),
        on_out_of_memory=micro_batches.halve,
        stepper=new_stepper(name, module, optimizer),
        is_due=lambda state: state.step % 4 == 0,
        reads_ahead=reads_ahead,
    )
    return Outcome(losses, [parameter.detach().clone() for parameter in module.parameters()], state)


# At most 128 tokens of text in four sequences, which filled are 160; of eight there are 172 at least.
FOUR_FIT = 165


@pytest.mark.parametrize("name", STEPPERS)
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("reads_ahead", [False, True])
def test_halved_a_run_is_that_of_small_micro_batches(
    name: str, in_backward: bool, reads_ahead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    small = run(name, Tagger(), Sequences(micro_batch_size=4))
    source, module = Sequences(), Tagger(FOUR_FIT, in_backward)
    with caplog.at_level(logging.WARNING, "unmask"):
        halved = run(name, module, source, reads_ahead)
    assert module.num_failures == 1
    assert source.opened == [(0, None), (0, 4 * LONGEST)]
    assert halved.losses == small.losses
    assert halved.state.position == small.state.position
    assert halved.state.tokens == small.state.tokens
    for one, other in zip(halved.weights, small.weights, strict=True):
        assert torch.equal(one, other)
    assert [record.getMessage() for record in caplog.records] == [
        "step 1 does not fit into the memory (CUDA out of memory. Tried to allocate 2.00 GiB): its micro-batches were "
        "of 8 sequences, and are of 4 from here on; the gradient is the same. train.micro_batch_size=4 begins so"
    ]


@pytest.mark.parametrize("name", STEPPERS)
def test_what_a_step_had_summed_before_it_broke_off_is_forgotten(name: str) -> None:
    """The first of its two micro-batches fits, and the second does not; the steps before it stay as they are."""
    source = Sequences(micro_batch_size=4)
    sizes = [batch.num_tokens for step in islice(source.steps(float, None, None), 6) for batch in step.batches]
    number, failing = next((place // 2, size) for place, size in enumerate(sizes) if place % 2 and place > 4)
    assert sizes.count(failing) == 1, "the batch is told by its size"

    class Breaking(Tagger):
        def forward(self, batch: Batch) -> list[LossTerm]:
            if int((batch.columns["labels"] != IGNORE_INDEX).sum()) == failing:
                self._fail()
            return super().forward(batch)

    module, reference = Breaking(), Tagger()
    halved, small = run(name, module, source, reads_ahead=True), run(name, reference, Sequences(micro_batch_size=2))
    assert module.num_failures == 1
    assert source.opened[-1] == (8 * number, 2 * LONGEST)
    assert halved.losses == pytest.approx(small.losses, rel=1e-5)  # steps before it were summed in another order
    for one, other in zip(halved.weights, small.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", STEPPERS)
def test_a_single_sequence_that_does_not_fit_ends_the_run(name: str) -> None:
    module = Tagger(10)
    with pytest.raises(UserError) as refused:
        run(name, module, Sequences())
    assert str(refused.value).startswith(
        "step 1 does not fit into the memory (CUDA out of memory. Tried to allocate 2.00 GiB), though a micro-batch is "
        "one sequence already, of 32 tokens at most, in a model of 228 parameters: take a shorter packing.max_length "
        "(it is 32) or a smaller model, or precision=bf16; "
    )
    assert module.num_failures == 4  # of 8, 4, 2 and 1


def test_without_the_hook_the_error_is_raised() -> None:
    module = Tagger(10)
    with pytest.raises(torch.OutOfMemoryError):
        train(
            module,
            Sequences().steps(float, None, None),
            lambda batch: batch,
            count,
            torch.optim.SGD(module.parameters(), lr=0.1),
            Schedule(ScheduleSettings()),
            TrainSettings(steps=1),
            TrainState(),
            COMPUTE.device,
            COMPUTE.autocast,
            lambda state, result: None,
        )


class Remembering(Tagger):
    """What it has read so far is part of what it says; it grows, too."""

    remembered: Tensor

    def __init__(self, most_tokens: int = 10**9) -> None:
        super().__init__(most_tokens, raises_in_backward=True)
        self.register_buffer("remembered", torch.zeros(0))

    def forward(self, batch: Batch) -> list[LossTerm]:
        shown = self.embedding.detach()[batch.input_ids].sum() / 100
        self.remembered = torch.cat([self.remembered, shown[None]])
        terms = super().forward(batch)
        return [LossTerm("task", terms[0].total + self.weight.sum() * self.remembered.sum(), batch.num_tokens)]


def test_what_a_module_remembers_is_as_before_the_step() -> None:
    small, module = run("eager", Remembering(), Sequences(micro_batch_size=4)), Remembering(FOUR_FIT)
    halved = run("eager", module, Sequences())
    assert module.num_failures == 1
    assert halved.losses == small.losses
    assert len(module.remembered) == 12


# The cut


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(None, 100), (100 * 32, 100), (99 * 32, 50), (50 * 32, 50), (40 * 32, 34), (32, 1), (31, 1), (3 * 32 + 31, 3)],
)
def test_a_cut_holds_so_many_tokens(tokens: int | None, expected: int) -> None:
    assert Cut(100, 100, 32).at_most(tokens).micro_batch_size == expected


def test_a_cut_says_what_is_not_too_much() -> None:
    assert Cut(100, 7, 32).at_most(7 * 32).micro_batch_size == 7
    assert Cut(100, 7, 32).at_most(10**6).micro_batch_size == 7
    huge = Cut(2**26, 2**26, 64).at_most(None)
    assert huge.micro_batch_size * huge.longest <= MOST_TOKENS_AT_ONCE


# Whole sessions


class Interrupting(Tagger):
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
    module: Tagger | None = None,
    micro_batch_size: Any = None,
    source: Sequences | None = None,
    steps: int = 8,
) -> Tagger:
    """So many steps, or what is left of them."""
    interruption = Interruption()
    module = module or Interrupting(interruption, fails_at, stops_at)
    directory.mkdir(exist_ok=True)
    torch.manual_seed(5)
    with RunLog(directory) as log:
        run_session(
            "testing",
            directory,
            module=module,
            steps=source or Sequences(),
            prepare=lambda batch: batch,
            counts=count,
            settings=TrainSettings(
                steps=steps, batch_size=8, log_every=1, save_every=3, micro_batch_size=micro_batch_size
            ),
            optimizer=OptimizerSettings(learning_rate=0.01),
            schedule=ScheduleSettings(warmup_steps=2),
            checkpoint=find_checkpoint(directory / "checkpoints"),
            evaluate=None,
            compute=COMPUTE,
            log=log,
            interruption=interruption,
        )
    return module


def left_behind(directory: Path) -> tuple[bytes, list[dict[str, Any]]]:
    rows = read_metrics(directory / "metrics.jsonl")
    weights = (directory / "checkpoints" / "step-00000008" / WEIGHTS).read_bytes()
    return weights, [{name: value for name, value in row.items() if name != "tokens_per_s"} for row in rows]


@pytest.mark.parametrize("stop", [4, 6])
def test_a_resumed_run_goes_on_with_the_halved_size(tmp_path: Path, stop: int) -> None:
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


def test_memory_that_is_wanting_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError(ERROR)

    monkeypatch.setattr(AdamW, "step", fail)
    expected = "the update or an evaluation after step 1 (CUDA out of memory. Tried to allocate 2.00 GiB), with a model"
    with pytest.raises(UserError, match=re.escape(expected)):
        sit(tmp_path / "run")


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free: int, expected: int
) -> None:
    module, plain = Tagger(), Tagger()
    gpu = FakeGpu(module, free)
    monkeypatch.setattr(memory, "_PROBED_TOKENS", 128)
    monkeypatch.setattr(memory, "memory_of", lambda device: gpu)
    with caplog.at_level(logging.INFO, "unmask"):
        sit(tmp_path / "auto", module=module, micro_batch_size="auto", source=Sequences(64, 64))
    monkeypatch.undo()
    told = [record.getMessage() for record in caplog.records if "train.micro_batch_size" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f"train.micro_batch_size: {expected} of 64 sequences: ")
    assert told[0].endswith("3.1 KiB a sequence of 32 tokens") or told[0].endswith("3.12 KiB a sequence of 32 tokens")
    assert gpu.num_released == 2
    sit(tmp_path / "given", module=plain, source=Sequences(64, expected))
    assert left_behind(tmp_path / "auto") == left_behind(tmp_path / "given")  # nothing is left of the measuring


def test_it_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is fuller at the resume changes nothing."""
    monkeypatch.setattr(memory, "_PROBED_TOKENS", 128)
    module, sizes = Tagger(), []
    for steps, free in ((4, fitting(33 * LONGEST)), (8, 0)):
        gpu = FakeGpu(module, free)
        monkeypatch.setattr(memory, "memory_of", lambda device, gpu=gpu: gpu)
        sit(tmp_path / "run", module=module, micro_batch_size="auto", source=Sequences(64, 64), steps=steps)
        saved = find_checkpoint(tmp_path / "run" / "checkpoints")
        assert saved is not None
        sizes.append((saved.step, saved.state["micro_batch_tokens"]))
    assert sizes == [(4, sizes[0][1]), (8, sizes[0][1])]
    assert 33 * LONGEST <= sizes[0][1] < 34 * LONGEST
    assert gpu.num_released == 0


def test_that_few_are_asked_for_is_remembered_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume, maybe in a phase of longer sequences, measures nothing: the run that never stopped has not either."""
    module = Tagger()
    for steps, probed in ((4, 64 * LONGEST), (8, 128)):
        gpu = FakeGpu(module, 0)
        monkeypatch.setattr(memory, "_PROBED_TOKENS", probed)
        monkeypatch.setattr(memory, "memory_of", lambda device, gpu=gpu: gpu)
        source = Sequences(64, 64)
        sit(tmp_path / "run", module=module, micro_batch_size="auto", source=source, steps=steps)
        saved = find_checkpoint(tmp_path / "run" / "checkpoints")
        assert saved is not None
        assert source.cut(None, saved.state["micro_batch_tokens"]).micro_batch_size == 64
        assert (saved.step, gpu.num_released) == (steps, 0)


def test_what_is_found_and_does_not_fit_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Tagger(20 * LONGEST)
    monkeypatch.setattr(memory, "_PROBED_TOKENS", 128)
    monkeypatch.setattr(memory, "memory_of", lambda device: FakeGpu(module, fitting(33 * LONGEST)))
    sit(tmp_path / "run", module=module, micro_batch_size="auto", source=Sequences(64, 64))
    assert module.num_failures == 1
    assert 8 * LONGEST < module.seen[-1] <= 16 * LONGEST


def test_where_not_even_the_measured_ones_fit_it_begins_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = Tagger(3 * LONGEST)
    monkeypatch.setattr(memory, "_PROBED_TOKENS", 128)
    monkeypatch.setattr(memory, "memory_of", lambda device: FakeGpu(module, 10**9))
    with caplog.at_level(logging.INFO, "unmask"):
        sit(tmp_path / "run", module=module, micro_batch_size="auto", source=Sequences(64, 64))
    assert "train.micro_batch_size: 2 of 64 sequences: 954 MiB free, and 4 do not fit" in caplog.text
    assert module.num_failures == 1


def test_on_the_processor_it_is_the_whole_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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

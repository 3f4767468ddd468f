"""The result of a run whose steps cannot be captured after all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from support.captured_toy import CPU, read_all
from support.checkpoints import save_checkpoint
from support.sizes import small
from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.models.buckets import Paddings
from unmask.models.encoder import new_encoder
from unmask.models.heads.heads import new_head
from unmask.models.hub.directory import TunedHead, save_model
from unmask.tasks.tagging.module import TaggingModule
from unmask.training.captured.capture import Capturer
from unmask.training.captured.cautious import CautiousStepper
from unmask.training.captured.stepper import CapturedStepper
from unmask.training.device import Compute
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.optimizer import Schedule, build_optimizer
from unmask.training.settings import OptimizerSettings, ScheduleSettings
from unmask.training.state import TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.stepping.protocol import StepFigures

SIZES = small(vocab=20, width=16, layers=2, heads=2, inner=32, positions=16, dropout=0.2)


def tagger() -> TaggingModule:
    torch.manual_seed(0)
    encoder = new_encoder(SIZES, pooler=False)
    return TaggingModule(encoder, new_head("token_classification", SIZES, 3)).train()


def batch() -> Batch:
    draw = torch.Generator().manual_seed(3)
    packed = pack([torch.randint(20, (length,), generator=draw).tolist() for length in (3, 9, 5)])
    labels = torch.randint(3, (packed.num_tokens,), generator=draw)
    labels[::4] = IGNORE_INDEX
    return packed.with_columns(labels=labels)


def adamw(module: nn.Module) -> AdamW:
    return build_optimizer(module, OptimizerSettings(learning_rate=0.01))


def steppers(
    module: TaggingModule, optimizer: AdamW, *, compiles: bool = False, compute: Compute = CPU
) -> tuple[CapturedStepper, EagerStepper]:
    paddings: Paddings | None = module.paddings
    assert paddings is not None
    captured = CapturedStepper(module, optimizer, 1.0, None, compute, paddings, 16, compiles)
    return captured, EagerStepper(module, optimizer, 1.0, compute)


def take(stepper: Any, number: int) -> list[StepFigures]:
    """Steps on the same batch."""
    figures: list[StepFigures] = []
    for _ in range(number):
        counts = {"task": int((batch().columns["labels"] != IGNORE_INDEX).sum())}
        stepper.launch([batch(), batch()], {"task": 2 * counts["task"]})
        figures += stepper.read(read_all)
    return figures


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def breaks(*, after: int, error: Exception) -> Callable[..., Any]:
    """A `Capturer._capture` that fails the given time, in the middle of what it tries."""
    calls = iter(range(1000))
    capture = Capturer._capture

    def capture_or_break(self: Capturer, body: Callable[[], None]) -> Any:
        if next(calls) < after:
            return capture(self, body)
        body()
        raise error

    return capture_or_break


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_that_cannot_be_captured_is_one_that_never_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, resumed: bool
) -> None:
    """Weights, moments and the numbers that dropout draws are untouched, and it says so."""
    error = RuntimeError("operation not permitted\nwhen capturing")
    monkeypatch.setattr(Capturer, "_capture", breaks(after=0, error=error))
    ends, figures = [], []
    for tries in (True, False):
        module = tagger()
        optimizer = adamw(module)
        captured, eager = steppers(module, optimizer)
        torch.manual_seed(7)
        if resumed:
            take(eager, 2)
        stepper = CautiousStepper(captured, eager) if tries else eager
        stepper.restart({})
        with caplog.at_level(logging.WARNING, "unmask"):
            figures.append(take(stepper, 3))
        assert not stepper.runs_ahead
        ends.append(weights(module))
        assert optimizer.on_device is None
        assert all(parameter.grad is None for parameter in module.parameters())
        schedule, state = Schedule(ScheduleSettings()), TrainState(step=3)
        save_checkpoint(tmp_path / str(tries), module, optimizer, schedule, state, {"step": 3}, keep_last=1)
    assert figures[0] == figures[1]
    assert torch.equal(*ends)
    folders = [tmp_path / str(tries) for tries in (True, False)]
    sizes = [sorted(path.stat().st_size for path in folder.rglob("*tensors")) for folder in folders]
    assert sizes[0] == sizes[1]
    assert caplog.messages == [
        "steps cannot be captured as CUDA graphs here, and are computed as they come, as with "
        "train.capture_steps=false: RuntimeError: operation not permitted"
    ]


def test_what_was_replayed_before_a_capture_failed_has_drawn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first micro-batch, of another shape than the second, is captured and replayed: dropout is that of a run that
    never tried, and a resumed run, which tries again, has that of one that never stopped."""
    monkeypatch.setattr(Capturer, "_capture", breaks(after=1, error=RuntimeError("not permitted")))
    longer = pack([[1] * 16] * 9)
    longer = longer.with_columns(labels=torch.ones(longer.num_tokens, dtype=torch.int64))
    ends, figures = [], []
    for tries in (True, False):
        module = tagger()
        captured, eager = steppers(module, adamw(module))
        stepper = CautiousStepper(captured, eager) if tries else eager
        stepper.restart({})
        torch.manual_seed(7)
        stepper.launch([batch(), longer], {"task": 100})
        figures.append(stepper.read(read_all))
        assert not stepper.runs_ahead
        ends.append(weights(module))
    assert figures[0] == figures[1]
    assert torch.equal(*ends)


def test_a_step_that_does_not_fit_is_not_a_step_that_cannot_be_captured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Capturer, "_capture", breaks(after=0, error=torch.OutOfMemoryError("full")))
        module = tagger()
        stepper = CautiousStepper(*steppers(module, adamw(module)))
        stepper.restart({})
        for _ in range(2):  # smaller the second time, and still too large
            with pytest.raises(torch.OutOfMemoryError):
                stepper.launch([batch()], {"task": 9})
    take(stepper, 2)
    assert stepper.runs_ahead
    assert stepper.num_graphs == 1
    assert not caplog.messages


def test_after_the_first_step_an_error_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tagger()
    stepper = CautiousStepper(*steppers(module, adamw(module)))
    stepper.restart({})
    take(stepper, 1)
    monkeypatch.setattr(Capturer, "_capture", breaks(after=0, error=RuntimeError("broken")))
    longer = pack([[1] * 16] * 9)
    with pytest.raises(RuntimeError, match="broken"):
        stepper.launch([longer.with_columns(labels=torch.ones(longer.num_tokens, dtype=torch.int64))], {"task": 144})


@pytest.mark.parametrize("compiles", [True, False])
def test_blocks_that_cannot_be_compiled_are_captured_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiles: bool
) -> None:
    """The compiler fails in the first pass; what it has left of the pass is put back."""

    class NoCompilerError(Exception):  # as Triton's errors, none of which is a RuntimeError
        pass

    def no_compiler(*arguments: Any) -> Tensor:
        torch.rand(5)
        raise NoCompilerError("no compiler for this GPU\nand a long explanation")

    monkeypatch.setattr("unmask.training.captured.compilation._compiled", lambda plain: no_compiler)
    ends = []
    for tries in (compiles, False):
        module = tagger()
        stepper = CautiousStepper(*steppers(module, adamw(module), compiles=tries))
        stepper.restart({})
        torch.manual_seed(7)
        take(stepper, 3)
        assert stepper.runs_ahead
        assert stepper.num_graphs == 1
        ends.append(weights(module))
    assert torch.equal(*ends)
    line = "blocks cannot be compiled here, and are not: NoCompilerError: no compiler for this GPU"
    assert caplog.messages == [line] * compiles


def test_what_fails_in_the_compiled_pass_and_without_it_is_reported_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that has nothing to do with the compiler: neither way of capturing works, and steps come as they do."""
    module = tagger()
    captured, eager = steppers(module, adamw(module), compiles=True)
    accumulate = CapturedStepper._accumulate

    def fails(self: CapturedStepper, batch: Batch) -> None:
        accumulate(self, batch)
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(CapturedStepper, "_accumulate", fails)
    monkeypatch.setattr("unmask.training.captured.compilation._compiled", lambda plain: plain)
    stepper = CautiousStepper(captured, eager)
    stepper.restart({})
    take(stepper, 1)
    assert not stepper.runs_ahead


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_directory_of_a_captured_run_holds_each_weight_once(tmp_path: Path, dtype: torch.dtype) -> None:
    compute = Compute(torch.device("cpu"), dtype, "a test")
    sizes = []
    for kind in ("captured", "eager"):
        module = tagger()
        captured, eager = steppers(module, adamw(module), compute=compute)
        stepper = captured if kind == "captured" else eager
        stepper.restart({})
        take(stepper, 2)
        save_model(tmp_path / kind, module.encoder, tuned=TunedHead(module.head, "token_classification"))
        saved = load_file(tmp_path / kind / "model.safetensors")
        assert {value.dtype for value in saved.values()} == {torch.float32}
        assert sum(value.numel() for value in saved.values()) == weights(module).numel()
        sizes.append((tmp_path / kind / "model.safetensors").stat().st_size)
    assert sizes[0] == sizes[1]

"""What a captured step computes and leaves alone, and what is left of one that does not fit into the memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from support.captured_toy import LONGEST, count_targets, new_batch, new_run, read_all, train_both
from support.tensors import assert_equal
from unmask.batch import Batch, LossTerm
from unmask.training.captured import stepper
from unmask.training.captured.capture import Capturer
from unmask.training.settings import ScheduleSettings
from unmask.training.stepping.protocol import StepFigures

ROUNDING = 1e-5
"""fp32: sums of some hundred numbers in another order, a dozen roundings of 6e-8 each."""


@pytest.mark.parametrize(
    ("lengths", "labelled"),
    [([1], 1.0), ([1], 0.0), ([LONGEST], 0.3), ([1] * 40, 0.5), ([3, 1, 12, 1], 0.0), ([12] * 31, 0.1), ([8] * 4, 0.3)],
    ids=["one token", "no target of a term", "one sequence", "length 1", "none again", "large", "a round number"],
)
def test_loss_and_gradient_of_a_padded_batch_are_those_of_the_batch(lengths: list[int], labelled: float) -> None:
    runs = [new_run(kind, max_grad_norm=None) for kind in ("eager", "captured")]
    batch = new_batch(lengths, labelled=labelled)
    figures = []
    for run in runs:
        run.stepper.restart({})
        run.stepper.launch([batch], count_targets(batch))
        figures += run.stepper.read(read_all)
    assert figures[0].sums == pytest.approx(figures[1].sums, rel=ROUNDING)
    assert figures[0].gradient_norm == pytest.approx(figures[1].gradient_norm, rel=ROUNDING)
    assert figures[0].coefficients == figures[1].coefficients
    assert figures[0].sums["tokens"] > 0 or labelled == 0
    # of a step of 1e-2, of which the root of a rounded square is a part
    torch.testing.assert_close(runs[0].weights(), runs[1].weights(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_a_run_is_that_of_steps_computed_as_they_come(bias_correction: bool) -> None:
    """Sixty steps with a warm-up and clipping that binds, logged every seven."""
    options = {"max_grad_norm": 0.5, "bias_correction": bias_correction, "schedule": ScheduleSettings(warmup_steps=20)}
    eager, captured = train_both({"steps": 60}, log_every=7, **options)
    assert eager.shown == captured.shown
    assert len(captured.rows) == 8
    for one, other in zip(eager.rows, captured.rows, strict=True):
        assert one[4].learning_rate == other[4].learning_rate
        assert (one[4].tokens, one[4].coefficients) == (other[4].tokens, other[4].coefficients)
        # a hundred times the rounding of a step: each starts from the weights of the last
        assert one[4].gradient_norm == pytest.approx(other[4].gradient_norm, rel=1e-3)
    assert eager.state.counts == captured.state.counts
    assert eager.state.totals == pytest.approx(captured.state.totals, rel=1e-3)
    for terms, losses in eager.state.recent_losses.items():
        assert losses == pytest.approx(captured.state.recent_losses[terms], rel=1e-3)
    assert 3 <= captured.stepper.num_graphs < 20  # of 90 batches


def test_what_is_frozen_or_of_no_use_stays_as_it_is() -> None:
    run, before = new_run("captured"), new_run("captured").module
    run.train({"steps": 5})
    for part, same in ((run.module.frozen, before.frozen), (run.module.pooler, before.pooler)):
        assert_equal(part.state_dict(), same.state_dict())
        assert not any(parameter in run.optimizer.state for parameter in part.parameters())
    assert not torch.equal(run.module.embedding.weight, before.embedding.weight)


def failing_at(places: set[int], forward: Callable[[Batch], list[LossTerm]]) -> Callable[[Batch], list[LossTerm]]:
    """The same, but at these of its calls it runs out of memory, amid a backward pass."""
    calls = count()

    def fail(batch: Batch) -> list[LossTerm]:
        terms = forward(batch)
        if next(calls) in places:
            terms[0].total.backward(retain_graph=True)  # type: ignore[no-untyped-call]
            raise torch.OutOfMemoryError("by a test")
        return terms

    return fail


@pytest.mark.parametrize("fits_alone", [True, False])
def test_a_step_that_does_not_fit_leaves_nothing(fits_alone: bool) -> None:
    """In its first or its second micro-batch, in the first step or a later one: taken again, it is taken as if that
    were the first try, and no graph is kept, since theirs is the memory that is missing. It is tried again at once,
    without them, and no error is raised where that suffices."""
    batch = new_batch([5, 7, 2])
    for place in range(1, 5):
        run, plain = new_run("captured", dropout_prob=0.5), new_run("captured", dropout_prob=0.5)
        failing = {place} if fits_alone else {place, place + 1 + (place - 1) % 2}  # the same micro-batch once more
        run.module.forward = failing_at(failing, run.module.forward)  # type: ignore[method-assign]
        for each in (run, plain):
            each.stepper.restart({})
        taken = failed = 0
        while taken < 2:
            random_state = torch.get_rng_state()
            try:
                run.stepper.launch([batch, batch], count_targets(batch))
            except torch.OutOfMemoryError:
                assert torch.equal(torch.get_rng_state(), random_state)
                assert run.stepper.num_graphs == 0
                failed += 1
                continue
            taken += 1
        assert failed == (0 if fits_alone else 1)
        first = run.stepper.read(read_all)
        torch.manual_seed(1)
        for _ in range(2):
            plain.stepper.launch([batch, batch], count_targets(batch))
        assert first == plain.stepper.read(read_all)
        assert torch.equal(run.weights(), plain.weights())


def test_graphs_that_do_not_fit_together_are_not_captured_again_at_every_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The memory holds one graph. The second shape pushes the first out, once; then smaller batches are
    requested, by an error, until a hundred steps have been taken."""
    run = new_run("captured")
    run.stepper.restart({})
    capture = Capturer.capture

    def only_one(self: Capturer, *arguments: Any) -> Callable[[], None]:
        if run.stepper.num_graphs:
            raise torch.OutOfMemoryError("by a test")
        return capture(self, *arguments)

    monkeypatch.setattr(Capturer, "capture", only_one)
    small, large = new_batch([5]), new_batch([12] * 6)
    with caplog.at_level(logging.INFO, logger="unmask"):
        run.stepper.launch([small], count_targets(small))
        run.stepper.launch([large], count_targets(large))
    assert caplog.text.count("they are captured again") == 1
    with pytest.raises(torch.OutOfMemoryError):
        run.stepper.launch([small], count_targets(small))
    for _ in range(100):
        run.stepper.launch([large], count_targets(large))
    run.stepper.launch([small], count_targets(small))


def test_a_step_that_does_not_fit_without_graphs_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fails(self: Capturer, body: Callable[[], None]) -> Callable[[], None]:
        tries.append(body)
        raise torch.OutOfMemoryError("by a test")

    monkeypatch.setattr(Capturer, "_capture", fails)
    run = new_run("captured")
    run.stepper.restart({})
    batch = new_batch([5, 7, 2])
    with pytest.raises(torch.OutOfMemoryError):
        run.stepper.launch([batch], count_targets(batch))
    assert len(tries) == 1


def test_what_is_released_between_steps_is_captured_again() -> None:
    runs = [new_run("captured", dropout_prob=0.1) for _ in range(2)]
    for number, run in enumerate(runs):
        torch.manual_seed(1)
        run.train({"steps": 4}, log_every=2)
        if number:
            run.stepper.release()
            assert run.stepper.num_graphs == 0
        run.train({"steps": 8}, log_every=2)
        assert run.stepper.num_graphs > 0
    assert torch.equal(runs[0].weights(), runs[1].weights())


def test_steps_are_accepted_where_python_leaves_out_assertions_too() -> None:
    path = Path(stepper.__file__)
    optimized: dict[str, Any] = {"__name__": stepper.__name__}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec", optimize=1), optimized)
    run, batch, accepted = new_run("captured"), new_batch([5, 7, 2]), list[int]()

    def accept(place: int, figures: StepFigures) -> bool:
        accepted.append(place)
        return True

    run.stepper.restart({})
    for _ in range(2):
        run.stepper.launch([batch], count_targets(batch))
    optimized["CapturedStepper"].read(run.stepper, accept)
    assert accepted == [0, 1]

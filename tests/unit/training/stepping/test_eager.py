"""Steps that are computed as they come: what is reported of them, and what is left where one is not taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from support.captured_toy import CPU, count_targets, new_batch
from support.captured_toy import Toy as ToyWithDropout
from unmask.batch import Batch, LossTerm, pack
from unmask.models.trained import TrainedModule
from unmask.training.stepping.eager import EagerStepper, weigh
from unmask.training.stepping.protocol import StepFigures


class Toy(TrainedModule):
    """Two terms: of all tokens, and of the first of each sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, 4)

    def forward(self, batch: Batch) -> list[LossTerm]:
        values = self.embedding(batch.input_ids).pow(2).sum(1)
        first = values[batch.first_tokens]
        return [LossTerm("tokens", values.sum()), LossTerm("first", first.sum(), coefficient=3.0)]


BATCHES = [pack([[1, 2, 3], [4]]), pack([[5, 1]])]
COUNTS = {"tokens": 6, "first": 3, "of another module": 7}


@pytest.fixture
def module() -> Toy:
    return Toy()


def stepper_of(module: Toy, max_grad_norm: float | None = None) -> EagerStepper:
    return EagerStepper(module, torch.optim.SGD(module.parameters(), lr=0.1), max_grad_norm, CPU)


def answer(given: bool) -> Callable[[int, StepFigures], bool]:
    return lambda place, figures: given


def test_figures_are_sums_over_the_whole_step(module: Toy) -> None:
    stepper = stepper_of(module)
    values = module.embedding.weight.detach().pow(2).sum(1)
    expected = {"tokens": float(values[[1, 2, 3, 4, 5, 1]].sum()), "first": float(values[[1, 4, 5]].sum())}
    loss = expected["tokens"] / 6 + 3 * expected["first"] / 3
    stepper.launch(BATCHES, COUNTS)
    [figures] = stepper.read(answer(True))
    assert figures.sums == pytest.approx(expected, rel=1e-6)  # fp32
    assert figures.coefficients == {"tokens": 1.0, "first": 3.0}
    assert figures.means(COUNTS) == pytest.approx({"tokens": expected["tokens"] / 6, "first": expected["first"] / 3})
    assert figures.loss(COUNTS) == pytest.approx(loss, rel=1e-6)


def test_a_term_without_a_target_has_no_mean_and_adds_nothing() -> None:
    figures = StepFigures({"tokens": 6.0, "first": 0.0}, 1.0, {"tokens": 1.0, "first": 2.0})
    assert figures.means({"tokens": 4, "first": 0}) == {"tokens": 1.5}
    assert figures.loss({"tokens": 4, "first": 0}) == 1.5
    assert figures.loss({"tokens": 0, "first": 0}) == 6.0  # as it is weighed for the gradient


@pytest.mark.parametrize("taken", [True, False])
def test_the_update_is_taken_where_it_is_accepted(module: Toy, taken: bool) -> None:
    before = module.embedding.weight.detach().clone()
    stepper = stepper_of(module)
    stepper.launch(BATCHES, COUNTS)
    assert torch.equal(module.embedding.weight, before)  # nothing until it has been looked at
    stepper.read(answer(taken))
    assert torch.equal(module.embedding.weight, before) != taken
    assert module.embedding.weight.grad is None
    assert not stepper.runs_ahead


def test_clipping_is_by_the_norm_that_is_reported(module: Toy) -> None:
    before = module.embedding.weight.detach().clone()
    stepper = stepper_of(module, max_grad_norm=0.5)
    stepper.launch(BATCHES, COUNTS)
    [figures] = stepper.read(answer(True))
    assert figures.gradient_norm > 0.5
    moved = float(torch.linalg.vector_norm(module.embedding.weight.detach() - before))
    assert moved == pytest.approx(0.1 * 0.5, rel=1e-4)  # PyTorch divides by the norm + 1e-6


def test_dropout_is_another_one_at_each_step_and_the_same_at_the_same_one() -> None:
    module = ToyWithDropout(dropout_prob=0.5)
    stepper = EagerStepper(module, torch.optim.SGD(module.parameters()), None, CPU, seed=1)
    batch = new_batch([12, 12, 12], labelled=1.0)

    def sums_of(number: int) -> dict[str, float]:
        stepper.launch([batch], count_targets(batch), number)
        [figures] = stepper.read(answer(False))
        return figures.sums

    first = sums_of(1)
    assert sums_of(2) != first
    assert sums_of(1) == first


def test_figures_are_of_the_terms_of_their_own_step_alone(module: Toy) -> None:
    forward = module.forward
    stepper = stepper_of(module)
    stepper.launch(BATCHES, COUNTS)
    stepper.read(answer(False))
    module.forward = lambda batch: forward(batch)[:1]  # type: ignore[method-assign]
    stepper.launch(BATCHES, COUNTS)
    [figures] = stepper.read(answer(False))
    assert figures.coefficients == {"tokens": 1.0}
    assert list(figures.sums) == ["tokens"]


def test_a_step_that_does_not_fit_leaves_no_gradient(module: Toy) -> None:
    stepper = stepper_of(module)
    forward = module.forward

    def fails_on_the_second(batch: Batch) -> list[LossTerm]:
        if batch.num_sequences == 1:
            raise torch.OutOfMemoryError("by a test")
        return forward(batch)

    module.forward = fails_on_the_second  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError):
        stepper.launch(BATCHES, COUNTS)
    assert module.embedding.weight.grad is None
    stepper.launch(BATCHES[:1], {"tokens": 4, "first": 2})  # and it continues
    [figures] = stepper.read(answer(True))
    assert figures.sums["tokens"] > 0


def test_a_norm_that_does_not_fit_leaves_no_gradient_either(module: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("by a test")

    stepper = stepper_of(module)
    with monkeypatch.context() as patched:
        patched.setattr("unmask.training.stepping.eager.clip_gradients", fail)
        with pytest.raises(torch.OutOfMemoryError):
            stepper.launch(BATCHES, COUNTS)
    assert module.embedding.weight.grad is None


def test_counts_may_be_known_to_the_device_alone(module: Toy) -> None:
    terms = module(BATCHES[0])
    on_device: dict[str, int | Tensor] = {"tokens": torch.tensor(6.0), "first": torch.tensor(3.0)}
    assert torch.equal(weigh(terms, on_device), weigh(terms, COUNTS))

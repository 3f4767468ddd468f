"""Early stopping: the run ends where it should, keeps the best, and an interruption changes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from support.sessions import NUMBERED, Noting, Toy, sit
from support.tensors import assert_equal
from unmask.errors import Interrupted, SettingsError
from unmask.training.run.best import Ending, Metric, choose_metric
from unmask.training.run.checkpoint import BEST, WEIGHTS, find_checkpoint
from unmask.training.run.log import read_metrics
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings


def run(
    directory: Path,
    figures: list[float],
    *,
    module: Toy | None = None,
    name: str = "accuracy",
    has_dev: bool = True,
    stop_after: int | None = None,
    **settings: Any,
) -> tuple[Toy, Ending]:
    """A run, resumed where it has been begun; `figures` are those of the evaluations after steps 2, 4, 6 ..."""
    trained = Toy() if module is None else module

    def evaluate() -> dict[str, float]:
        assert not trained.training
        return {"loss": 1.0, name: figures[int(trained.seen) // 2 - 1]}

    last = sit(
        directory,
        trained,
        NUMBERED,
        {"steps": 20, "eval_every": 2, "log_every": 3, **settings},
        stops=lambda batch: int(trained.seen) + 1 == stop_after,
        evaluate=evaluate if has_dev else None,
        lower_is_better=frozenset({"mse"}),
        optimizer=OptimizerSettings(learning_rate=0.1),
        schedule=ScheduleSettings(),
    )
    return trained, last


FIGURES = [0.5, 0.6, 0.4, 0.7, 0.7, 0.6, 0.65, 0.9, 0.1, 0.2]
"""The best before three in a row are no better: the fourth, after step 8; its equal after it does not count."""


def test_it_stops_at_the_right_evaluation_and_keeps_the_best(tmp_path: Path) -> None:
    module, last = run(tmp_path, FIGURES, patience=3)
    assert last == (14, {"loss": 1.0, "accuracy": 0.7}, {"step": 8, "evaluations": 7})
    assert int(module.seen) == 8
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if "eval/accuracy" in row] == [2, 4, 6, 8, 10, 12, 14]
    assert [row["step"] for row in rows if "loss" in row] == [3, 6, 9, 12, 14]


def test_the_weights_are_those_of_the_best_evaluation(tmp_path: Path) -> None:
    module = Noting()
    run(tmp_path, FIGURES, module=module, patience=3)
    assert sorted(module.evaluated) == [2, 4, 6, 8, 10, 12, 14]
    assert torch.equal(module.embedding.weight, module.evaluated[8])
    assert not torch.equal(module.embedding.weight, module.evaluated[14])


def test_a_budget_that_is_spent_first_gives_the_best_too(tmp_path: Path) -> None:
    module, last = run(tmp_path, FIGURES, patience=9)
    assert (int(module.seen), last.figures["accuracy"]) == (16, 0.9)


def test_of_a_single_evaluation_nothing_is_chosen(tmp_path: Path) -> None:
    assert run(tmp_path, FIGURES, patience=3, steps=2)[1].early_stopping == {}


def test_the_last_of_several_evaluations_is_chosen_too(tmp_path: Path) -> None:
    assert run(tmp_path, FIGURES, patience=3, steps=4)[1].early_stopping == {"step": 4, "evaluations": 2}


def test_without_patience_the_last_weights_stay(tmp_path: Path) -> None:
    module, last = run(tmp_path, FIGURES)
    assert (int(module.seen), last) == (20, (20, {"loss": 1.0, "accuracy": 0.2}, {}))
    checkpoint = find_checkpoint(tmp_path / "checkpoints")
    assert "best" not in checkpoint.state
    assert not (checkpoint.directory / BEST).exists()


@pytest.mark.parametrize("name", ["loss", "mse"])
def test_lower_is_better_for_losses(tmp_path: Path, name: str) -> None:
    module, last = run(tmp_path, FIGURES, name=name, patience=3, metric=name)
    assert (int(module.seen), last.figures[name]) == (6, 0.4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Toy, Ending]:
    """A run that was never interrupted."""
    directory = tmp_path_factory.mktemp("whole")
    return directory, *run(directory, FIGURES, patience=3, save_every=5)


@pytest.mark.parametrize("stop_after", range(1, 15))
def test_interrupted_is_uninterrupted_bit_for_bit(
    tmp_path: Path, whole: tuple[Path, Toy, Ending], stop_after: int
) -> None:
    directory, unbroken, expected = whole
    with pytest.raises(Interrupted):
        run(tmp_path, FIGURES, stop_after=stop_after, patience=3, save_every=5)
    resumed, last = run(tmp_path, FIGURES, patience=3, save_every=5)
    assert last == expected
    assert_equal(resumed.state_dict(), unbroken.state_dict())
    ends = [find_checkpoint(each / "checkpoints") for each in (directory, tmp_path)]
    assert [end.step for end in ends if end is not None] == [14, 14]
    for file in (WEIGHTS, BEST):
        first, second = ((end.directory / file).read_bytes() for end in ends if end is not None)
        assert first == second


def test_a_run_that_has_ended_early_stays_ended(tmp_path: Path) -> None:
    run(tmp_path, FIGURES, patience=3)
    again, last = run(tmp_path, FIGURES, patience=3)
    assert (int(again.seen), last.figures["accuracy"]) == (8, 0.7)


def test_a_damaged_best_file_damages_its_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, FIGURES, patience=3, save_every=5)
    newest = find_checkpoint(tmp_path / "checkpoints")
    content = (newest.directory / BEST).read_bytes()
    (newest.directory / BEST).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    older = find_checkpoint(tmp_path / "checkpoints")
    assert (older.step, older.state["best"]["step"]) == (10, 8)
    module, last = run(tmp_path, FIGURES, patience=3, save_every=5)
    assert (int(module.seen), last.figures["accuracy"]) == (8, 0.7)


# What is compared


def test_the_metric_is_the_tasks_first_unless_it_is_named() -> None:
    figures = {"loss": 0.3, "f1": 0.5, "accuracy": 0.7}
    assert choose_metric(figures, None, ()) == Metric("f1")
    assert choose_metric(figures, "accuracy", ()) == Metric("accuracy")
    assert choose_metric({"loss": 0.3}, None, ()) == Metric("loss", lower_is_better=True)
    assert choose_metric({"loss": 0.3, "mae": 0.1}, None, {"mae"}) == Metric("mae", lower_is_better=True)
    with pytest.raises(SettingsError, match=r"train\.metric=pearson: the task measures loss, f1, accuracy"):
        choose_metric(figures, "pearson", ())


@pytest.mark.parametrize(
    ("metric", "value", "than", "better"),
    [
        (Metric("accuracy"), 0.2, 0.1, True),
        (Metric("accuracy"), 0.1, 0.1, False),
        (Metric("mae", lower_is_better=True), 0.2, 0.1, False),
        (Metric("mae", lower_is_better=True), 0.1, 0.2, True),
        (Metric("pearson"), math.nan, 0.1, False),
        (Metric("pearson"), -1.0, math.nan, True),
        (Metric("pearson"), math.nan, math.nan, False),
    ],
)
def test_which_is_better(metric: Metric, value: float, than: float, better: bool) -> None:
    assert metric.is_better(value, than) is better


@pytest.mark.parametrize(("patience", "told"), [(1, "for 1 evaluation: the run ends"), (3, "for 3 evaluations: the")])
def test_the_end_says_how_many_evaluations_were_no_better(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, patience: int, told: str
) -> None:
    caplog.set_level("INFO", logger="unmask")
    run(tmp_path, FIGURES, patience=patience)
    assert told in caplog.text


def test_patience_needs_evaluations(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"patience=2 counts evaluations during training: give eval_every as well"):
        TrainSettings(steps=2, patience=2)
    with pytest.raises(SettingsError, match=r"train\.patience=2 needs something to measure: give data\.dev"):
        run(tmp_path, FIGURES, has_dev=False, patience=2)

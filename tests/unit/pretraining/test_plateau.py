"""What a run says of a held-out loss that stands still."""

from __future__ import annotations

import logging
import math

import pytest

from unmask.objectives.floors import SHOWN, UNIGRAM, Floor
from unmask.pretraining.plateau import Plateau

FLOORS = [
    Floor("", "loss/mlm", UNIGRAM, "knowing frequencies", 6.5),
    Floor("", "loss/mlm", SHOWN, "knowing what is shown", 6.0),
    Floor("", "eval/mlm_accuracy", SHOWN, "guessing", 0.1),
]


@pytest.mark.parametrize(
    ("losses", "warns"),
    [
        ([6.3, 6.04, 6.02, 6.01, 6.0], True),  # near it from .2 to .5 of the run
        ([6.3, 6.2, 6.1, 6.04, 6.0], False),  # not for long enough
        ([6.04, 5.9, 6.04, 5.9, 6.04], False),
        ([6.04, math.nan, 6.04, math.nan, 6.04], False),
        ([6.5, 6.5, 6.5, 6.5, 6.5], False),  # another floor's
    ],
)
def test_a_loss_that_stands_at_its_floor_is_reported_once(
    losses: list[float], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plateau = Plateau(FLOORS, "mlm")
    with caplog.at_level(logging.WARNING, "unmask"):
        for number, loss in enumerate(losses):
            plateau.look({"mlm_loss": loss}, progress=0.1 + 0.09 * number)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == warns
    assert all("within 0.05 of 6.000, the loss of knowing what is shown" in message for message in messages)
    assert all("optimizer.name=muon" in message and "pretrain/modern_mini" in message for message in messages)

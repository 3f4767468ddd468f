"""What a run says of a held-out loss that stands still."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest

from unmask.doctor.recipe.estimates import bare_module
from unmask.objectives.floors import SHOWN, UNIGRAM, Floor
from unmask.pretraining.initial_weights import adjust_random_weights
from unmask.pretraining.plateau import Plateau, plateau_advice
from unmask.recipe.loading import load_pretrain_recipe
from unmask.recipe.names import known_recipes
from unmask.training.run.checkpoint import Checkpoint
from unmask.training.settings import TrainSettings

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
    plateau = Plateau(FLOORS, "mlm", ["optimizer.name=muon"])
    with caplog.at_level(logging.WARNING, "unmask"):
        for number, loss in enumerate(losses):
            plateau.look({"mlm_loss": loss}, progress=0.1 + 0.09 * number)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == warns
    assert all("within 0.05 of 6.000, the loss of knowing what is shown" in message for message in messages)
    assert all(message.endswith(": optimizer.name=muon and a lower optimizer.learning_rate") for message in messages)


def test_what_is_advised_can_be_pasted_into_a_shell(caplog: pytest.LogCaptureFixture) -> None:
    for advice, end in (([SHORT, BIAS], f"'{SHORT}' {BIAS} and a lower"), ([], "before it: a lower")):
        plateau = Plateau(FLOORS, "mlm", advice)
        plateau.look({"mlm_loss": 6.0}, progress=0.1)
        plateau.look({"mlm_loss": 6.0}, progress=0.3)
        assert caplog.messages[-1].endswith(f"{end} optimizer.learning_rate")


@pytest.mark.parametrize(("stopped", "first"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (1, 0)])
def test_a_resumed_run_reports_it_when_it_would_have(
    stopped: int, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is due at the second evaluation, that after step 20, or 10 where the run is measured before its first step,
    and said once, whenever the run was stopped."""
    train = TrainSettings(steps=100)
    rows = [{"step": 10 * number, "eval/mlm_loss": 6.02} for number in range(first, 6)]
    rows[2:2] = [{"step": 20, "tokens": 9, "loss": 1.0}]
    plateau = Plateau(FLOORS, "mlm", [])
    checkpoint = Checkpoint(Path(), {"step": 10 * stopped, "tokens": 0, "epochs": 0.0, "seconds": 0.0})
    plateau.recall(rows, checkpoint, train)  # has rows after the checkpoint too
    with caplog.at_level(logging.WARNING, "unmask"):
        for number in range(stopped + 1, 6):
            plateau.look({"mlm_loss": 6.02}, number / 10)
    assert len(caplog.records) == (stopped < first + 1)


NO_PAIRS = ["objective.sentence_objective=none", "packing.format=full_sentences"]
BODY, CAUSAL, BIAS = "model.architecture=modernbert", "objective.causal_share=.5", "objective.output_bias=log_frequency"
SHORT = "phases=[{until: .5, max_length: 32, batch_size: 128}, {until: 1}]"
MUON = "optimizer.name=muon"
OPTIMIZING = [MUON, "schedule.name=wsd"]

ADVICE: dict[str, list[str]] = {
    "bert_mini": [*NO_PAIRS, BODY, CAUSAL, BIAS, MUON],
    "bert_sop_tiny": [SHORT.replace("128}", "64}"), *NO_PAIRS, BODY, CAUSAL, BIAS, *OPTIMIZING],
    "roberta_mini": [SHORT, BODY, CAUSAL, BIAS, MUON],
    "spanbert_mini": [SHORT, BODY, BIAS, MUON],
    "modern_mini": [],
    "electra_tiny": [],
    "electra_joint_mini": ["objective.discriminator_after=.4", CAUSAL, BIAS, MUON],
    "electra_two_stage_base": [BIAS, *OPTIMIZING],
    "gpt1_mini": [MUON],
    "elmo_mini": [BIAS, "schedule.name=wsd"],
    "continued": [CAUSAL, *OPTIMIZING],
    "continued_night": [CAUSAL, "schedule.name=wsd"],
}


def beside(name: str) -> list[str]:
    """What a recipe does not say itself."""
    is_continued = "init_from=" in known_recipes()[name].read_text("utf-8")
    return ["store=S", "init_from=M"] if is_continued else ["store=S"]


@pytest.mark.parametrize(("recipe", "advice"), ADVICE.items(), ids=ADVICE)
def test_what_is_advised_on_a_plateau_is_new_to_the_recipe(recipe: str, advice: list[str]) -> None:
    assert plateau_advice(load_pretrain_recipe(f"pretrain/{recipe}", beside(f"pretrain/{recipe}")), None) == advice


@pytest.mark.parametrize("name", sorted(name for name in known_recipes() if name.startswith("pretrain/")))
def test_a_recipe_takes_all_that_is_advised_on_a_plateau(name: str) -> None:
    advice = plateau_advice(load_pretrain_recipe(name, beside(name)), None)
    advised = load_pretrain_recipe(name, [*beside(name), *advice, "model.vocab_size=300"])
    assert plateau_advice(advised, None) == []
    if advised.init_from is None:  # what it trains takes it too
        module = bare_module(advised, advised.model.resolve(300))
        adjust_random_weights(module, advised, lambda: np.ones(300, np.int64))


def test_advice_for_a_recipe_that_says_everything_is_taken_too() -> None:
    """As a run's own recipe does."""
    settings = load_pretrain_recipe("pretrain/bert_mini", ["store=S", "packing.short_sequence_prob=.1"])
    advice = [NO_PAIRS[0], "packing.short_sequence_prob=0", NO_PAIRS[1], BODY, CAUSAL, BIAS, MUON]
    assert plateau_advice(settings, None) == advice


def test_a_decoder_without_a_bias_is_advised_none() -> None:
    words = [BODY, "model.decoder_bias=false", *NO_PAIRS]
    assert BIAS not in plateau_advice(load_pretrain_recipe("pretrain/bert_mini", ["store=S", *words]), None)


def test_advice_on_a_plateau_leaves_out_what_a_setting_refuses() -> None:
    settings = load_pretrain_recipe("pretrain/bert_mini", ["store=S", "objective.sentence_weight=2"])
    assert plateau_advice(settings, None) == [BIAS, MUON]

"""Whole runs on a device whose memory is too small: what `pretrain` and `finetune` leave behind and refuse."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from support.elmo import write_elmo_recipe
from support.files import write
from support.runs import assert_same_weights, rows_of
from unmask.batch import Batch, LossTerm
from unmask.errors import SettingsError
from unmask.finetuning.run import finetune
from unmask.objectives.bilm import BiLMModule
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.pretraining.run import pretrain
from unmask.recipe.loading import load_pretrain_recipe
from unmask.tasks.sequence_module import SequenceModule
from unmask.training import session
from unmask.training.captured.stepper import CapturedStepper

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

NO_DROPOUT = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
STEPPERS = ("eager", "captured")
TRIES = {"eager": 1, "captured": 2}
"""Of a step, before its micro-batches are halved: the graphs that there are are discarded, and it is tried without."""


def too_small(patch: pytest.MonkeyPatch, module: type, most_tokens: int, *, after_forward: bool = False) -> list[int]:
    """Lets training passes of a kind of module fail where a batch has more tokens; returns a list of those."""
    forward: Callable[..., list[LossTerm]] = module.forward  # type: ignore[attr-defined]
    failed = list[int]()

    def fail(self: nn.Module, batch: Batch) -> list[LossTerm]:
        fails = batch.num_tokens > most_tokens
        terms = forward(self, batch) if after_forward or not fails else []
        if fails:
            failed.append(batch.num_tokens)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
        return terms

    patch.setattr(module, "forward", fail)
    return failed


def capture_steps(patch: pytest.MonkeyPatch) -> None:
    """The stepper of GPUs, on the processor."""

    def choose(eager: Any, settings: Any, longest: int, *, compiles: bool) -> tuple[CapturedStepper, str]:
        module, norm, spike = eager.module, settings.max_grad_norm, settings.spike_factor
        parts = (module, eager.optimizer, norm, spike, eager.compute, module.paddings, longest, False)
        return CapturedStepper(*parts), "captured"

    patch.setattr(session, "choose_stepper", choose)


def assert_equal_runs(one: Path, other: Path) -> None:
    """Weights and figures; float32 sums over the same micro-batches are the same to the last bit."""
    assert_same_weights(one / "model", other / "model")
    assert rows_of(one) == rows_of(other)


# Eight sequences of 32 tokens are to be halved twice: of four there are over 100 tokens, of two never.


@pytest.mark.parametrize("stepper", STEPPERS)
def test_a_pre_training_run_is_that_of_small_micro_batches(
    tiny_recipe: Path, tiny_store: Path, tmp_path: Path, stepper: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = [f"store={tiny_store}", *NO_DROPOUT]
    with pytest.MonkeyPatch.context() as patch:
        if stepper == "captured":
            capture_steps(patch)
        pretrain(str(tiny_recipe), [*words, "train.micro_batch_size=2", "held_out=0"], out=tmp_path / "small")
        failed = too_small(patch, MaskedLMModule, 100)
        with caplog.at_level(logging.WARNING, "unmask"):
            pretrain(str(tiny_recipe), [*words, "train.micro_batch_size=null", "held_out=0"], out=tmp_path / "run")
    assert len(failed) == {"eager": 2, "captured": 3}[stepper]  # the second halving follows at once: no new try
    assert caplog.text.count("does not fit into the memory") == 2
    assert "its micro-batches were of 4 sequences, and are of 2 from here on" in caplog.text
    assert_equal_runs(tmp_path / "run", tmp_path / "small")


def test_a_phase_that_is_too_long_is_cut_when_it_begins(
    tiny_recipe: Path, tiny_store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first has 128 tokens a step at most, the second up to 256."""
    recipe = str(tiny_recipe)
    words = [f"store={tiny_store}", *NO_DROPOUT, "train.micro_batch_size=null", "held_out=0"]
    phases = "phases=[{until: .5, max_length: 16}, {until: 1, max_length: 32%s}]"
    pretrain(recipe, [*words, phases % ", micro_batch_size: 4"], out=tmp_path / "small")
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO, "unmask"):
        failed = too_small(patch, MaskedLMModule, 130)
        caplog.clear()
        pretrain(recipe, [*words, phases % ""], out=tmp_path / "run")
    assert len(failed) == 1
    assert caplog.text.count("phase 2 of 2 begins") == 1
    assert "step 7 does not fit into the memory" in caplog.text
    assert_equal_runs(tmp_path / "run", tmp_path / "small")


def test_streams_are_cut_between_lanes(tiny_text: Path, tmp_path: Path) -> None:
    """What the lanes remember when a step breaks off is what they remembered before it."""
    recipe = write_elmo_recipe(tmp_path / "elmo.yaml", train={"steps": 5, "log_every": 1})
    words = [f"corpus={tiny_text}", "model.hidden_dropout_prob=0"]
    pretrain(recipe, [*words, "train.micro_batch_size=4"], out=tmp_path / "small")
    with pytest.MonkeyPatch.context() as patch:
        failed = too_small(patch, BiLMModule, 50, after_forward=True)
        pretrain(recipe, [*words, "train.micro_batch_size=null"], out=tmp_path / "run")
    assert failed == [80]
    assert_equal_runs(tmp_path / "run", tmp_path / "small")


@pytest.mark.parametrize("stepper", STEPPERS)
def test_a_fine_tuning_run_is_that_of_small_micro_batches(task_models: Any, tmp_path: Path, stepper: str) -> None:
    train = write(tmp_path / "train.jsonl", task_models.examples["classification"])
    words = task_models.words("classification", train, "train.epochs=2", "train.batch_size=8", "train.log_every=1")
    recipe = "finetune/classification"
    with pytest.MonkeyPatch.context() as patch:
        if stepper == "captured":
            capture_steps(patch)
        sizes = watch_sizes(patch)
        finetune(recipe, [*words, "train.micro_batch_size=4"], out=tmp_path / "small")
        # Between what four and what eight examples have, padded or not.
        four, sizes[:] = max(sizes), []
        failed = too_small(patch, SequenceModule, four)
        finetune(recipe, words, out=tmp_path / "run")
    assert len(failed) == TRIES[stepper]
    assert_equal_runs(tmp_path / "run", tmp_path / "small")


def watch_sizes(patch: pytest.MonkeyPatch) -> list[int]:
    """Notes the tokens of each training pass."""
    forward, sizes = SequenceModule.forward, list[int]()

    def watch(self: SequenceModule, batch: Batch) -> list[LossTerm]:
        sizes.append(batch.num_tokens)
        return forward(self, batch)

    patch.setattr(SequenceModule, "forward", watch)
    return sizes


# Settings


def test_auto_stays_in_the_recipe_and_resumes(tiny_recipe: Path, tiny_store: Path, tmp_path: Path) -> None:
    words = [f"store={tiny_store}", "train.micro_batch_size=auto"]
    pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    assert "micro_batch_size: auto" in (tmp_path / "run" / "recipe.yaml").read_text()
    pretrain(str(tiny_recipe), [*words, "train.steps=13"], out=tmp_path / "run", resume=True)
    pretrain(str(tiny_recipe), [f"store={tiny_store}", "train.micro_batch_size=null"], out=tmp_path / "whole")
    first, second = (
        load_file(tmp_path / run / "checkpoints" / "step-00000012" / "weights.safetensors") for run in ("run", "whole")
    )
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train.batch_size=1048577"], "train.batch_size=1048577: expected at most 1048576"),
        (["train.micro_batch_size=2000000"], "train.micro_batch_size=2000000: expected at most 1048576"),
        (["train.micro_batch_size=0"], "train.micro_batch_size=0: expected at least 1"),
        (["train.micro_batch_size=most"], "train.micro_batch_size=most: expected .*auto"),
    ],
)
def test_what_a_recipe_cannot_ask_for(tiny_recipe: Path, words: list[str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load_pretrain_recipe(str(tiny_recipe), ["store=s", *words])

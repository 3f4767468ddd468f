"""The measured probe, with a clock that we turn: what is measured, and how long it may take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from unmask.batch import Batch
from unmask.doctor.recipe import speed_probe
from unmask.doctor.recipe.material import Material
from unmask.doctor.recipe.speed_probe import MOST_STEPS, SpeedProbe, measure_speed
from unmask.doctor.recipe.synthetic_batches import random_batches
from unmask.pretraining.start import open_start
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import choose_compute
from unmask.training.recompute import blocks_of


def recipe(**train: Any) -> PretrainRecipe:
    model = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "vocab_size": 60}
    packing = {"max_length": 16, "short_sequence_prob": 0}
    steps = {"steps": 7, "batch_size": 64, **train}
    return PretrainRecipe.model_validate({"corpus": [""], "model": model, "packing": packing, "train": steps})


class Work:
    """A clock that goes on by what is done: `per_sequence` seconds for each sequence prepared for the model."""

    def __init__(self, per_sequence: float) -> None:
        self.now = 0.0
        self.per_sequence = per_sequence
        self.sizes: list[int] = []

    def do(self, batch: Batch) -> None:
        self.now += self.per_sequence * batch.num_sequences
        self.sizes.append(batch.num_sequences)


def probe(work: Work, limit_s: float, most_sequences: int = 64) -> SpeedProbe:
    torch.manual_seed(0)
    material = Material.of(open_start(recipe()), None)
    prepare = material.objective.prepare

    def work_and_prepare(batch: Batch) -> Batch:
        work.do(batch)
        return prepare(batch)

    material.objective.prepare = work_and_prepare  # type: ignore[method-assign]
    return measure_speed(material, choose_compute("cpu", "fp32"), limit_s, most_sequences, lambda: work.now)


@pytest.mark.parametrize(("limit_s", "per_sequence"), [(16.0, 0.008), (2.0, 0.001)])
def test_planning_the_first_batch_does_not_count(
    limit_s: float, per_sequence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as time of a step nor as time that the steps may take."""
    work = Work(per_sequence)

    def planned(*given: Any) -> Iterator[Batch]:
        work.now += 3.0
        yield from random_batches(*given)

    monkeypatch.setattr("unmask.doctor.recipe.material.random_batches", planned)
    found = probe(work, limit_s=limit_s)
    assert len(found.steps_s) > 20
    assert found.sequences == 64
    assert found.steps_s == pytest.approx([64 * per_sequence] * len(found.steps_s))


def test_steps_on_the_cpu_keep_freed_memory_as_those_of_a_run_do(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[None] = []
    monkeypatch.setattr(speed_probe, "keep_freed_memory", lambda: kept.append(None))
    probe(Work(per_sequence=1.0), limit_s=1.0)
    assert kept


def test_a_quick_step_is_measured_whole() -> None:
    work = Work(per_sequence=0.004)
    found = probe(work, limit_s=5.0)
    assert found.sequences == 64
    assert found.tokens == 64 * 16
    assert found.steps_s == pytest.approx([0.256] * len(found.steps_s))
    assert 4 <= len(found.steps_s) <= MOST_STEPS
    assert found.spread == pytest.approx(0)
    assert work.now < 5.0 + 2 * 0.256


def test_a_slow_step_is_measured_in_part() -> None:
    work = Work(per_sequence=1.0)
    found = probe(work, limit_s=60.0)
    assert 2 < found.sequences < 64
    assert len(found.steps_s) >= 3
    assert work.now <= 60.0 + found.sequences
    assert found.seconds_for(64 * 16) == pytest.approx(64.0)


def test_a_step_that_is_too_slow_for_the_limit_is_still_measured_once() -> None:
    work = Work(per_sequence=100.0)
    found = probe(work, limit_s=1.0)
    assert (found.sequences, len(found.steps_s)) == (2, 1)
    assert work.sizes == [2, 2]  # one to warm up


def test_warm_up_does_not_count() -> None:
    work = Work(per_sequence=0.1)
    found = probe(work, limit_s=3.0, most_sequences=2)
    assert len(work.sizes) == len(found.steps_s) + 2


def test_the_spread_leaves_a_tenth_out_at_either_end() -> None:
    steps = tuple([1.0] * 2 + [2.0] * 16 + [9.0] * 2)
    assert SpeedProbe(1, 10, steps, 0.5).spread == 0
    assert SpeedProbe(1, 10, (1.0, 2.0, 4.0), 0.5).spread == pytest.approx(1.5)


def test_the_optimizer_is_counted_once_whatever_the_batch() -> None:
    assert SpeedProbe(4, 100, (3.0,), 1.0).seconds_for(400) == pytest.approx(1 + 4 * 2)


def test_steps_are_those_that_the_last_stage_begins_with() -> None:
    objective = {"name": "replaced_token", "discriminator_after": 0.5, "causal_share": 0.9}
    values = {**recipe().as_written(), "objective": objective, "packing": {"format": "single_segment"}}
    values["model"] = {**values["model"], "architecture": "electra"}
    material = Material.of(open_start(PretrainRecipe.model_validate(values)), None)
    prepare, terms = material.objective.prepare, set()

    def prepare_and_count(batch: Batch) -> Batch:
        prepared = prepare(batch)
        terms.update(material.objective.counts(prepared))
        return prepared

    material.objective.prepare = prepare_and_count  # type: ignore[method-assign]
    measure_speed(material, choose_compute("cpu", "fp32"), 0.0, 2)
    assert terms == {"generator", "discriminator"}
    assert material.objective.counts(material.usual_batch).keys() == terms


@pytest.mark.parametrize("recompute", [False, True])
def test_blocks_are_computed_again_where_the_run_does_so(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[nn.Module] = []
    monkeypatch.setattr(speed_probe, "measure_module", lambda module, *_: probed.append(module))
    measure_speed(Material.of(open_start(recipe(recompute=recompute)), None), choose_compute("cpu", "fp32"), 1.0, 4)
    assert [isinstance(block.forward, partial) for block in blocks_of(probed[0])] == [recompute] * 2

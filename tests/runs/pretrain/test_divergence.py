"""A loss that is not finite, or a spike, in a real run: what is told, what is kept, how the run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.elmo import write_elmo_recipe
from support.runs import pretrain_without_report, weight_bytes
from unmask.batch import Batch, LossTerm
from unmask.errors import UserError
from unmask.objectives.bilm import BiLMModule
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.pretraining.run import pretrain
from unmask.training.run.checkpoint import WEIGHTS
from unmask.training.run.log import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

STEPS, SAVE_EVERY, BAD_STEP = 27, 10, 24
MICRO_BATCHES = 2


@pytest.fixture(scope="module")
def words(tiny_recipe: Path, tiny_store: Path) -> tuple[str, list[str]]:
    """More steps than it takes to tell a spike."""
    train = f"train={{steps: {STEPS}, save_every: {SAVE_EVERY}, log_every: 1, eval_every: null, spike_factor: 3}}"
    return str(tiny_recipe), [f"store={tiny_store}", train]


@contextmanager
def with_losses(change: Callable[[Batch], float]) -> Iterator[None]:
    """In training, the loss of a micro-batch is multiplied by what `change` says."""
    forward = MaskedLMModule.forward

    def changed(module: MaskedLMModule, batch: Batch) -> list[LossTerm]:
        factor = change(batch) if module.training else 1.0
        return [LossTerm(term.name, term.total * factor, term.coefficient) for term in forward(module, batch)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedLMModule, "forward", changed)
        yield


def key_of(batch: Batch) -> int:
    assert batch.keys is not None
    return int(batch.keys[0])


@pytest.fixture(scope="module")
def keys(words: tuple[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Of each micro-batch of a sound run, the key of its first sequence."""
    keys: list[int] = []

    def note(batch: Batch) -> float:
        keys.append(key_of(batch))
        return 1.0

    with with_losses(note):
        pretrain_without_report(*words, tmp_path_factory.mktemp("sound") / "run")
    assert len(keys) == STEPS * MICRO_BATCHES
    return keys


@pytest.fixture(params=[math.nan, 100.0], ids=["not finite", "a spike"])
def factor(request: pytest.FixtureRequest) -> float:
    value: float = request.param
    return value


def spoiled(words: tuple[str, list[str]], run: Path, factor: float, bad: set[int], *more: str, **how: Any) -> None:
    """A run in which the batches with these keys have another loss."""
    recipe, overrides = words
    with with_losses(lambda batch: factor if key_of(batch) in bad else 1.0):
        pretrain(recipe, [*overrides, *more], out=run, **how)


def told_by(factor: float) -> str:
    if math.isnan(factor):
        return f"the loss or its gradient is not finite at step {BAD_STEP}: the run has diverged"
    return f"the loss at step {BAD_STEP} is "


ROLL_BACK = "train.on_divergence=roll_back"


def test_a_run_that_stops_says_why_keeps_the_batch_and_can_go_on(
    words: tuple[str, list[str]], keys: list[int], factor: float, tmp_path: Path
) -> None:
    run, bad = tmp_path / "run", {keys[(BAD_STEP - 1) * MICRO_BATCHES + 1]}
    with pytest.raises(UserError) as stopped:
        spoiled(words, run, factor, bad)
    message, kept = str(stopped.value), run / "divergence" / f"step-{BAD_STEP:08d}"
    assert message.startswith(told_by(factor))
    assert f"its batches and figures are in {kept}" in message
    assert "--resume and train.on_divergence=roll_back" in message

    batches = load_file(kept / "batches.safetensors")
    first = (BAD_STEP - 1) * MICRO_BATCHES
    found = [int(batches[f"{number}.keys"][0]) for number in range(MICRO_BATCHES)]
    assert found == keys[first : first + MICRO_BATCHES]
    assert {"0.input_ids", "0.columns.labels", "0.columns.target_positions"} <= batches.keys()
    figures = json.loads((kept / "figures.json").read_text())
    assert (figures["step"], figures["micro_batches"]) == (BAD_STEP, MICRO_BATCHES)
    assert (figures["loss"] is None) == math.isnan(factor)
    assert len(figures["recent_losses"]) == BAD_STEP - 1

    saved = [path.name for path in sorted((run / "checkpoints").iterdir())]
    assert saved == ["step-00000010", "step-00000020"]
    assert not (run / "model").exists()
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == BAD_STEP

    with pytest.raises(UserError):  # the same batch comes again
        spoiled(words, run, factor, bad, resume=True)
    spoiled(words, run, factor, bad, ROLL_BACK, resume=True)
    spoiled(words, tmp_path / "other", factor, bad, ROLL_BACK)
    assert weight_bytes(run / "model") == weight_bytes(tmp_path / "other" / "model")


def test_a_run_that_rolls_back_leaves_the_batch_out(
    words: tuple[str, list[str]], keys: list[int], factor: float, tmp_path: Path
) -> None:
    run, seen = tmp_path / "run", []
    first = (BAD_STEP - 1) * MICRO_BATCHES

    def change(batch: Batch) -> float:
        seen.append(key_of(batch))
        return factor if seen[-1] == keys[first] else 1.0

    recipe, overrides = words
    with with_losses(change):
        pretrain(recipe, [*overrides, ROLL_BACK], out=run)
    # up to the bad step as ever; then from the weights of step 20, with the text after it
    upto = BAD_STEP * MICRO_BATCHES
    assert seen[:upto] == keys[:upto]
    assert seen[upto : upto + 3 * MICRO_BATCHES] == keys[upto:]
    assert len(seen) == upto + (STEPS - 20) * MICRO_BATCHES
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row] == list(range(1, STEPS + 1))
    log = (run / "log.txt").read_text()
    assert told_by(factor) in log
    assert "back to the weights of step 20, with the text after the step (1 of at most 3 times)" in log
    assert "the run has rolled back once; what it left out is in divergence/" in log
    assert (run / "divergence" / f"step-{BAD_STEP:08d}" / "batches.safetensors").exists()
    assert (run / "model" / "model.safetensors").exists()


def test_before_the_first_checkpoint_there_is_nothing_to_go_back_to(
    words: tuple[str, list[str]], keys: list[int], tmp_path: Path
) -> None:
    bad = {keys[4 * MICRO_BATCHES]}
    with pytest.raises(UserError, match=r"There is no checkpoint to roll back to yet.*a train\.save_every under 5$"):
        spoiled(words, tmp_path / "rolled", math.nan, bad, ROLL_BACK)
    with pytest.raises(UserError, match=r"under 5 and train\.on_divergence=roll_back$") as stopped:
        spoiled(words, tmp_path / "stopped", math.nan, bad)
    assert "--resume" not in str(stopped.value)
    assert "are kept" not in str(stopped.value)
    with pytest.raises(UserError, match=r"no checkpoint.*a longer warm-up \(schedule\.\*\)$"):
        spoiled(words, tmp_path / "at once", math.nan, {keys[0]})
    recipe, overrides = words
    sooner = [each.replace(f"save_every: {SAVE_EVERY}", "save_every: 4") for each in overrides]
    spoiled((recipe, sooner), tmp_path / "again", math.nan, bad, ROLL_BACK)  # as it was advised
    assert (tmp_path / "again" / "model").is_dir()


def test_rolled_back_over_the_beginning_of_a_phase_the_steps_are_of_the_phase_before(
    words: tuple[str, list[str]], tmp_path: Path
) -> None:
    """Phases change after step 8; step 10 is not taken: back to step 5, and three more of the shorter sequences."""
    recipe, (store, _) = words
    phases = "phases=[{until: .5, max_length: 16}, {until: 1, max_length: 32}]"
    train = "train={steps: 16, save_every: 5, eval_every: null}"
    words = recipe, [store, train, phases, "packing.short_sequence_prob=0"]
    shown: list[tuple[int, int]] = []

    def change(batch: Batch) -> float:
        shown.append((key_of(batch), batch.max_length))
        return math.nan if len(shown) == 9 * MICRO_BATCHES + 1 else 1.0

    with with_losses(change):
        pretrain(recipe, [*words[1], ROLL_BACK], out=tmp_path / "run")
    steps = [shown[first : first + MICRO_BATCHES] for first in range(0, len(shown), MICRO_BATCHES)]
    lengths = [max(length for _, length in step) for step in steps]
    assert lengths == [16] * 8 + [32] * 2 + [16] * 3 + [32] * 8
    keys = [key for key, _ in shown]
    assert len(set(keys)) == len(keys)  # the text went on

    bad = {keys[9 * MICRO_BATCHES]}
    with pytest.raises(UserError, match="is not finite at step 10"):
        spoiled(words, tmp_path / "stopped", math.nan, bad)
    spoiled(words, tmp_path / "stopped", math.nan, bad, ROLL_BACK, resume=True)
    assert weight_bytes(tmp_path / "run" / "model") == weight_bytes(tmp_path / "stopped" / "model")


@pytest.mark.parametrize("what", ["weights that are not finite", "weights too large"])
def test_a_diverged_generator_ends_as_every_other_model(
    tiny_recipe: Path, tiny_store: Path, tmp_path: Path, what: str
) -> None:
    """Its samples are looked up by the discriminator before the loss tells."""
    words = [
        *(f"store={tiny_store}", "objective.name=replaced_token", "model.architecture=electra"),
        *("packing.format=single_segment", "schedule.warmup_ratio=0", "train.steps=6", "train.save_every=1"),
        f"optimizer.learning_rate={'1e38' if 'not finite' in what else '1e20'}",
    ]
    with pytest.raises(UserError, match=r"is not finite at step \d: the run has diverged.*rolled back 3 times"):
        pretrain(str(tiny_recipe), [*words, ROLL_BACK], out=tmp_path / "run")
    assert len(list((tmp_path / "run" / "divergence").iterdir())) == 4


def test_rolled_back_its_lanes_remember_the_older_text_and_read_on_with_the_newer(
    tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 6 is not taken: back to step 4, whose memory then meets the window after that step."""
    forward, memories, windows = BiLMModule.forward, [], []

    def note_and_spoil(module: BiLMModule, batch: Batch) -> list[LossTerm]:
        if module.training and int(batch.columns["lane"][0]) == 0:  # a step's first micro-batch
            memories.append((module.remembered_outputs.clone(), module.remembered_cells.clone()))
            windows.append(int(batch.columns["window"][0]))
        [term] = forward(module, batch)
        is_bad = module.training and len(windows) == 6
        return [LossTerm(term.name, term.total * math.nan if is_bad else term.total)]

    recipe, run = write_elmo_recipe(tmp_path / "elmo.yaml"), tmp_path / "run"
    monkeypatch.setattr(BiLMModule, "forward", note_and_spoil)
    pretrain(recipe, [f"corpus={tiny_text}", ROLL_BACK], out=run)
    assert windows[:7] == list(range(7))
    assert len(windows) == 6 + (12 - 4)
    for after_step_4, after_rolling_back, after_step_5 in zip(memories[4], memories[6], memories[5], strict=True):
        assert torch.equal(after_rolling_back, after_step_4)
        assert not torch.equal(after_rolling_back, after_step_5)
    assert "back to the weights of step 4, with the text after the step" in (run / "log.txt").read_text()
    assert (run / "model" / "model.safetensors").exists()
    last = load_file(run / "checkpoints" / "step-00000012" / WEIGHTS)
    assert last["remembered_cells"].isfinite().all()

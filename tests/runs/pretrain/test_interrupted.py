"""Pre-training stopped at any moment and resumed is the run that never stopped, bit for bit; a command says how."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest
import torch

from support.commands import Command, Finished
from support.corpora import contents
from support.forked import Forked
from support.ranks import free_port, wait_until
from support.runs import assert_same_run, rows_of, stop_at
from unmask.card import write_card
from unmask.errors import Interrupted, SettingsError
from unmask.info import describe
from unmask.io.signals import Interruption
from unmask.models.hub import files
from unmask.pretraining import run as pretraining_run
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.pretraining.steps import build_loader
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store.store import TokenStore
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.training.run import checkpoint, saving
from unmask.training.run.log import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread")


def log_of(run: Path) -> str:
    return (run / "log.txt").read_text()


def interrupted(words: tuple[str, list[str]], run: Path, stop: Callable[[pytest.MonkeyPatch], None]) -> Interrupted:
    """Begins a run, or goes on with it, and is stopped."""
    with pytest.MonkeyPatch.context() as patch:
        stop(patch)
        with pytest.raises(Interrupted) as told:
            pretrain(*words, out=run, resume=True)
    return told.value


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("steps", [(5,), (8,), (2, 7, 11), (12,)], ids=str)
def test_a_run_stopped_and_resumed_is_the_run_that_never_stopped(
    words: tuple[str, list[str]], whole: Path, tmp_path: Path, steps: tuple[int, ...]
) -> None:
    """Between checkpoints, at one, three times over, and at the very last step."""
    run = tmp_path / "run"
    for step in steps:
        told = interrupted(words, run, lambda patch, step=step: stop_at(patch, step))  # type: ignore[misc]
        assert (told.exit_code, f"stopped at step {step}," in str(told)) == (143, True)
        assert "everything is saved" in str(told)
        assert str(told) in log_of(run)
    pretrain(*words, out=run, resume=True)
    assert_same_run(run, whole)


CHANGES = {
    "bf16": ["precision=bf16"],
    "a budget in tokens": ["train.tokens=2500"],
    "a budget in epochs, cosine": ["train.epochs=0.9", "schedule.name=cosine"],
    "uncorrected moments, static whole-word masks": [
        *("optimizer.bias_correction=false", "objective.masking=whole_word", "objective.masking_mode=static")
    ],
}


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("changes", CHANGES)
def test_so_it_is_in_other_ways_to_train(words: tuple[str, list[str]], tmp_path: Path, changes: str) -> None:
    recipe, overrides = words
    words = recipe, [*overrides, *CHANGES[changes]]
    pretrain(*words, out=tmp_path / "whole")
    interrupted(words, tmp_path / "run", lambda patch: stop_at(patch, 2))  # within the warm-up
    interrupted(words, tmp_path / "run", lambda patch: stop_at(patch, 7))
    pretrain(*words, out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.usefixtures("without_report")
def test_so_it_is_at_the_end_of_an_epoch(words: tuple[str, list[str]], tiny_store: Path, tmp_path: Path) -> None:
    """The step after which nothing is left of the first epoch; training goes on in the second."""
    recipe, overrides = words
    overrides = [*overrides, "held_out=0.5", "train.micro_batch_size=null"]
    settings, store = load_pretrain_recipe(recipe, overrides), TokenStore(tiny_store)
    loader = build_loader(
        open_start(settings),
        store,
        load_tokenizer(store.tokenizer_directory),
        held_out=False,
        phase=settings.all_phases[0],
    )
    num_pairs = len(loader.planner.plan_block(0, 0))
    batch_size = max(size for size in range(1, num_pairs // 2) if num_pairs % size == 0)
    last = num_pairs // batch_size
    words = recipe, [*overrides, f"train.batch_size={batch_size}", f"train.steps={last + 3}"]
    pretrain(*words, out=tmp_path / "whole")
    interrupted(words, tmp_path / "run", lambda patch: stop_at(patch, last))
    state = json.loads((tmp_path / "run" / "checkpoints" / f"step-{last:08d}" / "state.json").read_text())
    assert (state["epochs"], state["position"]["sequence"]) == (1.0, num_pairs)
    pretrain(*words, out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def ctrl_c_while_evaluating(patch: pytest.MonkeyPatch) -> None:
    evaluator = pretraining_run.evaluator

    def stopped(*arguments: Any) -> Callable[[], dict[str, float]]:
        evaluate = evaluator(*arguments)

        def evaluate_and_stop() -> dict[str, float]:
            signal.raise_signal(signal.SIGINT)
            return evaluate()

        return evaluate_and_stop

    patch.setattr(pretraining_run, "evaluator", stopped)


def ctrl_c_while_saving(patch: pytest.MonkeyPatch) -> None:
    save_file = files.save_file

    def save_and_stop(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        patch.setattr(files, "save_file", save_file)
        save_file(*arguments)

    patch.setattr(files, "save_file", save_and_stop)


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(("stop", "step"), [(ctrl_c_while_evaluating, 5), (ctrl_c_while_saving, 5)])
def test_ctrl_c_while_it_evaluates_or_saves(
    words: tuple[str, list[str]], whole: Path, tmp_path: Path, stop: Callable[[pytest.MonkeyPatch], None], step: int
) -> None:
    told = interrupted(words, tmp_path / "run", stop)
    assert (told.exit_code, f"stopped at step {step}," in str(told)) == (130, True)
    pretrain(*words, out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.usefixtures("without_report")
def test_a_second_ctrl_c_stops_at_once_and_nothing_is_half_written(
    words: tuple[str, list[str]], whole: Path, tmp_path: Path
) -> None:
    """While the first file of the checkpoint of step 8 is written, after that of step 4."""
    run, save_file, note = tmp_path / "run", files.save_file, Interruption._note
    noted, given_up, written = Event(), Event(), []

    def note_and_tell(interruption: Interruption, *signal_and_frame: Any) -> None:
        noted.set()
        note(interruption, *signal_and_frame)

    def save_and_stop(tensors: Any, path: Path) -> None:
        if "step-00000008" in str(path):
            written.append(path.name)
            signal.raise_signal(signal.SIGINT)
            assert noted.wait(60)
            signal.raise_signal(signal.SIGINT)
            assert given_up.wait(60)
        save_file(tensors, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "save_file", save_and_stop)
        patch.setattr(Interruption, "_note", note_and_tell)
        patch.setattr(saving, "Event", lambda: given_up)
        with pytest.raises(KeyboardInterrupt):
            pretrain(*words, out=run)
    assert written == [checkpoint.WEIGHTS]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]
    pretrain(*words, out=run, resume=True)
    assert_same_run(run, whole)


@pytest.mark.usefixtures("without_report")
def test_a_second_ctrl_c_is_told(words: tuple[str, list[str]], tmp_path: Path, unmask: Command) -> None:
    def press_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 7, press_twice)
        stopped = unmask("pretrain", words[0], *words[1], "--out", tmp_path / "run", "--workers=1")
    assert stopped.code == 130
    assert stopped.errors.splitlines()[-1] == (
        "stopped at once by a second Ctrl-C: what was being written is given up, what was finished is kept; a run or a "
        "store continues with --resume"
    )


@pytest.mark.usefixtures("without_report")
def test_a_finished_run_resumed_changes_nothing(words: tuple[str, list[str]], whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretrain(*words, out=run, resume=True)  # where there is nothing, a run begins
    assert f"nothing to resume in {run}: starts from the beginning" in log_of(run)
    assert "nothing is left to train" not in log_of(run)
    pretrain(*words, out=run, resume=True)
    assert "all of train.steps=12; a larger train.steps continues from there" in log_of(run)
    assert log_of(run).count("nothing to resume") == 1
    assert_same_run(run, whole)
    assert "nothing to resume" not in log_of(whole)


@pytest.mark.usefixtures("without_report")
def test_a_damaged_checkpoint_is_passed_over_told_and_the_run_ends_the_same(
    words: tuple[str, list[str]], whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    interrupted(words, run, lambda patch: stop_at(patch, 7))
    weights = run / "checkpoints" / "step-00000007" / checkpoint.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    pretrain(*words, out=run, resume=True)
    for told in ("a checkpoint is passed over", f"{weights}: ", "resumed from step 4"):
        assert told in log_of(run)
    assert_same_run(run, whole)


@pytest.mark.usefixtures("without_report")
def test_a_longer_budget_at_a_resume_goes_on_and_is_recorded(words: tuple[str, list[str]], tmp_path: Path) -> None:
    run, (recipe, overrides) = tmp_path / "run", words
    pretrain(*words, out=run)
    card = write_card(run)
    pretrain(recipe, [*overrides, "train.steps=15", "train.log_every=1"], out=run, resume=True)
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "loss" in row]
    assert [row["step"] for row in rows] == [3, 6, 9, 12, 13, 14, 15]
    rates = [row["learning_rate"] for row in rows[-3:]]
    # the rates of a run that had 15 steps from the start: what is left after 12, 13 and 14, of the 12 after warm-up
    assert rates == pytest.approx([1e-3 * 3 / 12, 1e-3 * 2 / 12, 1e-3 * 1 / 12])
    assert "resumed with train.steps=15, where it was 12" in log_of(run)
    assert "WARNING the budget changes at step 12, from train.steps=12 to train.steps=15: " in log_of(run)
    assert describe(run)["budget_changed"] == ["at step 12, from train.steps=12 to train.steps=15"]
    assert load_pretrain_recipe(str(run / "recipe.yaml")).train.steps == 15
    assert len(json.loads((run / "environment.json").read_text())["sessions"]) == 2
    assert not card.exists()
    assert f"{card} goes with the model that is replaced: run `unmask card` again" in log_of(run)


@pytest.mark.usefixtures("without_report")
def test_a_shorter_budget_at_a_resume_is_refused_and_one_that_is_spent_ends_the_run(
    words: tuple[str, list[str]], tmp_path: Path
) -> None:
    run, (recipe, overrides) = tmp_path / "run", words
    interrupted(words, run, lambda patch: stop_at(patch, 7))
    assert [row["step"] for row in rows_of(run)] == [3, 5, 6, 7]
    before = contents(run)
    with pytest.raises(SettingsError, match=r"has done 7 steps already, more than train.steps=6: .*train.steps=7 to"):
        pretrain(recipe, [*overrides, "train.steps=6"], out=run, resume=True)
    assert contents(run) == before
    for _ in range(2):
        pretrain(recipe, [*overrides, "train.steps=7"], out=run, resume=True)
        rows = rows_of(run)
        assert [(row["step"], "loss" in row) for row in rows[2:]] == [(6, True), (7, True), (7, False)]
        assert "nothing is left to train: the run has taken its 7 steps, all of train.steps=7;" in log_of(run)
    assert (run / "model" / "model.safetensors").exists()


# In processes of their own, as a user and a scheduler have them


def signalled_at(step: int, number: int) -> None:
    stop_at(pytest.MonkeyPatch(), step, partial(signal.raise_signal, number))


def command(before: Callable[[], object] | None, words: tuple[str, list[str]], run: Path, *more: str) -> Finished:
    recipe, overrides = words
    started = Forked(["pretrain", recipe, *overrides, "--out", str(run), "--workers", "1", *more], before=before)
    output, errors = started.communicate()
    assert started.returncode is not None
    return Finished(started.returncode, output, errors)


def test_stopped_after_its_last_step_a_run_lacks_its_model_only(words: tuple[str, list[str]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped = command(partial(signalled_at, 12, signal.SIGINT), words, run)
    assert stopped.errors.splitlines()[-1].endswith("the same command with --resume writes the model")
    assert command(None, words, run, "--resume").code == 0
    assert (run / "model" / "config.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_command_stopped_by_a_signal_says_how_to_go_on(
    words: tuple[str, list[str]], whole: Path, tmp_path: Path, number: int, code: int
) -> None:
    run = tmp_path / "run"
    stopped = command(partial(signalled_at, 7, number), words, run)
    assert stopped.code == code
    assert stopped.output == ""
    assert stopped.errors.splitlines()[-1] == (
        f"stopped at step 7, 58% of the run; everything is saved in {run}: "
        "the same command with --resume continues from here"
    )
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step-00000004", "step-00000007"}
    if number == signal.SIGTERM:  # once is enough: the resume itself is the same
        resumed = command(None, words, run, "--resume")
        assert (resumed.code, resumed.output) == (0, f"{run / 'model'}\n{run / 'report.html'}\n")
        assert_same_run(run, whole)


@pytest.mark.usefixtures("without_report")
def test_a_killed_run_goes_on_from_its_last_checkpoint(
    words: tuple[str, list[str]], whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    killed = command(partial(signalled_at, 7, signal.SIGKILL), words, run)
    assert killed.code == -signal.SIGKILL
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]
    assert [row["step"] for row in rows_of(run)] == [3, 5, 6]  # those after the checkpoint come again
    pretrain(*words, out=run, resume=True)
    assert_same_run(run, whole)


def tell_of_meeting(place: Path) -> None:
    meet = torch.distributed.rendezvous

    def tell(*given: Any, **more: Any) -> Any:
        place.touch()
        return meet(*given, **more)

    torch.distributed.rendezvous = tell


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_waits_for_the_others_can_be_stopped(rank: str, number: signal.Signals, tmp_path: Path) -> None:
    place = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = ["pretrain", "pretrain/bert_tiny", "--out", str(tmp_path / "run")]
    process = Forked(words, place, partial(tell_of_meeting, tmp_path / "meets"))
    try:
        wait_until((tmp_path / "meets").exists)
        sleep(0.5)
        process.send_signal(number)
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == -number
    assert not (tmp_path / "run").exists()

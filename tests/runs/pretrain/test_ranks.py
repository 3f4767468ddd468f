"""Several processes train one model: the same examples and weights on any number of them, through any change between
them, and an end everywhere when one of them fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.ranks import Ended, children_of, run_ranks, start_ranks, torchrun, wait_for, wait_until
from unmask.training.run.log import read_metrics

STEPS = 20
CUT = ["train.micro_batch_size=2", "train.log_every=1", "train.save_every=5", f"train.steps={STEPS}"]
"""Steps of eight sequences in four micro-batches, whatever the number of processes (of three: six, of one or two)."""


@pytest.fixture(scope="module")
def pretrain_words(words: tuple[str, list[str]]) -> list[str]:
    recipe, more = words
    return ["pretrain", recipe, *more, *CUT]


@pytest.fixture(scope="module")
def alone(words: tuple[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from unmask.pretraining.run import pretrain

    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("alone") / "run"
    pretrain(words[0], [*words[1], *CUT], out=run)
    return run


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def examples(run: Path) -> list[int]:
    return [row["examples"] for row in read_metrics(run / "metrics.jsonl") if "examples" in row]


def has_saved(run: Path) -> bool:
    return any(run.glob("checkpoints/step-*"))


def all_well(ended: list[Ended]) -> None:
    assert [each.exit_code for each in ended] == [0] * len(ended), ended[0].errors


@pytest.mark.parametrize("number", [2, 4])
def test_a_power_of_two_processes_ends_with_the_bits_of_one(
    number: int, pretrain_words: list[str], alone: Path, tmp_path: Path
) -> None:
    """With dropout, a second objective and ragged sequences."""
    run = tmp_path / "run"
    all_well(run_ranks(*[[*pretrain_words, "--out", str(run)]] * number))
    assert weights(run) == weights(alone)
    assert examples(run) == examples(alone)
    assert len(set(examples(run))) == STEPS
    assert sorted(path.name for path in run.iterdir()) == sorted(path.name for path in alone.iterdir())


def test_three_processes_train_to_rounding_on_the_same_examples(
    words: tuple[str, list[str]], pretrain_words: list[str], alone: Path, tmp_path: Path
) -> None:
    """Without dropout, which draws by micro-batch, and three processes have others."""
    from unmask.pretraining.run import pretrain

    off = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
    pretrain(words[0], [*words[1], *CUT, *off], out=tmp_path / "one")
    all_well(run_ranks(*[[*pretrain_words, *off, "--out", str(tmp_path / "three")]] * 3))
    one, three = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "three"))
    for name, weight in one.items():
        # Adam's first steps divide by the gradient's size: a rounding error of nearly none moves a weight by a rate.
        torch.testing.assert_close(three[name], weight, rtol=1e-3, atol=2e-4)
    assert examples(tmp_path / "three") == examples(alone)
    assert weights(tmp_path / "three") != weights(tmp_path / "one")


def test_a_run_that_stops_on_four_processes_continues_on_one(
    pretrain_words: list[str], alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    processes = start_ranks([[*pretrain_words, "--out", str(run)]] * 4)
    wait_until(lambda: has_saved(run))
    processes[2].send_signal(signal.SIGTERM)  # one is told to stop: all do, after the same step
    ended = wait_for(processes)
    assert [each.exit_code for each in ended] in ([143] * 4, [0] * 4)
    all_well(run_ranks([*pretrain_words, "--out", str(run), "--resume"]))
    assert weights(run) == weights(alone)
    assert examples(run) == examples(alone)


def test_muon_shares_its_matrices_and_ends_with_the_same_bits(
    words: tuple[str, list[str]], pretrain_words: list[str], tmp_path: Path
) -> None:
    from unmask.pretraining.run import pretrain

    muon = ["optimizer.name=muon", "model.num_hidden_layers=3", "train.steps=3"]
    pretrain(words[0], [*words[1], *CUT, *muon], out=tmp_path / "one")
    all_well(run_ranks(*[[*pretrain_words, *muon, "--out", str(tmp_path / "two")]] * 2))
    assert weights(tmp_path / "two") == weights(tmp_path / "one")


# ------------------------------------------------------------------------------------------------------ what goes wrong


def refused(ended: list[Ended]) -> str:
    """The message of the first process, where all end with the user's fault and the others say nothing."""
    assert [each.exit_code for each in ended] == [2] * len(ended), ended[0].errors
    assert all(not each.errors for each in ended[1:])
    assert "Traceback" not in ended[0].errors
    return ended[0].errors


def test_more_processes_than_sequences_are_refused(pretrain_words: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = refused(run_ranks(*[[*pretrain_words, "train.batch_size=1", "--out", str(run)]] * 2))
    assert "2 processes share steps of 1 sequences (train.batch_size" in said
    assert not run.exists()


def test_another_recipe_is_refused_by_key(pretrain_words: list[str], tmp_path: Path) -> None:
    own = [*pretrain_words, "--out", str(tmp_path / "run")]
    said = refused(run_ranks(own, [*own, "seed=4"]))
    assert "rank 1 of 2: this process has seed=4, and the first one seed=3" in said


def test_another_store_is_refused_by_file(
    pretrain_words: list[str], words: tuple[str, list[str]], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(words[1][0].removeprefix("store="), copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    name = next(name for name in manifest["files"] if name.startswith("tokens"))
    manifest["files"][name]["sha256"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    own = [*pretrain_words, "--out", str(tmp_path / "run")]
    said = refused(run_ranks(own, [*own, f"store={copy}"]))
    assert f"{name} is not the file that the first process has" in said
    said = refused(run_ranks(own, [*own, f"store={tmp_path / 'none'}"]))
    assert "rank 1 of 2: " in said
    assert "none" in said


def test_a_process_that_hangs_ends_the_run_within_its_timeout(pretrain_words: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    many = [*pretrain_words, "train.steps=100000", "train.rank_timeout_s=3", "--out", str(run)]
    processes = start_ranks([many] * 2)
    wait_until(lambda: has_saved(run))
    processes[1].send_signal(signal.SIGSTOP)
    first = wait_for(processes[:1])[0]
    processes[1].kill()
    processes[1].communicate()
    assert first.exit_code == 2
    assert "another process has ended, or has not answered for 3 s" in first.errors
    assert "--max-restarts" in first.errors


def test_torchrun_starts_a_run_again_whose_process_was_killed(
    pretrain_words: list[str], alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    launcher = torchrun(4, [*pretrain_words, "--out", str(run), "--resume"], "--max-restarts=2")
    wait_until(lambda: has_saved(run))
    victims = children_of(launcher)
    assert len(victims) == 4
    os.kill(victims[3], signal.SIGKILL)
    ended = wait_for([launcher])[0]
    assert ended.exit_code == 0, ended.errors
    assert weights(run) == weights(alone)
    assert examples(run) == examples(alone)

"""Several processes train ELMo's language models: each reads its lanes, and checkpoints have what all remember."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.corpora import learn_and_prepare
from support.elmo import write_elmo_recipe
from support.ranks import run_ranks, start_ranks, wait_for
from support.runs import examples, pretrain_without_report, rows_of, stop_at
from unmask.training.run import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 16
LAST = Path("checkpoints", f"step-{STEPS:08d}", checkpoint.WEIGHTS)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path) -> tuple[str, list[str]]:
    """Eight lanes in four micro-batches, on 1, 2 and 4 processes; with dropout and lanes that forget."""
    place = tmp_path_factory.mktemp("elmo")
    store = learn_and_prepare(tiny_text, place, kind="word", vocab_size=300)
    train = {"steps": STEPS, "micro_batch_size": 2, "log_every": 1, "eval_every": 4, "eval_sequences": 16}
    objective = {"name": "bilm", "num_negatives": 50, "empty_memory_prob": 0.1}
    recipe = write_elmo_recipe(place / "elmo.yaml", held_out=0.3, train=train, objective=objective)
    return recipe, [f"store={store}"]


@pytest.fixture(scope="module")
def alone(words: tuple[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return pretrain_without_report(*words, tmp_path_factory.mktemp("alone") / "run")


def command(words: tuple[str, list[str]], run: Path, *more: str) -> list[str]:
    return ["pretrain", words[0], *words[1], *more, "--out", str(run)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
def test_a_power_of_two_processes_ends_with_the_bits_of_one(
    number: int, words: tuple[str, list[str]], alone: Path, tmp_path: Path
) -> None:
    """Weights and what every lane remembers."""
    run = tmp_path / "run"
    ended = run_ranks(*[command(words, run)] * number)
    assert [each.exit_code for each in ended] == [0] * number, ended[0].errors
    assert (run / LAST).read_bytes() == (alone / LAST).read_bytes()
    assert rows_of(run) == rows_of(alone)
    assert len(set(examples(run))) == STEPS


@pytest.mark.slow
def test_three_processes_train_to_rounding_on_the_same_examples(
    words: tuple[str, list[str]], alone: Path, tmp_path: Path
) -> None:
    """Without dropout, which draws by micro-batch, and three processes have others."""
    off = "model.hidden_dropout_prob=0"
    one = pretrain_without_report(words[0], [*words[1], off], tmp_path / "one")
    ended = run_ranks(*[command(words, tmp_path / "three", off)] * 3)
    assert [each.exit_code for each in ended] == [0] * 3, ended[0].errors
    whole = load_file(one / LAST)
    for name, weight in load_file(tmp_path / "three" / LAST).items():
        # Adagrad divides by the root of small sums of squares, by which rounding errors grow.
        torch.testing.assert_close(weight, whole[name], atol=1e-3, rtol=1e-2)
    assert examples(tmp_path / "three") == examples(alone)


def stop_at_seven() -> None:
    stop_at(pytest.MonkeyPatch(), 7)


@pytest.mark.parametrize(("stopped", "resumed"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_a_run_that_stops_continues_on_fewer_processes(
    stopped: int, resumed: int, words: tuple[str, list[str]], alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = wait_for(start_ranks([command(words, run)] * stopped, {stopped - 1: stop_at_seven}))
    assert [each.exit_code for each in ended] == [143] * stopped, ended[0].errors
    ended = run_ranks(*[[*command(words, run), "--resume"]] * resumed)
    assert [each.exit_code for each in ended] == [0] * resumed, ended[0].errors
    assert (run / LAST).read_bytes() == (alone / LAST).read_bytes()
    assert rows_of(run) == rows_of(alone)

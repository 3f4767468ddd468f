"""Several processes train one model: the same examples and weights on any number of them, through any change between
them, and an end everywhere when one of them fails."""

from __future__ import annotations

import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.corpora import learn_and_prepare
from support.hosts import linked_hosts, on_hosts
from support.ranks import Ended, children_of, run_ranks, start_ranks, torchrun, wait_for, wait_until
from support.runs import examples, pretrain_without_report, rows_of, stop_at
from unmask.errors import OutputError
from unmask.pretraining import measuring
from unmask.training import distributed, session
from unmask.training.run import checkpoint
from unmask.training.run.environment import read_sessions

STEPS = 16
CUT = ["train.micro_batch_size=2", "train.log_every=1", "train.save_every=5"]
"""Steps of eight sequences in four micro-batches, whatever the number of processes (of three: six, of one or two)."""

OFF = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]


@pytest.fixture(scope="module")
def pretrain_words(words: tuple[str, list[str]]) -> list[str]:
    recipe, more = words
    return ["pretrain", recipe, *more, *CUT, steps(STEPS)]


def steps(number: int) -> str:
    return f"train.steps={number}"


@pytest.fixture(scope="module")
def alone(words: tuple[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from unmask.pretraining.run import pretrain

    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("alone") / "run"
    pretrain(words[0], [*words[1], *CUT, steps(STEPS)], out=run)
    return run


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def assert_near(run: Path, other: Path) -> None:
    """The same examples; weights to rounding."""
    ours, theirs = (load_file(each / "model" / "model.safetensors") for each in (run, other))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        # Adam's first steps divide by the gradient's size: a rounding error of nearly none moves a weight by a rate.
        torch.testing.assert_close(ours[name], weight, rtol=1e-3, atol=2e-4)
    assert examples(run) == examples(other)


def has_saved(run: Path) -> bool:
    return any(run.glob("checkpoints/step-*"))


def all_well(ended: list[Ended]) -> None:
    assert [each.exit_code for each in ended] == [0] * len(ended), ended[0].errors


@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_power_of_two_processes_ends_with_the_bits_of_one(
    number: int, pretrain_words: list[str], alone: Path, tmp_path: Path
) -> None:
    """With dropout, a second objective and ragged sequences."""
    run = tmp_path / "run"
    all_well(run_ranks(*[[*pretrain_words, "--out", str(run)]] * number, report=True))
    assert weights(run) == weights(alone)
    assert examples(run) == examples(alone)
    assert len(set(examples(run))) == STEPS
    assert sorted(path.name for path in run.iterdir()) == sorted(path.name for path in alone.iterdir())


@pytest.mark.slow
def test_three_processes_train_to_rounding_on_the_same_examples(
    words: tuple[str, list[str]], pretrain_words: list[str], alone: Path, tmp_path: Path
) -> None:
    """Without dropout, which draws by micro-batch, and three processes have others."""
    pretrain_without_report(words[0], [*words[1], *CUT, *OFF, steps(STEPS)], tmp_path / "one")
    all_well(run_ranks(*[[*pretrain_words, *OFF, "--out", str(tmp_path / "three")]] * 3))
    assert_near(tmp_path / "three", tmp_path / "one")
    assert examples(tmp_path / "three") == examples(alone)
    assert weights(tmp_path / "three") != weights(tmp_path / "one")


def stop_in(step: int) -> None:
    """One process is told to stop: all do, after the same step."""
    stop_at(pytest.MonkeyPatch(), step)


def stopped(ended: list[Ended]) -> None:
    assert [each.exit_code for each in ended] == [143] * len(ended), ended[0].errors


def test_a_run_that_stops_on_four_processes_continues_on_one(
    pretrain_words: list[str], alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = [*pretrain_words, "--out", str(run), "--resume"]
    stopped(wait_for(start_ranks([words] * 4, {2: partial(stop_in, 7)})))
    all_well(run_ranks(words))
    assert weights(run) == weights(alone)
    assert examples(run) == examples(alone)


@pytest.mark.slow
def test_a_run_continues_on_three_processes_then_on_one(
    words: tuple[str, list[str]], pretrain_words: list[str], tmp_path: Path
) -> None:
    pretrain_without_report(words[0], [*words[1], *CUT, *OFF, steps(STEPS)], tmp_path / "whole")
    run = tmp_path / "run"
    changing = [*pretrain_words, *OFF, "--out", str(run), "--resume"]
    stopped(wait_for(start_ranks([changing] * 4, {3: partial(stop_in, 7)})))
    stopped(wait_for(start_ranks([changing] * 3, {1: partial(stop_in, 13)})))
    all_well(run_ranks(changing))
    assert_near(run, tmp_path / "whole")


@pytest.mark.slow
def test_muon_shares_its_matrices_and_ends_with_the_same_bits(
    words: tuple[str, list[str]], pretrain_words: list[str], tmp_path: Path
) -> None:
    muon = ["optimizer.name=muon", "model.num_hidden_layers=3"]
    pretrain_without_report(words[0], [*words[1], *CUT, *muon, steps(STEPS)], tmp_path / "one")
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


def test_a_run_that_diverges_says_so_once(pretrain_words: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = refused(run_ranks(*[[*pretrain_words, "optimizer.learning_rate=1e30", "--out", str(run)]] * 2))
    assert "the run has diverged" in said
    assert f"its batches, as far as process 1 of 2 had them, and figures are in {run}/divergence/step-" in said
    assert "rank-" not in said


def fill_memory(error: type[RuntimeError], message: str) -> None:
    """From the second step on there is no memory to join gradients in."""
    join, joined = torch.cat, count()

    def cat(tensors: Any, *more: Any) -> Any:
        if sys._getframe(1).f_code.co_filename == distributed.__file__ and next(joined):
            raise error(message)
        return join(tensors, *more)

    torch.cat = cat  # type: ignore[assignment]


def test_gradients_that_one_process_cannot_join_end_all(pretrain_words: list[str], tmp_path: Path) -> None:
    """None waits for `train.rank_timeout_s`, which is longer than this test waits."""
    on_gpu = partial(fill_memory, torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB.")
    said = refused(wait_for(start_ranks([[*pretrain_words, "--out", str(tmp_path / "run")]] * 2, {1: on_gpu})))
    assert said.count("error: ") == 1
    assert "step 2 does not fit into the memory (CUDA out of memory. Tried to allocate 2.00 GiB)" in said
    on_cpu = partial(fill_memory, RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried to allocate")
    first, second = wait_for(start_ranks([[*pretrain_words, "--out", str(tmp_path / "cpu")]] * 2, {1: on_cpu}))
    assert (first.exit_code, second.exit_code) == (2, 2), first.errors
    assert "rank 0 of 2: another process has ended" in first.errors
    assert second.errors.startswith("error: not enough memory")


def test_another_store_is_refused_by_file(
    pretrain_words: list[str], words: tuple[str, list[str]], tiny_text: Path, tmp_path: Path
) -> None:
    shorter = tmp_path / "text.jsonl"
    shorter.write_text("".join(tiny_text.read_text("utf-8").splitlines(keepends=True)[1:]), encoding="utf-8")
    other_store = learn_and_prepare(shorter, tmp_path, vocab_size=200)
    own = [*pretrain_words, "--out", str(tmp_path / "run")]
    other, none = (
        [word.replace(words[1][0], f"store={path}") for word in own] for path in (other_store, tmp_path / "none")
    )
    assert "tokens-00000.bin is not the same as in the first process" in refused(run_ranks(own, other))
    assert f"rank 1 of 2: {tmp_path / 'none'}" in refused(run_ranks(own, none))
    assert not (tmp_path / "run").exists()


def test_a_process_that_hangs_ends_the_run_within_its_timeout(pretrain_words: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    many = [*pretrain_words[:-1], steps(100_000), "train.rank_timeout_s=3", "--out", str(run)]
    processes = start_ranks([many] * 2)
    wait_until(lambda: has_saved(run))
    processes[1].send_signal(signal.SIGSTOP)
    first = wait_for(processes[:1])[0]
    processes[1].kill()
    processes[1].communicate()
    assert first.exit_code == 2
    assert "another process has ended, or has not answered for 3 s" in first.errors
    assert "--max-restarts" in first.errors


def noting_reports(place: Path, seconds_between: float) -> None:
    """As its own clock says when one is due."""
    session._SECONDS_BETWEEN_REPORTS = seconds_between  # type: ignore[assignment]
    draw = session.Session._draw_report

    def note(run: session.Session[Any]) -> None:
        with place.open("a") as file:
            file.write("drawn\n")
        draw(run)

    session.Session._draw_report = note  # type: ignore[method-assign]


def test_processes_whose_clocks_differ_draw_the_same_reports(pretrain_words: list[str], tmp_path: Path) -> None:
    words = [*pretrain_words[:-1], steps(6), "train.eval_every=2", "--out", str(tmp_path / "run")]
    notes = [tmp_path / "first.txt", tmp_path / "second.txt"]
    before = {0: partial(noting_reports, notes[0], -1.0), 1: partial(noting_reports, notes[1], 1e9)}
    all_well(wait_for(start_ranks([words] * 2, before)))
    assert [note.read_text() for note in notes] == ["drawn\n" * 2] * 2, "after two evaluations, as the first one finds"


def told_to_stop_while_ending() -> None:
    """As `torchrun` does when it sees that another process has ended."""
    destroy = torch.distributed.destroy_process_group

    def destroy_and_stop() -> None:
        destroy()
        os.kill(os.getpid(), signal.SIGTERM)

    torch.distributed.destroy_process_group = destroy_and_stop  # type: ignore[assignment]


@pytest.mark.parametrize("before", [{}, {1: told_to_stop_while_ending}], ids=["alone", "told to stop"])
def test_the_loss_of_the_first_process_is_told_by_the_others(
    before: dict[int, Callable[[], object]], pretrain_words: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    processes = start_ranks([[*pretrain_words[:-1], steps(100_000), "--out", str(run)]] * 2, before)
    wait_until(lambda: has_saved(run))
    processes[0].kill()
    first, second = wait_for(processes)
    assert (first.exit_code, second.exit_code) == (-signal.SIGKILL, 2)
    assert second.errors.startswith("error: rank 1 of 2: another process has ended")


@pytest.mark.slow
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_torchrun_starts_a_run_again_whose_process_was_killed_or_hangs(
    fate: signal.Signals, words: tuple[str, list[str]], pretrain_words: list[str], tmp_path: Path
) -> None:
    many = steps(150)  # the process is lost long before the last of them
    pretrain_without_report(words[0], [*words[1], *CUT, many], tmp_path / "whole")
    run = tmp_path / "run"
    to_resume = [*pretrain_words[:-1], many, "train.rank_timeout_s=10", "--out", str(run), "--resume"]
    launcher = torchrun(4, to_resume, "--max-restarts=2")
    wait_until(lambda: has_saved(run))
    victims = children_of(launcher)
    assert len(victims) == 4
    os.kill(victims[3], fate)
    ended = wait_for([launcher])[0]
    assert ended.exit_code == 0, ended.errors
    assert len(read_sessions(run / "environment.json")) == 2
    assert weights(run) == weights(tmp_path / "whole")
    assert examples(run) == examples(tmp_path / "whole")


def allow_small_files(*, links: bool) -> None:
    """A process that has no space for a checkpoint, and may see that of the first one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    if not links:
        never_link()


def never_link() -> None:
    """The first process's directory is on another machine."""
    checkpoint._link = lambda *_: None


def test_a_checkpoint_is_read_in_place(pretrain_words: list[str], alone: Path, tmp_path: Path) -> None:
    run = shutil.copytree(alone, tmp_path / "run")
    words = [*pretrain_words[:-1], steps(STEPS + 2), "--out", str(run), "--resume"]
    all_well(wait_for(start_ranks([words] * 2, {1: partial(allow_small_files, links=True)})))
    assert len(examples(run)) == STEPS + 2


def test_no_space_for_a_copy_of_the_checkpoint_ends_all(pretrain_words: list[str], alone: Path, tmp_path: Path) -> None:
    run = shutil.copytree(alone, tmp_path / "run")
    words = [*pretrain_words[:-1], steps(STEPS + 2), "--out", str(run), "--resume"]
    said = refused(wait_for(start_ranks([words] * 3, {1: partial(allow_small_files, links=False)})))
    assert f"rank 1 of 3: cannot write {tempfile.gettempdir()}/unmask-rank-" in said
    assert "TMPDIR names another" in said
    all_well(wait_for(start_ranks([words] * 2, {1: never_link})))
    assert len(examples(run)) == STEPS + 2


def no_space_in(where: str, name: str) -> None:
    """A process that fails where it calls a function of a module, or of a class."""

    def fail(*_: Any, **__: Any) -> None:
        raise OutputError(f"no space in {name}")

    setattr(pkgutil.resolve_name(where), name, fail)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (partial(allow_small_files, links=True), "step-00000005: File too large"),
        (partial(no_space_in, "unmask.training.run.log:RunLog", "write_training"), "no space in write_training"),
        (partial(no_space_in, "unmask.training.run.log:RunLog", "write_evaluation"), "no space in write_evaluation"),
        (partial(no_space_in, "unmask.pretraining.run", "save_pretrained"), "no space in save_pretrained"),
        (partial(no_space_in, "unmask.pretraining.run", "write_report"), "no space in write_report"),
    ],
    ids=["checkpoint", "row", "evaluation", "model", "report"],
)
def test_no_space_for_what_the_first_process_writes_ends_all(
    before: Callable[[], object], said: str, pretrain_words: list[str], tmp_path: Path
) -> None:
    words = [*pretrain_words[:-1], steps(5), "--out", str(tmp_path / "run")]
    assert said in refused(wait_for(start_ranks([words] * 2, {0: before})))


# ------------------------------------------------------------------------------------------------------ divided models


def test_a_divided_model_trains_as_a_whole_one_and_leaves_its_checkpoints(
    words: tuple[str, list[str]], pretrain_words: list[str], alone: Path, tmp_path: Path
) -> None:
    """Also with activations that are computed again, and through a stop; from a model, which is measured first."""
    more = [*OFF, f"init_from={alone}", steps(8)]
    pretrain_without_report(words[0], [*words[1], *CUT, *more], tmp_path / "whole")
    run = tmp_path / "divided"
    divided = [*pretrain_words[:-1], *more, "train.shard=true", "train.recompute=true", "--out", str(run), "--resume"]
    stopped(wait_for(start_ranks([divided] * 2, {0: partial(stop_in, 3)})))
    all_well(run_ranks(divided, divided))
    assert_near(run, tmp_path / "whole")
    before, same = (rows_of(each)[0] for each in (run, tmp_path / "whole"))
    assert before == pytest.approx(same, rel=1e-5)  # some roundings in fp32
    assert before["step"] == 0
    names = [{path.name for path in (tmp_path / each / "checkpoints").glob("*/*")} for each in ("whole", "divided")]
    assert names[0] == names[1]


def no_memory_to_measure() -> None:
    """The first evaluation runs out of memory after it has gathered a divided module once; a second one would not."""
    measure, calls = measuring.measure, count()

    def fail_at_first(objective: Any, module: Any, batches: Any, compute: Any) -> dict[str, float]:
        if not next(calls):
            module.scores(batches[0])
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return measure(objective, module, batches, compute)

    measuring.measure = fail_at_first


def test_a_divided_model_that_one_process_cannot_measure_ends_all(pretrain_words: list[str], tmp_path: Path) -> None:
    """It does not measure again alone: the others are in the middle of an evaluation."""
    words = [*pretrain_words[:-1], steps(2), "train.shard=true", "--out", str(tmp_path / "run")]
    first, second = wait_for(start_ranks([words] * 2, {1: no_memory_to_measure}))
    assert (first.exit_code, second.exit_code) == (2, 2), first.errors
    assert "rank 0 of 2: another process has ended" in first.errors
    assert "not enough memory for the update or an evaluation after step 2" in second.errors


@pytest.mark.parametrize(("more", "place"), [(["train.shard=true"], "cpu"), ([], "meta")], ids=["divided", "whole"])
def test_a_model_that_is_to_be_divided_does_not_go_to_the_device_whole(
    more: list[str], place: str, words: tuple[str, list[str]], tmp_path: Path
) -> None:
    from unmask.pretraining.run import open_and_check
    from unmask.recipe.loading import load_pretrain_recipe
    from unmask.training.device import Compute
    from unmask.training.distributed import Ranks

    settings = load_pretrain_recipe(words[0], [*words[1], *more])
    compute = Compute(torch.device("meta"), torch.float32, "a test")
    inputs, _ = open_and_check(settings, tmp_path, compute, 1, None, Ranks(1, 2))
    assert {parameter.device.type for parameter in inputs.module.parameters()} == {place}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["optimizer.name=muon"], "train.shard=true and optimizer.name=muon do not go together"),
        (["train.batch_size=3"], "take a batch_size that is a multiple of their number"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    more: list[str], message: str, words: tuple[str, list[str]], tmp_path: Path
) -> None:
    more = ["train.shard=true", "train.micro_batch_size=1", *more, "--out", str(tmp_path / "run")]
    assert message in refused(run_ranks(*[["pretrain", words[0], *words[1], *more]] * 2))


def test_activations_computed_again_change_nothing(words: tuple[str, list[str]], alone: Path, tmp_path: Path) -> None:
    pretrain_without_report(words[0], [*words[1], *CUT, "train.recompute=true", steps(STEPS)], tmp_path / "run")
    assert weights(tmp_path / "run") == weights(alone)


# ------------------------------------------------------------------------------------------------------------ two hosts


@pytest.fixture
def two_hosts() -> Iterator[list[str]]:
    with linked_hosts() as hosts:
        yield hosts


@pytest.mark.slow
def test_two_hosts_train_and_a_lost_link_ends_the_run(
    two_hosts: list[str], words: tuple[str, list[str]], pretrain_words: list[str], tmp_path: Path
) -> None:
    """After which it continues from its checkpoint, on one host or two, and ends as if nothing had been lost."""
    many = steps(150)  # the link is lost long before the last of them
    pretrain_without_report(words[0], [*words[1], *CUT, many], tmp_path / "whole")
    run, on_one = tmp_path / "run", tmp_path / "one"
    to_resume = [*pretrain_words[:-1], many, "train.rank_timeout_s=4", "--resume", "--out"]
    processes = on_hosts(two_hosts, [*to_resume, str(run)])
    wait_until(lambda: has_saved(run))
    subprocess.run(["ip", "-n", two_hosts[1], "link", "set", two_hosts[1], "down"], check=True)
    ended = wait_for(processes)
    assert [each.exit_code for each in ended] == [2, 2], ended[0].errors
    assert "has not answered for 4 s" in ended[0].errors
    subprocess.run(["ip", "-n", two_hosts[1], "link", "set", two_hosts[1], "up"], check=True)
    shutil.copytree(run, on_one)
    all_well(wait_for(on_hosts(two_hosts, [*to_resume, str(run)])))
    all_well(run_ranks([*to_resume, str(on_one)]))
    for resumed in (run, on_one):
        assert weights(resumed) == weights(tmp_path / "whole")
        assert examples(resumed) == examples(tmp_path / "whole")

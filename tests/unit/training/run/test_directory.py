"""The run directory: nothing is overwritten silently, and a refusal leaves all as it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch import nn

import unmask
from support.checkpoints import save_checkpoint
from support.corpora import contents, names
from support.files import write
from unmask.config import build_settings, read_settings_file
from unmask.errors import (
    AnotherProcess,
    CheckpointError,
    InputError,
    Interrupted,
    ModelError,
    OutputError,
    SettingsError,
    UserError,
)
from unmask.io.paths import RECIPE, model_directory
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import without_free_memory
from unmask.training.optimizers.optimizer import Schedule, Stage, build_optimizer
from unmask.training.run import environment
from unmask.training.run.directory import alone_in_process, beginning_run, opening_run
from unmask.training.run.resuming import Changes
from unmask.training.settings import OptimizerSettings, ScheduleSettings
from unmask.training.state import TrainState


def recipe(**changes: object) -> PretrainRecipe:
    return PretrainRecipe.model_validate({"store": "a-store", "train": {"steps": 20}, **changes})


def open_run(directory: Path, recipe: PretrainRecipe, *, resume: bool, overwrite: bool) -> Changes:
    with opening_run(directory, recipe, resume=resume, overwrite=overwrite) as changes:
        return changes


def begin(directory: Path) -> None:
    open_run(directory, recipe(), resume=False, overwrite=False)
    (directory / "checkpoints").mkdir()


def save(run: Path, **state: float) -> None:
    module = nn.Linear(1, 1)
    optimizer, schedule = build_optimizer(module, OptimizerSettings()), Schedule(ScheduleSettings())
    saved = recipe().as_written()
    save_checkpoint(run / "checkpoints", module, optimizer, schedule, TrainState(**state), {}, 1, recipe=saved)


@pytest.mark.parametrize("there", ["nothing", "an empty directory"])
@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}], ids=str)
def test_a_new_run_has_a_recipe_that_reads_back_equal(tmp_path: Path, there: str, how: dict[str, bool]) -> None:
    directory = tmp_path / "runs" / "bert"
    if there != "nothing":
        directory.mkdir(parents=True)
    open_run(directory, recipe(), **{"resume": False, "overwrite": False, **how})
    values = read_settings_file(directory / RECIPE)
    assert build_settings(PretrainRecipe, values, "the run's") == recipe()


def test_a_run_is_not_overwritten_silently(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with pytest.raises(OutputError, match=r"run exists already .*another --out, or pass --resume or --overwrite"):
        open_run(tmp_path / "run", recipe(), resume=False, overwrite=False)


@pytest.mark.parametrize("how", [{"resume": False}, {"resume": True}, {"resume": False, "overwrite": True}], ids=str)
def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path, how: dict[str, bool]) -> None:
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(OutputError, match=r"it is not a run|holds thesis.txt, which is no part of a run"):
        open_run(tmp_path, recipe(), **{"overwrite": False, **how})
    assert contents(tmp_path) == {"thesis.txt": b"three years of work"}


@pytest.mark.parametrize("name", ["notes.md", "model/README.md"])
def test_a_run_with_notes_beside_it_is_not_overwritten(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    begin(run)
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    (run / name).write_text("by hand")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=f"holds {Path(name).name}, which is no part of a "):
        open_run(run, recipe(), resume=False, overwrite=True)
    assert contents(tmp_path) == before
    (run / name).unlink()
    open_run(run, recipe(), resume=False, overwrite=True)
    assert names(run) == [RECIPE]


def test_a_folder_without_a_recipe_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(OutputError, match=r"is not a run \(recipe\.yaml is missing\)"):
        open_run(tmp_path, recipe(), resume=False, overwrite=True)
    assert names(tmp_path) == ["model"]


def test_a_file_in_the_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    for how in ({"resume": False, "overwrite": False}, {"resume": True, "overwrite": False}):
        with pytest.raises(OutputError, match="run exists already and would be overwritten"):
            open_run(tmp_path / "run", recipe(), **how)
    assert (tmp_path / "run").read_text() == "a file"


def test_to_resume_and_to_overwrite_is_a_contradiction(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with pytest.raises(SettingsError, match="--resume continues a run and --overwrite removes it"):
        open_run(tmp_path / "run", recipe(), resume=True, overwrite=True)
    assert (tmp_path / "run" / "checkpoints").is_dir()


def test_overwriting_removes_the_run(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    open_run(tmp_path / "run", recipe(seed=7), resume=False, overwrite=True)
    assert list(contents(tmp_path)) == ["run/recipe.yaml"]
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_resumed_run_may_change_budget_logging_and_saving_and_says_so(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    changed = recipe(train={"tokens": 5000, "log_every": 7, "save_every": None, "keep_last": 1})
    lines = open_run(tmp_path / "run", changed, resume=True, overwrite=False).lines
    assert "resumed with train.steps=None, where it was 20" in lines
    assert "resumed with train.log_every=7, where it was 50" in lines
    assert len(lines) == 5
    assert open_run(tmp_path / "run", changed, resume=True, overwrite=False) == Changes([])  # it was recorded


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"optimizer": {"learning_rate": 3e-4}}, "optimizer.learning_rate"),
        ({"train": {"steps": 20, "batch_size": 32}}, "train.batch_size"),
        ({"seed": 1}, "seed"),
        ({"objective": {"masking": "whole_word"}}, "objective.masking"),
        ({"store": None, "corpus": "a.txt"}, "corpus"),
        ({"schedule": {"warmup_steps": 5}}, "schedule.warmup_steps"),
    ],
)
def test_any_other_change_is_refused_by_name(tmp_path: Path, changes: dict[str, object], key: str) -> None:
    begin(tmp_path / "run")
    before = contents(tmp_path)
    with pytest.raises(SettingsError, match=f"begun with other settings: {key}"):
        open_run(tmp_path / "run", recipe(**changes), resume=True, overwrite=False)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"steps": 6}, r"run has done 7 steps already, more than train.steps=6: .*train.steps=7 to end the run where"),
        ({"tokens": 699}, r"has done 700 tokens already, more than train.tokens=699"),
        ({"epochs": 0.5}, r"has done 0.75 epochs already, more than train.epochs=0.5"),
        ({"minutes": 1}, r"has done 1.50 minutes already, more than train.minutes=1.0"),
    ],
)
def test_a_budget_less_than_what_is_done_is_refused(tmp_path: Path, budget: dict[str, float], message: str) -> None:
    begin(tmp_path / "run")
    save(tmp_path / "run", step=7, tokens=700, epochs=0.75, seconds=90)
    before = contents(tmp_path)
    with pytest.raises(SettingsError, match=message):
        open_run(tmp_path / "run", recipe(train=budget), resume=True, overwrite=False)
    assert contents(tmp_path) == before
    lines = open_run(tmp_path / "run", recipe(train={"steps": 7}), resume=True, overwrite=False).lines
    assert lines == ["resumed with train.steps=7, where it was 20"]


PARTS: dict[str, tuple[dict[str, object], Stage | None, str]] = {
    "phases": (
        {"phases": [{"until": 0.25, "max_length": 32}, {"until": 0.5, "max_length": 64}, {"until": 1}]},
        None,
        r"phase 2 of 3, which follows phases\.0\.until=0\.25",
    ),
    "stages": (
        {
            "objective": {"name": "replaced_token", "schedule": "two_stage", "generator_size": 1},
            "model": {"architecture": "electra"},
            "packing": {"format": "single_segment"},
        },
        Stage({"steps": 10, "tokens": 1000, "epochs": 0.5, "minutes": 1.0}, 1.0),
        r"stage 2 of 2, which begins at 50% of the budget",
    ),
}
"""Settings whose second part has begun after 12 of 20 steps; the stage, and how the part is named."""


def begin_in_part(directory: Path, part: str, step: int = 12, phase: int = 1) -> dict[str, object]:
    """Begins a run of 20 steps, saved in its second part or phase; returns what differs from the recipe."""
    changes, stage, _ = PARTS[part]
    open_run(directory, recipe(**changes), resume=False, overwrite=False)
    module = nn.Linear(1, 1)
    schedule = Schedule(ScheduleSettings(), stage=stage)
    state = TrainState(step=step, tokens=100 * step, epochs=0.05 * step, seconds=6 * step)
    optimizer = build_optimizer(module, OptimizerSettings())
    place, saved = {"phase": phase} if stage is None else {}, recipe(**changes).as_written()
    save_checkpoint(directory / "checkpoints", module, optimizer, schedule, state, place, 1, recipe=saved)
    return changes


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"steps": 48}, r"train\.steps=48 .*keep train\.steps=20"),
        ({"steps": 24}, r"train\.steps=24 "),  # where the same part is due, but would have begun later
        ({"tokens": 2400}, r"train\.tokens=2400 .*keep train\.steps=20"),
    ],
    ids=str,
)
def test_a_budget_under_which_a_phase_or_stage_would_have_begun_later_is_refused(
    tmp_path: Path, part: str, budget: dict[str, object], message: str
) -> None:
    run = tmp_path / "run"
    changes = begin_in_part(run, part)
    before = contents(tmp_path)
    with pytest.raises(SettingsError, match=f"run is in {PARTS[part][-1]}.*{message}.*init_from={run}"):
        open_run(run, recipe(**changes, train=budget), resume=True, overwrite=False)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("part", PARTS)
def test_a_budget_that_ends_such_a_run_sooner_is_not_refused(tmp_path: Path, part: str) -> None:
    changes = begin_in_part(tmp_path / "run", part)
    for steps in (15, 12):
        changed = open_run(tmp_path / "run", recipe(**changes, train={"steps": steps}), resume=True, overwrite=False)
        assert len(changed.lines) == 1


@pytest.mark.parametrize(("step", "phase"), [(4, 0), (5, 0), (3, 1)], ids=["within", "at its end", "rolled back to"])
def test_in_its_first_phase_a_run_may_have_any_budget(tmp_path: Path, step: int, phase: int) -> None:
    changes = begin_in_part(tmp_path / "run", "phases", step, phase)
    lines = open_run(tmp_path / "run", recipe(**changes, train={"steps": 48}), resume=True, overwrite=False).lines
    assert [line.partition(",")[0] for line in lines] == ["resumed with train.steps=48"]
    assert "steps: 48" in (tmp_path / "run" / "recipe.yaml").read_text()


# Opening what a run needs


def open_and(then: Callable[[], object], directory: Path, *, keeps: Sequence[str] = (), **how: bool) -> None:
    """Opens the run, does that, and is refused."""
    with opening_run(directory, recipe(), **{"resume": False, "overwrite": False, **how}, keeps=keeps):
        then()
        raise InputError("not text")


def test_a_refused_new_run_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(InputError, match="not text"):
        open_and(lambda: (run / "log.txt").write_text("begun"), run)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        open_and(lambda: (run / "gone" / "log.txt").write_text("begun"), run)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_attempt_to_overwrite_a_run_does_not_cost_it(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "weights").write_text("days of work")
    before = contents(tmp_path / "run")
    killed = "import os, sys; from pathlib import Path; from unmask.recipe.tree import PretrainRecipe\n"
    killed += "from unmask.training.run.directory import opening_run\n"
    killed += "recipe = PretrainRecipe.model_validate({'store': 's', 'train': {'steps': 20}})\n"
    killed += "with opening_run(Path(sys.argv[1]), recipe, resume=False, overwrite=True): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", killed, str(tmp_path / "run")]).returncode == 9
    assert not (tmp_path / "run" / "checkpoints").exists()
    with (
        pytest.raises(InputError, match="no text"),
        opening_run(tmp_path / "run", recipe(seed=2), resume=False, overwrite=True),
    ):
        raise InputError("no text")
    assert contents(tmp_path / "run") == before
    assert names(tmp_path) == ["run"]


def test_the_only_checkpoint_is_found_where_its_replacement_was_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(run)
    write(run / "checkpoints" / ".unfinished-.replaced-step-00000004" / "weights", "days of work")
    with (
        pytest.raises(CheckpointError, match="step-00000004"),
        opening_run(run, recipe(), resume=True, overwrite=False),
    ):
        pass
    assert names(run / "checkpoints") == ["step-00000004"]


def test_a_model_whose_replacement_was_killed_has_its_name_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(run)
    write(run / ".unfinished-.replaced-model" / "config.json", "{}")  # what a kill between two renames leaves
    for given in (run, run / "model"):
        with pytest.raises(ModelError, match=r"run/model: a command that replaced it was stopped half-way"):
            model_directory(given)
    with opening_run(run, recipe(), resume=True, overwrite=False):
        assert model_directory(run) == run / "model"


def test_a_directory_in_which_another_process_works_is_left_alone(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    before = contents(tmp_path / "run")
    holding = "import sys; from pathlib import Path; from unmask.io.writing import alone_in\n"
    holding += "with alone_in(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", holding, str(tmp_path / "run")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for how in ({"resume": True, "overwrite": False}, {"resume": False, "overwrite": True}):
            with (
                pytest.raises(AnotherProcess, match=r"run: another process works there at this moment: let it end"),
                opening_run(tmp_path / "run", recipe(), **how),
            ):
                pytest.fail("opened")
        assert contents(tmp_path / "run") == before
        other.kill()
    with opening_run(tmp_path / "run", recipe(), resume=True, overwrite=False):
        pass  # the lock went with the process


@pytest.mark.parametrize(("threads", "is_reported"), [("2 threads", False), ("1 thread", True)])
def test_a_run_that_continues_otherwise_than_it_began_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, threads: str, is_reported: bool
) -> None:
    for resume, its_threads in ((False, "2 threads"), (True, threads)):
        about = {
            "name": "r",
            "command": ["unmask"],
            "seed": 0,
            "device": f"CPU (x, AMX), bfloat16 (y), {its_threads}, torch 2.13",
        }
        with beginning_run(tmp_path / "run", recipe(), **about, resume=resume, overwrite=False):
            save(tmp_path / "run")
    warnings = [line for line in caplog.messages if "not bit for bit as if it had never stopped" in line]
    assert len(warnings) == is_reported


def test_a_run_that_continues_with_other_code_is_told_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"name": "r", "command": [], "seed": 0, "device": "CPU"}
    for resume, numpy, commit in ((False, "2.0", "ab"), (True, "2.1", "cd"), (True, "2.1", None), (True, "2.1", "cd")):
        monkeypatch.setattr(environment, "installed_versions", lambda numpy=numpy: {"python": "3.11", "numpy": numpy})
        monkeypatch.setattr(environment, "_git_commit", lambda source, commit=commit: commit)
        with beginning_run(tmp_path / "run", recipe(), **about, resume=resume, overwrite=False):
            save(tmp_path / "run")
    told = "numpy 2.1 (it was 2.0), the commit of unmask cd (it was ab)"
    warnings = [line for line in caplog.messages if "other code" in line]
    assert warnings == [f"continues with {told}: other code may compute otherwise"]


def test_how_much_of_a_gpu_was_free_is_no_difference() -> None:
    one = "H100 (compute capability 9.0; 70 GiB of 79 GiB free; number 0 of 2), bfloat16, 4 threads"
    assert without_free_memory(one) == without_free_memory(one.replace("70 GiB", "69.5 GiB"))
    assert without_free_memory(one) != without_free_memory(one.replace("H100", "H200"))
    assert "number 0 of 2" in without_free_memory(one)


def test_what_is_worth_keeping_of_a_refused_run_is_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(InputError):
        open_and(lambda: write(run / "store" / "tokens", "hours of work"), run, keeps=("store",))
    assert names(run) == ["store"]
    with pytest.raises(OutputError, match="pass --resume or --overwrite"):
        open_and(lambda: None, run, keeps=("store",))
    for how in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(InputError):
            open_and(lambda: (run / "tokenizer").mkdir(), run, keeps=("store",), **how)
        assert contents(run) == {"store/tokens": b"hours of work"}
    with opening_run(run, recipe(seed=2), resume=True, overwrite=False, keeps=("store",)):
        assert names(run) == [RECIPE, "store"]
    (run / RECIPE).unlink()
    with opening_run(run, recipe(), resume=False, overwrite=True, keeps=("store",)):
        pass
    assert names(run) == [RECIPE]


def test_a_refused_resume_leaves_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(run)
    before = contents(tmp_path)
    with pytest.raises(InputError):
        open_and(lambda: None, run, resume=True)
    assert contents(tmp_path) == before
    assert (run / "checkpoints").is_dir()


def test_an_overwritten_run_is_gone_once_the_new_one_is_open(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with opening_run(tmp_path / "run", recipe(), resume=False, overwrite=True):
        pass
    assert (names(tmp_path), names(tmp_path / "run")) == (["run"], [RECIPE])


@pytest.mark.parametrize("key", ["init_from", "store"])
def test_a_run_is_not_overwritten_by_one_that_reads_it(tmp_path: Path, key: str) -> None:
    begin(tmp_path / "run")
    before = contents(tmp_path)
    changed = recipe(**{key: str(tmp_path / "run" / "checkpoints")})
    with pytest.raises(SettingsError, match=rf"{key}=.*checkpoints is in the run that --overwrite removes"):
        open_run(tmp_path / "run", changed, resume=False, overwrite=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("stop", "number"),
    [(KeyboardInterrupt(), signal.SIGINT), (Interrupted("stopped by SIGTERM", signal.SIGTERM), signal.SIGTERM)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_an_interruption_keeps_what_is_there_and_says_how_to_continue(
    tmp_path: Path, stop: BaseException, number: int
) -> None:
    with (
        pytest.raises(Interrupted, match="before the first step; the same command with --resume continues") as raised,
        opening_run(tmp_path / "run", recipe(), resume=True, overwrite=False),
    ):
        raise stop
    assert raised.value.exit_code == 128 + number
    assert (tmp_path / "run" / RECIPE).is_file()


@pytest.mark.parametrize(
    "trouble",
    [InputError("no"), KeyboardInterrupt(), Interrupted("stopped by SIGTERM", signal.SIGTERM), RuntimeError("a bug")],
    ids=["refused", "Ctrl-C", "SIGTERM", "fault"],
)
def test_whatever_goes_wrong_an_overwritten_run_is_as_it_was(tmp_path: Path, trouble: BaseException) -> None:
    run = tmp_path / "run"
    begin(run)
    before = contents(tmp_path)

    def get_into_trouble() -> None:
        (run / "store").mkdir()
        raise trouble

    with pytest.raises(Interrupted if isinstance(trouble, KeyboardInterrupt) else type(trouble)):
        open_and(get_into_trouble, run, overwrite=True, keeps=("store",))
    assert contents(tmp_path) == before


def test_a_link_stays_one_and_what_it_leads_to_is_the_run(tmp_path: Path) -> None:
    """Runs of clusters are links to another disk."""
    (tmp_path / "scratch").mkdir()
    link = tmp_path / "run"
    link.symlink_to("scratch")
    with pytest.raises(InputError, match="not text"):
        open_and(lambda: None, link)
    assert names(tmp_path / "scratch") == []
    begin(link)
    for _ in range(2):
        open_run(link, recipe(seed=3), resume=False, overwrite=True)
        assert (link.is_symlink(), names(tmp_path / "scratch"), names(tmp_path)) == (True, [RECIPE], ["run", "scratch"])


@pytest.mark.parametrize("left", [[], [".unfinished-recipe.yaml"]], ids=str)
def test_what_a_killed_attempt_has_begun_does_not_hide_the_run(tmp_path: Path, left: list[str]) -> None:
    begin(tmp_path / "run")
    before = contents(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / ".unfinished-.replaced-run")
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).touch()
    open_run(tmp_path / "run", recipe(), resume=True, overwrite=False)
    assert (contents(tmp_path / "run"), names(tmp_path)) == (before, ["run"])


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}], ids=str)
def test_a_run_begins_where_one_was_killed_while_it_wrote_its_recipe(tmp_path: Path, how: dict[str, bool]) -> None:
    write(tmp_path / "run" / ".unfinished-recipe.yaml", "store: a-")
    open_run(tmp_path / "run", recipe(), **{"resume": False, "overwrite": False, **how})
    assert names(tmp_path / "run") == [RECIPE]


def test_a_replaced_run_is_gone_once_the_killed_one_in_its_place_is_resumed(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    begin(tmp_path / ".unfinished-.replaced-run")
    with pytest.raises(InputError):
        open_and(lambda: None, tmp_path / "run", resume=True)
    assert names(tmp_path) == [".unfinished-.replaced-run", "run"]
    open_run(tmp_path / "run", recipe(), resume=True, overwrite=False)
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("program", ["pretrain", "finetune"])
def test_two_runs_at_once_in_one_process_are_refused(tmp_path: Path, program: str) -> None:
    with alone_in_process(), alone_in_process(), ThreadPoolExecutor(1) as other:  # a search's run is within the search
        begun = other.submit(getattr(unmask, program), "no-recipe", out=tmp_path / "run")
        with pytest.raises(UserError, match=r"^another run is under way in this process: start this one in a process"):
            begun.result()
    with pytest.raises(SettingsError, match="no-recipe"):
        getattr(unmask, program)("no-recipe", out=tmp_path / "run")

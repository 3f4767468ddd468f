"""A search: how it goes on, and what is made of the best; the runs themselves are pretended."""

from __future__ import annotations

import json
import logging
import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from support.files import write
from support.searches import Pretended, new_recipe, of_accuracy, run_search
from unmask.errors import InputError, Interrupted, ModelError, OutputError, SettingsError, UserError
from unmask.inference.ensemble import read_chosen
from unmask.inference.example_sets import ExampleSet
from unmask.inference.predictor import Predictor
from unmask.io.input_files import InputFiles
from unmask.recipe.tree import FinetuneRecipe
from unmask.reports.figure import Panel
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.tasks.text.examples import TextExample
from unmask.training.run.log import RunLog
from unmask.training.run.model_place import marked


def pretended(accuracy: float) -> Pretended:
    return Pretended(lambda settings: of_accuracy(accuracy))


def replace_in_search(monkeypatch: pytest.MonkeyPatch, **others: Any) -> None:
    """Others take the place of what a search calls; models are where they are said to be, of one tokenizer."""
    for name, other in {"check_tokenizers": lambda models: None, "model_directory": Path, **others}.items():
        monkeypatch.setattr(f"unmask.finetuning.search.search.{name}", other)


# When something goes wrong


def test_a_run_that_fails_is_noted_and_the_others_go_on(tmp_path: Path) -> None:
    def figures(settings: FinetuneRecipe) -> dict[str, Any]:
        if settings.seed == 1:
            raise UserError("the loss is not finite at step 7")
        return of_accuracy(0.8)

    run = Pretended(figures)
    summary = run_search(tmp_path / "out", new_recipe({"restarts": 3}), run)
    (row,) = summary["combinations"]
    assert (summary["num_finished"], summary["num_failed"], row["n"]) == (2, 1, 2)
    assert row["failed"] == ["lr5e-05_batch16_epochs3_seed1"]
    assert summary["trials"][1]["error"] == "the loss is not finite at step 7"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "the loss is not finite at step 7" in page
    linked = [f"lr5e-05_batch16_epochs3_seed{seed}" for seed in (0, 2)]
    assert re.findall('href="trials/(.*?)/report.html"', page) == linked, "the one that failed has none"
    assert "All metrics" not in page, "of one configuration they stand beside the best run"
    assert "has failed, the others continue" in (tmp_path / "out" / "log.txt").read_text()


def test_nothing_but_failures_is_an_error(tmp_path: Path) -> None:
    def fail(settings: FinetuneRecipe) -> dict[str, Any]:
        raise UserError(f"it diverged with seed {settings.seed}")

    with pytest.raises(UserError, match="every trial has failed, the first with: it diverged with seed 0"):
        run_search(tmp_path / "out", new_recipe({"restarts": 2}), Pretended(fail))


def test_what_is_wrong_with_the_examples_stops_the_search(tmp_path: Path) -> None:
    def fail(settings: FinetuneRecipe) -> dict[str, Any]:
        raise InputError("train.tsv:3: no label")

    run = Pretended(fail)
    with pytest.raises(InputError, match=r"train\.tsv:3"):
        run_search(tmp_path / "out", new_recipe({"restarts": 2}), run)
    assert len(run.begun) == 1


def test_what_is_found_before_the_first_step_leaves_nothing_behind(tmp_path: Path) -> None:
    checked: list[tuple[str, int]] = []

    def check(settings: FinetuneRecipe) -> None:
        checked.append((settings.init_from, settings.seed))
        if settings.init_from == "b":
            raise ModelError("b: no such directory")

    with pytest.raises(ModelError):
        run_search(
            tmp_path / "out", new_recipe({"restarts": 2, "checkpoints": ["a", "b"]}), pretended(0.5), check=check
        )
    assert checked == [("a", 0), ("b", 0)]
    assert not (tmp_path / "out").exists()


def test_what_is_wrong_with_the_inputs_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run opens the inputs again, and has it in its own log."""
    logger = logging.getLogger("unmask")
    run = pretended(0.5)

    def open_inputs(settings: FinetuneRecipe) -> None:
        for name in ("train", "dev"):
            logger.info("%s: 60 examples", name)
            logger.warning("the vocabulary does not cover these texts")

    def open_and_run(settings: FinetuneRecipe, directory: Path, **named: Any) -> Path:
        model: Path = run(settings, directory, **named)
        with RunLog(directory, echo=True):
            open_inputs(settings)
            logger.warning("nothing was learned")
        return model

    out = tmp_path / "out"
    run_search(out, new_recipe({"restarts": 2}), open_and_run, check=open_inputs)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "warning: the vocabulary does not cover these texts"
    assert [line for line in lines[1:] if "vocabulary" in line] == []
    assert lines.count("warning: nothing was learned") == 1
    assert lines.count("dev: 60 examples") == 2
    assert (out / "log.txt").read_text().count("60 examples") == 0
    assert (out / "log.txt").read_text().count("WARNING the vocabulary does not cover these texts") == 1
    for trial in (out / "trials").iterdir():
        assert (trial / "log.txt").read_text().count("WARNING the vocabulary does not cover these texts") == 2
    assert logger.filters == []


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_search_goes_on_where_it_stopped(tmp_path: Path, stopped_at: int) -> None:
    def figures(settings: FinetuneRecipe) -> dict[str, Any]:
        return of_accuracy(0.5 + settings.seed / 10)

    def stopping(settings: FinetuneRecipe) -> dict[str, Any]:
        if settings.seed == stopped_at:
            raise Interrupted("stopped at step 3", 15)
        return figures(settings)

    settings = new_recipe({"restarts": 3})
    with pytest.raises(Interrupted, match=rf"stopped in trial {stopped_at + 1} of 3, .* --resume continues the search"):
        run_search(tmp_path / "out", settings, Pretended(stopping))
    run = Pretended(figures)
    found = run_search(tmp_path / "out", settings, run, resume=True)
    assert [int(name[-1]) for name in run.begun] == list(range(stopped_at, 3))
    assert run.resumed == [True, *[False] * (2 - stopped_at)]  # from the checkpoint of the one that was stopped
    assert found == run_search(tmp_path / "whole", settings, Pretended(figures))
    again = Pretended(figures)
    assert run_search(tmp_path / "out", settings, again, resume=True) == found
    assert again.begun == []


def test_ctrl_c_between_trials_says_how_to_go_on(tmp_path: Path) -> None:
    def interrupt(settings: FinetuneRecipe) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="with --resume continues"):
        run_search(tmp_path / "out", new_recipe({"restarts": 2}), Pretended(interrupt))


def test_another_search_is_not_a_resumed_one(tmp_path: Path) -> None:
    run = pretended(0.5)
    run_search(tmp_path / "out", new_recipe({"restarts": 2}), run)
    with pytest.raises(SettingsError, match=r"begun with other settings: search\.transfer_layers"):
        run_search(tmp_path / "out", new_recipe({"restarts": 2, "transfer_layers": [1]}), run, resume=True)
    run_search(tmp_path / "out", new_recipe({"restarts": 3}), run, overwrite=True)
    assert len(list((tmp_path / "out" / "trials").iterdir())) == 3


def test_a_rate_that_no_run_has_may_change(tmp_path: Path) -> None:
    """As the one for a model's size, which a recipe gets where none is given."""
    run, other = pretended(0.5), {"optimizer": {"learning_rate": 1e-4}}
    for name, search in (("rates", {"learning_rates": [3e-5, 5e-5]}), ("one", {"restarts": 2})):
        run_search(tmp_path / name, new_recipe(search), run)
        with nullcontext() if name == "rates" else pytest.raises(SettingsError, match="learning_rate"):
            run_search(tmp_path / name, new_recipe(search, **other), run, resume=True)
    assert "resumed with optimizer" not in (tmp_path / "rates" / "log.txt").read_text()


@pytest.mark.parametrize("done", [True, False])
def test_finished_runs_of_other_code_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: bool
) -> None:
    def figures(settings: FinetuneRecipe) -> dict[str, Any]:
        if settings.seed == done:
            raise Interrupted("stopped at step 3", 15)
        return of_accuracy(0.5)

    settings = new_recipe({"restarts": 3})
    with pytest.raises(Interrupted):
        run_search(tmp_path, settings, Pretended(figures), resume=True)
    monkeypatch.setattr("unmask.training.run.environment.installed_versions", lambda: {"torch": "9.9"})
    for _ in range(2):
        run_search(tmp_path, settings, pretended(0.5), resume=True)
    assert capsys.readouterr().err.count("warning: continues with torch 9.9 (it was ") == done


@pytest.mark.parametrize("name", ["model/notes.md", "ensemble/notes.md"])
def test_what_is_written_by_hand_beside_the_best_model_stays(tmp_path: Path, name: str) -> None:
    run, out = pretended(0.5), tmp_path / "out"
    run_search(out, new_recipe({"restarts": 2}), run)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("by hand")
    with pytest.raises(OutputError, match=f"holds {Path(name).name}, which is no part of a"):
        run_search(out, new_recipe({"restarts": 3}), run, resume=True)
    assert (out / name).read_text() == "by hand"


def test_a_card_goes_with_the_best_model_until_somebody_edits_it(tmp_path: Path) -> None:
    run, out = pretended(0.5), tmp_path / "out"
    run_search(out, new_recipe({"restarts": 2}), run)
    card = out / "model" / "README.md"
    card.write_text(marked("the card of two runs\n"), "utf-8")
    best = next((out / "trials").glob("*seed0")) / "model" / "README.md"
    best.write_text(marked("the card of one run\n"), "utf-8")
    run_search(out, new_recipe({"restarts": 2}), run, resume=True)
    assert card.exists(), "of the same runs"
    run_search(out, new_recipe({"restarts": 3}), run, resume=True)
    assert not card.exists()
    card.write_text("by hand")
    run_search(out, new_recipe({"restarts": 4}), run, resume=True)
    assert card.read_text() == "by hand"
    log = (out / "log.txt").read_text()
    assert log.count("run `unmask card` again") == log.count("has been edited, so it stays") == 1


def test_how_many_run_at_a_time_may_change(tmp_path: Path) -> None:
    found = run_search(tmp_path / "out", new_recipe({"restarts": 2}), pretended(0.5))
    side_by_side = new_recipe({"restarts": 2, "parallel": 2})
    assert run_search(tmp_path / "out", side_by_side, pretended(0.5), resume=True) == found
    assert "resumed with search.parallel=2, where it was 1" in (tmp_path / "out" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"search": {"learning_rates": [1e-4], "restarts": 3}}, "3 of them"),
        ({"search": {"learning_rates": [1e-4, 5e-4], "restarts": 2}}, "2 of them"),
        (
            {"search": {"learning_rates": [1e-4, 5e-4], "restarts": 3}, "train": {"epochs": 4, "batch_size": 16}},
            "6 of them.* and 3 more",
        ),
    ],
    ids=["a rate", "a restart", "another budget"],
)
def test_a_resumed_search_leaves_out_no_run_that_is_there(tmp_path: Path, given: dict[str, Any], left_out: str) -> None:
    run, out = pretended(0.5), tmp_path / "out"
    run_search(out, new_recipe({"learning_rates": [1e-4, 5e-4], "restarts": 3}), run)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(
        SettingsError, match=f"trials holds 6 runs, and this search of .* leave out {left_out}.*at least"
    ):
        run_search(out, new_recipe(**given), run, resume=True)
    assert {path: path.read_bytes() for path in before} == before
    more = {"learning_rates": [1e-4, 5e-4], "epochs": [3, 4], "restarts": 3}
    summary = run_search(out, new_recipe(more), run, resume=True)
    assert summary["num_finished"] == 12


# Together


def test_the_runs_of_the_best_combination_answer_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[str]] = []

    def write(members: list[Path], directory: Path, *, overwrite: bool) -> Path:
        written.append([member.parent.name for member in members])
        return directory

    def evaluate(model: Path, data: InputFiles, *, columns: ColumnSettings, device: str) -> dict[str, Any]:
        return {"metrics": {"accuracy": {"dev.tsv": 0.85, "test.tsv": 0.8}[str(data)]}}

    replace_in_search(monkeypatch, write_ensemble=write, evaluate=evaluate)

    def figures(settings: FinetuneRecipe) -> dict[str, Any]:
        # The best single run has the rate of the worse mean.
        if settings.optimizer.learning_rate == 1e-5:
            return of_accuracy(0.95 if (settings.seed, settings.init_from) == (0, "a") else 0.1)
        return of_accuracy(0.8)

    settings = new_recipe(
        {"learning_rates": [1e-5, 2e-5], "checkpoints": ["a", "b"], "restarts": 2, "ensemble": True},
        data={"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"},
    )
    summary = run_search(tmp_path / "out", settings, Pretended(figures))
    members = [f"{label}_lr2e-05_batch16_epochs3_seed{seed}" for label in "ab" for seed in (0, 1)]
    assert written == [members]
    assert summary["ensemble"] == {"members": members, "dev": {"accuracy": 0.85}, "test": {"accuracy": 0.8}}
    assert summary["best_on_dev"]["trial"] == "a_lr1e-05_batch16_epochs3_seed0"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "4 together" in page
    assert "model/ is the best single run on dev, a_lr1e-05_batch16_epochs3_seed0; ensemble/ is the 4 runs" in page
    assert "those of a_lr2e-05_batch16_epochs3, b_lr2e-05_batch16_epochs3." in page


def test_an_ensemble_of_earlier_runs_does_not_stay_beside_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(members: list[Path], directory: Path, *, overwrite: bool) -> Path:
        directory.mkdir()
        (directory / "ensemble.json").write_text("{}")
        return directory

    replace_in_search(monkeypatch, write_ensemble=write, evaluate=lambda *_, **__: {"metrics": {"accuracy": 0.5}})
    out = tmp_path / "out"
    run_search(out, new_recipe({"restarts": 2, "ensemble": True}), pretended(0.5))
    assert (out / "ensemble").exists()
    summary = run_search(out, new_recipe({"restarts": 3}), pretended(0.6), resume=True)
    assert "ensemble" not in summary
    assert not (out / "ensemble").exists()
    assert (out / "log.txt").read_text().count("out/ensemble is removed: it was of earlier runs") == 1


def test_an_ensemble_that_a_stopped_search_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(members: list[Path], directory: Path, *, overwrite: bool) -> Path:
        write(directory / "ensemble.json", "{}")
        return directory

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    replace_in_search(monkeypatch, write_ensemble=make, evaluate=stop)
    settings = new_recipe({"restarts": 2, "ensemble": True})
    with pytest.raises(Interrupted):
        run_search(tmp_path / "out", settings, pretended(0.5))
    replace_in_search(monkeypatch, evaluate=lambda *_, **__: {"metrics": {"accuracy": 0.5}})
    assert run_search(tmp_path / "out", settings, pretended(0.5), resume=True)["ensemble"]["dev"] == {"accuracy": 0.5}


def test_files_in_the_place_of_an_ensemble_are_not_removed_with_a_search(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_search(out, new_recipe({"restarts": 2}), pretended(0.5))
    notes = write(out / "ensemble" / "notes.txt", "mine")
    with pytest.raises(OutputError, match=r"out/ensemble holds notes.txt, which is no part of an ensemble"):
        run_search(out, new_recipe({"restarts": 2}), pretended(0.6), overwrite=True)
    assert notes.exists()


@pytest.mark.parametrize(
    ("name", "checked"),
    [("squad1", [["a", "b"]]), ("tagging", [["a", "b"]]), ("sst2", []), ("regression", []), ("choice", [])],
)
def test_models_that_answer_by_token_need_one_tokenizer_to_answer_together(
    name: str, checked: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def check(models: list[Path]) -> None:
        asked.append([str(model) for model in models])
        raise ModelError("stop here")

    def stop(*_: Any, **__: Any) -> None:
        raise ModelError("stop here")

    replace_in_search(monkeypatch, check_tokenizers=check, write_environment=stop)
    settings = new_recipe({"checkpoints": ["a", "b"], "restarts": 2, "ensemble": True}, task={"name": name})
    with pytest.raises(ModelError, match="stop here"):
        run_search(tmp_path / "out", settings, pretended(0.5))
    assert asked == checked


def answering(
    monkeypatch: pytest.MonkeyPatch, task: Any, golds: list[Any], said: list[dict[str, Any]], metrics: dict[str, float]
) -> list[TaskSettings]:
    """An ensemble of a task answers so to `golds` and is measured so; the settings that it answered with."""
    asked: list[TaskSettings] = []
    nothing: Any = None

    class Answering(Predictor):
        def with_options(self, *_: Any) -> Predictor:
            return self

        def sets(self, *_: Any) -> Any:
            return [ExampleSet(golds, nothing)]

        def decide(self, part: ExampleSet, *_: Any) -> list[Any]:
            asked.append(self.task.settings)
            return said

    def write(members: list[Path], directory: Path, *, overwrite: bool) -> Path:
        directory.mkdir()
        (directory / "ensemble.json").write_text('{"members": ["a"]}')
        return directory

    predictor = Answering(task, nothing, nothing, nothing)
    replace_in_search(monkeypatch, write_ensemble=write, evaluate=lambda *_, **__: {"metrics": metrics})
    replace_in_search(monkeypatch, load_predictor=lambda *_, **__: predictor)
    return asked


@pytest.mark.parametrize(("set_by_user", "kept"), [(None, 1.0), (0.25, None)])
def test_the_threshold_of_no_answer_is_chosen_for_all_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_user: float | None, kept: float | None
) -> None:
    task = open_task(TaskSettings(name="squad2", null_threshold=7.0), ColumnSettings())  # of the members, added up
    golds = [QaExample("1", "?", "", None, answers, {}, "x:1") for answers in (("kite",), ())]
    leads = 2.0, 0.0  # between them is the best threshold
    said = [{"answer": "kite", "no_answer_probability": 1 / (1 + math.exp(lead))} for lead in leads]
    asked = answering(monkeypatch, task, golds, said, {"best_f1": 50.0})
    settings = new_recipe({"restarts": 2, "ensemble": True}, task={"name": "squad2", "null_threshold": set_by_user})
    run_search(tmp_path / "out", settings, Pretended(lambda _: {"dev": {"loss": 1.0, "best_f1": 50.0}}))
    expected = {} if kept is None else {"null_threshold": pytest.approx(kept)}
    assert read_chosen(tmp_path / "out" / "ensemble") == expected
    assert [each.null_threshold for each in asked] == ([None] if kept else [])


@pytest.mark.parametrize(("given", "kept"), [("dev", {"thresholds": {"a": 0.25, "b": 0.5}}), ({"a": 0.9}, {})])
def test_thresholds_of_labels_are_chosen_for_all_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, kept: dict[str, Any]
) -> None:
    settings = {"name": "classification", "multi_label": True, "labels": ["a", "b"]}
    task = open_task(TaskSettings(**settings, thresholds={"a": 0.7, "b": 0.6}), ColumnSettings())  # the members' means
    examples = [TextExample("t", None, labels, {}, "x:1") for labels in (("a",), ())]
    said = [{"labels": [], "probabilities": {"a": probability, "b": 0.1}} for probability in (0.3, 0.2)]
    asked = answering(monkeypatch, task, examples, said, {"f1_micro": 0.5})
    recipe = new_recipe({"restarts": 2, "ensemble": True}, task={**settings, "thresholds": given})
    run_search(tmp_path / "out", recipe, Pretended(lambda _: {"dev": {"loss": 1.0, "f1_micro": 0.5}}))
    assert read_chosen(tmp_path / "out" / "ensemble") == kept
    assert [each.thresholds for each in asked] == (["dev"] if kept else [])


def test_layers_are_drawn_as_a_curve(tmp_path: Path) -> None:
    run = Pretended(lambda settings: of_accuracy(0.5 + (settings.transfer_layers or 0) / 10))
    run_search(tmp_path / "out", new_recipe({"transfer_layers": [0, 1, 2], "restarts": 2}), run)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "By the number of layers taken" in page
    assert "on dev ± sd</span>" in page


def test_numbers_of_examples_are_drawn_as_a_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pretended(lambda settings: of_accuracy(0.5 + (settings.data.train_examples or 0) / 1000))
    panels: list[Panel] = []
    monkeypatch.setattr("unmask.finetuning.search.page.draw_wide", lambda panel: panels.append(panel) or "")
    run_search(tmp_path / "out", new_recipe({"train_examples": [100, 10, 30]}), run)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "By the number of training examples" in page
    assert "± sd</span>" not in page, "each ran once"
    [panel] = panels
    assert (panel.title, panel.held_out.steps.tolist()) == ("lr5e-05_batch16_epochs3", [10, 30, 100])


def made_by(command: str, of: list[str], step: int | None) -> str:
    return json.dumps({"unmask_made_by": {"command": command, "of": of, "step": step}})


@pytest.mark.parametrize("last", ["{}", made_by("average", ["runs/b", "runs/c"], None), None])
def test_models_along_pre_training_are_drawn_as_a_curve_for_each_run(
    last: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the step of each is known: not for a model of unknown origin, nor a mean, nor one that is gone."""
    replace_in_search(monkeypatch)
    models = {f"{run}-{step}": made_by("checkpoint", [f"runs/{run}"], step) for run in "bc" for step in (500, 2000)}
    for name, config in models.items():
        write(tmp_path / name / "config.json", config)
    drawn = [str(tmp_path / name) for name in ("b-2000", "c-500", "b-500", "c-2000")]
    run = Pretended(lambda settings: of_accuracy(0.5 + (settings.seed or 0) / 10))
    panels: list[Panel] = []
    monkeypatch.setattr("unmask.finetuning.search.page.draw_wide", lambda panel: panels.append(panel) or "")
    run_search(tmp_path / "all", new_recipe({"checkpoints": drawn, "restarts": 2}), run)
    assert [panel.title for panel in panels] == [f"runs/{run}: lr5e-05_batch16_epochs3" for run in "bc"]
    for panel in panels:
        assert panel.held_out.steps.tolist() == [500, 2000]
        assert panel.held_out.values == pytest.approx([0.55, 0.55])
        assert panel.spread == pytest.approx(2 * [0.1 / math.sqrt(2)])
    assert "By the step of pre-training" in (tmp_path / "all" / "report.html").read_text()
    if last is not None:
        write(tmp_path / "other" / "config.json", last)
    run_search(tmp_path / "some", new_recipe({"checkpoints": [*drawn, str(tmp_path / "other")]}), run)
    assert "By the step of pre-training" not in (tmp_path / "some" / "report.html").read_text()

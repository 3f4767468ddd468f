"""Floors, worked by hand, and what the doctor reads from a run's figures alone."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.batch import pack
from unmask.doctor.run.causes import Record
from unmask.doctor.run.checks import check_run, clipping, more_tokens
from unmask.doctor.run.floors import check_floor, passed_step, recorded_floors
from unmask.errors import InputError
from unmask.objectives.floors import Floor
from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.sentence_pairs import SentencePairPart
from unmask.objectives.settings import MaskedLMSettings
from unmask.objectives.span_boundary import SpanBoundary
from unmask.recipe.loading import load_pretrain_recipe
from unmask.tokenization.vocabulary import Vocabulary

FLOOR = Floor("mlm-unigram-floor", "loss/mlm", "unigram entropy", "knowing frequencies", 5.0)
ACCURACY = Floor("nsp-majority-floor", "eval/nsp_accuracy", "chance", "one label", 0.6, 0.1, False)


Rows = list[dict[str, float | None]]


def losses(*values: float | None) -> Rows:
    """Training rows, ten steps apart."""
    return [{"step": 10 * number, "loss": value, "loss/mlm": value} for number, value in enumerate(values, start=1)]


# Floors


def test_floors_of_known_targets() -> None:
    """Five entries seen 1, 8, 4, 2 and 1 times in sixteen tokens, the first of them `[MASK]`; the targets are the
    entries 1, 1, 2, 4, for which `[MASK]`, 1, 1 and 4 are shown."""
    batch = pack([[0, 3, 1], [3, 1, 4]]).with_columns(
        labels=torch.tensor([1, -100, 1, -100, 2, 4]),
        target_positions=torch.tensor([0, 2, 4, 5]),
        next_sentence_label=torch.tensor([0, 1]),
    )
    counts, vocabulary = np.array([1, 8, 4, 2, 1]), Vocabulary(5, 0, (0,), np.zeros(5, dtype=np.bool_))
    masking = MaskedLMSettings(mask_token_prob=0.5, random_token_prob=0.25)
    floors = {floor.name: floor for floor in MaskedLM(masking, vocabulary).floors(counts, [batch, batch])}
    assert floors["mlm-uniform-floor"].value == pytest.approx(math.log(5))
    expected = (math.log(2) + math.log(2) + math.log(4) + math.log(16)) / 4
    assert floors["mlm-unigram-floor"].value == pytest.approx(expected)
    # Kept with 1/4, each of the four others drawn with 1/16: 1 is shown with 1/8 + 1/16, 4 with 1/64 + 1/16.
    shares = (1 / 2, 1 / 2 * (5 / 16) / (3 / 16), 1 / 4 * (1 / 16) / (3 / 16), 1 / 16 * (5 / 16) / (5 / 64))
    assert floors["mlm-no-context-floor"].value == pytest.approx(-sum(math.log(share) for share in shares) / 4)
    # Said are 1, 1, 1, and of a shown 4, which is the target by 5/256 and drawn for a 1 by 8/256, again 1.
    assert floors["mlm-no-context-accuracy-floor"].value == 0.5
    masks_alone = MaskedLM(MaskedLMSettings(mask_token_prob=1.0, random_token_prob=0.0), vocabulary)
    names = {floor.name for floor in masks_alone.floors(counts, [batch])}
    assert "mlm-no-context-floor" not in names  # it is the unigram entropy
    assert floors["nsp-chance-floor"].value == pytest.approx(math.log(2))
    assert floors["nsp-majority-floor"].value == 0.5
    # Two standard errors of a share of one half among four labels.
    assert floors["nsp-majority-floor"].margin == pytest.approx(2 * math.sqrt(0.25 / 4))


def test_chance_of_next_sentence_follows_the_labels() -> None:
    batch = pack([[1], [2], [3], [1]]).with_columns(
        labels=torch.full((4,), -100),
        target_positions=torch.zeros(0, dtype=torch.int64),
        next_sentence_label=torch.tensor([0, 1, 1, 1]),
    )
    vocabulary, counts = Vocabulary(4, 0, (0,), np.zeros(4, dtype=np.bool_)), np.ones(4, dtype=int)
    floors = {floor.name: floor for floor in MaskedLM(MaskedLMSettings(), vocabulary).floors(counts, [batch])}
    assert floors["nsp-chance-floor"].value == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    assert floors["nsp-majority-floor"].value == 0.75
    assert set(floors) == {"nsp-chance-floor", "nsp-majority-floor"}  # there is no target among the words
    swapped = batch.with_columns(sentence_order_label=batch.columns["next_sentence_label"])
    order = SentencePairPart("sop").floors(counts, [swapped])
    assert [floor.value for floor in order] == [floor.value for floor in floors.values()]


def test_the_floor_of_the_boundary_head_is_of_its_own_targets() -> None:
    """Of the spans' targets 1, 1, 2 and 4, by sixteen tokens, the last two are predicted from boundaries."""
    labels, targets = torch.tensor([1, -100, 1, -100, 2, 4]), torch.tensor([4, 5])
    batch = pack([[0, 3, 1], [3, 1, 4]]).with_columns(labels=labels, boundary_targets=targets)
    floors = SpanBoundary(20).floors(np.array([1, 8, 4, 2, 1]), [batch, batch])
    (floor,) = [floor for floor in floors if floor.label == "unigram entropy"]
    assert (floor.name, floor.figure, floor.held_out_key) == ("sbo-unigram-floor", "loss/sbo", "eval/sbo_loss")
    assert floor.value == pytest.approx((math.log(4) + math.log(16)) / 2)
    assert "shown" not in floor.what  # what stands at a target is not what the head reads
    without = batch.with_columns(boundary_targets=torch.zeros(0, dtype=torch.int64))
    assert SpanBoundary(20).floors(np.ones(5, dtype=int), [without]) == []


def test_floors_that_a_run_has_written_down() -> None:
    (floor,) = recorded_floors({"loss/lm": {"unigram entropy": 7.5}})
    assert (floor.name, floor.value) == ("lm-unigram-floor", 7.5)
    assert (floor.figure, floor.held_out_key) == ("loss/lm", "eval/lm_loss")
    told = {"loss/generator": {"no context": 6.5, "unigram entropy": 7.5}, "eval/generator_accuracy": {"no context": 1}}
    found = {floor.name: floor.value for floor in recorded_floors(told)}
    assert found == {"generator-no-context-floor": 6.5, "generator-unigram-floor": 7.5}


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ((6.0, 4.9, 4.8), 20),
        ((4.9, 6.0, 4.8), 30),  # passed for good only after it was lost again
        ((4.9, 4.8, 5.0), None),
        ((4.9, 4.8, None), None),
        ((5.1, 4.99), None),  # within the margin
        ((), None),
    ],
)
def test_the_step_from_which_on_a_floor_is_passed(values: tuple[float | None, ...], step: int | None) -> None:
    assert passed_step([(10 * n, value) for n, value in enumerate(values, start=1)], FLOOR) == step


def test_held_out_rows_decide_and_date() -> None:
    held_out: Rows = [{"step": 20, "eval/mlm_loss": 4.8}, {"step": 40, "eval/mlm_loss": 4.7}]
    rows: Rows = [*losses(6.0, 5.5, 5.2, 4.9), *held_out]
    [passed] = check_floor(FLOOR, rows, [])
    assert (passed.level, passed.advice) == ("good", "")
    assert "the eval/mlm_loss of step 40, 4.700, is below 5.000" in passed.message
    assert "passed by step 20" in passed.message
    [by_training] = check_floor(FLOOR, losses(6.0, 5.5, 4.9, 4.8), [])
    assert "passed by step 30" in by_training.message
    [failed] = check_floor(FLOOR, [*rows, {"step": 50, "eval/mlm_loss": 5.2}], ["other-vocabulary"])
    assert failed.level == "warning"
    assert "other-vocabulary" in failed.advice


def test_a_floor_lost_again_is_told() -> None:
    rows: Rows = [{"step": 10, "eval/mlm_loss": 4.0}, {"step": 20, "eval/mlm_loss": None}]
    [finding] = check_floor(FLOOR, rows, [])
    assert finding.level == "warning"
    assert "not finite" in finding.message
    assert "passed at step 10 and lost again" in finding.message


def test_an_accuracy_has_to_be_above_its_floor() -> None:
    found = [next(check_floor(ACCURACY, [{"step": 1, "eval/nsp_accuracy": share}], [])) for share in (0.5, 0.65, 0.75)]
    assert [finding.level for finding in found] == ["note", "note", "good"]


def test_a_floor_without_figures_is_not_told() -> None:
    assert list(check_floor(FLOOR, [{"step": 1, "loss/nsp": 0.7}], [])) == []


# Runs of which only the figures are left

PRETRAIN = "store: nowhere\ntrain: {steps: 400}\n"
FINETUNE = "init_from: nowhere\ndata: {train: train.tsv, dev: dev.tsv}\n"


def run_of(directory: Path, recipe: str, rows: Rows) -> dict[str, str]:
    """The levels of what is found in a run of these rows."""
    common: dict[str, float | None] = {"tokens": 9, "learning_rate": 1e-3, "gradient_norm": 0.5, "tokens_per_s": 100.0}
    whole = [(common | row if "loss" in row else row) for row in rows]
    (directory / "recipe.yaml").write_text(recipe)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in whole))
    return {finding.name: finding.level for finding in check_run(directory)}


def test_a_loss_that_rises_for_good(tmp_path: Path) -> None:
    found = run_of(tmp_path, PRETRAIN, losses(10.0, 8.0, 6.5, 6.0, 5.9, 7.3, 7.3, 7.2, 7.3, 7.3, 7.2, 7.3))
    assert found["learning-rate-too-high"] == "fault"
    assert found["inputs-unreadable"] == "warning"


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_few_sequences_jump_without_a_fault(tmp_path: Path, seed: int) -> None:
    """A standard deviation of half a nat is that of twenty targets."""
    noise = np.random.default_rng(seed).normal(0, 0.5, 120)
    falling = np.linspace(6.4, 5.6, 120)
    found = run_of(tmp_path, PRETRAIN, losses(*(falling + noise).tolist()))
    assert "learning-rate-too-high" not in found


def test_a_spike_that_is_left_again_is_no_fault(tmp_path: Path) -> None:
    values = [10.0, 8.0, 6.5, 6.0, 7.9, 6.1, 5.9, 5.8, 5.8, 5.7, 5.7, 5.6]
    assert "learning-rate-too-high" not in run_of(tmp_path, PRETRAIN, losses(*values))


@pytest.mark.parametrize(
    ("norm", "told"), [(0.5, None), (3.0, "over the clipping norm in 1 of 2 rows")], ids=["none", "one"]
)
def test_what_was_clipped_is_told_where_something_was(tmp_path: Path, norm: float, told: str | None) -> None:
    rows = losses(10.0, None)
    rows[0]["gradient_norm"], rows[1]["gradient_norm"] = norm, None
    run_of(tmp_path, PRETRAIN, rows)
    message = next(finding.message for finding in check_run(tmp_path) if finding.name == "learning-rate-too-high")
    assert "is not finite at step 20" in message
    assert ("clipping" in message) == (told is not None)
    assert told is None or told in message
    assert "always-clipped" not in {finding.name for finding in check_run(tmp_path)}


ELECTRA = ["objective={name: replaced_token}", "model.architecture=electra", "packing.format=single_segment"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "usual for small models; where the loss spikes"),
        (ELECTRA, "usual for small models, and for a discriminator whose loss counts 50-fold; where the loss spikes"),
    ],
    ids=["masked_lm", "replaced_token"],
)
def test_why_all_rows_are_clipped_is_said_of_the_discriminators_weight_too(words: list[str], told: str) -> None:
    recipe = load_pretrain_recipe("pretrain/bert_tiny", ["store=nowhere", *words])
    training = [{"step": step, "loss": 5.0, "gradient_norm": 7.0} for step in range(10)]
    [finding] = clipping(Record(Path("run"), training, []), recipe)
    assert finding.name == "always-clipped"
    assert finding.message == "gradients were over train.max_grad_norm=1.0 in 10 of 10 rows, in the median 7"
    assert finding.advice.startswith(told)


def test_a_diverged_run_is_not_told_to_go_on(tmp_path: Path) -> None:
    run_of(tmp_path, PRETRAIN, losses(10.0, None))
    advice = {finding.name: finding.advice for finding in check_run(tmp_path)}
    assert "start again" in advice["learning-rate-too-high"]
    assert advice["unfinished-run"].startswith("see the advice under learning-rate-too-high: ")
    run_of(tmp_path, PRETRAIN, losses(10.0, 9.0))
    advice = {finding.name: finding.advice for finding in check_run(tmp_path)}
    assert advice["unfinished-run"].startswith("its command with --resume continues it; ")


def more_told(*values: float, held_out: float | None = None) -> str:
    """What is said of training losses where knowing frequencies comes to 6.5, and the tokens shown to 5.5."""
    evaluated = [] if held_out is None else [(10, 9.0), (20, held_out)]
    found = list(more_tokens([(10 * n, value) for n, value in enumerate(values, start=1)], evaluated, 6.5, 5.5))
    assert len(found) <= 1
    return "".join(f"{finding.message} | {finding.advice}" for finding in found)


def test_a_plateau_is_told_where_one_can_be_told() -> None:
    assert "; in training it hardly falls (6.00, and 6.00 in the rows before) | " in more_told(*[7.0] * 10, *[6.0] * 10)
    assert more_told(*[7.0] * 10, *[6.0] * 10).endswith("stays on this plateau for more than 20 million")
    assert more_told(*[7.0] * 10, *[6.0] * 9).endswith("without any context | train on more tokens")  # too few rows
    sloping = more_told(*np.linspace(7.5, 5.8, 20).tolist())
    expected = "the loss of the last rows is 5.98, not below the 5.50 that is possible without any context"
    assert sloping == f"{expected} | train on more tokens"


def test_held_out_losses_are_what_floors_of_held_out_targets_are_for() -> None:
    told = more_told(*[5.2] * 30, held_out=5.75)
    assert told.startswith("the held-out loss is 5.75, not below the 5.50 that is possible without any context; in ")
    told = more_told(*[5.7] * 19, held_out=5.25)
    assert told.startswith("the held-out loss is 5.25, only 0.25 below the 5.50 that is possible without any context |")
    assert more_told(*[5.7] * 30, held_out=4.9) == ""


def test_a_run_over_the_entropy_of_the_entries_is_no_plateau() -> None:
    told = more_told(*np.linspace(8.5, 7.24, 40).tolist(), *[7.24] * 20)  # its rate has fallen to nothing
    assert "is 7.24, above the 6.50 of knowing how frequent each entry is" in told
    assert told.endswith("| train on more tokens")


def test_a_run_well_below_what_is_had_without_context_is_left_alone() -> None:
    assert more_told(*[4.9] * 30) == ""
    assert more_told(6.0) == ""


LEFT_TO_RIGHT = "objective: {name: causal_lm}\nmodel: {architecture: gpt1}\npacking: {format: single_segment}\n"
BOTH_DIRECTIONS = "objective: {name: bilm}\nmodel: {architecture: elmo}\npacking: {format: stream}\n"
REPLACED = "objective: {name: replaced_token}\nmodel: {architecture: electra}\npacking: {format: single_segment}\n"


def rows_of(key: str, *values: float | None, held_out: float | None = None) -> Rows:
    rows: Rows = [{"step": 10 * number, "loss": value, key: value} for number, value in enumerate(values, start=1)]
    name = key.removeprefix("loss/")
    return rows if held_out is None else [*rows, {"step": rows[-1]["step"], f"eval/{name}_loss": held_out}]


@pytest.mark.parametrize(("objective", "key"), [(LEFT_TO_RIGHT, "lm"), (REPLACED, "generator")], ids=["gpt", "electra"])
def test_figures_of_other_objectives_are_judged_by_the_runs_floors(tmp_path: Path, objective: str, key: str) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"floors": {f"loss/{key}": {"unigram entropy": 6.5}}}))
    recipe = f"{PRETRAIN}{objective}"
    found = run_of(tmp_path, recipe, rows_of(f"loss/{key}", 9.0, 8.0, 7.0, 6.0, held_out=6.1))
    assert found[f"{key}-unigram-floor"] == "good"
    assert (found["no-cause"], found["inputs-unreadable"]) == ("good", "warning")
    found = run_of(tmp_path, recipe, rows_of(f"loss/{key}", 9.0, 8.0, 7.0, 6.9, held_out=6.8))
    assert found[f"{key}-unigram-floor"] == "warning"
    found = run_of(tmp_path, recipe, rows_of(f"loss/{key}", 9.0, 7.0, None, None))
    assert found["learning-rate-too-high"] == "fault"
    found = run_of(tmp_path, recipe, rows_of(f"loss/{key}", *(9.0, 7.0, 6.0, 5.5, 8.0, 8.1, 8.0, 8.2)))
    assert found["learning-rate-too-high"] == "fault"


@pytest.mark.parametrize(
    ("forward", "backward", "level"),
    [(5.26, 4.8, "warning"), (4.6, 5.1, "warning"), (5.14, 5.1, None), (None, 5.1, None)],
)
def test_directions_that_part(tmp_path: Path, forward: float | None, backward: float, level: str | None) -> None:
    rows = rows_of("loss/lm", 8.0, 6.0, 5.0, 4.5, held_out=5.0)
    rows[-1] |= {"eval/lm_forward_loss": forward, "eval/lm_backward_loss": backward}
    found = run_of(tmp_path, f"{PRETRAIN}{BOTH_DIRECTIONS}", rows)
    assert found.get("directions-apart") == level
    assert ("no-cause" in found) == (level is None)


def test_a_run_without_rows(tmp_path: Path) -> None:
    found = run_of(tmp_path, PRETRAIN, [])
    assert found == {"no-figures": "warning", "unfinished-run": "warning", "inputs-unreadable": "warning"}


def task_rows(training: list[float], held_out: list[float], correlation: float = 0.5) -> Rows:
    rows: Rows = [{"step": 10 * n, "loss": value, "loss/task": value} for n, value in enumerate(training, start=1)]
    figures = {"eval/accuracy": 0.6, "eval/matthews_correlation": correlation}
    return rows + [{"step": 10 * n, "eval/loss": value, **figures} for n, value in enumerate(held_out, start=1)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (task_rows([0.7, 0.6, 0.5, 0.4], [0.6, 0.5]), {"no-cause": "good", "unfinished-run": "warning"}),
        (task_rows([0.7, 0.5, 0.2, 0.1], [0.6, 0.5, 0.8]), {"over-fitting": "warning"}),
        (task_rows([0.7, 0.7, 0.7, 0.7], [0.7], correlation=0.0), {"no-better-than-chance": "warning"}),
        (task_rows([0.7, 0.5, 0.4, 0.4, 1.3, 1.4, 1.4, 1.4], [0.7]), {"learning-rate-too-high": "fault"}),
    ],
    ids=["sound", "over-fitting", "at chance", "diverging"],
)
def test_figures_of_fine_tuning(tmp_path: Path, rows: Rows, expected: dict[str, str]) -> None:
    found = run_of(tmp_path, FINETUNE, rows)
    assert expected.items() <= found.items()
    assert ("no-cause" in found) == (expected.keys() <= {"no-cause", "unfinished-run", "over-fitting"})


@pytest.mark.parametrize(
    ("problem_type", "labels", "training", "held_out", "expected"),
    [
        ("regression", 1, 0.5, 0.9, {}),
        ("multi_label_classification", 5, 0.8, 0.8, {"task-uniform-floor": "warning"}),
        ("multi_label_classification", 5, 0.5, 0.9, {"task-uniform-floor": "good", "over-fitting": "warning"}),
        ("single_label_classification", 5, 0.8, 0.8, {"task-uniform-floor": "good"}),
        (None, 5, 0.5, 1.7, {"task-uniform-floor": "good", "over-fitting": "warning"}),
    ],
)
def test_the_loss_of_guessing_is_that_of_the_kind_of_head(
    tmp_path: Path,
    tiny_model: Path,
    problem_type: str | None,
    labels: int,
    training: float,
    held_out: float,
    expected: dict[str, str],
) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    changed = {"problem_type": problem_type, "id2label": {str(number): f"LABEL_{number}" for number in range(labels)}}
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changed), "utf-8")
    found = run_of(tmp_path, FINETUNE, task_rows([training] * 4, [held_out]))
    assert {name: found[name] for name in ("task-uniform-floor", "over-fitting") if name in found} == expected
    told = [each.message + each.advice for each in check_run(tmp_path) if each.name == "over-fitting"]
    assert all("guessing" in each and not re.search("lowest|stop earlier", each) for each in told), "it is the best"


def test_uneven_speed(tmp_path: Path) -> None:
    rows = task_rows([0.5] * 20, [0.5])
    for row in rows[:6]:
        row["tokens_per_s"] = 10.0
    assert run_of(tmp_path, FINETUNE, rows)["uneven-speed"] == "note"


@pytest.mark.parametrize(("recipe", "rows"), [(PRETRAIN, losses(10.0, 8.0)), (FINETUNE, task_rows([0.7], [0.6]))])
def test_a_budget_that_was_changed_is_told(tmp_path: Path, recipe: str, rows: Rows) -> None:
    assert "budget-changed" not in run_of(tmp_path, recipe, rows)
    change = {"step": 300, "was": "train.steps=300", "now": "train.steps=400"}
    (tmp_path / "environment.json").write_text(json.dumps({"sessions": [{}, {"budget_change": change}]}))
    assert run_of(tmp_path, recipe, rows)["budget-changed"] == "note"


def test_the_majority_comes_from_the_results(tmp_path: Path) -> None:
    results = {"floors": {"eval/accuracy": {"most frequent label of train": 0.59}}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = run_of(tmp_path, FINETUNE, task_rows([0.7, 0.6, 0.5, 0.4], [0.6]))
    assert found["task-majority-floor"] == "warning"


@pytest.mark.parametrize("degenerate", [None, "all 20 predictions are choice 0"])
def test_whether_the_model_is_degenerate_comes_from_the_results(tmp_path: Path, degenerate: str | None) -> None:
    """Whatever Matthews' correlation is: predictions that say nothing of balanced labels have 0 as well."""
    dev = {"loss": 0.6, "accuracy": 0.5, "matthews_correlation": 0.0}
    floors = {"eval/accuracy": {"most frequent label of train": 0.5}}
    results = {"dev": dev, "step": 40, "degenerate": degenerate, "floors": floors}
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = run_of(tmp_path, FINETUNE, task_rows([0.7, 0.6, 0.5, 0.4], [0.6]))
    del found["unfinished-run"]
    (message, *_) = (each.message for each in check_run(tmp_path) if each.name in ("no-cause", "constant-predictions"))
    if degenerate is None:
        assert found == {"no-cause": "good", "task-majority-floor": "warning"}
        assert message.endswith("the loss is stable, and on dev the model is not degenerate")
    else:
        assert found == {"constant-predictions": "fault"}
        assert message == f"on dev {degenerate}: the model gives every example the same answer"


def test_of_predictions_that_nobody_looked_at_nothing_is_said(tmp_path: Path) -> None:
    rows: Rows = [{"step": 10, "loss": 0.7, "loss/task": 0.7}, {"step": 10, "eval/loss": 0.7, "eval/pearson": 0.0}]
    assert run_of(tmp_path, FINETUNE, rows)["no-cause"] == "good"
    (message,) = (each.message for each in check_run(tmp_path) if each.name == "no-cause")
    assert message.endswith("the loss is stable")


def test_the_model_that_early_stopping_kept_is_judged(tmp_path: Path) -> None:
    """Its last evaluation is at chance, worse than the majority and over-fitted; that of step 20 was none of these."""
    rows = task_rows([0.7, 0.5, 0.2, 0.1], [0.5, 0.4, 0.9])
    rows[-1] |= {"eval/accuracy": 0.4, "eval/matthews_correlation": 0.0}
    floors = {"eval/accuracy": {"most frequent label of train": 0.5}}
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"floors": floors}))
    found = run_of(tmp_path, FINETUNE, rows)
    expected = {"no-better-than-chance": "warning", "task-majority-floor": "warning", "over-fitting": "warning"}
    assert found.items() >= expected.items()
    dev = {"loss": 0.4, "accuracy": 0.8, "matthews_correlation": 0.5}
    early = {"step": 20, "evaluations": 3}
    path.write_text(json.dumps({"dev": dev, "early_stopping": early, "step": 40, "floors": floors}))
    found = run_of(tmp_path, FINETUNE, rows)
    assert found == {"unfinished-run": "warning", "task-majority-floor": "good", "no-cause": "good"}
    told = next(each.message for each in check_run(tmp_path) if each.name == "task-majority-floor")
    assert told.startswith("the eval/accuracy of step 20, 80.0%, is above 50.0%")


@pytest.mark.parametrize("step", [None, 20])
def test_figures_of_an_earlier_end_are_not_those_of_a_resumed_run(tmp_path: Path, step: int | None) -> None:
    rows = task_rows([0.7, 0.5, 0.2, 0.1], [0.5, 0.4, 0.4])
    rows[-1]["eval/matthews_correlation"] = 0.0
    results = {"dev": {"loss": 0.4, "matthews_correlation": 0.5}}
    (tmp_path / "results.json").write_text(json.dumps({**results, "step": 40}))
    assert run_of(tmp_path, FINETUNE, rows)["no-cause"] == "good"
    (tmp_path / "results.json").write_text(json.dumps(results if step is None else {**results, "step": step}))
    assert run_of(tmp_path, FINETUNE, rows)["no-better-than-chance"] == "warning"


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_results_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(InputError, match=r"results\.json: "):
        run_of(tmp_path, FINETUNE, task_rows([0.7, 0.6, 0.5, 0.4], [0.6]))


@pytest.mark.parametrize("recipe", [PRETRAIN, FINETUNE])
@pytest.mark.parametrize("config", ["{", "{}"])
def test_a_model_that_does_not_load_is_a_finding(tmp_path: Path, recipe: str, config: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(config)
    found = run_of(tmp_path, recipe, losses(10.0, 8.0, 6.5, 6.0) if recipe == PRETRAIN else task_rows([0.7], [0.6]))
    assert found["model-unreadable"] == "fault"

"""The program `compare` for runs: whether two recipes differ by more than their seeds do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from unmask.config import changed_keys
from unmask.errors import InputError
from unmask.experiments.compare import NOT_COMPARED
from unmask.finetuning.search.seeds import Difference, difference_over_seeds
from unmask.io.json_files import read_object
from unmask.io.paths import RECIPE, RESULTS, as_path
from unmask.io.progress import listed
from unmask.recipe.loading import read_recipe
from unmask.recipe.tree import FinetuneRecipe, PretrainRecipe
from unmask.training.run.environment import ENVIRONMENT, budget_changes, read_sessions
from unmask.training.run.resuming import DATA

Recipe = PretrainRecipe | FinetuneRecipe

_NO_DIFFERENCE = (
    "seed",
    "device",
    *(f"train.{name}" for name in ("log_every", "save_every", "keep_last", "keep_every")),
)
"""Runs that differ in nothing but these keys are seeds of one recipe."""
_PLACES = ("store", "corpus", "data.train", "data.dev", "data.test")
"""Keys that say where text is: what it holds is compared, not its place."""
_OF_THE_QUESTION = (
    *("held_out", "train.eval_sequences", "packing", "phases"),
    *("objective.masking", "objective.target_prob", "objective.target_prob_end", "objective.mask_token_prob"),
    *("objective.random_token_prob", "objective.span_length_prob", "objective.max_span_words"),
    *("objective.max_boundary_targets", "objective.sentence_objective", "objective.num_negatives"),
    *("objective.empty_memory_prob", "objective.generator_size", "objective.tie_embeddings", "objective.schedule"),
)
"""Keys that decide which held-out text is measured, and what of it is hidden or drawn, or those above them."""


@dataclass(frozen=True)
class _Run:
    """A finished run.

    Attributes:
        figures: by name; of fine-tuning after `dev.` or `test.`.
        text: the fingerprints of what it read, by key.
        is_degenerate: whether it gives every example of dev the same answer.
    """

    directory: Path
    recipe: Recipe
    figures: Mapping[str, float]
    text: Mapping[str, str]
    is_degenerate: bool


@dataclass
class Arm:
    """The runs of one recipe.

    Attributes:
        settings: the keys in which the arms differ, with the values of this one.
        runs: a run's directory by its seed.
        figures: a figure's values by its name, in the order of `runs`.
    """

    settings: dict[str, Any]
    runs: dict[int, Path]
    figures: dict[str, list[float]]


@dataclass(frozen=True)
class Comparison:
    """What `compare_runs` finds.

    Attributes:
        arms: in the order in which their first runs were given.
        differences: by figure, one for each arm but the first; None where the two have no seed in common.
        notes: what makes figures incomparable, or their intervals narrow.
    """

    arms: list[Arm]
    differences: dict[str, list[Difference | None]]
    notes: list[str]


def compare_runs(runs: Iterable[str | Path]) -> Comparison:
    """Puts the figures of finished runs side by side: of each recipe the mean and the spread over its seeds, and how
    far seeds explain the difference of two.

    Runs that differ in their seeds alone are one arm. Two arms are compared over the seeds that both have, run by run:
    a seed decides initial weights and order of the text in both. The held-out text is the same for all seeds.

    Args:
        runs: directories of `pretrain` or of `finetune`, at least two.

    Raises:
        UserError: a run is not finished, they are of two programs, two are of one recipe and seed, or they have no
            figure in common that can be compared.
    """
    runs = [] if isinstance(runs, str | Path) else list(runs)
    if len(runs) < 2:
        raise InputError("expected a list of two runs or more to compare, such as ['runs/a', 'runs/b']")
    read = [_read(as_path(run, "the directory of a finished run")) for run in runs]
    for one, other in pairwise(read):
        if type(one.recipe) is not type(other.recipe):
            raise InputError(
                f"{one.directory} and {other.directory} are runs of {one.recipe.program} and of "
                f"{other.recipe.program}: expected runs of one program"
            )
    groups: list[list[_Run]] = []
    for run in read:
        alike = next((group for group in groups if not _different(group[0], run)), None)
        if alike is None:
            groups.append([run])
            continue
        if same := next((each for each in alike if each.recipe.seed == run.recipe.seed), None):
            raise InputError(
                f"{same.directory} and {run.directory} have one recipe and the seed {run.recipe.seed}: expected other "
                "seeds, or settings that differ"
            )
        alike.append(run)
    keys = list(dict.fromkeys(key for group in groups[1:] for key in _different(groups[0][0], group[0])))
    notes, is_comparable = _notes(read, keys)
    if constant := [str(run.directory) for run in read if run.is_degenerate]:
        notes.append(f"{listed(constant)}: every example of dev gets the same answer, so nothing was learned there.")
    every = [name for name in dict.fromkeys(name for run in read for name in run.figures) if is_comparable(name)]
    names = [name for name in every if all(name in run.figures for run in read)]
    for name in (name for name in every if name not in names):
        without = next(run.directory for run in read if name not in run.figures)
        notes.append(f"{name} is left out: {without} has no finite value of it.")
    if not names:
        raise InputError(" ".join([*notes, "The runs have no figure in common that can be compared."]))
    arms = [
        Arm(
            {key: _value(group[0].recipe, key) for key in keys},
            {run.recipe.seed: run.directory for run in group},
            {name: [run.figures[name] for run in group] for name in names},
        )
        for group in groups
    ]
    differences = {name: [_difference(name, arms[0], arm) for arm in arms[1:]] for name in names}
    return Comparison(arms, differences, notes)


def _read(directory: Path) -> _Run:
    if not (directory / RECIPE).is_file() or not (directory / RESULTS).is_file():
        raise InputError(
            f"{directory} has no {RESULTS} beside a {RECIPE}: expected a finished run of `unmask pretrain` or `unmask "
            "finetune`, or of a search one of its trials/; two models are compared on --data FILE"
        )
    recipe, results = read_recipe(directory / RECIPE), read_object(directory / RESULTS)
    if isinstance(recipe, FinetuneRecipe):
        found = {split: results[split] for split in ("dev", "test") if isinstance(results.get(split), Mapping)}
        figures = {f"{split}.{name}": value for split, its in found.items() for name, value in its.items()}
    else:
        figures = {name: value for name, value in results.items() if not name.startswith("num_")}
    numbers = {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and isfinite(value) and not name.endswith((*NOT_COMPARED, "perplexity"))
    }
    text = read_object(directory / DATA) if (directory / DATA).is_file() else {}
    return _Run(directory, recipe, numbers, text, results.get("degenerate") is not None)


def _different(one: _Run, other: _Run) -> dict[str, tuple[Any, Any]]:
    """The keys in which the recipes of two runs differ."""
    left_out = _PLACES if one.text and one.text == other.text else ()
    return {
        key: values
        for key, values in changed_keys(one.recipe, other.recipe).items()
        if key not in _NO_DIFFERENCE and not _is_among(key, left_out)
    }


def _is_among(key: str, keys: Sequence[str]) -> bool:
    """Whether a key, or one above it, is one of these."""
    return any(key == each or key.startswith(f"{each}.") for each in keys)


def _value(recipe: Recipe, key: str) -> Any:
    value: Any = recipe.as_compared()
    for part in key.split("."):
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _notes(runs: Sequence[_Run], keys: Sequence[str]) -> tuple[list[str], Callable[[str], bool]]:
    """What to know of the figures, and which of them can be compared."""
    measured = [{key: value for key, value in run.text.items() if not key.startswith("data.train")} for run in runs]
    is_one_text = bool(measured[0]) and all(each == measured[0] for each in measured)
    notes = [
        f"The budget of {run.directory} was changed {change}: a run with this budget from the start would have ended "
        "differently."
        for run in runs
        for change in budget_changes(read_sessions(run.directory / ENVIRONMENT))
    ]
    if isinstance(runs[0].recipe, FinetuneRecipe):
        named = [key for key in keys if _is_among(key, ("data.dev_columns", "data.test_columns", "data.columns"))]
        if unmeasured := [run.directory for run, its in zip(runs, measured, strict=True) if run.text and not its]:
            raise InputError(
                f"{unmeasured[0]} has no data.dev or data.test, so there is no figure of it: expected runs that were "
                "measured, on the same files"
            )
        if not is_one_text:
            raise InputError("the runs were measured on other files: expected the same data.dev and data.test for all")
        notes += [f"{', '.join(named)}: what is read of the files differs." for _ in named[:1]]
        return notes, lambda _: True
    if not is_one_text:
        notes.append(
            "The runs have other stores, so their losses are of other tokens, and only pairs (eval.pairs) can be "
            "compared: give all the same store=."
        )
    elif found := [key for key in keys if _is_among(key, _questions(runs[0]))]:
        notes.append(
            f"{', '.join(found)} decides what is hidden or drawn of the held-out text, or which text it is: the losses "
            "of these arms are of different questions. Compare them by eval.pairs, or fine-tune."
        )
    has_other_pairs = any(_is_among(key, ("eval.pairs", "eval.pairs_sample")) for key in keys)
    if has_other_pairs:
        notes.append("The runs have other minimal pairs (eval.pairs), which are left out.")
    return notes, lambda name: not has_other_pairs if name.startswith("pairs") else is_one_text


def _questions(run: _Run) -> tuple[str, ...]:
    """`_OF_THE_QUESTION`; a stream's held-out lanes are as many as those of a step."""
    assert isinstance(run.recipe, PretrainRecipe)
    return (*_OF_THE_QUESTION, *(["train.batch_size"] if run.recipe.packing.format == "stream" else []))


def _difference(name: str, first: Arm, arm: Arm) -> Difference | None:
    values = [dict(zip(each.runs, each.figures[name], strict=True)) for each in (first, arm)]
    return difference_over_seeds(*values)

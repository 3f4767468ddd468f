"""What may change when a run is resumed, and what must not: recipe, inputs, machine, code."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unmask.config import Settings, build_settings, changed_keys, read_settings_file
from unmask.errors import CheckpointError, InputError, SettingsError
from unmask.io.json_files import read_object
from unmask.io.paths import CHECKPOINTS, RESULTS, TRIALS
from unmask.io.writing import write_json
from unmask.training.device import without_free_memory
from unmask.training.run.budget import budget_change, check_budget
from unmask.training.run.checkpoint import STATE, Checkpoint, find_checkpoint, list_steps
from unmask.training.run.environment import ENVIRONMENT, code_differences, read_sessions
from unmask.training.run.log import refuse_lost_checkpoints
from unmask.training.settings import BUDGETS

logger = logging.getLogger("unmask")

DATA = "data.json"
"""In the directory of a run or search: a fingerprint of each of its inputs."""

RESUMABLE_KEYS = frozenset(
    f"train.{name}"
    for name in (
        *BUDGETS,
        *("log_every", "eval_every", "eval_sequences", "save_every", "keep_last", "keep_every"),
        *("on_divergence", "spike_factor", "max_roll_backs", "rank_timeout_s", "shard", "recompute"),
        "micro_batch_size",
    )
) | {"device", "precision", "store", "search.parallel", "search.ray", "eval.pairs", "eval.pairs_sample"}
"""What may change when a run is resumed; anything else would make it another run. A store may only be at another place:
`check_unchanged` compares what it holds."""

_RESUMABLE_IN_SEARCH = frozenset(
    f"search.{name}" for name in ("restarts", "learning_rates", "batch_sizes", "epochs", "train_examples", "ensemble")
)
"""What may change when a search is resumed: each run has a directory of its own, and those that are there stay."""


class Changes(NamedTuple):
    """What has changed at a resume.

    Attributes:
        lines: each key, in words.
        checkpoint: what the run continues from; None where there is none.
        budget: for `write_environment`; None where there is no checkpoint.
        cuts_otherwise: whether micro-batches have another size, and with them other elements are zeroed by dropout.
    """

    lines: list[str]
    checkpoint: Checkpoint | None = None
    budget: dict[str, Any] | None = None
    cuts_otherwise: bool = False


def changes_of(before: Settings, after: Settings) -> dict[str, tuple[Any, Any]]:
    """`changed_keys`, but for what is one setting in another spelling."""
    changed = changed_keys(before, after)
    if set(changed.get("task.feature_layers", ())) == {None, "last"}:  # as earlier versions wrote null
        del changed["task.feature_layers"]  # where it means another head, the weights do not load
    return changed


def find_changes(saved: Path, recipe: Settings) -> Changes:
    """What differs from the recipe of the newest checkpoint, or, where there is none or another version made it, from
    that in `saved`; refuses what cannot change."""
    directory, lines = saved.parent, []
    checkpoint = find_checkpoint(directory / CHECKPOINTS)
    before: Any = None
    if checkpoint is not None:
        try:
            before = build_settings(type(recipe), checkpoint.state["recipe"], STATE)
        except SettingsError as error:  # a key has another name by now
            lines.append(f"is compared with {saved}, for the checkpoint is of another version: {error}")
    if before is None:
        before = build_settings(type(recipe), read_settings_file(saved), str(saved))
    if checkpoint is None:
        refuse_lost_checkpoints(directory, before.train.save_every)
    changed = changes_of(before, recipe)
    are_searches = all(getattr(getattr(each, "search", None), "is_wanted", False) for each in (before, recipe))
    resumable = RESUMABLE_KEYS | (_RESUMABLE_IN_SEARCH if are_searches else set())
    if are_searches and before.search.learning_rates:
        changed.pop("optimizer.learning_rate", None)  # no run of it has that rate
    fixed = [f"{key}={now} (it was {then})" for key, (then, now) in changed.items() if key not in resumable]
    if fixed:
        its = shlex.join(["unmask", before.program, str(saved), "--out", str(directory), "--resume"])
        raise SettingsError(
            f"{directory} was begun with other settings: {', '.join(fixed)}. A resumed run may change its budget, "
            "logging, saving, micro-batches, what it does when it diverges, how it is divided (train.*), device, "
            "precision, where its store is, eval.pairs, search.parallel and search.ray; a search also its restarts, "
            f"rates, batch sizes, epochs and numbers of examples: give the same settings (`{its}` has them, unless "
            "that file was edited; a recipe that comes with unmask may have changed since), or another --out"
        )
    budget = None
    if checkpoint is not None:
        if {f"train.{name}" for name in BUDGETS}.intersection(changed):
            check_budget(directory, before, recipe, checkpoint)
        budget = budget_change(before, recipe, checkpoint)
    lines += [f"resumed with {key}={now}, where it was {then}" for key, (then, now) in changed.items()]
    return Changes(lines, checkpoint, budget, cuts_otherwise="train.micro_batch_size" in changed)


def check_unchanged(directory: Path, found: Mapping[str, str], places: Mapping[str, Path]) -> None:
    """`compare_inputs`, and writes down what a run's inputs hold where that is not yet written."""
    if compare_inputs(directory, found, places).keys() != found.keys():
        write_json(directory / DATA, dict(found))


def compare_inputs(directory: Path, found: Mapping[str, str], places: Mapping[str, Path]) -> dict[str, Any]:
    """Compares what a run's inputs hold with what was written when it was begun; returns that, or {} if nothing was.

    Args:
        found: a fingerprint of each input, by the key that names it in the recipe.
        places: where each is, for the message; a run and its store may be moved.

    Raises:
        CheckpointError: one differs: what came before and after it would not be one run. Or the record is damaged.
    """
    record = directory / DATA
    if not record.is_file():
        return {}
    try:
        before = read_object(record)
    except InputError as error:
        raise CheckpointError(
            f"{record}: cannot be read ({error}): remove it if the run's inputs are what they were"
        ) from error
    changed = [f"{name}={places[name]}" for name in found if before.get(name, found[name]) != found[name]]
    if changed:
        raise CheckpointError(
            f"{directory}: {' and '.join(changed)} holds something else than when this run was begun, or {DATA} was "
            "changed: restore it, or start again with --overwrite"
        )
    return before


def warn_of_another_machine(directory: Path, device: str, cuts_otherwise: bool) -> None:
    """Warns where a run continues from a checkpoint, or a search has finished runs, elsewhere or otherwise than before:
    sums are then rounded anew."""
    sessions = read_sessions(directory / ENVIRONMENT)
    if not sessions or not (list_steps(directory / CHECKPOINTS) or any(directory.glob(f"{TRIALS}/*/{RESULTS}"))):
        return
    before, not_alike = sessions[-1].get("device"), "not bit for bit as if it had never stopped"
    if before is not None and without_free_memory(before) != without_free_memory(device):
        machine = f"continues with {device}, where it was {before}"
        logger.warning("%s: %s, for sums are rounded otherwise", machine, not_alike)
    if cuts_otherwise:
        logger.warning("continues with micro-batches of another size: %s, for dropout zeroes other elements", not_alike)
    if changed := code_differences(sessions[-1]):
        changes = ", ".join(f"{name} {now} (it was {then})" for name, (then, now) in changed.items())
        logger.warning("continues with %s: other code may compute otherwise", changes)

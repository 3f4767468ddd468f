"""The doctor: what is wrong with a store, a recipe, a run or a search, and what a run will take and has to reach.

One function looks at the path and calls the examination for its kind; every answer has one shape, `Diagnosis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unmask.config import parse_overrides
from unmask.doctor.findings import Diagnosis, sorted_findings
from unmask.doctor.recipe.examination import examine_recipe
from unmask.doctor.recipe.finetuning import examine_finetuning
from unmask.doctor.run.checks import check_run
from unmask.doctor.run.search_checks import examine_search
from unmask.doctor.store.examination import examine_store
from unmask.errors import InputError, SettingsError
from unmask.info import KINDS
from unmask.recipe.loading import program_of, read_with_bases
from unmask.recipe.names import find_recipe, similar_recipes


def diagnose(
    target: str | Path, overrides: Sequence[str] = (), *, recipe: str | None = None, probe_s: float = 20.0
) -> Diagnosis:
    """Examines a store, a recipe, a run or a search.

    Args:
        target: the directory of a store, a run or a search, a recipe's file, or its name: `pretrain/bert_tiny`.
        overrides: `key.path=value` words over the recipe: the one examined, or the one that makes a store's samples.
        recipe: the one that makes a store's samples; the defaults if left out.
        probe_s: about how long a recipe's speed is measured; 0 leaves that out.

    Raises:
        InputError: there is nothing of a known kind at `target`.
        UserError: it is of a known kind, but damaged, unfinished or wrong.
    """
    kind = _kind(str(target))
    if recipe is not None and kind != "store":
        raise SettingsError(f"--recipe says how a store's samples are made, and {target} is a {kind}: leave it out")
    if kind == "store":
        diagnosis = examine_store(Path(target), recipe, overrides)
    elif kind == "recipe":
        program = program_of(read_with_bases(find_recipe(str(target)), {})) or program_of(parse_overrides(overrides))
        if program == "finetune":
            diagnosis = examine_finetuning(str(target), overrides, probe_s=probe_s)
        else:
            diagnosis = examine_recipe(str(target), overrides, probe_s=probe_s)
    elif overrides:
        raise SettingsError(f"{target} is a {kind}, whose recipe is settled: leave out {' '.join(overrides)}")
    elif kind == "search":
        diagnosis = examine_search(Path(target))
    else:
        diagnosis = Diagnosis("run", str(target), tuple(check_run(Path(target))))
    return replace(diagnosis, findings=tuple(sorted_findings(diagnosis.findings)))


def _kind(target: str) -> str:
    """What a target is: `store`, `recipe`, `run` or `search`."""
    path = Path(target)
    if path.exists():
        found = next((kind for kind, (is_one, _) in KINDS.items() if is_one(path)), None)
        if found in ("store", "run", "recipe", "search"):
            return found
        what = f"is a {found}" if found else "is nothing that `unmask doctor` can examine"
        raise InputError(
            f"{path} {what}: expected a store (manifest.json), a run (recipe.yaml), a search (summary.json) or a "
            "recipe (.yaml)"
        )
    try:
        find_recipe(target)
    except SettingsError as error:
        similar = similar_recipes(target)
        meant = f"; did you mean {' or '.join(similar)}?" if similar else ""
        raise InputError(
            f"{target}: no such file or directory, and no recipe of that name: expected a store (what `unmask prepare` "
            f"made), a run, a search, a recipe's file or its name{meant}"
        ) from error
    return "recipe"

"""The run directory: made for a new run, opened again to resume one, never overwritten silently.

recipe.yaml  environment.json  metrics.jsonl  log.txt  report.html  tensorboard/  checkpoints/  model/
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from unmask.config import Settings, build_settings, changed_keys, dump_settings, read_settings_file
from unmask.errors import SettingsError
from unmask.files import refuse_existing, remove_own, told_as_output_error, write_text

RECIPE = "recipe.yaml"

RESUMABLE_KEYS = frozenset(
    f"train.{name}"
    for name in (
        *("steps", "tokens", "epochs", "minutes"),
        *("log_every", "eval_every", "eval_sequences", "save_every", "keep_last"),
    )
)
"""What may change when a run is resumed; anything else would make it another run."""

AnySettings = TypeVar("AnySettings", bound=Settings)


def open_run(
    directory: Path, recipe: AnySettings, *, resume: bool, overwrite: bool, warn: Callable[[str], None] = lambda _: None
) -> None:
    """Makes a run directory with its resolved recipe, or checks that the run there can go on under this recipe.

    Args:
        directory: the run's.
        recipe: resolved.
        resume: True goes on with the run there, or starts one where there is none.
        overwrite: True removes the run there first.
        warn: is told what has changed at a resume.

    Raises:
        OutputError: the directory exists and neither `resume` nor `overwrite` is given, or it is not a run's.
        SettingsError: the recipe differs from the run's in a key that a resumed run cannot change.
    """
    saved = directory / RECIPE
    if resume and saved.is_file():
        before = build_settings(type(recipe), read_settings_file(saved), str(saved))
        changed = changed_keys(before, recipe)
        fixed = [key for key in changed if key not in RESUMABLE_KEYS]
        if fixed:
            raise SettingsError(
                f"{directory} was begun with other settings: {', '.join(fixed)}. A resumed run may change its budget, "
                "logging and saving (train.*) only: give the same settings, or another --out"
            )
        for key in changed:
            warn(f"resumed with another {key}")
    elif overwrite:
        remove_own(directory, (RECIPE,), "a run's directory")
    else:
        refuse_existing(directory, overwrite=False, instead="choose another --out, or pass --resume or --overwrite")
    with told_as_output_error(directory):
        directory.mkdir(parents=True, exist_ok=True)
    write_text(saved, dump_settings(recipe))

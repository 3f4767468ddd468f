"""How the processes of a run begin: one after another, and with the same recipe, versions and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

from unmask.config import Settings, build_settings, changed_keys, dump_settings
from unmask.errors import SettingsError, StoreError
from unmask.io.paths import CHECKPOINTS
from unmask.training.device import Compute
from unmask.training.distributed import Ranks
from unmask.training.run.checkpoint import Checkpoint, find_shared_checkpoint
from unmask.training.run.environment import code_differences, code_here
from unmask.yaml_text import parse_yaml

Opened = TypeVar("Opened")

_OWN = ("store",)
"""Keys that may differ: each machine may have its copy of the store somewhere else."""


def open_everywhere(
    opening: AbstractContextManager[Checkpoint | None],
    open_here: Callable[[Checkpoint | None], Opened],
    data: Callable[[Opened], tuple[str, Mapping[str, Any]]],
    directory: Path,
    ranks: Ranks,
) -> Opened:
    """Opens a run's inputs in the first process, then in the others, with its checkpoint copied to where they write.

    Args:
        opening: the run's directory, which the first process opens, and what the run continues from; what goes wrong
            meanwhile is undone there.
        open_here: opens the inputs in this process, given the checkpoint as it has it.
        data: names what was opened, with fingerprints of its files: they have to be the same everywhere.
        directory: where this process writes.

    Raises:
        UnmaskError, Interrupted: in all of them, where any of them fails.
    """
    with ExitStack() as stack:
        with ranks.agreeing():
            if ranks.is_first:
                opened = open_here(stack.enter_context(opening))
        if ranks.size > 1:
            checkpoint = find_shared_checkpoint(directory / CHECKPOINTS, ranks)
            with ranks.agreeing():
                if not ranks.is_first:
                    opened = open_here(checkpoint)
        check_same_files(*data(opened), ranks)
    return opened


def check_same_run(settings: Settings, ranks: Ranks) -> None:
    """Refuses a recipe, versions or a commit of `unmask` that are not those of the first process, by a SettingsError
    that names what differs."""
    if ranks.size == 1:
        return
    recipe, code = ranks.from_first((dump_settings(settings), code_here()))
    first = build_settings(type(settings), parse_yaml(recipe, "the first process"), "the first process")
    changed = {key: values for key, values in changed_keys(first, settings).items() if key not in _OWN}
    if changed:
        there, here = (", ".join(f"{key}={values[of]}" for key, values in changed.items()) for of in (0, 1))
        raise SettingsError(f"this process has {here}, and the first one {there}: start all with the same recipe")
    for name, (expected, version) in code_differences(code).items():
        raise SettingsError(
            f"this process runs {name} {version}, and the first one {expected}: install the same everywhere"
        )


def check_same_device(compute: Compute, ranks: Ranks) -> None:
    """Takes this process's device; refuses, by a SettingsError, another kind of device or precision than the first
    process has."""
    with ranks.agreeing():
        first = ranks.from_first([compute.device.type, str(compute.dtype)])
        ranks.take_device(compute.device)
        if first != [compute.device.type, str(compute.dtype)]:
            raise SettingsError(
                f"this process computes on {compute.device.type} in {compute.dtype}, the first one on {first[0]} in "
                f"{first[1]}: give device and precision"
            )


def check_same_files(what: str, files: Mapping[str, Any], ranks: Ranks) -> None:
    """Refuses data that is not that of the first process, by a StoreError that names a file; `files` are fingerprints
    by name."""
    with ranks.agreeing():
        first = ranks.from_first(dict(files))
        differing = [name for name in dict.fromkeys([*first, *files]) if first.get(name) != files.get(name)]
        if differing:
            raise StoreError(
                f"{what}: {differing[0]} is not the same as in the first process: give each machine a copy of the same"
            )


def check_batch_size(batch_size: int, ranks: Ranks) -> None:
    """Refuses, by a SettingsError, more processes than a step has sequences."""
    if ranks.size > batch_size:
        raise SettingsError(
            f"{ranks.size} processes share steps of {batch_size} sequences (train.batch_size, phases.*.batch_size): "
            "start fewer processes, or take larger steps"
        )

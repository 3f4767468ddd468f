"""What a run's inputs held when it was begun: a resume where one has changed is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from unmask.errors import CheckpointError
from unmask.io.writing import write_json

DATA = "data.json"
"""In the directory of a run or search: a fingerprint of each of its inputs."""


def check_unchanged(directory: Path, found: Mapping[str, str], places: Mapping[str, Path]) -> None:
    """Writes down what a run's inputs hold, or compares them with what was written when it was begun.

    Args:
        found: a fingerprint of each input, by the key that names it in the recipe.
        places: where each is, for the message; a run and its store may be moved.

    Raises:
        CheckpointError: one differs: what came before and after it would not be one run. Or the record is damaged.
    """
    record = directory / DATA
    before: dict[str, str] = {}
    if record.is_file():
        try:
            before = json.loads(record.read_bytes())
            changed = [f"{name}={places[name]}" for name in found if before.get(name, found[name]) != found[name]]
        except (ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{record}: cannot be read ({error}): remove it if the run's inputs are what they were"
            ) from error
        if changed:
            raise CheckpointError(
                f"{directory}: {' and '.join(changed)} holds something else than when this run was begun: restore it, "
                "or start again with --overwrite"
            )
    if before.keys() != found.keys():
        write_json(record, dict(found))

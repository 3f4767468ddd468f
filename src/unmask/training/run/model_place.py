"""Where a model may be written: never over anything that is not a model of ours."""

from __future__ import annotations

from pathlib import Path

from unmask.io.paths import GENERATOR, SPAN_BOUNDARY
from unmask.io.writing import UNFINISHED, refuse_existing, refuse_foreign
from unmask.models.hub.files import CONFIG, HEAD_WEIGHTS, WEIGHTS
from unmask.tokenization.directory import KEPT_FILES
from unmask.tokenization.kinds.word_characters import SETTINGS_FILE, WORDS_FILE

MODEL_FILES = (
    *(CONFIG, WEIGHTS, HEAD_WEIGHTS, SPAN_BOUNDARY, GENERATOR),
    *(*KEPT_FILES, WORDS_FILE, SETTINGS_FILE, f"{UNFINISHED}*"),
)
"""All that may be replaced: a run's directory, a card or a repository beside the model has to stay."""


def check_place(directory: Path, overwrite: bool, advice: str = "choose another name, or pass --overwrite") -> None:
    """Refuses a directory that a model must not replace.

    Args:
        overwrite: True replaces a model, and nothing else.
        advice: what to do where there is one, and `overwrite` is False.

    Raises:
        OutputError: it exists, and is not to be overwritten or holds something else.
    """
    for place in (directory, directory / GENERATOR):
        refuse_foreign(place, MODEL_FILES, "a model", CONFIG)
    refuse_existing(directory, overwrite, advice)

"""Where a model may be written: never over anything that is not a model of ours.

A card that `unmask card` wrote ends with a checksum of itself. Until somebody edits it, it goes with its model.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unmask.errors import OutputError
from unmask.io.paths import GENERATOR, HEAD_WEIGHTS, MODEL, RESULTS, SPAN_BOUNDARY
from unmask.io.writing import (
    REPLACED,
    UNFINISHED,
    as_output_error,
    refuse_existing,
    refuse_foreign,
    sha256,
    writing_directory,
)
from unmask.models.hub.files import CONFIG
from unmask.models.hub.headers import WEIGHTS
from unmask.tokenization.directory import KEPT_FILES, WORD_SETTINGS, WORDS_FILE

logger = logging.getLogger("unmask")

CARD = "README.md"
_MARK = "\n<!-- As `unmask card` wrote it: "
_GOES = "%s goes with the model that is replaced: run `unmask card` again"

_MODEL_FILES = (
    *(CONFIG, WEIGHTS, HEAD_WEIGHTS, SPAN_BOUNDARY, GENERATOR),
    *(*KEPT_FILES, WORDS_FILE, WORD_SETTINGS, f"{UNFINISHED}*"),
)
"""All that may be replaced: a run's directory, an edited card or a repository beside the model has to stay."""


def check_place(directory: Path, overwrite: bool, advice: str = "choose another name, or pass --overwrite") -> None:
    """Refuses a directory that a model must not replace.

    Args:
        overwrite: True replaces a model, and nothing else.
        advice: what to do where there is one, and `overwrite` is False.

    Raises:
        OutputError: it exists, and is not to be overwritten or holds something else.
    """
    check_files(directory, CONFIG, keeps_card=not overwrite)
    refuse_existing(directory, overwrite, advice)


def check_files(model: Path, mark: str | None = None, *, keeps_card: bool = False) -> None:
    """Refuses a directory that holds anything which is no part of a model; warns of a card that goes with the model.

    Args:
        mark: a file without which it is no model; None: there is no such file.
        keeps_card: True where an edited card may be there: it stays, see `replacing_model`.

    Raises:
        OutputError: it holds something else.
    """
    for place in (model, model / GENERATOR):
        is_unedited = _is_unedited(place / CARD)
        refuse_foreign(place, (*_MODEL_FILES, *([CARD] if keeps_card or is_unedited else [])), "a model", mark)
        if is_unedited and not keeps_card:
            logger.warning(_GOES, place / CARD)


@contextmanager
def writing_what_is_missing() -> Iterator[None]:
    """A block that writes what a run ends with, after its last checkpoint: where that fails no step is lost."""
    try:
        yield
    except OutputError as error:
        then = "all steps are saved: the same command with --resume writes what is missing"
        raise OutputError(f"{error}; {then}") from error


@contextmanager
def replacing_model(run: Path) -> Iterator[Path]:
    """Yields a directory to write a run's model into, which takes the place of the one there as a whole.

    What is no part of a model, such as an edited card, stays beside it; see `drop_card` for where its weights are
    others then. The figures of the model that is replaced are gone before it is, and back where it stays after all.
    """
    model, figures = run / MODEL, run / RESULTS
    aside = figures.with_name(f"{REPLACED}{RESULTS}")
    aside.unlink(missing_ok=True)  # of a process that was killed
    try:
        with writing_directory(model, overwrite=True) as new:
            yield new
            for folder in (Path(), Path(GENERATOR)):
                if (new / folder).is_dir():
                    _keep_foreign(model / folder, new / folder)
            if _checksums(new) != _checksums(model):
                drop_card(new, model)
            with as_output_error(figures), suppress(FileNotFoundError):
                os.replace(figures, aside)
    except BaseException:
        with suppress(OSError):
            os.replace(aside, figures)
        raise
    aside.unlink(missing_ok=True)


def _keep_foreign(old: Path, new: Path) -> None:
    """Places in a new model what somebody has put beside the old one."""
    for path in old.glob("*"):
        if any(path.match(pattern) for pattern in _MODEL_FILES):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, new / path.name, symlinks=True, copy_function=link_or_copy, dirs_exist_ok=True)
        else:
            link_or_copy(path, new / path.name)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """A hard link where the disk has them, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _checksums(model: Path) -> dict[str, str]:
    return {str(path.relative_to(model)): sha256(path) for path in sorted(model.rglob("*.safetensors"))}


def drop_card(model: Path, shown: Path | None = None) -> None:
    """Removes the card of a model that it no longer describes, or warns where it has been edited, and stays.

    Args:
        shown: what messages call the model; None: by its name.
    """
    for folder in (Path(), Path(GENERATOR)):
        path, card = model / folder / CARD, (shown or model) / folder / CARD
        if _is_unedited(path):
            with as_output_error(card):
                path.unlink()
            logger.warning(_GOES, card)
        elif path.exists():
            logger.warning("%s has been edited, so it stays: it describes the model that is replaced", card)


def marked(card: str) -> str:
    """The text of a card with the mark that it has been written by `unmask card`, and not edited since."""
    return card + _mark(card.encode())


def _is_unedited(card: Path) -> bool:
    if not card.is_file():
        return False
    text, begin, rest = card.read_bytes().rpartition(_MARK.encode())
    return begin + rest == _mark(text).encode()


def _mark(text: bytes) -> str:
    return f"{_MARK}{hashlib.sha256(text).hexdigest()} -->\n"

"""Several fine-tuned models that answer together (Devlin et al. 2019, section 4.2: seven, over checkpoints and seeds).

    DIR/ensemble.json    {"members": ["../trials/lr3e-05_batch16_epochs3_seed0/model", ...], "null_threshold": -1.5}

The threshold of question answering, or those of labels (`thresholds`), are there if they were chosen for the ensemble
as a whole (`keep_chosen`).
Members stay where they are; their paths are relative to the directory, so that the folder around both can be moved.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import ModelError, SettingsError
from unmask.io.json_files import read_object
from unmask.io.paths import ENSEMBLE, model_directory
from unmask.io.rows import as_seen
from unmask.io.writing import refuse_foreign, write_json, writing_directory
from unmask.models.hub.files import read_config
from unmask.models.hub.source import open_source
from unmask.models.hub.uses import FINE_TUNED
from unmask.tasks.recorded import recorded_task
from unmask.tokenization.opening import open_tokenizer

_SAME_TASK = (
    "name",
    "max_length",
    "truncation",
    "doc_stride",
    "max_question_length",
    "max_choice_length",
    "document_context",
    "unanswerable",
    "answerability",
    "max_answer_length",
    "encoder_top",
    "two_orders",
    "long_text",
    "units",
    "negative_label",
)
"""What a model remembers of its task that decides how inputs are read, answered and measured, once for all members."""

CHOSEN = ("null_threshold", "thresholds")
"""Settings of a task that are chosen on a dev file, for the weights of one model or for an ensemble."""

_ANSWERS_BY_TOKEN = ("TokenClassification", "QuestionAnswering")
"""Heads with an output for each token: their outputs can only be combined over the same tokens."""


def write_ensemble(members: Sequence[str | Path], directory: str | Path, *, overwrite: bool = False) -> Path:
    """Makes fine-tuned models answer together.

    Args:
        members: at least two models of one task, or the runs that made them.
        directory: the directory to write.
        overwrite: True replaces an existing ensemble, and nothing else.

    Returns:
        `directory`, for `evaluate` and `predict`.

    Raises:
        SettingsError: fewer than two members, or one of them twice.
        ModelError: a member is not a fine-tuned model, or the members differ in what they answer or in how they read
            inputs.
        OutputError: the directory exists already, holds anything else, or cannot be written.
    """
    directory = Path(directory)
    models = [model_directory(member) for member in members]
    resolved = [model.resolve() for model in models]
    if len(models) < 2:
        raise SettingsError(f"an ensemble of {len(models)} model(s): expected two or more")
    if twice := [model for place, model in enumerate(models) if resolved[place] in resolved[:place]]:
        raise SettingsError(f"{twice[0]} is given twice: name each member once")
    check_members(models)
    place = directory.resolve()
    refuse_foreign(directory, (ENSEMBLE,), "an ensemble")
    with writing_directory(directory, overwrite=overwrite) as unfinished:
        # POSIX separators, so that a folder written on one system opens on another.
        paths = [Path(os.path.relpath(model, place)).as_posix() for model in resolved]
        write_json(unfinished / ENSEMBLE, {"members": paths})
    return directory


def read_members(directory: Path) -> list[Path] | None:
    """The models of an ensemble, in order; None where the directory is not an ensemble's.

    Raises:
        ModelError: `ensemble.json` cannot be read, or a member is not where it says.
    """
    path = directory / ENSEMBLE
    if not path.is_file():
        return None
    members = _read(path)["members"]
    found = [(directory / member).resolve() for member in members]
    for member in found:
        if not (member / "config.json").is_file():
            raise ModelError(
                f"{path}: there is no model at {member}: the members of an ensemble stay where they were made; bring "
                "it back, or make the ensemble again with `unmask ensemble`"
            )
    return found


def read_chosen(directory: Path) -> dict[str, Any]:
    """The settings that were chosen for an ensemble as a whole, `null_threshold` or `thresholds`; empty if none was.

    Raises:
        ModelError: `ensemble.json` cannot be read.
    """
    return {name: value for name, value in _read(directory / ENSEMBLE).items() if name in CHOSEN and value is not None}


def keep_chosen(directory: Path, chosen: Mapping[str, Any]) -> None:
    """Writes what was chosen for an ensemble beside its members."""
    path = directory / ENSEMBLE
    write_json(path, {**_read(path), **chosen})


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_object(path, ModelError)
        members, threshold, thresholds = content["members"], *(content.get(name) for name in CHOSEN)
        if not (isinstance(members, list) and members and all(isinstance(member, str) for member in members)):
            raise ValueError("`members` is not a list of paths")
        if threshold is not None and not _is_number(threshold):
            raise ValueError("`null_threshold` is not a number")
        is_mapping = isinstance(thresholds, dict) and all(map(_is_number, thresholds.values()))
        if thresholds is not None and not is_mapping:
            raise ValueError("`thresholds` are not numbers by label")
    except (ModelError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: cannot be read ({error}): make it again with `unmask ensemble`") from error
    return content


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_members(models: Sequence[Path]) -> None:
    """Raises ModelError for a model that is not fine-tuned, and for models that cannot answer together, naming two and
    how they differ."""
    for model in models:
        open_source(model).check_kind(FINE_TUNED)
    first = answers_of(models[0])
    for model in models[1:]:
        for what, value in answers_of(model).items():
            if value != first[what]:
                one, other = _shown(value), _shown(first[what])
                if as_seen(one) == as_seen(other):  # such as labels in NFD and in NFC
                    one, other = ascii(one), ascii(other)
                raise ModelError(
                    f"{model} and {models[0]} cannot answer together: {what} is {one} in the one and "
                    f"{other} in the other: expected models of one task, and of one tokenizer where they "
                    "tag or answer questions"
                )


def check_tokenizers(models: Sequence[Path]) -> None:
    """Raises ModelError for pre-trained models that do not all have the tokenizer of the first, as members that tag or
    answer questions must."""
    first = open_tokenizer(models[0]).fingerprint()
    for model in models[1:]:
        if open_tokenizer(model).fingerprint() != first:
            raise ModelError(
                f"{model} has another tokenizer than {models[0]}: models fine-tuned from them cannot answer together; "
                "leave out search.ensemble, or one of search.checkpoints"
            )


def task_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`recorded_task`; {} where it cannot be read, which is refused where the model is loaded."""
    try:
        return recorded_task(config)
    except ModelError:
        return {}


def answers_of(model: Path) -> dict[str, Any]:
    """Everything in which the members of an ensemble have to agree, by name."""
    config: Mapping[str, Any] = read_config(model)
    task = task_of(config)
    # `BertForMultipleChoice` and `RobertaForMultipleChoice` answer alike.
    classes = config.get("architectures")
    architecture = str(classes[0]) if isinstance(classes, list) and classes else "?"
    head = architecture.partition("For")[2] or architecture
    answers = {
        "head": head,
        "labels": config.get("id2label"),
        "problem_type": config.get("problem_type"),
        **{f"task.{name}": task.get(name) for name in _SAME_TASK},
    }
    if head in _ANSWERS_BY_TOKEN:
        answers |= {"segments": config.get("type_vocab_size", 2), "tokenizer": open_tokenizer(model).fingerprint()}
    return answers


def _shown(value: Any) -> str:
    shown = ", ".join(map(str, value.values())) if isinstance(value, dict) else str(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."

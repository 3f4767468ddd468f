"""Which directory a user means, where a model may always be named by the run that made it; and what a place takes."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

from unmask.errors import InputError, ModelError, OutputError, UserError
from unmask.io.encodings import normalized
from unmask.io.writing import (
    REPLACED,
    UNFINISHED,
    as_output_error,
    own_place,
    refuse_existing,
    refuse_special,
    temporary_directory,
)

MODEL = "model"
RECIPE = "recipe.yaml"
"""The resolved recipe, in a run's directory."""
RESULTS = "results.json"
"""In a run's directory: its figures, once it is finished."""
SAMPLES = "samples.json"
"""In a run's directory: the samples that its report shows."""
CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints."""
TRAINING_REPORT = "training.json"
"""In the directory of a tokenizer that was trained here: on what, and how."""
MANIFEST = "manifest.json"
"""In a store's directory: what it holds; written last."""
SKIPPED = "skipped.jsonl"
"""In a store's directory: every record that could not be read and was skipped, with its place and the reason."""
HEAD_WEIGHTS = "head.safetensors"
"""In a model directory: a head, or a part of one, that `transformers` has no class for."""
SPAN_BOUNDARY = "span_boundary.safetensors"
"""SpanBERT's boundary head in a model directory."""
GENERATOR = "generator"
"""The folder of ELECTRA's generator inside the discriminator's model directory."""
TRIALS = "trials"
"""The folder of a search that holds the run directories of its trials, by name."""
SUMMARY = "summary.json"
"""In a search's directory: the results of its trials."""
ENSEMBLE = "ensemble.json"
"""In an ensemble's directory: where its members are."""
ONNX = "model.onnx"
"""In the directory of an exported model, in place of weights."""
CERTIFICATE = "certificate.json"
"""In the directory of an exported model: what it answers beside the model that it was made from."""
ADAPTER = "adapter_config.json"
"""In the directory of an adapter that PEFT saved."""
CONFIGS = ("config.json", "bert_config.json")
"""Every model directory has one of these: that of the Hugging Face layout, or that of Google's releases."""


def is_onnx(directory: Path) -> bool:
    """Whether a model directory holds an ONNX file in place of weights."""
    return (directory / ONNX).is_file() and not any(directory.glob("*.safetensors"))


def refuse_link_out_of(directory: Path, path: Path) -> None:
    """Raises ModelError for a file of a model's directory that is to be copied as it is, and that a link has from
    elsewhere: whoever made the directory would choose which file of this machine is published.

    In a cache of the Hugging Face Hub, files are links to the `blobs` beside the `snapshots`.
    """
    folder = directory.resolve()
    places = [folder, *(above.parent / "blobs" for above in folder.parents if above.name == "snapshots")]
    if not any(map(path.resolve().is_relative_to, places)):
        raise ModelError(
            f"{path}: its link leads out of the directory, to {path.resolve()}: if that file is of the model, put a "
            "copy in place of the link"
        )


def free_space(path: Path) -> int:
    """Bytes that are free on the disk where a path is, or will be."""
    folder = next(parent for parent in [path.resolve(), *path.resolve().parents] if parent.exists())
    return shutil.disk_usage(folder).free


def check_writable(path: Path, overwrite: bool, is_folder: bool = False) -> None:
    """`refuse_existing` for what is to be written at the end of some work, before it begins: also what could not be
    written there is refused.

    Args:
        is_folder: True for a directory, whose missing parents are made too; False for a file.

    Raises:
        OutputError: something is there that is not to be overwritten or is of the other kind, or the system refuses.
    """
    refuse_existing(path, overwrite)
    path = own_place(path)
    with as_output_error(path):
        refuse_special(path)
        if path.exists() and path.is_dir() is not is_folder:
            there, made = ("file", "directory") if is_folder else ("directory", "file")
            raise OutputError(f"{path} is a {there}, and a {made} is to be made: choose another name")
        above = next(each for each in path.absolute().parents if each.exists() or not is_folder)
        with temporary_directory(f"{UNFINISHED}place", above):
            pass


def set_aside(directory: Path) -> Path | None:
    """Where the directory is that was replaced when the process was killed; None if there is none."""
    aside = directory.parent / f"{REPLACED}{directory.name}"
    return aside if os.path.isdir(aside) else None  # `Path.is_dir` raises for a name that is too long


def refuse_set_aside(directory: Path, error: type[UserError]) -> None:
    """Raises `error` where `set_aside` has the directory, and nothing has its name."""
    if not directory.exists() and (aside := set_aside(directory)) is not None:
        raise error(
            f"{directory}: a command that replaced it was stopped half-way, and it is in {aside.name} beside it: "
            "the same command puts it back or writes the new one; or give it its name again"
        )


def as_path(given: object, expected: str = "the directory of a model, or of the run that made it") -> Path:
    """The path that a caller from Python gives; raises InputError where it is none, such as a whole text, saying what
    was expected."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"found a {type(given).__name__}: expected {expected}")
    try:
        os.lstat(given)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{str(given)[:60]!r}... is too long for a path: expected {expected}") from None
    except ValueError:  # of a NUL byte, by which no file is found either
        pass
    return Path(given)


def model_in(path: Path) -> Path:
    """The `model/` in the directory of a run that has made one; any other path itself."""
    return path / MODEL if (path / RECIPE).is_file() and (path / MODEL).is_dir() else path


def holds_model(path: Path) -> bool:
    """Whether a directory itself is a model's, ours or Google's."""
    return any((path / name).is_file() for name in CONFIGS)


def where_samples_are(path: Path) -> str:
    """The end of a message about a path that is not there, if it would be one of the samples; else nothing."""
    if path.parts[-3:-1] == ("samples", "models"):
        there = sorted(each.parent.name for each in path.parent.glob(f"*/{CONFIGS[0]}"))
        if there:
            return f"; the sample encoders are {' and '.join(there)}"
    found = re.match("((?:.*/)?samples)/(models|pairs|tasks|text)/", path.as_posix())
    if found and not os.path.exists(found[1]):
        return "; the samples are in the project's repository and not in an installation: run this there"
    return ""


def looks_the_same(path: Path) -> str:
    """A part of a message about a path that is not there: names beside it that differ in Unicode composition alone, as
    those that macOS has written; else nothing."""
    if path.name.isascii():
        return ""
    composed = normalized("NFC", path.name)
    there = (each.name for each in path.parent.glob("*") if normalized("NFC", each.name) == composed)
    return "".join(f" (there is {name!a}, which looks the same: name it by a glob)" for name in there)


def refuse_other_layouts(path: Path) -> None:
    """Raises ModelError for a directory without `config.json` that holds a model in another layout."""
    if holds_model(path):
        return
    if (path / ADAPTER).is_file():
        raise ModelError(
            f"{path} holds a LoRA adapter and not the model that it changes: merge the two with peft, by "
            "model.merge_and_unload(), and name the directory where save_pretrained put the result"
        )
    if found := sorted(path.glob("*.gguf")):
        raise ModelError(
            f"{found[0]} is GGUF, which is not read: expected the model that it was made from, in the Hugging Face "
            "layout"
        )


def model_directory(path: str | Path) -> Path:
    """The model directory that `path` names: itself, or `model/` inside it if it is a run's directory.

    Raises:
        InputError: this is no path.
        ModelError: there is no such directory, no model in it (an ensemble is none), or the run has not made its model
            yet.
    """
    path = as_path(path)
    for directory in (path, path / MODEL):
        if holds_model(directory):
            return directory
        refuse_set_aside(directory, ModelError)
    if (path / ENSEMBLE).is_file():
        raise ModelError(f"{path} is an ensemble: name one of its members, which `unmask info {path}` lists")
    if (path / RECIPE).is_file():
        raise ModelError(f"{path}: this run has made no model yet: its command with --resume continues to the end")
    if not path.exists():
        hint = ""
        is_old_name = re.fullmatch(r"[a-z]+-[\w-]+", str(path)) is not None  # bert-base-uncased
        if is_old_name or (re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path)) and not path.parent.exists()):
            full = f"OWNER/{path}" if is_old_name else str(path)
            hint = f"; a model of the Hugging Face Hub is not fetched, but `hf download {full} --local-dir DIR` does so"
        hint = where_samples_are(path) or hint
        raise ModelError(f"{path}: no such directory: expected a model's, or that of the run that made it{hint}")
    refuse_other_layouts(path)
    expected = "a model's directory, or a run's"
    if path.parent.name == CHECKPOINTS and path.name.startswith("step-"):
        run = path.parent.parent
        expected = f"{run / MODEL}, or what `unmask checkpoint {run}` makes of a checkpoint of pre-training"
    raise ModelError(f"{path}: no model here (no config.json): expected {expected}")

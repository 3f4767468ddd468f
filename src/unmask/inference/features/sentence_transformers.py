"""What a directory saved by sentence-transformers says of its vectors: `modules.json`, and the files that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import ModelError
from unmask.inference.features.batches import Pool
from unmask.io.json_files import read_object

MODULES = "modules.json"

_POOLS: dict[str, Pool] = {
    "cls": "cls",
    "mean": "mean-with-special",
    "mean_sqrt_len": "mean-with-special",  # of another length, and the same direction
}
"""By sentence-transformers' names, without the `_tokens` that some have."""

_APPLIED = ("Transformer", "Pooling", "Normalize")
"""Modules that need no remark: whoever compares vectors divides them by their length."""


@dataclass(frozen=True)
class SentenceModel:
    """How the vector of a text is made.

    Attributes:
        pool: of its tokens.
        max_length: tokens that are read, special ones included; None: as many as the encoder can.
        lowercases: whether it gives its tokenizer a text in lower case.
        pooling: the file of the pooling's own settings; None where it is not there.
        remarks: what is not done here: another pool, another module, a prompt that is put before every text.
    """

    pool: Pool
    max_length: int | None
    lowercases: bool
    pooling: Path | None
    remarks: tuple[str, ...]


def find_sentence_model(directory: Path) -> SentenceModel | None:
    """What a model's directory says; None where sentence-transformers has not saved it.

    Raises:
        ModelError: the files are damaged.
    """
    if not (directory / MODULES).is_file():
        return None
    paths = {module["type"].rpartition(".")[2]: module["path"] for module in _read_modules(directory / MODULES)}
    if "Pooling" not in paths:
        return None
    remarks = [f"vectors are made without its {kind}" for kind in paths if kind not in _APPLIED]
    prompt = _read_if_there(directory / "config_sentence_transformers.json").get("default_prompt_name")
    if prompt is not None:
        remarks.append(f"its prompt {prompt!r} is not put before texts: write it there yourself")
    settings = _read_if_there(directory / "sentence_bert_config.json")
    length, lowercases = settings.get("max_seq_length"), settings.get("do_lower_case") is True
    if length is None:  # as version 6 writes it
        length = _read_if_there(directory / "tokenizer_config.json").get("model_max_length")
    most = length if type(length) is int and length > 0 else None
    pooling = directory / paths["Pooling"] / "config.json"
    if not pooling.is_file():
        remarks.append(
            f"{pooling.relative_to(directory)} is not there, so the mean is taken: get it where the model is from"
        )
        return SentenceModel("mean", most, lowercases, None, tuple(remarks))
    modes = _read_modes(pooling)
    pool = _POOLS.get(modes[0]) if len(modes) == 1 else None
    if pool is None:
        remarks.append(f"it pools by {' and '.join(modes) or 'nothing'}, and here the mean is taken")
    return SentenceModel(pool or "mean", most, lowercases, pooling, tuple(remarks))


def _read_modules(path: Path) -> list[dict[str, str]]:
    try:
        modules = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read ({error}): get the model again, or remove the file") from error
    for module in modules if isinstance(modules, list) else [modules]:
        if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise ModelError(f"{path}: expected a list of modules with type and path: get the model again")
        if Path(module["path"]).name != module["path"]:
            raise ModelError(f"{path}: its path {module['path']!r} is not the name of a folder beside it")
    return list(modules)


def _read_modes(path: Path) -> list[str]:
    """The names of the ways in which it pools: in `pooling_mode`, or in one key each."""
    settings = read_object(path, ModelError)
    given = settings.get("pooling_mode", [])
    names = [given] if isinstance(given, str) else list(given) if isinstance(given, list) else []
    begin = "pooling_mode_"
    names += [key.removeprefix(begin) for key, value in settings.items() if key.startswith(begin) and value is True]
    return list(dict.fromkeys(str(name).removesuffix("_tokens").removesuffix("_token") for name in names))


def _read_if_there(path: Path) -> Mapping[str, Any]:
    return read_object(path, ModelError) if path.is_file() else {}

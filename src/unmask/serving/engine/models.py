"""The models of a server by name, each with what it can be asked."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import normalize

import numpy as np

from unmask.errors import InputError, SettingsError, UserError
from unmask.inference.ensemble import read_members
from unmask.inference.opening import Opened, open_model
from unmask.inference.predictor import load_predictor, predictor_of
from unmask.io.paths import CHECKPOINTS, ENSEMBLE, GENERATOR, MODEL, RECIPE, is_onnx, model_directory
from unmask.io.writing import temporary_directory
from unmask.models.family import Family
from unmask.models.hub.config import family_in
from unmask.models.hub.headers import read_any_config
from unmask.models.hub.uses import CAUSAL, FINE_TUNED, MASKED, commands_for, use_of
from unmask.pretraining.checkpoint_model import save_checkpoint_model
from unmask.serving.engine.answerers import (
    GenerationAnswerer,
    LikelihoodAnswerer,
    MaskAnswerer,
    TaskAnswerer,
    TokenAnswerer,
    VectorAnswerer,
)
from unmask.serving.engine.asks import ModelFacts
from unmask.tasks.kinds import FACTS, labelling_endpoints
from unmask.tasks.tagging.task import Tagging
from unmask.tokenization.opening import open_tokenizer
from unmask.training.run.checkpoint import list_steps

MOST_CHECKPOINTS, CHECKPOINT_BYTES = 24, 1_000_000_000
"""How many of a run's are kept in memory, to show how a word is learnt, and how much they may take."""

logger = logging.getLogger("unmask")

Loaded = TypeVar("Loaded")

NAME = re.compile(r"[^\W_][\w.-]*")


@dataclass
class ServedModel:
    """One model, whose answerers all compute with one set of weights.

    Attributes:
        name: in addresses.
        directory: where it is.
        precision: `fp32` or `bf16`.
        endpoints: what it can be asked, the main one first.
        answerers: what answers, by its name in `_OF_COMMANDS`; `checkpoints` are loaded when they are first asked for.
        created: when it was loaded, in seconds since 1970.
    """

    name: str
    directory: Path
    precision: str
    endpoints: tuple[str, ...]
    answerers: Mapping[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def steps(self) -> list[int]:
        """Of the checkpoints of the run that made the model, as they were at the server's start; of many, as many as
        fit into the memory set aside. Empty if there are none."""
        steps = list_steps(self.directory.parent / CHECKPOINTS)
        if not steps:
            return []
        size = 2 * sum(path.stat().st_size for path in self.directory.glob("*.safetensors"))  # laid out, a second time
        most = max(2, min(MOST_CHECKPOINTS, CHECKPOINT_BYTES // max(1, size)))
        return sorted({steps[round(place)] for place in np.linspace(0, len(steps) - 1, most)})

    @cached_property
    def checkpoints(self) -> dict[int, MaskAnswerer]:
        """What fills masks at each of `steps`. Those that cannot be read are left out, and logged.

        Raises:
            InputError: none can be read.
        """
        return _in_passing_thread(self._open_checkpoints)

    def _open_checkpoints(self) -> dict[int, MaskAnswerer]:
        found, tokenizer = {}, self.answerers["tokens"].tokenizer  # a run has one
        for step in self.steps:
            try:
                with temporary_directory("unmask-checkpoint") as place:
                    model = save_checkpoint_model(self.directory.parent, place / "model", step)
                    opened = open_model(model, MASKED, precision=self.precision, tokenizer=tokenizer)
                    found[step] = MaskAnswerer(opened)
            except UserError as error:
                logger.warning("%s: the checkpoint of step %s is left out: %s", self.name, step, error)
        if not found:
            raise InputError("no checkpoint of this model's run can be read; the server's log says why")
        return found

    def answerer(self, name: str) -> Any:
        """What answers, by its name."""
        return self.checkpoints if name == CHECKPOINTS else self.answerers[name]

    def facts(self) -> ModelFacts:
        """What is known of it without asking it."""
        is_labelling = self.endpoints[0] in labelling_endpoints()
        columns = self.answerers["task"].predictor.task.text_columns if is_labelling else ()
        return ModelFacts(self.name, self.endpoints, columns, self._describe())

    def _describe(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"id": self.name, "object": "model", "created": self.created, "owned_by": "unmask"}
        entry["uses"] = list(self.endpoints)
        if self.endpoints[0] in (facts.endpoint for facts in FACTS.values()):
            task = self.answerers["task"].predictor.task
            entry |= {"task": task.kind, "labels": list(task.labels)}
            if task.label_thresholds is not None:
                entry |= {"multi_label": True, "thresholds": task.label_thresholds}
            if task.text_columns:
                entry["columns"] = task.text_columns
            if isinstance(task, Tagging):
                entry["units"] = "characters" if task.tags_characters else "words"
        if "fill-mask" in self.endpoints:
            entry["mask_token"] = self.answerers["masks"].mask_token
        if "checkpoints" in self.endpoints:
            entry["steps"] = self.steps
        return entry


def _in_passing_thread(load: Callable[[], Loaded]) -> Loaded:
    """What is loaded in a thread that then ends, and with it PyTorch's helper threads for it: while there are more of
    these than cores, none waits awake, and every answer takes longer."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(load).result()


_OF_COMMANDS: dict[str, tuple[str, Callable[[Opened], Any], tuple[str, ...]]] = {
    "predict": ("task", lambda opened: TaskAnswerer(predictor_of(opened)), ()),
    "generate": ("generation", GenerationAnswerer, ("generate",)),
    "fill-mask": ("masks", MaskAnswerer, ("fill-mask",)),
    "features": ("vectors", VectorAnswerer, ("features", "similarity")),
    "evaluate --pairs": ("likelihoods", LikelihoodAnswerer, ("score", "pairs")),
}
"""Commands that take a model: what answers as they do, by name, how it is made, and the endpoints, that of `predict`
aside, which is its kind's (`FACTS`). The first that takes a model is what it is mainly for. What is no ensemble has
`tokenize` too."""

_KINDS = {"predict": FINE_TUNED, "generate": CAUSAL, "fill-mask": MASKED}


def open_served(name: str, path: str | Path, precision: str) -> ServedModel:
    """Loads a model, and what its tokenizer segments with.

    Raises:
        ModelError: there is none, or it does not load.
        SettingsError: its segmenter needs a package that is not installed.
    """
    model = _in_passing_thread(lambda: _open(name, path, precision))
    for member in read_members(Path(path)) or [model.directory]:
        open_tokenizer(member).load_segmenter()
    return model


def _open(name: str, path: str | Path, precision: str) -> ServedModel:
    if (Path(path) / ENSEMBLE).is_file():
        task = TaskAnswerer(load_predictor(path, precision=precision))
        return ServedModel(name, Path(path), precision, (_endpoint_of(task),), {"task": task})
    directory = model_directory(path)
    config = read_any_config(directory)
    commands = commands_for(directory, use_of(config)) or ("features",)  # which says why a class does not load
    found = {command: its for command, its in _OF_COMMANDS.items() if command in commands}
    main = next(iter(found))
    opened = open_model(directory, _KINDS.get(main), precision=precision)
    answerers: dict[str, Any] = {"tokens": TokenAnswerer(opened)}
    for command, (answerer, new, _) in found.items():
        is_apart = command == "evaluate --pairs" and opened.loaded.discriminator_head is not None
        answerers[answerer] = new(open_model(directory / GENERATOR, precision=precision) if is_apart else opened)
    endpoints = [_endpoint_of(answerers["task"])] if main == "predict" else []
    endpoints += [endpoint for *_, its in found.values() for endpoint in its]
    model = ServedModel(name, directory, precision, (*endpoints, "tokenize"), answerers)
    if not is_onnx(directory):
        model.endpoints += _looks(model, family_in(config))
    return model


def _endpoint_of(task: TaskAnswerer) -> str:
    return FACTS[task.predictor.task.kind].endpoint


def _looks(model: ServedModel, family: Family | None) -> tuple[str, ...]:
    """The endpoints of `unmask.serving.inspecting` that a model of a family has."""
    main = model.endpoints[0]
    attends = family is not None and not family.is_recurrent
    run = model.directory.parent
    is_of_run = model.directory.name == MODEL and (run / RECIPE).is_file()
    looks = {
        "attention": attends,
        "token-scores": "pairs" in model.endpoints,
        "layers": main == "fill-mask" and attends,
        "checkpoints": main == "fill-mask" and is_of_run and len(model.steps) > 1,
        "words": main in labelling_endpoints(),
        "spans": main == "answer",
    }
    return tuple(name for name, is_there in looks.items() if is_there)


def open_models(words: Sequence[str], precision: str) -> dict[str, ServedModel]:
    """Loads the models that `unmask serve` names.

    Args:
        words: `NAME=DIR`, or `DIR`, whose name is its last part.

    Raises:
        ModelError: a model does not load.
        SettingsError: two have one name, or a name does not fit into an address.
    """
    places: dict[str, str] = {}
    for word in words:
        name, is_named, place = word.partition("=")
        if not is_named or Path(word).exists():
            name, place = _name_of(Path(word)), word
        name = normalize("NFC", name)
        if not NAME.fullmatch(name):
            raise SettingsError(
                f"{word}: the name {name!r} does not fit into an address: give NAME=DIR, a letter or digit first, then "
                "letters, digits, '.', '_' and '-'"
            )
        if name in places:
            raise SettingsError(f"{places[name]} and {place} are both called {name}: give one of them as NAME=DIR")
        places[name] = place
    return {name: open_served(name, place, precision) for name, place in places.items()}


def _name_of(path: Path) -> str:
    """The last part of a path that says something: that of the run for its `model`."""
    parts = [part for part in path.resolve().parts if part != "model"]
    return parts[-1] if parts else "model"


def default_models() -> list[str]:
    """The sample encoders, and the models of the demo where it has run.

    Raises:
        SettingsError: there are none: they are in the project's repository alone.
    """
    places = [
        *sorted(Path("samples/models").glob("*/config.json")),
        *sorted(Path("runs/demo").glob("*/model/config.json")),
    ]
    if not places:
        raise SettingsError(
            "name a model to serve; the sample encoders, which are served where none is named, are in samples/models "
            "of the project's repository: run this there"
        )
    return [str(place.parent.parent if place.parent.name == "model" else place.parent) for place in places]

"""A model card: the README.md of a model directory, filled from the run that made it, in the layout that the Hugging
Face Hub reads, so that the directory is ready to upload.

Nothing is made up. What the run does not know (the licence, the language, the Hub's name of the data) is asked for by
options, and the card says where it was not given. Torch is imported for Google's checkpoints alone.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from unmask.corpus.statistics import describe_losses
from unmask.errors import ModelError, OutputError, SettingsError
from unmask.info import describe_model
from unmask.io.json_files import read_object
from unmask.io.paths import MANIFEST, MODEL, RECIPE, RESULTS, SUMMARY, TRIALS, is_onnx, model_directory
from unmask.io.progress import human_number, named
from unmask.io.writing import write_text
from unmask.models.hub.config import HEAD_KIND, MADE_BY, TRAINED_LENGTH, family_in
from unmask.models.hub.headers import is_google, read_any_config
from unmask.models.hub.uses import FINE_TUNED, pipeline_of, use_of
from unmask.recipe.loading import read_recipe
from unmask.recipe.tree import FinetuneRecipe, PretrainRecipe
from unmask.reports.run_page import examples_in_words, flatten, last_evaluation
from unmask.store.manifest import read_manifest
from unmask.tasks.kinds import FACTS
from unmask.tasks.recorded import recorded_in
from unmask.tasks.settings import FIELDS_OF_KINDS, kind_of
from unmask.training.run.environment import ENVIRONMENT, budget_changes, read_sessions
from unmask.training.run.log import METRICS, read_metrics
from unmask.training.run.model_place import CARD, marked
from unmask.yaml_text import dump_yaml, parse_yaml


@dataclass(frozen=True)
class Stated:
    """What the author says of a model.

    Attributes:
        license: an id of the Hub's, such as `apache-2.0`.
        languages: ISO 639 codes.
        datasets: ids of the Hub's.
        name: the model's; the name of its directory where left out.

    Raises:
        SettingsError: one of these is no line of text.
    """

    license: str | None = None
    languages: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        for what in (self.license, self.name, *self.languages, *self.datasets):
            if what is not None and (not what.strip() or not what.isprintable()):
                raise SettingsError(f"{what!r}: expected one line of text, without characters that cannot be seen")


@dataclass(frozen=True)
class Exported:
    """What is to be said of the ONNX file that was made of a model: a sentence, and its own metrics on a file."""

    sentence: str
    check: str
    metrics: Mapping[str, Any]


def stated_in(directory: Path) -> Stated:
    """What the card of a model directory states; nothing where there is none, or it cannot be read."""
    try:
        _, front, _ = (directory / CARD).read_text("utf-8").split("---\n", 2)
        stated = parse_yaml(front, CARD)
        several = {key: stated.get(key) or () for key in ("language", "datasets")}
        lists = {key: (each,) if isinstance(each, str) else tuple(map(str, each)) for key, each in several.items()}
        license = stated.get("license")
        return Stated(license if isinstance(license, str) else None, lists["language"], lists["datasets"])
    except (OSError, ValueError, TypeError, AttributeError, SettingsError):
        return Stated()


def write_card(model: str | Path, stated: Stated = Stated(), *, overwrite: bool = False) -> Path:
    """Writes `README.md` into a model's directory.

    Args:
        model: the directory of a run, of a search, or of a model; the more of the run is there, the more is said.
        overwrite: True replaces a card that is there.

    Returns:
        The card's path.

    Raises:
        ModelError: there is no model.
        SettingsError: the model is an ONNX file, whose card was written with it.
        OutputError: there is a card, or the place cannot be written.
    """
    directory = model_directory(model)
    if is_onnx(directory):
        raise SettingsError(f"{directory} was exported, with a card of its own: name the model that it was made from")
    path = directory / CARD
    if os.path.lexists(path) and not overwrite:  # a link may lead to a file that is not there yet
        raise OutputError(f"{path} is there already: --overwrite replaces it")
    write_text(path, marked(card_of(directory, stated)))
    return path


def card_of(directory: Path, stated: Stated = Stated(), export: Exported | None = None) -> str:
    """The card of a model directory, as Markdown.

    Args:
        export: the ONNX file that the card is of; None: it is of the model itself.
    """
    config, run = read_any_config(directory), directory.parent
    task = (recorded := recorded_in(directory, config)).get("name")
    recipe, made_here = _recipe_of(directory, is_tuned=task is not None)
    name = stated.name or (run.resolve().name if made_here else directory.resolve().name)
    best = read_object(run / SUMMARY)["best_on_dev"] if made_here and (run / SUMMARY).is_file() else None
    content = _content(run, best) if made_here else {}
    results = _results(run, content, best) if made_here else []
    measured = _figures(export.check, export.metrics, {}) if export else []
    description, use = describe_model(directory), use_of(config)
    if use is None and "does_not_load" in description:
        raise ModelError(description["does_not_load"])
    is_ours = recipe is not None or any(key.startswith("unmask_") for key in config)
    sessions = read_sessions(run / ENVIRONMENT) if made_here else _made_of_others(config)
    opens_there = _opens_there(directory, config) and not export
    tokenizer = description.get("tokenizer", {})
    reads_windows = task is not None and (
        kind_of(task) not in FIELDS_OF_KINDS["truncation"] or recorded.get("long_text") == "windows"
    )
    segmenter = tokenizer.get("segmenter")
    pipeline = FACTS[kind_of(task)].hub_task if task else pipeline_of(config, use)
    own_ways = _own_ways(config, recorded)
    front = {
        "license": stated.license,
        "language": list(stated.languages),
        "datasets": list(stated.datasets),
        "library_name": "transformers" if opens_there else None,
        "pipeline_tag": pipeline,
        "tags": [*(["unmask"] if is_ours else []), *(["onnx"] if export else [])],
        "model-index": _model_index(name, task, pipeline, *((measured, None) if export else (results, recipe))),
    }
    return str(
        _template().render(
            front=dump_yaml({key: value for key, value in front.items() if value}),
            name=name,
            architecture=(description["architectures"] or ["model"])[0],
            export=export and export.sentence,
            measured=measured,
            num_parameters=human_number(description["num_parameters"]),
            sizes=_sizes(description),
            pipeline=pipeline,
            code=None if not opens_there or own_ways or segmenter else "pipeline" if pipeline else "encoder",
            segmenter=segmenter,
            mask_token="<mask>" if "<mask>" in tokenizer.get("special_tokens", ()) else "[MASK]",
            own_ways=own_ways,
            task=task,
            is_tuned=use is not None and use.kind == FINE_TUNED,
            is_ours=is_ours,
            is_pair="text_b" in recorded.get("columns", {}),
            is_number=task is not None and FACTS[kind_of(task)].is_number,
            labels=description.get("labels") if task and kind_of(task) in FIELDS_OF_KINDS["labels"] else None,
            init_from=_origin(recipe),
            from_scratch=getattr(recipe, "from_scratch", False),
            data=list(_data(recipe, content)),
            results=results,
            best=best,
            commands=_commands(sessions),
            budget_changes=budget_changes(sessions),
            machine=sessions[-1].get("device") if sessions else None,
            versions=sessions[-1].get("versions", {}) if sessions else {},
            trained=_trained(run / METRICS) if made_here else {"step": 0, "tokens": 0},
            settings=None if recipe is None else _own_settings(recipe) | _thresholds(recorded),
            reads_windows=reads_windows,
            max_length=recorded.get("max_length") or config.get(TRAINED_LENGTH),
            content=content,
            stated=stated,
        )
    )


def _recipe_of(directory: Path, is_tuned: bool) -> tuple[PretrainRecipe | FinetuneRecipe | None, bool]:
    """The recipe that made a model, and whether the run that the directory lies in did."""
    if directory.name == MODEL and (directory.parent / RECIPE).is_file():
        recipe = read_recipe(directory.parent / RECIPE)
        if isinstance(recipe, FinetuneRecipe) == is_tuned:
            return recipe, True
    return read_recipe(directory / RECIPE) if (directory / RECIPE).is_file() else None, False


def _opens_there(directory: Path, config: Mapping[str, Any]) -> bool:
    """Whether `transformers` opens all of a model: it has a class for it, no head lies in a file of its own, and the
    weights are not TensorFlow's."""
    return HEAD_KIND not in config and not _is_unknown_there(config) and not is_google(directory)


def _is_unknown_there(config: Mapping[str, Any]) -> bool:
    family = family_in(config)
    return family is not None and not family.in_transformers


def _own_ways(config: Mapping[str, Any], task: Mapping[str, Any]) -> list[str]:
    """Why no code for `transformers` would answer as `unmask` does; empty if some does. A segmenter and
    TensorFlow's weights are named elsewhere in the card."""
    ways = {
        "`transformers` has no such model": _is_unknown_there(config),
        "its head, or a part of it, is in `head.safetensors`, which `transformers` does not read": HEAD_KIND in config,
        "`unmask` reads a long text in windows and puts their outputs together": task.get("long_text") == "windows",
        "`unmask` gives a text every label that is probable enough, by thresholds": bool(task.get("multi_label")),
    }
    of_kind = FACTS[kind_of(task["name"])].own_way if "name" in task else ""
    return [*(way for way, is_so in ways.items() if is_so), *filter(None, [of_kind])]


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("unmask.reports"),
        autoescape=False,  # Markdown: the cells of tables are escaped, one by one
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = lambda value: " ".join(str(value).replace("|", "\\|").split())
    environment.filters["plain"] = lambda value: re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(str(value).split()))
    environment.filters["number"] = human_number
    environment.filters["named"] = named
    return environment.get_template("card.md")


def _sizes(description: Mapping[str, Any]) -> str:
    known = {"num_hidden_layers": "layers", "hidden_size": "units", "vocab_size": "entries"}
    return ", ".join(f"{description[key]:,} {word}" for key, word in known.items() if description.get(key))


def _origin(recipe: PretrainRecipe | FinetuneRecipe | None) -> str | None:
    """The model that was started from, without its place on the machine."""
    given = None if recipe is None else recipe.init_from
    return None if given is None else str(_shown(given))


_PLACE = re.compile(r"(?<![\w.~/])(?:~[\w-]*|(?:\.\.)(?:/\.\.)*)?/[^\s,:;=\[\]{}'\"]+")
"""A path that begins at the root, at somebody's home or above: where it leads is known on one machine alone."""


def _shown(value: Any) -> Any:
    """A value, or a text, in which paths show their ends alone, as a reader elsewhere needs them."""
    if isinstance(value, str):
        return _PLACE.sub(lambda found: _end_of(found[0]), value)
    if isinstance(value, Mapping):
        return {key: _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value


def _end_of(path: str) -> str:
    parts = Path(path).parts
    return "/".join(parts[-2:] if parts[-1] == MODEL and len(parts) > 2 else parts[-1:])


def _data(recipe: PretrainRecipe | FinetuneRecipe | None, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of what the model has read: what it was for, and what it was."""
    if isinstance(recipe, FinetuneRecipe):
        for split in ("train", "dev", "test"):
            if (given := getattr(recipe.data, split)) is not None:
                about = f": {examples_in_words(its)}" if (its := content.get(f"{split}_examples")) else ""
                if split == "train" and (number := recipe.data.train_examples) is not None:
                    about = f": {number:,} of its examples, drawn by seed {recipe.seed}"
                yield split, ", ".join(_shown([given] if isinstance(given, str) else given)) + about
        return
    if recipe is None:
        return
    if recipe.store is not None and (Path(recipe.store) / MANIFEST).is_file():
        manifest = read_manifest(Path(recipe.store))
        for source in manifest["sources"]:
            if source.get("documents", 1):  # stores of earlier versions do not say it
                yield "text", _shown(source["file"])
        yield "in all", f"{manifest['documents']:,} documents, {manifest['tokens']:,} tokens"
        if losses := describe_losses(manifest["text"]):
            yield "left out", losses[2:-1]
    elif recipe.corpus:
        files = [recipe.corpus] if isinstance(recipe.corpus, str) else recipe.corpus
        yield "text", ", ".join(_shown(str(each)) for each in files)


def _content(run: Path, best: Mapping[str, Any] | None) -> dict[str, Any]:
    """`results.json` of the run that made the model, of a search its best trial; empty if there is none."""
    if best is not None:
        run = run / TRIALS / best["trial"]
    return read_object(run / RESULTS) if (run / RESULTS).is_file() else {}


def _results(run: Path, content: Mapping[str, Any], best: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Every figure: on which examples, its value, of how many runs it is the mean and how far they spread, and what to
    compare it with."""
    floors = content.get("floors") or {}
    if best is not None:
        every = best["all_runs_of_it"]
        return [
            {"split": split, "metric": metric, "value": each["mean"], "sd": each["sd"], "n": every["n"]}
            | {"floors": floors.get(f"{split}.{metric}", {})}
            for split in ("dev", "test")
            for metric, each in every.get(split, {}).items()
            if metric != "loss" and each["mean"] is not None
        ]
    if not (run / RESULTS).is_file():
        return []
    if found := [row for split in ("dev", "test") for row in _figures(split, content.get(split, {}), floors)]:
        return found
    rows = read_metrics(run / METRICS) if (run / METRICS).is_file() else []
    number_of_pairs = f"{content['num_pairs']:,} " if "num_pairs" in content else ""
    return [
        {
            "split": f"{number_of_pairs}minimal pairs" if key == "eval/pairs_accuracy" else "held-out text",
            "metric": key.removeprefix("eval/"),
            "value": value,
            "sd": None,
            "n": 1,
            "floors": floors.get(key) or floors.get(f"loss/{key.removeprefix('eval/').removesuffix('_loss')}", {}),
        }
        for key, value in last_evaluation(rows).items()
        if value is not None
    ]


def _figures(split: str, metrics: Mapping[str, Any], floors: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"split": split, "metric": metric, "value": value, "sd": None, "n": 1}
        | {"floors": floors.get(f"{split}.{metric}", {})}
        for metric, value in metrics.items()
        if metric != "loss" and isinstance(value, int | float)
    ]


def _model_index(
    name: str,
    task: str | None,
    pipeline: str | None,
    results: Sequence[Mapping[str, Any]],
    recipe: PretrainRecipe | FinetuneRecipe | None,
) -> list[dict[str, Any]] | None:
    """The results as the Hub reads them, one entry for each file that was measured; a recipe names those of splits."""
    if task is None or pipeline is None or not results:
        return None
    entries = []
    for split, its in groupby(results, lambda each: str(each["split"])):
        metrics = [{"type": each["metric"], "value": round(float(each["value"]), 4)} for each in its]
        dataset = {"name": split, "type": task}
        if isinstance(recipe, FinetuneRecipe):
            file = getattr(recipe.data, split)
            dataset["name"] = _shown(file if isinstance(file, str) else file[0])
            dataset["split"] = "validation" if split == "dev" else split
        entries.append({"task": {"type": pipeline}, "dataset": dataset, "metrics": metrics})
    return [{"name": name, "results": entries}]


def _made_of_others(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The command that made a model of others, or of a checkpoint, as the one session of a run; empty if none did."""
    made_by = config.get(MADE_BY)
    if not isinstance(made_by, Mapping):
        return []
    step = [] if made_by.get("step") is None else ["--step", str(made_by["step"])]
    return [{"command": ["unmask", str(made_by.get("command")), *map(str, made_by.get("of") or ()), *step]}]


def _commands(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commands of the run, without places on the machine; one that only resumes the one before is left out."""
    given = [session["command"] for session in sessions if session.get("command")]
    differing = groupby(given, lambda words: [word for word in words if word != "--resume"])
    return [shlex.join(_shown(list(next(alike)))) for _, alike in differing]


def _trained(metrics: Path) -> dict[str, int]:
    rows = read_metrics(metrics) if metrics.is_file() else []
    return {name: max((row.get(name, 0) for row in rows), default=0) for name in ("step", "tokens")}


def _own_settings(recipe: PretrainRecipe | FinetuneRecipe) -> dict[str, Any]:
    """The recipe's settings that are not those of an empty recipe, flat, without places on the machine."""
    given = recipe.model_dump(
        mode="json", exclude_defaults=True, exclude_none=True, exclude={"data", "corpus", "store"}
    )
    return dict(_shown(flatten(given)))


def _thresholds(task: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were chosen for labels: other programs do not know them."""
    chosen = task.get("thresholds") or {}
    shown = ", ".join(f"{label}: {human_number(value)}" for label, value in chosen.items())
    return {"task.thresholds": shown} if shown else {}

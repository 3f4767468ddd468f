"""Reads recipes: YAML files that state what differs from the defaults in `unmask.recipe.tree`.

A recipe may name another recipe as its `base:`, by its path from the recipe's own folder or as on the command line; a
base may have one too. The command line overrides with `key.path=value`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from unmask.config import Overrides, build_settings, merge, nearest, parse_overrides, read_settings_file
from unmask.errors import SettingsError
from unmask.io.paths import RECIPE, as_path
from unmask.io.reading import split_suffixes
from unmask.io.tables import LINE_FORMATS
from unmask.objectives.settings import MaskedLMSettings
from unmask.recipe.names import find_recipe, known_recipes
from unmask.recipe.tree import CorpusOptions, FinetuneRecipe, PretrainRecipe, TokenizerOptions
from unmask.tasks.settings import ColumnSettings
from unmask.tokenization.settings import PRESETS
from unmask.training.settings import BUDGETS, ONLY_OF_OPTIMIZERS, ONLY_OF_SCHEDULES, OptimizerSettings, ScheduleSettings

ALTERNATIVES = (
    tuple(f"train.{name}" for name in BUDGETS),
    ("schedule.warmup_steps", "schedule.warmup_ratio"),
    ("corpus", "store"),
    ("data.columns.text", "data.columns.text_a"),
    ("tokenizer.vocab_size", "tokenizer.num_merges"),
)
"""Keys of which only one may be given: one on the command line replaces another in the recipe."""

Recipe = TypeVar("Recipe", PretrainRecipe, FinetuneRecipe)


def load_pretrain_recipe(name: str, overrides: Overrides = ()) -> PretrainRecipe:
    """Reads a pre-training recipe; see `unmask.recipe.names.find_recipe` and `unmask.config`.

    Raises:
        SettingsError: no such recipe, an unknown key, a value out of range, or a contradiction.
    """
    return _load(PretrainRecipe, name, overrides)


def load_finetune_recipe(name: str, overrides: Overrides = ()) -> FinetuneRecipe:
    """As `load_pretrain_recipe`, of a fine-tuning recipe."""
    return _load(FinetuneRecipe, name, overrides)


def read_recipe(path: Path) -> PretrainRecipe | FinetuneRecipe:
    """A run's resolved recipe, of either kind; that of a sample encoder names no text, and gets none."""
    values = read_settings_file(path)
    if program_of(values) == "finetune":
        return build_settings(FinetuneRecipe, values, str(path))
    if values.get("corpus") is None and values.get("store") is None:
        values["corpus"] = []
    return build_settings(PretrainRecipe, values, str(path))


def read_corpus_options(
    reading: Mapping[str, Any], cleaning: Mapping[str, Any], overrides: Sequence[str]
) -> CorpusOptions:
    """Settings from command-line options, overridden by `reading.KEY=VALUE` and `cleaning.KEY=VALUE` words.

    Raises:
        SettingsError: an unknown key, or a value out of range.
    """
    values = merge({"reading": reading, "cleaning": cleaning}, parse_overrides(overrides))
    return build_settings(CorpusOptions, values, "options")


def read_tokenizer_options(
    preset: str | None, given: Mapping[str, Any], reading: Mapping[str, Any], overrides: Sequence[str]
) -> TokenizerOptions:
    """Settings of a tokenizer to train: the preset's, overridden by options, and both by `tokenizer.KEY=VALUE` words.

    Raises:
        SettingsError: an unknown preset or key, or a value out of range.
    """
    if preset is not None and preset not in PRESETS:
        raise SettingsError(f"--preset {preset}: there is no such preset{nearest(preset, list(PRESETS))}")
    base = PRESETS[preset].model_dump(exclude_defaults=True) if preset is not None else {}
    options = {name: value for name, value in given.items() if value is not None}
    values = merge({"tokenizer": base}, {"tokenizer": options, "reading": reading}, ALTERNATIVES)
    return build_settings(TokenizerOptions, merge(values, parse_overrides(overrides), ALTERNATIVES), "tokenizer train")


def read_columns(words: Sequence[str]) -> ColumnSettings:
    """Columns of examples from `NAME=COLUMN` words of the command line.

    Raises:
        SettingsError: there is no such NAME.
    """
    return build_settings(ColumnSettings, parse_overrides(words), "--column")


def _load(cls: type[Recipe], name: str, overrides: Overrides) -> Recipe:
    return build_settings(cls, merged_values(cls, name, overrides), str(name))


def merged_values(cls: type[Recipe], name: str, overrides: Overrides) -> dict[str, Any]:
    """What a recipe, its bases and the command line give, as nested dictionaries that nothing has been checked against.

    Raises:
        SettingsError: no such recipe, one for the other program, or a key that this one may not be given.
    """
    _refuse_text(cls, name)
    path = find_recipe(name, cls.program)
    given = parse_overrides(overrides)
    values = read_with_bases(path, given)
    if "base" in given:
        raise SettingsError(
            "base cannot be given on the command line: name it in the recipe, or pass that recipe instead"
        )
    if given.get("store") is not None and given.get("tokenizer") is not None:
        raise SettingsError("store and tokenizer contradict each other: a store brings its own tokenizer; keep one")
    if (program := program_of(values)) not in (cls.program, None):
        raise SettingsError(f"{name} is a recipe for `unmask {program}`: give it to that, or name another")
    _check_place(cls, name, values, given)
    return merge(_without_other_names(values, given), given, ALTERNATIVES)


def _refuse_text(cls: type[Recipe], name: str) -> None:
    """Raises SettingsError for a folder, or a file of text, in the recipe's place."""
    path = as_path(name, "a recipe: a YAML file, or the name of one that comes with unmask")
    is_folder = bool(name) and path.is_dir() and name not in known_recipes()
    if is_folder and (path / RECIPE).is_file():
        raise SettingsError(f"{name} is a run: give its recipe, {path / RECIPE}, or another")
    usual = (
        "finetune/classification init_from=MODEL data.train" if cls is FinetuneRecipe else "pretrain/bert_tiny corpus"
    )
    words = f"`unmask {cls.program} {usual}={name}`"
    if is_folder:
        store = "" if cls is FinetuneRecipe else ", and a store's is store"
        raise SettingsError(
            f"{name} is a folder, and a recipe comes first: a .yaml file, or a name. For a folder of text give such as "
            f"{words}; a model's is init_from{store}"
        )
    if "=" not in name and split_suffixes(path)[0] in (*LINE_FORMATS, ".parquet", ".txt", ".md", ".xml"):
        raise SettingsError(
            f"{name} is no recipe, which comes first: a .yaml file, or a name. For a file of text give such as {words}"
        )


def program_of(values: Mapping[str, Any]) -> Literal["pretrain", "finetune"] | None:
    """The program whose recipes alone have the keys of `values` that not both have; None: either. `data` decides."""
    if "data" in values:
        return "finetune"
    ours, theirs = (recipe.model_fields.keys() & values.keys() for recipe in (FinetuneRecipe, PretrainRecipe))
    if bool(ours - theirs) == bool(theirs - ours):
        return None
    return "finetune" if ours - theirs else "pretrain"


def read_with_bases(path: Path, over: Mapping[str, Any], above: Sequence[Path] = ()) -> dict[str, Any]:
    """A recipe's file, laid on its base, which may have a base of its own.

    Args:
        over: what is to be laid on it.
        above: the recipes whose base this is, directly or not.

    Raises:
        SettingsError: a file cannot be read, or recipes are based on each other in a circle.
    """
    values = read_settings_file(path)
    name = values.pop("base", None)
    if name is None:
        return values
    if not isinstance(name, str):
        raise SettingsError(f"{path}: base={name}: expected the path or the name of one recipe")
    base_path = path.parent / name
    if not base_path.is_file():
        base_path = find_recipe(name)
    family = [*above, path.resolve()]
    if base_path.resolve() in family:
        raise SettingsError(f"{path}: its base {name} is based on this recipe: name another, or none")
    base = _without_other_names(read_with_bases(base_path, {**values, **over}, family), values)
    continues = values.get("init_from") is not None and over.get("init_from", "") is not None
    if continues and isinstance(base.get("tokenizer"), Mapping):
        del base["tokenizer"]  # how to train one: the model has its own
    return merge(base, values, ALTERNATIVES)


def _check_place(cls: type[Recipe], name: str, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuses settings of the other program's recipes and of phases that the recipe lacks, and an `init_from` that the
    recipe leaves empty, to be given. `values` are the recipe's, and `given` the command line's."""
    other: type[PretrainRecipe | FinetuneRecipe] = PretrainRecipe if cls is FinetuneRecipe else FinetuneRecipe
    for key in given:
        if key not in cls.model_fields and key in other.model_fields:
            raise SettingsError(
                f"{key} is set in recipes of `unmask {other.program}`, and {name} is none: leave it out"
            )
    numbers = list(given["phases"]) if isinstance(given.get("phases"), Mapping) else []
    if numbers and all(map(str.isdecimal, numbers)) and not values.get("phases"):
        raise SettingsError(
            f"{name} has no phases, so there is no phases.{numbers[0]} to change: give them all, such as "
            "phases='[{until: 0.9, max_length: 64}, {until: 1}]'"
        )
    if values.get("init_from") == "" and not given.get("init_from"):
        raise SettingsError(f"{name} continues from a model: give init_from=MODEL, its directory or a run's")


def _without_other_names(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` without the settings of an objective, optimizer or schedule that do not apply to the one that `over`
    names."""
    kept = dict(under)
    if _other_name(under, over, "objective", MaskedLMSettings().name) is not None:
        kept.pop("objective", None)  # no key means quite the same in two objectives
    for part, default, only_of in (
        ("optimizer", OptimizerSettings().name, ONLY_OF_OPTIMIZERS),
        ("schedule", ScheduleSettings().name, ONLY_OF_SCHEDULES),
    ):
        name = _other_name(under, over, part, default)
        if name is not None and kept.get(part):
            kept[part] = {key: value for key, value in kept[part].items() if name in only_of.get(key, (name,))}
    return kept


def _other_name(under: Mapping[str, Any], over: Mapping[str, Any], part: str, default: str) -> str | None:
    """The name that `over` gives to a part of the settings where `under` has another; else None."""
    named, before = (values.get(part) or {} for values in (over, under))
    if not isinstance(named, Mapping) or not isinstance(before, Mapping):
        return None  # refused later, for its type
    name = named.get("name")
    return None if name == before.get("name", default) else name

"""What is this? The sizes, settings, progress and provenance of a store, model, run, tokenizer or recipe.

Reads manifests, configurations and headers only. No weights are loaded, and torch is imported for Google's checkpoints
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

from unmask.config import read_settings_file
from unmask.errors import InputError, ModelError
from unmask.io.json_files import read_object
from unmask.io.paths import (
    CERTIFICATE,
    CHECKPOINTS,
    CONFIGS,
    ENSEMBLE,
    GENERATOR,
    MANIFEST,
    MODEL,
    RECIPE,
    RESULTS,
    SPAN_BOUNDARY,
    SUMMARY,
    TRAINING_REPORT,
    TRIALS,
    as_path,
    holds_model,
    is_onnx,
    refuse_other_layouts,
    refuse_set_aside,
    where_samples_are,
)
from unmask.io.progress import human_bytes, human_count, named
from unmask.io.writing import UNFINISHED
from unmask.models.hub.config import MADE_BY, family_in
from unmask.models.hub.headers import is_google, num_parameters, read_any_config, refusal_of
from unmask.models.hub.uses import FINE_TUNED, commands_for, use_of
from unmask.recipe.loading import read_recipe
from unmask.recipe.names import known_recipes
from unmask.recipe.tree import FinetuneRecipe, PretrainRecipe
from unmask.store.manifest import part_name
from unmask.store.store import TokenStore
from unmask.tasks.recorded import recorded_in
from unmask.tokenization.opening import has_tokenizer, open_tokenizer
from unmask.training.run.environment import ENVIRONMENT, budget_changes, read_sessions
from unmask.training.run.log import METRICS, read_metrics

SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings"),
    *("projection_size", "cell_size"),  # ELMo's
)
CERTIFIED = ("format", "opset", "largest_difference", "latency_ms")


def describe(path: str | Path) -> dict[str, Any]:
    """What a path holds.

    Args:
        path: a directory that `unmask` or `transformers` wrote, or a recipe's file or name.

    Returns:
        `kind` (a key of `KINDS`: `run`, `model`, `store` ...), `path`, and what there is to know about that kind, as
        JSON.

    Raises:
        InputError: there is nothing at the path, or nothing of a known kind.
        UserError: it is of a known kind but damaged.
    """
    path = as_path(path, "the path of a store, a model, a run, a search, an ensemble, a tokenizer or a recipe")
    path = path if path.exists() else known_recipes().get(str(path), path)
    if not path.exists():
        refuse_set_aside(path, InputError)
        raise InputError(f"{path}: no such file or directory{where_samples_are(path)}")
    for kind, (is_one, describe_one) in KINDS.items():
        if is_one(path):
            return {"kind": kind, "path": str(path), **describe_one(path)}
    refuse_other_layouts(path)
    raise InputError(
        f"{path}: neither a store (manifest.json), a model ({' or '.join(CONFIGS)}), a run (recipe.yaml), a search "
        f"({SUMMARY}), an ensemble ({ENSEMBLE}), a tokenizer (tokenizer.json or vocab.txt) nor a recipe (.yaml)"
    )


def format_description(description: Mapping[str, Any]) -> str:
    """A description for people: one line per fact, nested ones indented."""
    facts = {name: value for name, value in description.items() if name not in ("kind", "path")}
    return "\n".join([f"{description['path']}: {_title(description)}", *_lines(facts, "  ")])


def _title(description: Mapping[str, Any]) -> str:
    unfinished = description.get("complete") is False or description.get("progress", 1) != 1
    article = "an unfinished" if unfinished else "an" if description["kind"] == "ensemble" else "a"
    return f"{article} {description['kind']}"


def _lines(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    width = max(map(cell_len, values), default=0)
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            yield f"{indent}{name}"
            yield from (
                f"{indent}  {', '.join(f'{key} {_shown(key, inner)}' for key, inner in item.items())}" for item in value
            )
        else:
            yield f"{indent}{set_cell_size(name, width)}  {_shown(name, value)}"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, list):
        return (named if name == "labels" else ", ".join)(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:.2%}" if name.endswith(("_share", "progress")) else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith("bytes"):
            return human_bytes(value)
        return f"{value:,}" if value < 1_000_000 else f"{value:,} ({human_count(value)})"
    return "-" if value is None else str(value)


# ---- Stores


def _is_store(path: Path) -> bool:
    if (path / MANIFEST).is_file():
        return True
    return any(any(path.glob(mark)) for mark in ("tokens-*.bin", "shard-*.json", f"{UNFINISHED}tokens-*.bin"))


def _describe_store(path: Path) -> dict[str, Any]:
    if not (path / MANIFEST).is_file():
        records = [read_object(record) for record in sorted(path.glob("shard-*.json"))]
        names = ("documents", "sentences", "tokens")
        return {
            "complete": False,
            "finished_shards": len(records),
            **{name: sum(int(record.get(name, 0)) for record in records) for name in names},
            "next": "the same `unmask prepare` command with --resume continues it",
        }
    store = TokenStore(path)
    manifest, text = store.manifest, store.manifest["text"]
    changed = {what: {name: amount["count"] for name, amount in text[what].items()} for what in ("dropped", "removed")}
    changed["skipped"] = text["skipped"]
    changed["left_out"] = {"documents_without_tokens": manifest["documents_without_tokens"]}
    return {
        "complete": True,
        **store.figures(),
        "stored_bytes_per_token": manifest["files"][part_name("tokens", 0)]["bytes"] / manifest["shards"][0]["tokens"],
        **{what: counts for what, counts in changed.items() if any(counts.values())},
        "sentences_by": manifest["sentences_by"],
        **({"mixture": manifest["mixture"]} if "mixture" in manifest else {}),
        "tokenizer_fingerprint": manifest["tokenizer_fingerprint"],
        "sources": manifest["sources"],
    }


# ---- Models and tokenizers


def describe_model(path: Path) -> dict[str, Any]:
    """As `describe`, of a directory that is taken for a model, whatever else is in it; without `kind` and `path`."""
    config = read_any_config(path)
    refusal, family = refusal_of(path, config), family_in(config)
    use = None if refusal is not None else use_of(config)
    named, model_type = config.get("architectures"), config.get("model_type")
    if family is not None and is_google(path):
        named, model_type = [f"{family.title}, a checkpoint of Google's TensorFlow code"], family.model_type
    description: dict[str, Any] = {
        "architectures": named,
        "model_type": model_type,
        **({} if refusal is None else {"does_not_load": refusal}),
        **({} if use is None else {"is": use.kind, "commands": list(commands_for(path, use))}),
        **({"format": "ONNX"} if is_onnx(path) else {}),
        "num_parameters": num_parameters(sorted(path.glob("*.safetensors"))),
        "vocab_size": config.get("vocab_size"),
        **{name: config[name] for name in SIZES if name in config},
        **{name: config[its_name] for name, its_name in _renamed_sizes(config).items() if its_name in config},
    }
    has_labels = (use is None or use.kind == FINE_TUNED) and config.get("problem_type") != "regression"
    if has_labels and isinstance(labels := config.get("id2label"), dict):
        description["labels"] = list(labels.values())
    try:
        if task := recorded_in(path, config):
            description["task"] = task
    except ModelError as error:
        description.setdefault("does_not_load", str(error))
        description.pop("commands", None)
    if is_onnx(path) and (path / CERTIFICATE).is_file():
        certificate = read_object(path / CERTIFICATE, ModelError)
        description["export"] = {name: certificate.get(name) for name in CERTIFIED}
    if MADE_BY in config:
        description["made_by"] = config[MADE_BY]
    if (path / SPAN_BOUNDARY).is_file():
        description["span_boundary_head"] = {"num_parameters": num_parameters([path / SPAN_BOUNDARY])}
    if holds_model(path / GENERATOR):
        generator = describe_model(path / GENERATOR)
        description[GENERATOR] = {name: generator[name] for name in generator if name not in ("tokenizer", "commands")}
    try:
        description["tokenizer"] = _describe_tokenizer(path)
    except ModelError as error:
        description["tokenizer"] = {"does_not_load": str(error)}
        description.pop("commands", None)
    return description


def _renamed_sizes(config: Mapping[str, Any]) -> dict[str, str]:
    """Sizes that the family of a `config.json` has under other keys, such as GPT-1's `n_embd`."""
    family = family_in(config)
    keys = {} if family is None else family.keys
    return {ours: keys[ours] for ours in SIZES if keys.get(ours, ours) != ours}


def _describe_tokenizer(path: Path) -> dict[str, Any]:
    refuse_other_layouts(path)  # an adapter has one beside it
    tokenizer = open_tokenizer(path)
    description: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": [tokenizer.token_strings[index] for index in tokenizer.special_ids],
        "kind_of_tokenizer": tokenizer.kind,
        **({} if tokenizer.reads_words else {"case": "uncased" if tokenizer.lowercases else "cased"}),
        **({"continuations": int(tokenizer.continuation.sum())} if tokenizer.marks_words else {}),
        **({"segmenter": _describe_segmenter(tokenizer.segmenter)} if tokenizer.segmenter != "none" else {}),
        "fingerprint": tokenizer.fingerprint(),
    }
    if (path / TRAINING_REPORT).is_file():
        training, keys = read_object(path / TRAINING_REPORT), ("settings", "seed", "sources", "libraries")
        description["trained_with"] = {key: training[key] for key in keys if key in training}
    return description


def _describe_segmenter(name: str) -> str:
    return (
        f"{name}: AutoTokenizer encodes the same only on text that was segmented by it first "
        "(unmask.load_tokenizer(...).segment)"
    )


# ---- Runs and recipes


def _is_run(path: Path) -> bool:
    """A folder with metrics, or with a recipe; but a model may have the recipe that it was made by beside it."""
    return (path / METRICS).is_file() or ((path / RECIPE).is_file() and not holds_model(path))


def _describe_run(path: Path) -> dict[str, Any]:
    description: dict[str, Any] = {}
    recipe = read_recipe(path / RECIPE) if (path / RECIPE).is_file() else None
    rows = read_metrics(path / METRICS) if (path / METRICS).is_file() else []
    checkpoints = sorted((path / CHECKPOINTS).glob("step-*"))
    if recipe is not None:
        description["program"] = recipe.program
        description["progress"] = _progress(recipe, checkpoints, rows)
    description["steps"] = max((row["step"] for row in rows), default=0)
    description["tokens"] = max((row.get("tokens", 0) for row in rows), default=0)
    description["last_metrics"] = {
        name: value for row in rows for name, value in row.items() if name not in ("tokens", "examples_hash")
    }
    description["checkpoints"] = [checkpoint.name for checkpoint in checkpoints]
    if (path / RESULTS).is_file():
        description["results"] = {k: v for k, v in read_object(path / RESULTS).items() if k != "floors"}
    sessions = read_sessions(path / ENVIRONMENT)
    if changes := budget_changes(sessions):
        description["budget_changed"] = changes
    description["sessions"] = [
        {name: session.get(name) for name in ("started", "recipe", "device", "git_commit")} for session in sessions
    ]
    if holds_model(path / MODEL):
        description["model"] = describe_model(path / MODEL)
    if recipe is not None:
        description["settings"] = _without_nulls(recipe.as_written())
    return description


def _is_search(path: Path) -> bool:
    return (path / SUMMARY).is_file() or ((path / RECIPE).is_file() and (path / TRIALS).is_dir())


def _describe_search(path: Path) -> dict[str, Any]:
    if not (path / SUMMARY).is_file():  # it is there from the end of the first trial on
        trials = [trial for trial in (path / TRIALS).glob("[!.]*") if trial.is_dir()]
        finished = sum((trial / RESULTS).is_file() for trial in trials)
        return {"complete": False, "begun": len(trials), "finished": finished}
    summary = read_object(path / SUMMARY)
    try:
        metric, best = summary["metric"], summary["best_on_dev"]
        description: dict[str, Any] = {
            "complete": summary["num_finished"] + summary["num_failed"] == summary["num_trials"],
            "trials": summary["num_trials"],
            "finished": summary["num_finished"],
            "failed": summary["num_failed"],
            "compared_by": metric,
            "combinations": [
                {"name": one["name"], "runs": one["n"], **{f"dev_{k}": v for k, v in one["dev"][metric].items()}}
                for one in summary["combinations"]
                if metric in one["dev"]
            ],
            "best_on_dev": {"trial": best["trial"], metric: best["dev"][metric]},
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise unreadable_summary(path, error) from error
    if holds_model(path / MODEL):
        description["model"] = describe_model(path / MODEL)
    return description


def unreadable_summary(search: Path, error: Exception) -> InputError:
    return InputError(
        f"{search / SUMMARY}: cannot be read as the summary of a search ({error!r}): its command with --resume writes "
        "it again"
    )


def _is_ensemble(path: Path) -> bool:
    return (path / ENSEMBLE).is_file()


def _describe_ensemble(path: Path) -> dict[str, Any]:
    members = read_object(path / ENSEMBLE).get("members")
    return {
        "members": [str((path / str(each)).resolve()) for each in members] if isinstance(members, list) else members
    }


def _progress(recipe: PretrainRecipe | FinetuneRecipe, checkpoints: list[Path], rows: list[dict[str, Any]]) -> float:
    """The share of the budget that is done, 0 to 1, by the newest checkpoint or the last metrics row, whichever is
    further."""
    done = {"steps": 0.0, "tokens": 0.0, "epochs": 0.0, "minutes": 0.0}
    for row in rows:
        done |= {name: float(row[name]) for name in ("tokens",) if name in row} | {"steps": float(row["step"])}
    for checkpoint in reversed(checkpoints):
        with suppress(InputError, KeyError, TypeError):  # of a damaged one the run's --resume says what is wrong
            state = read_object(checkpoint / "state.json")
            saved = {"steps": state["step"], "tokens": state["tokens"], "epochs": state["epochs"]}
            saved["minutes"] = state["seconds"] / 60
            done = {name: max(done[name], saved[name]) for name in done}
            break
    return recipe.train.share_done(done)


def _is_recipe(path: Path) -> bool:
    return path.is_file() and path.suffix in (".yaml", ".yml")


def _describe_recipe(path: Path) -> dict[str, Any]:
    settings = read_settings_file(path)
    comment = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return {"about": comment, "settings": settings}


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None
    }


KINDS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], dict[str, Any]]]] = {
    "search": (_is_search, _describe_search),
    "ensemble": (_is_ensemble, _describe_ensemble),
    "run": (_is_run, _describe_run),
    "store": (_is_store, _describe_store),
    "model": (holds_model, describe_model),
    "tokenizer": (has_tokenizer, _describe_tokenizer),
    "recipe": (_is_recipe, _describe_recipe),
}
"""How each kind is recognised and described; the first that fits is taken."""

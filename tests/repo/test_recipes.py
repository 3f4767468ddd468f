"""Every recipe that is shipped loads, and opens with what somebody wants to know before running it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from repo.recipe_table import header_of, table

RECIPES = Path(__file__).parents[2] / "recipes"
HEADER = {
    "pretrain": ("source", "command", "time", "expected", "departures"),
    "finetune": ("source", "command", "time", "expected"),
}


def recipes(pattern: str, but: Sequence[str] = ()) -> pytest.MarkDecorator:
    paths = sorted(path for path in RECIPES.rglob(pattern) if path.stem not in but)
    return pytest.mark.parametrize("path", paths, ids=[str(path.relative_to(RECIPES)) for path in paths])


def test_there_are_recipes() -> None:
    assert list(RECIPES.glob("pretrain/*_tiny.yaml"))
    assert list(RECIPES.glob("finetune/*.yaml"))


def test_the_table_of_recipes_is_up_to_date() -> None:
    written = (RECIPES / "README.md").read_text("utf-8")
    assert written == table(), "recipes/README.md is stale: run `python tests/repo/recipe_table.py`"


@recipes("*.yaml")
def test_recipe_opens_with_its_header(path: Path) -> None:
    stated = header_of(path)
    missing = [word for word in HEADER[path.parent.name] if word not in stated]
    assert not missing, f"{path.name} opens without a comment line `# {missing[0]}: ...`"
    words = shlex.split(stated["command"])
    name = f"{path.parent.name}/{path.stem}"
    assert words[:3] == ["unmask", path.parent.name, name], f"the command of {path.name} does not run {name}"
    assert "--out" in words


def test_departures_that_are_those_of_another_recipe_are_stated_there() -> None:
    stated = {path.stem: header_of(path).get("departures", "") for path in RECIPES.glob("pretrain/*.yaml")}
    for name, departures in stated.items():
        for other in re.findall(r"\bas (?:in )?(\w+_\w+)", departures):
            assert other != name
            assert other in stated, f"{name}.yaml departs as {other}, which there is not"
            assert stated[other], f"{name}.yaml departs as {other}, which states none"


@recipes("*.yaml")
def test_recipe_loads_as_its_command_says(path: Path) -> None:
    from unmask.config import dump_settings
    from unmask.recipe import loading as recipe

    loaders: dict[str, Any] = {"pretrain": recipe.load_pretrain_recipe, "finetune": recipe.load_finetune_recipe}
    overrides = [word for word in shlex.split(header_of(path)["command"])[3:] if re.match(r"[a-z_.]+=", word)]
    said = dict(leaves(yaml.load(path.read_text("utf-8"), yaml.BaseLoader)))
    said.pop("base", None)
    for words in (overrides, [word.replace("store=", "corpus=") for word in overrides]):
        settings = loaders[path.parent.name](str(path), words)
        given = said | dict(word.split("=", 1) for word in words)
        if "store" in given:  # what it says of a tokenizer is for a corpus
            given = {key: value for key, value in given.items() if not key.startswith("tokenizer.")}
        read = dict(leaves(yaml.load(dump_settings(settings), yaml.BaseLoader)))
        assert {key: value for key, value in given.items() if not is_same(value, read.get(key))} == {}


def leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys, each with its value as it is written."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def is_same(said: Any, read: Any) -> bool:
    """Whether what was said in a recipe is what was read; a list of one may be said without brackets."""
    if isinstance(read, list):
        listed = said if isinstance(said, list) else [said]
        return len(listed) == len(read) and all(map(is_same, listed, read))
    if isinstance(said, dict):
        return all(is_same(value, read.get(name)) for name, value in said.items())
    return said == read or (said[:1].isdigit() and float(said) == float(read))


@recipes("pretrain/*_mini.yaml", but=["electra_mini", "modern_mini"])  # electra_joint_mini is compared
def test_recipes_to_compare_have_one_budget(path: Path) -> None:
    """Equal text, counted in epochs; ELMo's 3,200 words a step are as many bytes as 4,096 pieces, near enough."""
    from unmask.recipe.loading import load_pretrain_recipe

    settings = load_pretrain_recipe(str(path), ["store=any"])
    assert settings.train.epochs == 0.3
    assert settings.model.hidden_dropout_prob == 0
    per_step = settings.train.batch_size * settings.packing.max_length
    assert per_step == (3200 if settings.model.architecture == "elmo" else 4096)
    assert load_pretrain_recipe(str(path), ["store=any", "train.epochs=0.1"]).train.epochs == 0.1


@recipes("pretrain/*.yaml")
def test_stated_tokens_and_operations_are_those_of_plan(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from unmask.doctor.recipe.checks import steps_of
    from unmask.experiments.plan import workload
    from unmask.training.device import Compute

    stated = re.search(r"([\d.]+e\d+) tokens, ([\d.]+e\d+) FLOPs", header_of(path)["time"])
    if stated is None:
        return
    monkeypatch.setattr(workload, "_measure_kept", lambda *_: None)  # of the memory, which takes a pass of the model
    settings, names_text = workload.open_recipe(str(path), [])
    device = Compute(torch.device("cuda"), torch.bfloat16, "of a test")
    phases = workload.open_workload(path.stem, settings, names_text, device).workload.phases
    steps = [steps_of(settings.train, phase.tokens, None, None) for phase in phases]
    tokens = [phase.share * each * phase.tokens for phase, each in zip(phases, steps, strict=True) if each is not None]
    operations = [phase.operations * each for phase, each in zip(phases, tokens, strict=True)]
    assert [float(figure) for figure in stated.groups()] == pytest.approx([sum(tokens), sum(operations)], rel=0.05)


def test_lambs_phases_have_the_steps_that_its_header_states() -> None:
    """A phase has the steps before the first one whose share of the budget is `until`, as `data.phases` counts."""
    from bisect import bisect_right

    from unmask.recipe.loading import load_pretrain_recipe

    path = RECIPES / "pretrain" / "bert_lamb_large.yaml"
    stated = re.search(r"Steps of each part \(([\d,]+) and ([\d,]+)\)", header_of(path)["source"])
    assert stated
    settings = load_pretrain_recipe(str(path), ["store=STORE"])
    untils, num_steps = [phase.until for phase in settings.phases], settings.train.steps
    assert num_steps is not None
    phases = [bisect_right(untils, step / num_steps) for step in range(num_steps)]
    assert [phases.count(0), phases.count(1)] == [int(number.replace(",", "")) for number in stated.groups()]

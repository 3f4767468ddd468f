"""Writes `recipes/README.md`: one table of the pre-training recipes, one of the fine-tuning ones.

What a recipe is, what to expect and how long it takes come from the comment that it opens with, its size and budget
from its settings. Run from anywhere: `python tests/repo/recipe_table.py`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).parents[2] / "recipes"
INTRODUCTION = """# Recipes

A recipe is a file of settings, named by its path without `.yaml`: `unmask pretrain pretrain/bert_tiny ...`,
`unmask finetune finetune/mrpc ...`. Each opens with its source, its command, the time it takes, what to expect, and
where it departs from its paper; times and expectations are shortened here. `_tiny` is for a first look, `_mini` for two
cores, `_small` and `_medium` for one GPU, `_base` and `_large` have the published values. Which system for what:
[the guide](../docs/guides/pretraining-systems.md).

Of the fine-tuning recipes two settings follow the model where you do not give them: sequences are no longer than it has
seen, and an encoder up to 512 wide gets a larger learning rate
([why](../docs/guides/fine-tuning.md#from-a-csv-to-answers)).

This file is written by `python tests/repo/recipe_table.py`.
"""


def table() -> str:
    """The whole file."""
    pretrain = [
        "| recipe | what it is | size | budget | time | expected |",
        "|---|---|---|---|---|---|",
        *(row(path, size_of(settings), budget_of(settings)) for path, settings in recipes("pretrain")),
    ]
    finetune = [
        "| recipe | what it is | budget | time | expected |",
        "|---|---|---|---|---|",
        *(row(path, budget_of(settings)) for path, settings in recipes("finetune")),
    ]
    return "\n".join([INTRODUCTION, "## Pre-training\n", *pretrain, "\n## Fine-tuning\n", *finetune]) + "\n"


def recipes(folder: str) -> list[tuple[Path, Any]]:
    """Each recipe with its settings, as its own command makes them."""
    from unmask.recipe import loading as recipe

    load: Any = {"pretrain": recipe.load_pretrain_recipe, "finetune": recipe.load_finetune_recipe}[folder]
    found = []
    for path in sorted((RECIPES / folder).glob("*.yaml")):
        words = shlex.split(header_of(path)["command"])[3:]
        found.append((path, load(str(path), [word for word in words if re.match(r"[a-z_.]+=", word)])))
    return found


def header_of(path: Path) -> dict[str, str]:
    """The lines `# key: text` of the comment that a recipe opens with, and its first sentence as `what`."""
    comment = re.match(r"(?:#.*\n)*", path.read_text("utf-8"))
    text = comment[0].replace("\n# ", "\n").removeprefix("# ") if comment else ""
    first, *_ = re.split(r"(?<=[.?])\s(?=[A-Z])|\nsource: ", text)
    return dict(re.findall(r"^(\w+): *(\S.*)$", text, flags=re.MULTILINE)) | {"what": first.replace("\n", " ")}


def row(path: Path, *cells: str) -> str:
    header = header_of(path)
    name = f"[`{path.stem}`]({path.parent.name}/{path.name})"
    what, time, expected = (shortened(header[key]).removesuffix(".") for key in ("what", "time", "expected"))
    return f"| {' | '.join([name, what, *cells, time, expected])} |"


def shortened(text: str) -> str:
    """The first clause, two where the first says no more than `not measured here`; without pointers to documents."""
    text = re.sub(r" \((?:docs/\S+(?:, )?)+\)", "", text)
    clauses = re.split(r"; (?![^(]*\))", text)
    return "; ".join(clauses[: 2 if clauses[0].startswith("not measured") else 1])


def size_of(settings: Any) -> str:
    if settings.init_from is not None:
        return "the model's"
    sizes = settings.model.resolve(30522)
    return f"L={sizes.num_hidden_layers} H={sizes.hidden_size}"


def budget_of(settings: Any) -> str:
    """Steps, tokens, epochs or minutes, and the sequences or examples of a step."""
    train = settings.train
    unit, amount = train.budget
    amount = int(amount) if amount == int(amount) else amount
    return f"{amount:,} {unit.removesuffix('s') if amount == 1 else unit}, batch {train.batch_size:,}"


if __name__ == "__main__":
    (RECIPES / "README.md").write_text(table(), "utf-8")

"""Where recipes are: files of one's own, and those that come with `unmask`, by their names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from unmask.errors import SettingsError


def find_recipe(name: str, program: str | None = None) -> Path:
    """A recipe's file: a path, or the name of one that comes with `unmask`, such as `pretrain/bert_tiny`.

    Args:
        program: `pretrain` or `finetune`: an error message lists the recipes of that program alone; None for both.

    Raises:
        SettingsError: there is no such recipe; the message gives the nearest names.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = known_recipes()
    if name in known:
        return known[name]
    theirs = sorted(each for each in known if program is None or each.startswith(f"{program}/"))
    similar = _similar_names(name, theirs)
    meant = f"; did you mean {' or '.join(similar)}?" if similar else f": {', '.join(theirs)}"
    listed = " ".join(str(folder / (program or "*")) for folder in _folders())
    raise SettingsError(
        f"no recipe {name!r}: expected a YAML file, or the name of a recipe that comes with unmask{meant} "
        f"(`ls {listed}` lists them)"
    )


def similar_recipes(name: str) -> list[str]:
    """Up to three recipes that come with `unmask` and have a similar name, the nearest first."""
    return _similar_names(name, sorted(known_recipes()))


def known_recipes() -> dict[str, Path]:
    """The recipes that come with `unmask`, by name."""
    return {
        str(file.relative_to(folder).with_suffix("")): file for folder in _folders() for file in folder.glob("*/*.yaml")
    }


def _similar_names(name: str, known: Sequence[str]) -> list[str]:
    """Up to three known names similar to `name`, the nearest first; its folder may be missing or wrong."""
    leaf = name.removesuffix(".yaml").rpartition("/")[2]
    leaves = {each.rpartition("/")[2]: each for each in known}
    return [leaves[match] for match in difflib.get_close_matches(leaf, leaves, n=3, cutoff=0.6)]


def _folders() -> list[Path]:
    """Where recipes are: beside the installed package, or in the checkout that it is installed from."""
    package = Path(__file__).parents[1]
    return [folder for folder in (package / "recipes", package.parents[1] / "recipes") if folder.is_dir()]

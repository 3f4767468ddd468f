"""Two runs never have the same directory at the same time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from support.corpora import contents, names
from unmask.errors import AnotherProcess
from unmask.io.paths import RECIPE
from unmask.recipe.tree import PretrainRecipe
from unmask.training.run.directory import opening_run


def opening(directory: Path, **how: bool) -> Any:
    recipe = PretrainRecipe.model_validate({"store": "a-store", "train": {"steps": 20}})
    return opening_run(directory, recipe, **{"resume": False, "overwrite": False, **how})


@pytest.mark.parametrize("how", [{"overwrite": True}, {"resume": True}, {}], ids=["overwrite", "resume", "new"])
def test_a_run_keeps_its_directory_while_the_one_before_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    run, removed = tmp_path / "run", []
    with opening(run):
        (run / "checkpoints").mkdir()
    remove = shutil.rmtree

    def remove_slowly(path: Path, **options: bool) -> None:
        removed.append(path.name)
        before = contents(tmp_path)
        with pytest.raises(AnotherProcess, match="run: another process works there"), opening(run, **how):
            pytest.fail("opened")
        assert contents(tmp_path) == before
        remove(path, **options)

    with opening(run, overwrite=True):
        (run / "samples.json").touch()
        monkeypatch.setattr(shutil, "rmtree", remove_slowly)
    assert set(removed) == {".unfinished-.removed-run"}
    assert (names(tmp_path), names(run)) == (["run"], [RECIPE, "samples.json"])


def test_a_run_keeps_its_directory_while_it_is_moved_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that moment there is none of its name, and what is aside is not to be put back."""
    run, make = tmp_path / "run", Path.mkdir
    with opening(run):
        (run / "checkpoints").mkdir()

    def make_late(path: Path, **how: Any) -> None:
        monkeypatch.undo()
        with pytest.raises(AnotherProcess), opening(run, overwrite=True):
            pytest.fail("opened")
        assert names(tmp_path) == [".unfinished-.replaced-run"]
        make(path, **how)

    monkeypatch.setattr(Path, "mkdir", make_late)
    with opening(run, overwrite=True):
        assert names(run) == [RECIPE]
    assert names(tmp_path) == ["run"]

"""GLUE's folders as the settings of runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.glue_runs import FOLDERS
from unmask.errors import InputError, SettingsError
from unmask.finetuning.glue import TASKS, overrides_by_task


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """Empty files under the names of GLUE's download."""
    for folder in FOLDERS[:-1]:
        dev = ("dev_matched.tsv", "dev_mismatched.tsv") if folder == "MNLI" else ("dev.tsv",)
        (tmp_path / folder).mkdir()
        for name in ("train.tsv", *dev):
            (tmp_path / folder / name).touch()
    return tmp_path


def test_each_task_gets_its_files_and_what_is_set_for_all(glue: Path) -> None:
    words = overrides_by_task(glue, ["init_from=m"])
    assert tuple(words) == TASKS
    assert len(TASKS) == 9
    assert words["sst2"] == [f"data.train={glue}/SST-2/train.tsv", f"data.dev={glue}/SST-2/dev.tsv", "init_from=m"]
    mnli = [
        f"data.{split}={glue}/MNLI/{name}.tsv" for split, name in (("dev", "dev_matched"), ("test", "dev_mismatched"))
    ]
    assert words["mnli"][1:3] == mnli


def test_all_that_is_missing_is_named_before_anything_is_trained(glue: Path) -> None:
    (glue / "QQP" / "dev.tsv").unlink()
    (glue / "CoLA" / "train.tsv").unlink()
    with pytest.raises(InputError, match=r"no CoLA/train\.tsv, QQP/dev\.tsv: expected GLUE's folders .* --tasks"):
        overrides_by_task(glue, ["init_from=m"])
    shutil.rmtree(glue / "MNLI")
    its = ", ".join(f"MNLI/{name}.tsv" for name in ("train", "dev_matched", "dev_mismatched"))
    with pytest.raises(InputError, match=f"no {its}: expected"):
        overrides_by_task(glue, ["init_from=m"], ["mnli", "mnli"])
    (glue / "RTE").rename(glue / "rte")
    assert list(overrides_by_task(glue, ["init_from=m"], ["wnli", "rte", "rte"])) == ["wnli", "rte"]


def test_unknown_tasks_and_settings_are_refused(glue: Path) -> None:
    with pytest.raises(SettingsError, match="GLUE has no task 'rt'; did you mean rte"):
        overrides_by_task(glue, ["init_from=m"], ["rt"])
    with pytest.raises(SettingsError, match=r"finetune/cola: unknown key train\.epoch; did you mean train\.epochs"):
        overrides_by_task(glue, ["init_from=m", "train.epoch=3"])
    with pytest.raises(SettingsError, match=r"data\.dev is given twice"):
        overrides_by_task(glue, ["init_from=m", "data.dev=x"], ["rte"])

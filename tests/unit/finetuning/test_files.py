"""A run's inputs are noticed if they change before it is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.errors import CheckpointError, InputError
from unmask.finetuning.files import check_same_data
from unmask.tasks.settings import DataSettings
from unmask.training.run.resuming import DATA


@pytest.fixture
def data(tmp_path: Path) -> DataSettings:
    (tmp_path / "train.tsv").write_text("text\tlabel\na\tb\n")
    (tmp_path / "dev" / "deep").mkdir(parents=True)
    (tmp_path / "dev" / "deep" / "1.txt").write_text("one")
    return DataSettings(train=str(tmp_path / "train.tsv"), dev=str(tmp_path / "dev"))


def test_files_and_folders_that_are_the_same_are_accepted(data: DataSettings, tmp_path: Path) -> None:
    for _ in range(2):
        check_same_data(tmp_path, data)
    assert list(json.loads((tmp_path / DATA).read_text())) == ["data.train", "data.dev"]


@pytest.mark.parametrize("given", ["-", ["a.tsv", "-"]])
def test_standard_input_is_refused(given: str | list[str]) -> None:
    with pytest.raises(InputError, match=r"data\.dev=-: standard input cannot be read again: write it to a file"):
        DataSettings(train="a.tsv", dev=given).files("dev")


@pytest.mark.parametrize("name", ["train.tsv", "dev/deep/1.txt", "dev/deep/2.txt"])
def test_one_that_has_changed_is_named(data: DataSettings, tmp_path: Path, name: str) -> None:
    check_same_data(tmp_path, data)
    (tmp_path / name).write_text("else")
    key = f"data.{name.partition('/')[0].partition('.')[0]}"
    with pytest.raises(CheckpointError, match=rf"{key}=\S+ holds something else than when this run was begun, or data"):
        check_same_data(tmp_path, data)


@pytest.mark.parametrize("damage", ["", "[1]", "{"])
def test_a_damaged_record_is_told(data: DataSettings, tmp_path: Path, damage: str) -> None:
    (tmp_path / DATA).write_text(damage)
    with pytest.raises(CheckpointError, match=r"data\.json: cannot be read \(.*\): remove it if the run's inputs are"):
        check_same_data(tmp_path, data)

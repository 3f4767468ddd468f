"""Where something can be written, which is looked at before the work for it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import tree_of
from support.files import write
from unmask.errors import OutputError
from unmask.io.paths import check_writable


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    (tmp_path / "empty").mkdir()
    before = tree_of(tmp_path)
    for folder, name, message in (
        (False, "gone/f", "cannot write .*gone/f: there is no folder .*gone: make it first"),
        (False, "empty", "empty is a directory, and a file is to be made: choose another name"),
        (True, "file", "file is a file, and a directory is to be made: choose another name"),
        (True, "file/under", "cannot write .*file/under: Not a directory; choose a place that can be written"),
        (False, "x" * 300, "name too long"),
    ):
        with pytest.raises(OutputError, match=message):
            check_writable(tmp_path / name, overwrite=True, is_folder=folder)
    with pytest.raises(OutputError, match="file exists already and would be overwritten"):
        check_writable(tmp_path / "file", overwrite=False)
    check_writable(tmp_path / "file", overwrite=True)
    check_writable(tmp_path / "gone" / "d", overwrite=False, is_folder=True)
    assert tree_of(tmp_path) == before
    if Path("/proc").is_dir():  # where nobody may make a file
        with pytest.raises(OutputError, match=r"^cannot write /proc/unmask-test: "):
            check_writable(Path("/proc/unmask-test"), overwrite=False)

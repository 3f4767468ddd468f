"""Files of examples, and what is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import InputError
from unmask.io.input_files import as_files, find_inputs
from unmask.io.settings import TableSettings


@pytest.mark.parametrize("given", [[{"text": "a"}], {"text": "a"}, None], ids=lambda given: type(given).__name__)
def test_examples_in_memory_are_no_file(given: Any) -> None:
    message = f"found a {type(given).__name__}: expected the path of a file; what is in memory is written to one"
    with pytest.raises(InputError, match=message):
        as_files(given)


def test_a_file_whose_library_is_missing_is_named_before_any_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.csv", "b.parquet"):
        (tmp_path / name).touch()
    assert len(find_inputs(f"{tmp_path}/*", TableSettings()).paths) == 2
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        InputError, match=r"b\.parquet: reading \.parquet needs pyarrow: pip install 'unmask\[parquet\]'"
    ):
        find_inputs(f"{tmp_path}/*", TableSettings())

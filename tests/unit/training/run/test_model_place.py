"""Where a model may be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.errors import OutputError
from unmask.training.run.model_place import check_place


def test_a_discriminator_is_replaced_with_its_generator_and_with_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "generator").mkdir()
    for folder in (tmp_path, tmp_path / "generator"):
        (folder / "config.json").write_text("{}")
    check_place(tmp_path, overwrite=True)
    (tmp_path / "generator" / "notes.md").write_text("by hand")
    with pytest.raises(OutputError, match=r"generator holds notes\.md, which is no part of a model"):
        check_place(tmp_path, overwrite=True)

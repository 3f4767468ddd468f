"""`unmask --help` and wrong settings are answered at once: nothing heavy is imported. A test of that, not of time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = {"torch", "numpy", "pydantic", "tokenizers", "sklearn", "matplotlib"}
HEAVY = LIBRARIES | {"unmask.recipe.tree", "unmask.recipe.loading"}


def imported_by(*command: str, exit_code: int = 0) -> set[str]:
    """The modules that a Python process imports, as its own list on standard error says."""
    finished = subprocess.run([sys.executable, "-X", "importtime", *command], capture_output=True, text=True)
    assert finished.returncode == exit_code, finished.stderr.splitlines()[-1]
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", finished.stderr, flags=re.MULTILINE))


def test_help_imports_nothing_heavy() -> None:
    imported = imported_by("-m", "unmask", "--help")
    assert "unmask.cli.main" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize("command", ["pretrain", "predict", "info"])
def test_help_of_a_command_imports_nothing_heavy(command: str) -> None:
    imported = imported_by("-m", "unmask", command, "--help")
    assert not imported & (HEAVY - {"pydantic"})  # some versions of typer read a command's options with pydantic


@pytest.mark.parametrize("command", [("pretrain", "pretrain/bert_mini"), ("finetune", "finetune/sst2")])
def test_a_wrong_setting_is_refused_before_torch_is_imported(command: tuple[str, str], tmp_path: Path) -> None:
    words = ("-m", "unmask", *command, "train.epcohs=1", "--out", str(tmp_path / "run"))
    assert "torch" not in imported_by(*words, exit_code=2)


def test_what_speaks_http_has_no_torch() -> None:
    """The models are in another process."""
    assert "torch" not in imported_by("-c", "import unmask.serving.server")


def test_the_list_is_complete() -> None:
    assert imported_by("-c", "import numpy") >= {"numpy"}

"""Without scikit-learn, the estimators alone are missing, and say what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["TextClassifier", "TextRegressor", "TextEncoder"])
def test_an_estimator_names_its_extra(name: str) -> None:
    code = f"import sys; sys.modules['sklearn'] = None; import unmask; unmask.{name}"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].endswith("need scikit-learn: pip install 'unmask[sklearn]'")


def test_all_that_is_listed_is_there() -> None:
    code = """
import inspect, sys
sys.modules["sklearn"] = None
import unmask
from unmask import *
assert "predict" in dir(unmask) and "TextClassifier" not in dir(unmask)
inspect.getmembers(unmask)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_else_imports_it() -> None:
    code = """
import sys
sys.modules["sklearn"] = sys.modules["scipy"] = None
import unmask
from unmask.objectives.floors import NoContext
from unmask.tasks.text.metrics import ranks
unmask.finetune, unmask.pretrain, unmask.evaluate, unmask.predict
assert ranks([3.0, 1.0, 3.0]).tolist() == [2.5, 1.0, 2.5]
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Without scikit-learn, the estimators alone are missing, and say what to install."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import inspect, sys
sys.modules["sklearn"] = sys.modules["scipy"] = None
import unmask
from unmask import *
assert "predict" in dir(unmask) and "TextClassifier" not in dir(unmask)
inspect.getmembers(unmask)
from unmask.objectives.floors import NoContext
from unmask.tasks.text.metrics import ranks
unmask.finetune, unmask.pretrain, unmask.evaluate, unmask.predict
assert ranks([3.0, 1.0, 3.0]).tolist() == [2.5, 1.0, 2.5]
for name in ("TextClassifier", "TextRegressor", "TextEncoder"):
    try:
        getattr(unmask, name)
    except ImportError as error:
        assert str(error).endswith("need scikit-learn: pip install 'unmask[sklearn]'"), error
    else:
        raise AssertionError(name)
"""


def test_the_estimators_alone_are_missing_and_name_their_extra() -> None:
    assert subprocess.run([sys.executable, "-c", CODE], check=False).returncode == 0

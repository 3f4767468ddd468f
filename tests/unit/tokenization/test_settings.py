"""The settings of a tokenizer: strict, and quick to import."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from unmask.tokenization.settings import TokenizerSettings


def test_unknown_keys_and_kinds_are_refused() -> None:
    with pytest.raises(ValidationError, match="vocabsize"):
        TokenizerSettings.model_validate({"vocabsize": 100})
    with pytest.raises(ValidationError, match="wordpiece"):
        TokenizerSettings.model_validate({"kind": "syllables"})


def test_importing_the_settings_loads_nothing_heavy() -> None:
    code = (
        "import sys, unmask.tokenization.settings;"
        "print(sorted({'torch', 'numpy', 'tokenizers', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_whole_package_does_without_torch() -> None:
    code = "import sys, unmask.tokenization.train; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"

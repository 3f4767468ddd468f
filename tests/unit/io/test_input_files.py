"""Files of examples, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.errors import InputError
from unmask.io.input_files import as_files


@pytest.mark.parametrize("given", [[{"text": "a"}], {"text": "a"}, None], ids=lambda given: type(given).__name__)
def test_examples_in_memory_are_no_file(given: Any) -> None:
    message = f"found a {type(given).__name__}: expected the path of a file of examples; `unmask.predict` takes"
    with pytest.raises(InputError, match=message):
        as_files(given)

"""A store that its tokenizer can hardly spell is told before pre-training, by the share counted in its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unmask.store.store import TokenStore
from unmask.store.unknown_tokens import unknown_warning


class Counted(TokenStore):
    """A store of which only the counts are known."""

    def __init__(self, unknown: int, words: bool = False) -> None:
        self.directory = Path("st")
        arrays = {"word_ids": "<u2", "word_ends": "<u4"} if words else {}
        self.manifest: dict[str, Any] = {"tokens": 1000, "side_arrays": arrays, "unknown_tokens": unknown}


def test_the_share_is_that_of_the_manifest() -> None:
    assert Counted(329).unknown_share == 0.329
    assert Counted(0).unknown_share == 0


@pytest.mark.parametrize(
    ("words", "unknown", "told"),
    [
        (False, 20, None),
        (False, 21, "2.1% of the tokens of st are unknown to its tokenizer, and [UNK] is all that is learnt of them"),
        (True, 150, None),
        (True, 329, "32.9% of the words of st are unknown to its tokenizer, and <UNK> is all that is learnt of them"),
    ],
)
def test_much_is_told_with_what_to_do(words: bool, unknown: int, told: str | None) -> None:
    line = unknown_warning(Counted(unknown, words))
    if told is None:
        assert line is None
        return
    assert line is not None
    assert line.startswith(told)
    assert ("train the word tokenizer on this very text" in line) == words
    assert line.endswith("to continue from a model, which keeps its entries, take one of such text")

"""Where a run starts: what is known of its encoder before anything is built."""

from __future__ import annotations

import pytest

from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe


@pytest.mark.parametrize(
    ("recipe", "has_two"),
    [
        ("bert_tiny", True),
        ("bert_tiny model.type_vocab_size=1", False),
        ("roberta_tiny", False),
        ("modern_tiny", False),
    ],
)
def test_whether_segments_are_distinguished_is_as_the_sizes_say(recipe: str, has_two: bool) -> None:
    name, *words = recipe.split()
    assert open_start(load_pretrain_recipe(f"pretrain/{name}", ["store=a-store", *words])).has_two_segments == has_two

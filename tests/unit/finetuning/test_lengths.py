"""A recipe's length is lowered to what the model has seen; what the user gives stays."""

from __future__ import annotations

import pytest

from unmask.finetuning.lengths import within_trained_length
from unmask.recipe.loading import load_finetune_recipe


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], (64, 21)),  # the recipe's are 384 and 128
        (["task.doc_stride=40"], (64, 40)),
        (["task.max_length=100"], (100, 128)),
    ],
)
def test_a_length_and_a_stride_that_the_user_gives_stay(given: list[str], expected: tuple[int, int]) -> None:
    words = ["init_from=model", "data.train=train.json", *given]
    settings = load_finetune_recipe("finetune/qa", words)
    task = within_trained_length(settings, [64, None], "finetune/qa", words).task
    assert (task.max_length, task.doc_stride) == expected

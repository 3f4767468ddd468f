"""What a recipe may say of an objective."""

from __future__ import annotations

import pytest

from unmask.config import build_settings
from unmask.errors import SettingsError
from unmask.objectives.settings import MaskedLMSettings
from unmask.objectives.table import OBJECTIVES


def test_the_defaults_are_those_of_the_paper() -> None:
    assert MaskedLMSettings().model_dump() == {
        "name": "masked_lm",
        "masking": "token",
        "masking_mode": "dynamic",
        "sentence_objective": "nsp",
        "target_prob": 0.15,
        "mask_token_prob": 0.8,
        "random_token_prob": 0.1,
        "span_boundary": False,
        "span_length_prob": 0.2,
        "max_span_words": 10,
        "max_boundary_targets": 20,
    }
    assert MaskedLMSettings().name in OBJECTIVES


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.8, 0.2), (0.0, 1.0), (0.7, 0.3), (0.1 + 0.2, 0.7)])
def test_shares_that_leave_nothing_unchanged_are_fine(shares: tuple[float, float]) -> None:
    MaskedLMSettings(mask_token_prob=shares[0], random_token_prob=shares[1])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"mask_token_prob": "0.8", "random_token_prob": "0.3"},
            "mask_token_prob 0.8 . random_token_prob 0.3 is over 1",
        ),
        ({"target_prob": "0"}, "target_prob=.?0.*0"),
        ({"target_prob": "1.5"}, "target_prob=.?1.5"),
        ({"mask_token_prob": "-0.1"}, "mask_token_prob=.?-0.1"),
        ({"masking": "words"}, "masking=.?words.*token.*whole_word"),
        ({"sentence_objective": "order"}, "sentence_objective=.?order.*none.*nsp.*sop"),
        ({"span_length_prob": "1"}, "span_length_prob=.?1"),
        ({"max_span_words": "0"}, "max_span_words=.?0"),
        ({"masking_prob": "0.2"}, "unknown key masking_prob"),
    ],
)
def test_contradictions_and_unknown_values_are_refused(values: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        build_settings(MaskedLMSettings, values, "a recipe")

"""What a recipe may say of an objective."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from unmask.config import Settings, build_settings
from unmask.corpus.annotations import KINDS
from unmask.errors import SettingsError
from unmask.objectives.settings import (
    AnnotationKind,
    BiLMSettings,
    CausalLMSettings,
    MaskedLMSettings,
    ReplacedTokenSettings,
)
from unmask.objectives.settings_base import ObjectiveSettings
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
        "target_prob_end": None,
        "causal_share": 0.0,
        "sentence_weight": 1.0,
        "boundary_weight": 1.0,
        "output_bias": "zero",
        "z_loss": 0.0,
    }
    assert MaskedLMSettings().name in OBJECTIVES


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.8, 0.2), (0.0, 1.0), (0.7, 0.3), (0.1 + 0.2, 0.7)])
def test_shares_that_leave_nothing_unchanged_are_fine(shares: tuple[float, float]) -> None:
    settings = MaskedLMSettings(mask_token_prob=shares[0], random_token_prob=shares[1])
    assert (settings.mask_token_prob, settings.random_token_prob) == shares


@pytest.mark.parametrize(
    ("values", "message"),
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
def test_contradictions_and_unknown_values_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build_settings(MaskedLMSettings, values, "a recipe")


WITHOUT_EFFECT: dict[str, tuple[type[Settings], dict[str, Any], dict[str, Any], str]] = {
    "span_length_prob": (MaskedLMSettings, {"span_length_prob": 0.3}, {"masking": "span"}, "masking is token"),
    "max_span_words": (MaskedLMSettings, {"max_span_words": 5}, {"masking": "span"}, "masking is token"),
    "max_boundary_targets": (MaskedLMSettings, {"max_boundary_targets": 9}, {"span_boundary": True}, "is false"),
    "boundary_weight": (MaskedLMSettings, {"boundary_weight": 0.5}, {"span_boundary": True}, "is false"),
    "discriminator_after": (ReplacedTokenSettings, {"discriminator_after": 0.5}, {}, "schedule is two_stage"),
    "discriminator_weight": (ReplacedTokenSettings, {"discriminator_weight": 1.0}, {}, "schedule is two_stage"),
    "tie_weights": (ReplacedTokenSettings, {"tie_weights": True}, {"generator_size": 1.0}, "schedule is two_stage"),
}
"""A key with a value that is not its default, the setting that it needs, and what a message says of its lack."""

ALWAYS: dict[str, set[str]] = {
    "masked_lm": {
        *("masking", "masking_mode", "sentence_objective", "span_boundary"),
        *("target_prob", "target_prob_end", "mask_token_prob", "random_token_prob", "sentence_weight", "causal_share"),
        "z_loss",
    },
    "causal_lm": set(),
    "bilm": {"num_negatives", "empty_memory_prob"},
    "replaced_token": {
        "causal_share",
        *("target_prob", "mask_token_prob", "masking_mode"),
        *("generator_size", "schedule", "tie_embeddings", "variant"),
    },
}
"""By objective, the keys that may be said whatever the others say."""


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_a_key_without_effect_is_refused_naming_both(key: str) -> None:
    cls, given, needed, lack = WITHOUT_EFFECT[key]
    without = {"schedule": "two_stage", "generator_size": 1.0} if cls is ReplacedTokenSettings else {}
    told = rf"objective\.{key}={given[key]} only has an effect with .*{lack}: leave it out"
    with pytest.raises(SettingsError, match=told):
        build_settings(cls, given | without, "a recipe")
    assert getattr(build_settings(cls, given | needed, "a recipe"), key) == given[key]
    default = {key: cls.model_fields[key].default}
    build_settings(cls, default | without, "a recipe")  # as every resolved recipe says it


def test_every_key_of_every_objective_is_accounted_for() -> None:
    """A new key belongs in one of the tables above."""
    assert ALWAYS.keys() == OBJECTIVES.keys(), (
        "give each objective its row of ALWAYS in this file (docs/architecture.md)"
    )
    for name, (cls, _) in OBJECTIVES.items():
        sometimes = {key for key, (of, *_) in WITHOUT_EFFECT.items() if of is cls}
        keys = cls.model_fields.keys() - {"name", "output_bias"}
        assert keys == sometimes | ALWAYS[name], f"put each key of {name} into ALWAYS or WITHOUT_EFFECT in this file"


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (MaskedLMSettings(), (None, False, "nsp", (1.0,))),
        (MaskedLMSettings(masking_mode="static", sentence_objective="sop"), (None, True, "sop", (1.0,))),
        (MaskedLMSettings(masking="entity", sentence_objective="none"), ("entity", False, "none", (1.0,))),
        (MaskedLMSettings(masking="noun_phrase"), ("noun_phrase", False, "nsp", (1.0,))),
        (MaskedLMSettings(masking="span", sentence_objective="none"), (None, False, "none", (1.0,))),
        (CausalLMSettings(), (None, False, "none", (1.0,))),
        (BiLMSettings(), (None, False, "none", (1.0,))),
        (ReplacedTokenSettings(), (None, False, "none", (1.0,))),
        (ReplacedTokenSettings(masking_mode="static"), (None, True, "none", (1.0,))),
        (ReplacedTokenSettings(schedule="two_stage", generator_size=1), (None, False, "none", (0.5, 1.0))),
    ],
    ids=str,
)
def test_what_a_run_needs_to_know_of_an_objective(settings: ObjectiveSettings, facts: tuple[object, ...]) -> None:
    assert (settings.annotations, settings.is_static, settings.pair_objective, settings.stages) == facts
    assert not {"annotations", "is_static", "pair_objective", "stages"} & settings.model_dump().keys()  # no keys


def test_every_kind_of_annotation_is_a_masking() -> None:
    """And what a store can hold, so that none is forgotten."""
    assert set(get_args(AnnotationKind)) == KINDS.keys()
    for kind in KINDS:
        assert build_settings(MaskedLMSettings, {"masking": kind}, "a recipe").annotations == kind

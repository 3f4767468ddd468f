"""The table of maskings has what a recipe can name."""

from __future__ import annotations

from typing import get_args

from unmask.objectives.masks.table import MASKINGS
from unmask.objectives.settings import MaskedLMSettings
from unmask.objectives.settings_base import AnnotationKind


def test_every_masking_that_a_recipe_names_is_in_the_table() -> None:
    assert list(get_args(MaskedLMSettings.model_fields["masking"].annotation)) == list(MASKINGS)


def test_spans_and_annotations_share_what_replaces_them() -> None:
    assert {"span", *get_args(AnnotationKind)} <= {name for name, masking in MASKINGS.items() if masking.has_spans}

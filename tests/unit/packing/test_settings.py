"""What packing and phases may say, and what a phase takes from the rest of the recipe."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from unmask.packing.settings import PackingSettings, Phases, PhaseSettings

OTHER_FORMATS = ("sentence_pair", "full_sentences", "doc_sentences", "single_segment", "stream")
PHASES: TypeAdapter[tuple[PhaseSettings, ...]] = TypeAdapter(Phases)


def test_short_sequences_are_a_tenth_of_segment_pairs() -> None:
    assert PackingSettings().short_sequence_prob == 0.1
    assert PackingSettings.model_validate({"format": "segment_pair"}).short_sequence_prob == 0.1


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_other_formats_have_none_and_refuse_them(name: str) -> None:
    packing = PackingSettings.model_validate({"format": name})
    assert packing.short_sequence_prob == 0
    assert PackingSettings.model_validate(packing.model_dump()) == packing
    with pytest.raises(ValidationError, match=rf"short_sequence_prob 0\.1 is for .*{name}.* set short_sequence_prob=0"):
        PackingSettings.model_validate({"format": name, "short_sequence_prob": "0.1"})


def test_a_phase_packs_as_the_recipe_but_for_what_it_says() -> None:
    base = PackingSettings(max_length=128, copies=3)
    assert PhaseSettings(until=1).packing(base) == base
    own = PhaseSettings(until=1, max_length=512, short_sequence_prob=0)
    assert own.packing(base) == PackingSettings(max_length=512, short_sequence_prob=0, copies=3)
    told = r"^short_sequence_prob 0\.1 is for packing\.format=segment_pair, and the format is doc_sentences"
    with pytest.raises(ValueError, match=told):
        PhaseSettings(until=1, short_sequence_prob=0.1).packing(PackingSettings(format="doc_sentences"))


def test_phases_of_a_recipe() -> None:
    phases = PHASES.validate_python([{"until": "0.9"}, {"until": "1", "max_length": "512", "batch_size": "64"}])
    assert phases == (PhaseSettings(until=0.9), PhaseSettings(until=1, max_length=512, batch_size=64))
    assert PHASES.validate_python([]) == ()


@pytest.mark.parametrize(
    ("untils", "message"),
    [
        ([0.5, 0.5, 1], "grow from one phase to the next"),
        ([0.9, 0.5, 1], "grow from one phase to the next"),
        ([0.5, 0.9], r"the last phase ends at 0\.9: expected until: 1"),
        ([0, 1], "greater than 0"),
        ([1.5], "less than or equal to 1"),
    ],
)
def test_impossible_phases_are_refused(untils: list[Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PHASES.validate_python([{"until": until} for until in untils])

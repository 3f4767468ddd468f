"""What every pre-training objective promises of its batches: their keys, columns, masks and numbers of targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from support.sizes import small
from unmask.batch import IGNORE_INDEX, Batch
from unmask.doctor.samples import FirstStep, decode_samples, describe_step
from unmask.doctor.store.floors import floors_table
from unmask.models.encoder import new_encoder
from unmask.models.settings import Architecture
from unmask.objectives.base import Objective
from unmask.objectives.masks.table import MASKINGS
from unmask.objectives.settings_base import ObjectiveSettings
from unmask.objectives.table import OBJECTIVES, AnyObjective, new_objective
from unmask.packing.loader import Position
from unmask.packing.stream import StreamLoader
from unmask.store.store import TokenStore
from unmask.tokenization.tokenizer import load_tokenizer


def test_every_entry_is_tested(variants: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Every objective, and every masking."""
    where = "tests/contracts/objectives/conftest.py (docs/architecture.md, Adding to it)"
    assert variants.keys() == OBJECTIVES.keys(), f"give each objective a row of VARIANTS in {where}"
    assert all(variants.values()), f"an objective has no variant in VARIANTS in {where}"
    maskings = {variant.get("objective", {}).get("masking", "token") for variant in variants["masked_lm"].values()}
    assert maskings == MASKINGS.keys(), f"give each masking a variant of masked_lm in VARIANTS in {where}"


FAMILIES: dict[str, Architecture] = {"masked_lm": "bert", "causal_lm": "gpt1", "replaced_token": "electra"}


@pytest.mark.parametrize("name", FAMILIES)
def test_it_builds_from_defaults(name: str, stores: dict[str, TokenStore]) -> None:
    settings: ObjectiveSettings = TypeAdapter(AnyObjective).validate_python({"name": name})
    objective = new_objective(settings, load_tokenizer(stores["wordpiece"].tokenizer_directory).vocabulary)
    encoder = new_encoder(small(architecture=FAMILIES[name], vocab=300, width=12, layers=1), pooler=True)
    assert objective.build(encoder).encoder is encoder


def test_it_has_all_that_a_report_asks_for(case: Any) -> None:
    batch, sizes = case.batch(), case.module().encoder.settings
    assert isinstance(case.objective, Objective)
    assert case.objective.operations(sizes, batch, 32) > 0
    assert len(case.objective.describe_sequences(batch, 2)) == 2
    assert all(what and share for what, share in case.objective.describe_batches([batch]))
    counts = np.ones(case.tokenizer.vocab_size, dtype=np.int64)
    assert floors_table(case.objective.floors(counts)).rows
    if not case.tokenizer.reads_words:  # of words the doctor shows no samples
        step = FirstStep(TokenStore(Path(case.recipe.store)), case.tokenizer, case.objective, (batch,), epochs=1.0)
        assert len(decode_samples(step)) == min(3, batch.num_sequences)
        assert describe_step(step, case.recipe).rows


def same(first: Batch, second: Batch) -> bool:
    columns = (torch.equal(column, second.columns[name]) for name, column in first.columns.items())
    return torch.equal(first.input_ids, second.input_ids) and all(columns)


def test_the_same_keys_give_the_same_batch(case: Any) -> None:
    first = case.batch()
    torch.manual_seed(5)  # which no mask depends on
    assert same(first, case.batch())


def test_counts_are_those_of_labels_for_every_term(case: Any) -> None:
    module, batch = case.module(), case.batch()
    counts = case.objective.counts(batch)
    labels = [column for name, column in batch.columns.items() if name in ("labels", "backward_labels")]
    targets = sum(int((each != IGNORE_INDEX).sum()) for each in labels)
    counted = {
        "mlm": targets,
        "lm": targets,
        "generator": targets,
        "nsp": batch.num_sequences,
        "sop": batch.num_sequences,
        "sbo": len(batch.columns.get("boundary_targets", ())),
        "discriminator": targets if case.asks_about_targets else batch.num_tokens,
        "all_tokens": batch.num_tokens,
    }
    assert counts.keys() <= counted.keys(), "add each new term to `counted` here (docs/architecture.md, Adding to it)"
    assert counts == {name: counted[name] for name in counts}
    assert min(counts.values()) > 0
    terms = {term.name for term in module(batch)}
    assert terms <= counts.keys()
    assert case.stage is not None or terms == counts.keys()


def test_masks_return_after_ten_epochs_where_they_are_static_and_never_where_not(case: Any) -> None:
    third, fourth, thirteenth = case.batch(3), case.batch(4), case.batch(13)
    assert not same(third, fourth)
    assert same(third, thirteenth) == case.is_static


def test_ten_copies_of_the_plan_have_other_masks_where_masking_is_dynamic(case: Any) -> None:
    """`packing.copies: 10` beside dynamic masking is the control for static masking: the masks alone differ."""
    if isinstance(case.loader, StreamLoader):
        pytest.skip("a stream has no copies: `packing.copies` is refused beside it")
    loader = replace(case.loader, plan_copies=10)
    [third], [thirteenth] = (next(loader.steps(Position(epoch))).batches for epoch in (3, 13))
    assert torch.equal(third.input_ids, thirteenth.input_ids)
    assert same(*map(case.objective.prepare, (third, thirteenth))) == (case.is_static or not case.draws)

"""What a model is asked, on batches with and without anything to ask."""

from __future__ import annotations

import pytest
import torch

from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.doctor.run.evidence import READINGS, ask
from unmask.models.encoder import new_encoder
from unmask.models.settings import EncoderSettings
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.training.device import Compute

SIZE = 11
CPU = Compute(torch.device("cpu"), torch.float32, "a test")


@pytest.fixture(scope="module")
def module() -> MaskedLMModule:
    torch.manual_seed(0)
    sizes = EncoderSettings(
        vocab_size=SIZE, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, initializer_range=0.5,
    )  # fmt: skip
    return MaskedLMModule(new_encoder(sizes, pooler=False))


def masked(*places: int) -> Batch:
    """`[CLS] 5 6 7 8 [SEP]`, masked at these places."""
    batch = pack([[2, 5, 6, 7, 8, 3]])
    targets = torch.tensor(places, dtype=torch.int64)
    labels, ids = torch.full_like(batch.input_ids, IGNORE_INDEX), batch.input_ids.clone()
    labels[targets], ids[targets] = batch.input_ids[targets], 4
    special = batch.input_ids < 4
    return batch.with_input_ids(ids).with_columns(labels=labels, target_positions=targets, special_tokens_mask=special)


def test_batches_without_targets_are_passed_over(module: MaskedLMModule) -> None:
    alone = ask(module, [masked(1, 3)], SIZE, CPU)
    among = ask(module, [masked(), masked(1, 3), masked()], SIZE, CPU)
    assert alone is not None
    assert among is not None
    assert alone.special_share == among.special_share == 1 / 4
    assert torch.equal(alone.mean_probabilities, among.mean_probabilities)
    for reading in READINGS:
        assert len(among.losses[reading]) == 2
        assert torch.equal(alone.losses[reading], among.losses[reading])


def test_without_any_target_there_is_no_answer(module: MaskedLMModule) -> None:
    assert ask(module, [masked(), masked()], SIZE, CPU) is None

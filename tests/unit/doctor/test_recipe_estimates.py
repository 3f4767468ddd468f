"""Parameters, operations, memory and disk worked out beforehand, against the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unmask.batch import Batch
from unmask.doctor.recipe_estimates import (
    Memory,
    SequenceShape,
    any_vocabulary,
    checkpoint_bytes,
    count_parameters,
    estimate_memory,
    expected_length,
    fixed_memory,
    flops_per_token,
    measure_saved_bytes,
    run_bytes,
)
from unmask.doctor.synthetic_batches import random_batches
from unmask.models.bert import BertEncoder
from unmask.models.settings import EncoderSettings
from unmask.objectives.masked_lm import MaskedLM
from unmask.recipe import PretrainRecipe
from unmask.training.checkpoint import OPTIMIZER, WEIGHTS, save_checkpoint
from unmask.training.device import choose_compute
from unmask.training.loop import TrainState
from unmask.training.optimizer import Schedule, build_optimizer
from unmask.training.settings import OptimizerSettings, ScheduleSettings

SIZES = EncoderSettings(
    vocab_size=120, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=40,
)  # fmt: skip
CPU = choose_compute("cpu", "fp32")


def recipe(sentence_objective: str = "nsp", short_sequence_prob: float = 0.0) -> PretrainRecipe:
    return PretrainRecipe.model_validate(
        {
            "corpus": ["text.txt"],
            "objective": {"sentence_objective": sentence_objective},
            "packing": {"max_length": 24, "short_sequence_prob": short_sequence_prob},
            "train": {"steps": 1},
        }
    )


def make(sentence_objective: str, sequences: int, short: float = 0.0) -> tuple[PretrainRecipe, MaskedLM, Batch]:
    settings = recipe(sentence_objective, short)
    objective = MaskedLM(settings.objective, any_vocabulary(SIZES.vocab_size))
    return settings, objective, objective.prepare(next(random_batches(settings, SIZES.vocab_size, sequences)))


@pytest.mark.parametrize("sentence_objective", ["nsp", "none"])
def test_parameters_are_those_of_the_real_module(sentence_objective: str) -> None:
    settings, objective, _ = make(sentence_objective, 2)
    module = objective.build(BertEncoder(SIZES, pooler=sentence_objective == "nsp"))
    counts = count_parameters(settings, SIZES)
    assert sum(counts.values()) == sum(parameter.numel() for parameter in module.parameters())
    assert counts["embeddings"] == (120 + 40 + 2) * 16 + 2 * 16
    assert counts["blocks"] == sum(parameter.numel() for parameter in module.encoder.blocks.parameters())


def test_bert_base_has_as_many_as_the_published_one() -> None:
    assert sum(count_parameters(recipe(), EncoderSettings()).values()) == 110_106_428  # BertForPreTraining


@pytest.mark.parametrize("sentence_objective", ["nsp", "none"])
def test_operations_are_those_that_pytorch_counts(sentence_objective: str) -> None:
    pairs = sentence_objective == "nsp"
    _, objective, batch = make(sentence_objective, 2)  # 48 tokens: few enough for products that the counter knows
    module = objective.build(BertEncoder(SIZES, pooler=pairs)).train()  # with dropout attention is plain products
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module.logits(batch)
    num_targets, tokens, hidden = len(batch.columns["target_positions"]), batch.num_tokens, SIZES.hidden_size
    shape = SequenceShape(24, num_targets / tokens, pairs)
    necessary = flops_per_token(SIZES, shape) * tokens / 3
    read = num_targets + pairs * batch.num_sequences
    # Beyond the necessary, the last block works out queries and attention of tokens that no head reads.
    beyond = (tokens - read) * (2 * hidden**2 + 4 * 24 * hidden)
    assert counter.get_total_flops() == pytest.approx(necessary + beyond, rel=1e-9)


def test_memory_is_linear_in_depth_and_in_tokens() -> None:
    _, objective, batch = make("nsp", 16)
    direct = measure_saved_bytes(SIZES, 4, batch, objective, CPU)
    estimate = estimate_memory(1000, SIZES, batch, objective, batch.num_tokens, CPU)
    assert estimate.activations == direct  # each block keeps the same, to the byte
    _, _, more = make("nsp", 64)
    scaled = estimate_memory(1000, SIZES, batch, objective, more.num_tokens, CPU)
    # Weights' copies in the kernels' own layout are counted with 16 sequences as with 64, hence not exactly linear.
    assert scaled.activations == pytest.approx(measure_saved_bytes(SIZES, 4, more, objective, CPU), rel=0.1)
    assert scaled.logits == len(batch.columns["target_positions"]) * 4 * 120 * 4


def test_what_is_kept_grows_with_the_width_of_the_feed_forward() -> None:
    _, objective, batch = make("nsp", 16)
    wider = SIZES.model_copy(update={"intermediate_size": 2 * SIZES.intermediate_size})
    more = measure_saved_bytes(wider, 2, batch, objective, CPU) - measure_saved_bytes(SIZES, 2, batch, objective, CPU)
    # Before and after the activation, of all tokens in the first block and of those that are read in the last.
    read = len(batch.columns["target_positions"]) + batch.num_sequences
    assert more >= 2 * 4 * SIZES.intermediate_size * (batch.num_tokens + read)


def test_fixed_memory_by_hand() -> None:
    assert fixed_memory(10, CPU) == Memory(40, 40, 80, 0, activations=0, logits=0)
    assert fixed_memory(10, CPU).fixed == 160
    assert fixed_memory(10, choose_compute("cpu", "bf16")).casts == 20


def test_a_checkpoint_is_as_large_as_told(tmp_path: Path) -> None:
    _, objective, batch = make("nsp", 2)
    module = objective.build(BertEncoder(SIZES))
    optimizer = build_optimizer(module, OptimizerSettings())
    sum((term.total for term in module(batch)), torch.zeros(())).backward()
    optimizer.step()
    schedule = Schedule(ScheduleSettings())
    saved = save_checkpoint(tmp_path, module, optimizer, schedule, TrainState(step=1), {}, keep_last=1)
    size = sum((saved / name).stat().st_size for name in (WEIGHTS, OPTIMIZER))
    told = checkpoint_bytes(sum(parameter.numel() for parameter in module.parameters()))
    headers = 200 * 3 * len(list(module.parameters()))  # names, shapes and places: under 200 bytes a tensor
    assert told < size < told + headers
    assert run_bytes(10, keep_last=2) == 3 * 120 + 40


def test_random_sequences_have_the_shape_of_real_ones() -> None:
    settings, objective, batch = make("nsp", 400, short=0.5)
    special = batch.columns["special_tokens_mask"]
    for number in range(400):
        start, end = int(batch.bounds[number]), int(batch.bounds[number + 1])
        assert special[start:end].sum() == 3
        assert special[start]
        assert special[end - 1]
        segments = batch.token_type_ids[start:end].tolist()
        middle = int(torch.nonzero(special[start:end])[1])
        assert segments == [0] * (middle + 1) + [1] * (end - start - middle - 1)
        assert sum(segments) >= 2
    assert max(batch.lengths) == 24
    # 400 lengths with a standard deviation below 8 have a mean within 3 x 8 / 20 of the expected one.
    assert batch.num_tokens / 400 == pytest.approx(expected_length(settings), abs=1.2)
    assert (batch.input_ids < SIZES.vocab_size).all()
    assert objective.counts(batch)["nsp"] == 400

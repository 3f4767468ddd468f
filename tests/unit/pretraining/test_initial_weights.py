"""Random weights that begin elsewhere: projections at 0, output biases at log frequencies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unmask.batch import pack
from unmask.errors import SettingsError
from unmask.models.encoder import new_encoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.heads.span_boundary_head import SpanBoundaryHead
from unmask.models.settings import EncoderSettings
from unmask.pretraining.initial_weights import begin_output_bias, zero_output_projections
from unmask.pretraining.run import pretrain

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def settings_of(architecture: str) -> EncoderSettings:
    return EncoderSettings(architecture=architecture, vocab_size=30, max_position_embeddings=20, **SIZES)


@pytest.mark.parametrize("architecture", ["modernbert", "bert"])
def test_blocks_add_nothing_at_first(architecture: str) -> None:
    encoder = new_encoder(settings_of(architecture), pooler=False).eval()
    batch = pack([[1, 2, 3, 4], [5, 6]])
    assert not _alike(encoder.hidden_states(batch))
    zero_output_projections(encoder)
    assert _alike(encoder.hidden_states(batch))


def _alike(states: list[torch.Tensor]) -> bool:
    """Whether the blocks change nothing but the scale, which the norms behind them may."""
    first, last = (nn.functional.layer_norm(states[place].detach(), (16,)) for place in (0, -1))
    return torch.allclose(first, last, atol=1e-3)


def test_an_lstm_has_no_projections() -> None:
    encoder = new_encoder(EncoderSettings(architecture="lstm", vocab_size=30, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(SettingsError, match="an LSTM has no such projections"):
        zero_output_projections(encoder)


def test_biases_begin_at_log_frequencies() -> None:
    settings = settings_of("bert")
    module = nn.ModuleList([MaskedLMHead(settings), SpanBoundaryHead(settings, 20)])
    counts = np.arange(30)
    begin_output_bias(module, counts)
    for head in module:
        torch.testing.assert_close(head.bias.detach().softmax(0), torch.from_numpy((counts + 1) / 465).float())
    without = MaskedLMHead(EncoderSettings(architecture="modernbert", vocab_size=30, decoder_bias=False, **SIZES))
    with pytest.raises(SettingsError, match=r"no bias: leave it out, or set model\.decoder_bias=true"):
        begin_output_bias(without, counts)


def test_a_run_begins_at_the_entropy_of_its_entries(tmp_path: Path, samples_dir: Path) -> None:
    """Within .1 nat, since held-out text has other frequencies than all text."""
    words = [
        *(f"corpus={samples_dir / 'text' / 'ko-constitution.jsonl'}", "tokenizer.vocab_size=300", "held_out=0"),
        *("model.preset=tiny", "train.steps=1", "optimizer.learning_rate=1e-12", "packing.format=single_segment"),
        *("objective.sentence_objective=none", "objective.output_bias=log_frequency", "model.architecture=modernbert"),
        *("tokenizer.kind=byte_bpe", "model.zero_output_projections=true", "packing.max_length=64"),
    ]
    (tmp_path / "recipe.yaml").write_text("{}", encoding="utf-8")
    pretrain(str(tmp_path / "recipe.yaml"), words, out=tmp_path / "run")
    [row] = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    floors = json.loads((tmp_path / "run" / "results.json").read_text())["floors"]["loss/mlm"]
    assert row["loss/mlm"] == pytest.approx(floors["unigram entropy"], abs=0.1)
    assert row["loss/mlm"] < np.log(300) - 0.3

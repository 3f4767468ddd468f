"""The LSTM language model's encoder against PyTorch's LSTM, one sequence and one token at a time; its directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.sizes import sizes_of
from unmask.batch import Batch, pack
from unmask.models.hub.directory import load_model, save_model
from unmask.models.hub.uses import CAUSAL
from unmask.models.lstm import LstmEncoder
from unmask.models.settings import EncoderSettings

SEQUENCES = [[5, 6, 7, 8, 9], [3], [4, 4, 11]]


def sizes(**changes: Any) -> EncoderSettings:
    given: dict[str, Any] = sizes_of(vocab=30, width=6, inner=10, positions=8, std=0.5, hidden_dropout_prob=0.0)
    return EncoderSettings(architecture="lstm", **given | changes)


def new_lstm(**changes: Any) -> LstmEncoder:
    torch.manual_seed(0)
    return LstmEncoder(sizes(**changes))


def unrolled(encoder: LstmEncoder, batch: Batch) -> Tensor:
    """Cell by cell, by the formulas (Hochreiter and Schmidhuber 1997, with forget gates), sequence by sequence."""
    rows = []
    for ids in batch.input_ids.split(batch.lengths):
        values = encoder.word_embeddings[ids]
        for layer in encoder.blocks:
            lstm = layer.lstm
            state = cell = torch.zeros(lstm.hidden_size)
            outputs = []
            for value in values:
                gates = lstm.weight_ih_l0 @ value + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ state + lstm.bias_hh_l0
                enter, forget, candidate, leave = gates.chunk(4)
                cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
                state = leave.sigmoid() * cell.tanh()
                outputs.append(state)
            values = torch.stack(outputs)
            if layer.projection is not None:
                values = values @ layer.projection.weight.T + layer.projection.bias
        rows.append(values)
    return torch.cat(rows)


@pytest.mark.parametrize("changes", [{}, {"intermediate_size": 6}, {"num_hidden_layers": 2}])
def test_it_is_the_formula_gradients_included(changes: dict[str, Any]) -> None:
    """Tolerance: fp32 sums in another order, of values of order 1."""
    encoder, batch = new_lstm(**changes), pack(SEQUENCES)
    assert (encoder.blocks[0].projection is None) == ("intermediate_size" in changes)
    found, expected = encoder(batch), unrolled(encoder, batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    parameters = list(encoder.parameters())
    gradients = (torch.autograd.grad(states.square().sum(), parameters) for states in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_the_last_token_sums_up() -> None:
    encoder, batch = new_lstm().eval(), pack(SEQUENCES)
    assert torch.equal(encoder.summary(batch), encoder(batch)[[4, 5, 8]])


def test_dropout_is_after_the_embeddings_and_each_layer_in_training_only() -> None:
    encoder, batch = new_lstm(hidden_dropout_prob=0.5), pack([[5] * 8] * 50)
    embedded, output = encoder.hidden_states(batch)
    for states in (embedded, output):
        assert 0.4 < float((states == 0).float().mean()) < 0.6  # of 2,400: a standard deviation is .01
    assert (encoder.eval()(batch) != 0).all()


def test_in_bfloat16_the_recurrence_stays_in_float32() -> None:
    """Tolerance: one rounding of bfloat16 (2^-8) for the embeddings and one for the projection, of order 1."""
    encoder, batch = new_lstm().eval(), pack(SEQUENCES)
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder(batch)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), encoder(batch), rtol=0, atol=0.03)


@pytest.mark.parametrize("causal_lm", [True, False])
def test_its_directory_is_of_our_own_and_comes_back(tmp_path: Path, causal_lm: bool) -> None:
    encoder = new_lstm(pad_token_id=2)
    save_model(tmp_path, encoder, causal_lm=causal_lm)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "unmask-lstm"
    assert config["architectures"] == ["LstmForCausalLM" if causal_lm else "LstmModel"]
    loaded = load_model(tmp_path, CAUSAL) if causal_lm else load_model(tmp_path)
    assert loaded.encoder.settings == encoder.settings
    batch = pack(SEQUENCES)
    assert torch.equal(loaded.encoder.eval()(batch), encoder.eval()(batch))
    assert isinstance(loaded.encoder.blocks[0].get_submodule("lstm"), nn.LSTM)

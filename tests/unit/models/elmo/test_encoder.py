"""ELMo's encoder: directions, layers, residual connections, and that sequences do not see each other."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from support.sizes import small_elmo
from support.tensors import assert_equal
from unmask.batch import Batch, pack
from unmask.errors import SettingsError
from unmask.models.elmo.encoder import BACKWARD, FORWARD, ElmoEncoder
from unmask.models.elmo.projected_lstm import LstmState
from unmask.models.elmo.settings import ELMO_PRESETS, ElmoModelSettings, ElmoSettings
from unmask.models.heads.bilstm import FeatureHead
from unmask.tokenization.kinds.word_characters import SPECIAL_WORDS, WordTokenizer

SETTINGS = small_elmo()
TABLE = np.random.default_rng(0).integers(0, 261, (30, 8)).astype(np.uint16)


def new_encoder(**changes: object) -> ElmoEncoder:
    torch.manual_seed(0)
    encoder = ElmoEncoder(SETTINGS.model_copy(update=changes)).eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    encoder.set_words(TABLE)
    return encoder


def slow_layers(encoder: ElmoEncoder, ids: list[int], direction: int) -> list[Tensor]:
    """One sequence, one direction, one token and one layer at a time, by the formulas."""
    settings = encoder.settings
    vectors = encoder.embeddings(torch.from_numpy(TABLE[ids].astype(np.int64)))
    values = list(vectors if direction == FORWARD else vectors.flip(0))
    layers = []
    for number, lstm in enumerate(encoder.blocks[direction].layers):
        memory = LstmState(torch.zeros(1, settings.projection_size), torch.zeros(1, settings.cell_size))
        outputs = []
        for value in values:
            output, memory = lstm(value[None], [1], memory)
            outputs.append(output[0] + value if settings.residual and number else output[0])
        layers.append(torch.stack(outputs if direction == FORWARD else outputs[::-1]))
        values = outputs
    return layers


@pytest.mark.parametrize("residual", [True, False])
def test_hidden_states_are_those_of_each_sequence_alone(residual: bool) -> None:
    encoder = new_encoder(residual=residual, num_hidden_layers=3)
    sequences = [[3, 4, 5], [7], [1, 2, 3, 4, 5, 6], [9, 9]]
    states = encoder.hidden_states(pack(sequences))
    assert [tuple(state.shape) for state in states] == [(12, 10)] * 4
    tokens, both = states[0].split([5, 5], 1)
    assert torch.equal(tokens, both)
    start = 0
    for ids in sequences:
        end = start + len(ids)
        for direction, columns in ((FORWARD, slice(0, 5)), (BACKWARD, slice(5, 10))):
            for layer, expected in enumerate(slow_layers(encoder, ids, direction), start=1):
                torch.testing.assert_close(states[layer][start:end, columns], expected)
        start = end


def test_each_direction_sees_its_side_only() -> None:
    encoder = new_encoder()
    before, after = encoder(pack([[1, 2, 3, 4]])), encoder(pack([[1, 2, 3, 9]]))
    assert torch.equal(before[:3, :5], after[:3, :5])
    assert not torch.equal(before[3, :5], after[3, :5])
    assert all(not torch.equal(before[place, 5:], after[place, 5:]) for place in range(4))


def test_the_memory_continues() -> None:
    encoder = new_encoder()
    whole = encoder(pack([[1, 2, 3, 4, 5]]))
    vectors = encoder.embeddings(torch.from_numpy(TABLE[[1, 2, 3, 4, 5]].astype(np.int64)))
    _, memory = encoder.read_in(FORWARD, vectors[:3], (3,))
    outputs, _ = encoder.read_in(FORWARD, vectors[3:], (2,), memory)
    torch.testing.assert_close(outputs[-1], whole[3:, :5])


def test_characters_of_the_batch_come_first() -> None:
    encoder = new_encoder()
    batch = pack([[1, 2]])
    given = torch.from_numpy(TABLE[[3, 4]].astype(np.int64))
    assert torch.equal(encoder(batch.with_columns(characters=given)), encoder(pack([[3, 4]])))


def test_summary_is_what_each_direction_has_when_it_has_read_all() -> None:
    encoder = new_encoder()
    batch: Batch = pack([[1, 2, 3], [4, 5]])
    last = encoder(batch)
    expected = torch.stack([torch.cat([last[2, :5], last[0, 5:]]), torch.cat([last[4, :5], last[3, 5:]])])
    assert torch.equal(encoder.summary(batch), expected)
    assert torch.equal(encoder(batch, torch.tensor([1, 3])), last[[1, 3]])


def test_a_bilstm_over_frozen_layers_learns() -> None:
    encoder = new_encoder().requires_grad_(False)
    batch = pack([[1, 2, 3], [4, 5]])
    features = torch.stack(encoder.hidden_states(batch), 1)
    torch.manual_seed(0)
    head = FeatureHead(encoder.settings, 2, "weighted-all-and-embeddings", 0.0, hidden_size=4)
    labels = torch.tensor([0, 1, 0, 1, 1])
    optimizer = torch.optim.Adam(head.parameters(), 0.05)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(head(features, batch.lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05
    assert float(head.mixture.gamma.detach()) != 1.0


def test_words_that_a_tokenizer_meets_later_are_looked_up() -> None:
    tokenizer = WordTokenizer([*SPECIAL_WORDS, "the"], max_characters=8)
    encoder = new_encoder()
    encoder.set_words(tokenizer.table)
    [one] = tokenizer.encode_inputs([("the cat", None)])
    [other] = tokenizer.encode_inputs([("the dog cat", None)])
    assert [max(each.input_ids) for each in (one, other)] == [4, 5]
    states = encoder(pack([one.input_ids, other.input_ids]))
    again = WordTokenizer([*SPECIAL_WORDS, "the"], max_characters=8)
    [alone] = again.encode_inputs([("the dog cat", None)])
    encoder.set_words(again.table)
    torch.testing.assert_close(encoder(pack([alone.input_ids])), states[4:])


def test_dropout_is_on_the_inputs_of_the_layers() -> None:
    encoder = new_encoder(hidden_dropout_prob=0.5).train()
    batch = pack([[1, 2, 3]])
    torch.manual_seed(0)
    first = encoder.hidden_states(batch)
    torch.manual_seed(0)
    assert_equal(encoder.hidden_states(batch), first)
    other = encoder.hidden_states(batch)
    assert torch.equal(first[0], other[0])
    assert not torch.equal(first[1], other[1])


def test_sizes_of_the_presets() -> None:
    """93.6M is what the paper's model is said to have; mini with its softmax is about the size of BERT-Mini."""

    def count(settings: ElmoSettings) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in ElmoEncoder(settings).parameters())

    assert round(count(ELMO_PRESETS["original"]) / 1e6, 1) == 93.6
    mini = ELMO_PRESETS["mini"]
    softmax = mini.vocab_size * (mini.projection_size + 1)
    assert round((count(mini) + softmax) / 1e6) == 11


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match="wider than max_characters"):
        ElmoSettings(max_characters=6)
    with pytest.raises(ValidationError, match="filters are empty"):
        ElmoSettings(filters=())


def test_a_recipe_says_a_preset_and_what_differs() -> None:
    sizes = ElmoModelSettings(preset="small", cell_size=512).resolve(1000)
    assert (sizes.vocab_size, sizes.projection_size, sizes.cell_size, sizes.num_highway_layers) == (1000, 128, 512, 1)
    assert sizes.filters == ElmoSettings().filters
    with pytest.raises(SettingsError, match=r"model.vocab_size is 7 but the tokenizer has 8 entries"):
        ElmoModelSettings(vocab_size=7).resolve(8)
    with pytest.raises(SettingsError, match="filters of width 60 are wider than max_characters 50"):
        ElmoModelSettings(filters=((60, 1),)).resolve(8)


def test_a_copy_reads_words_that_the_tokenizer_meets_later() -> None:
    """As the copies of other precisions do, which `predict` and `features` compare."""
    tokenizer = WordTokenizer([*SPECIAL_WORDS, "the"], max_characters=8)
    encoder = new_encoder()
    encoder.set_words(tokenizer.table)
    copied = copy.deepcopy(encoder)
    [ids] = tokenizer.encode_batch(["the zebra crossing"])
    with torch.no_grad():
        torch.testing.assert_close(copied(pack([ids])), encoder(pack([ids])))

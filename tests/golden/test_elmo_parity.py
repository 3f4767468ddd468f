"""ELMo against a tiny published checkpoint and what its authors' code made of three streams of sentences.

`reference/elmo-bilm` of the data folder holds the fixtures of the released code (bilm-tf): weights, sentences, and the
top layer of both directions for ten batches of three sentences, each batch begun with the memory that the one before
it ended with. There is no residual connection in that checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unmask.batch import Batch, pack
from unmask.models.elmo.encoder import BACKWARD, FORWARD, ElmoEncoder
from unmask.models.elmo.projected_lstm import LstmState
from unmask.models.elmo.settings import ElmoSettings

h5py = pytest.importorskip("h5py", reason="needs h5py to read the published checkpoint")

TOLERANCE = 1e-5
"""Float32 throughout: the greatest difference measured is 8e-7, of values up to 1.7; the authors compare to 1e-6."""


@pytest.fixture(scope="module")
def fixtures(data_dir: Path) -> Path:
    directory = data_dir / "reference" / "elmo-bilm" / "model"
    if not directory.is_dir():
        pytest.skip(f"needs {directory}: the fixtures of bilm-tf")
    return directory


@pytest.fixture(scope="module")
def encoder(fixtures: Path) -> ElmoEncoder:
    return published_encoder(fixtures)


def published_encoder(directory: Path) -> ElmoEncoder:
    """The checkpoint in our module."""
    options = json.loads((directory / "options.json").read_text())
    lstm, cnn = options["lstm"], options["char_cnn"]
    settings = ElmoSettings(
        vocab_size=len((directory / "vocab_test.txt").read_text().split()),
        max_characters=cnn["max_characters_per_token"],
        character_size=cnn["embedding"]["dim"],
        filters=cnn["filters"],
        activation=cnn["activation"],
        num_highway_layers=cnn["n_highway"],
        projection_size=lstm["projection_dim"],
        cell_size=lstm["dim"],
        num_hidden_layers=lstm["n_layers"],
        cell_clip=lstm["cell_clip"],
        projection_clip=lstm["proj_clip"],
        residual=lstm["use_skip_connections"],
    )
    encoder = ElmoEncoder(settings).eval()
    with h5py.File(directory / "lm_weights.hdf5", "r") as file:
        encoder.load_state_dict({name: torch.from_numpy(value) for name, value in _named(file, settings).items()})
    return encoder


def _named(file: Any, settings: ElmoSettings) -> dict[str, NDArray[np.float32]]:
    """The arrays of the file by our names; TensorFlow's matrices are (inputs, outputs)."""
    named = {"embeddings.embedding": file["char_embed"][...]}
    for number in range(len(settings.filters)):
        convolution = f"embeddings.convolutions.{number}"
        named[f"{convolution}.weight"] = file[f"CNN/W_cnn_{number}"][0].transpose(2, 1, 0)  # (width, size, filters)
        named[f"{convolution}.bias"] = file[f"CNN/b_cnn_{number}"][...]
    for number in range(settings.num_highway_layers):
        for gate in ("carry", "transform"):
            named[f"embeddings.highways.{number}.{gate}.weight"] = file[f"CNN_high_{number}/W_{gate}"][...].T
            named[f"embeddings.highways.{number}.{gate}.bias"] = file[f"CNN_high_{number}/b_{gate}"][...]
    named["embeddings.projection.weight"] = file["CNN_proj/W_proj"][...].T
    named["embeddings.projection.bias"] = file["CNN_proj/b_proj"][...]
    for direction in (FORWARD, BACKWARD):
        for layer in range(settings.num_hidden_layers):
            cell = file[f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"]
            ours = f"blocks.{direction}.layers.{layer}"
            inputs, hidden = np.split(cell["W_0"][...], [settings.projection_size])
            named[f"{ours}.input_weight"] = inputs.T
            named[f"{ours}.hidden_weight"] = hidden.T
            named[f"{ours}.bias"] = cell["B"][...]
            named[f"{ours}.projection"] = cell["W_P_0"][...].T
    return {name: np.ascontiguousarray(value) for name, value in named.items()}


def characters_of(word: str) -> list[int]:
    """As the released code has them: begin of word, bytes, end of word, padding."""
    ids = [258, *word.encode()[:48], 259]
    return ids + [260] * (50 - len(ids))


def sentence_batch(sentences: list[list[str]]) -> Batch:
    """Sentences between the marks of their begin and end."""
    begin, end = ([258, mark, 259] + [260] * 47 for mark in (256, 257))
    rows = [row for words in sentences for row in (begin, *map(characters_of, words), end)]
    batch = pack([[0] * (len(words) + 2) for words in sentences])
    return batch.with_columns(characters=torch.tensor(rows))


def test_top_layers_of_three_streams_are_the_stored_ones(fixtures: Path, encoder: ElmoEncoder) -> None:
    streams = json.loads((fixtures / "lm_embeddings_sentences.json").read_text())
    expected = []
    for number in range(3):
        with h5py.File(fixtures / f"lm_embeddings_{number}.hdf5", "r") as file:
            expected.append([np.concatenate(list(file[str(place)][...]), 1) for place in range(10)])
    memories: list[LstmState | None] = [None, None]
    worst = 0.0
    for place in range(10):
        batch = sentence_batch([streams[number][place].split() for number in range(3)])
        with torch.no_grad():
            words = encoder.embeddings(batch.columns["characters"])
            forward, memories[FORWARD] = encoder.read_in(FORWARD, words, batch.lengths, memories[FORWARD])
            mirrored = torch.cat([each.flip(0) for each in words.split(list(batch.lengths))])
            backward, memories[BACKWARD] = encoder.read_in(BACKWARD, mirrored, batch.lengths, memories[BACKWARD])
        tops = (each[-1].split(list(batch.lengths)) for each in (forward, backward))
        for number, (ahead, back) in enumerate(zip(*tops, strict=True)):
            sentence = torch.cat([ahead, back.flip(0)], 1)
            stored = torch.from_numpy(expected[number][place])
            worst = max(worst, float((sentence[1:-1] - stored).abs().max()))
            assert sentence[1:-1].shape == stored.shape
    assert worst < TOLERANCE


def test_memory_is_needed_for_that(fixtures: Path, encoder: ElmoEncoder) -> None:
    """The second batch without what the first one left is far from the stored one: the test above could fail."""
    streams = json.loads((fixtures / "lm_embeddings_sentences.json").read_text())
    with h5py.File(fixtures / "lm_embeddings_0.hdf5", "r") as file:
        stored = torch.from_numpy(np.concatenate(list(file["1"][...]), 1))
    with torch.no_grad():
        fresh = encoder(sentence_batch([streams[0][1].split()]))
    assert float((fresh[1:-1] - stored).abs().max()) > 1000 * TOLERANCE

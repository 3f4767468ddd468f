"""A checkpoint that TensorFlow wrote computes what the same weights from safetensors do, in ours and `transformers`.

`make_tensorflow_checkpoint.py` made the checkpoint. Where TensorFlow is installed it makes another for the last test.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertForPreTraining

from unmask.batch import pack
from unmask.models.google.checkpoint import read_google_checkpoint
from unmask.models.google.tensor_bundle import open_bundle
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import LoadedModel

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

HERE = Path(__file__).parent
MADE = HERE / "tensorflow_checkpoint"

TOLERANCE = 1e-5
"""Activations of order 1, some 100 roundings of fp32 (6e-8 each)."""

SEQUENCES = [[2, 5, 6, 7, 3, 8, 9, 3], [2, 28, 4, 3], [2, 10, 4, 22, 19, 3, 20, 21, 15, 3]]
SEGMENTS = [[0, 0, 0, 0, 0, 1, 1, 1], [0] * 4, [0] * 6 + [1] * 4]


def convert(checkpoint: Path, directory: Path) -> Path:
    """A directory in the Hugging Face layout."""
    directory.mkdir()
    config, weights = read_google_checkpoint(checkpoint)
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, directory / "model.safetensors")
    return directory


def outputs_of(model: LoadedModel) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, logits of the masked-LM head, and of next-sentence prediction, for `SEQUENCES`."""
    assert model.masked_lm_head
    assert model.next_sentence_head
    model.encoder.eval()
    batch = pack(SEQUENCES, SEGMENTS)
    with torch.no_grad():
        hidden = model.encoder(batch)
        logits = model.masked_lm_head(hidden, model.encoder.word_embeddings)
        return hidden, logits, model.next_sentence_head(model.encoder.summary(batch))


@pytest.mark.parametrize("checkpoint", [MADE, MADE / "sharded"], ids=["one file", "two files"])
def test_outputs_equal_those_of_the_same_weights_from_safetensors(checkpoint: Path, tmp_path: Path) -> None:
    found = outputs_of(load_model(convert(checkpoint, tmp_path / "converted")))
    expected = outputs_of(load_model(MADE / "transformers"))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)  # the same numbers, so the same to the last bit

    theirs = BertForPreTraining.from_pretrained(MADE / "transformers").eval()
    start = 0
    for number, (ids, segments) in enumerate(zip(SEQUENCES, SEGMENTS, strict=True)):
        with torch.no_grad():
            output = theirs(torch.tensor([ids]), token_type_ids=torch.tensor([segments]), output_hidden_states=True)
        rows = slice(start, start + len(ids))
        assert torch.allclose(found[0][rows], output.hidden_states[-1][0], atol=TOLERANCE, rtol=0)
        assert torch.allclose(found[1][rows], output.prediction_logits[0], atol=TOLERANCE, rtol=0)
        assert torch.allclose(found[2][number], output.seq_relationship_logits[0], atol=TOLERANCE, rtol=0)
        start += len(ids)


@pytest.mark.parametrize("checkpoint", [MADE, MADE / "sharded"], ids=["one file", "two files"])
def test_the_directory_loads_as_it_is(checkpoint: Path) -> None:
    found, expected = outputs_of(load_model(checkpoint)), outputs_of(load_model(MADE / "transformers"))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_transposed_kernel_would_be_seen() -> None:
    """Square kernels fit either way round: the outputs tell."""
    model = load_model(MADE / "transformers")
    hidden = outputs_of(model)[0]
    with torch.no_grad():
        weight = model.encoder.get_parameter("blocks.1.attention.output.weight")
        weight.copy_(weight.T.clone())
    assert float((outputs_of(model)[0] - hidden).abs().max()) > 1000 * TOLERANCE


def test_what_tensorflow_writes_today(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("needs TensorFlow: pip install tensorflow-cpu (what it once wrote is tested without)")
    script = [sys.executable, str(HERE / "make_tensorflow_checkpoint.py"), "--many", "--out", str(tmp_path)]
    finished = subprocess.run(script, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert finished.returncode == 0, finished.stderr

    expected = load_file(tmp_path / "transformers" / "model.safetensors")
    for checkpoint in (tmp_path, tmp_path / "sharded"):
        _, weights = read_google_checkpoint(checkpoint)
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())

    index = tmp_path / "many" / "many.ckpt.index"
    assert index.stat().st_size > 256 * 1024  # more than one block
    many = open_bundle(index)
    assert len(many.entries) == 5000
    for number in range(0, 5000, 50):
        assert int(many.read(hashlib.sha256(str(number).encode()).hexdigest())) == number

    scale = open_bundle(tmp_path / "object_based" / "bert.ckpt.index")
    assert scale.read("scale/.ATTRIBUTES/VARIABLE_VALUE").tolist() == [1.0, 2.0]

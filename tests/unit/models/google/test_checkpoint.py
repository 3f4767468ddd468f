"""Google's checkpoints under `transformers`' names, and what is refused. `tests/golden` compares what they compute."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, ElectraConfig, ElectraForPreTraining

from support.sizes import sizes_of
from support.tensorflow_files import write_checkpoint
from support.tensors import assert_equal
from unmask.errors import ModelError
from unmask.models.google.checkpoint import architecture_in, find_index, is_google_checkpoint, read_google_checkpoint
from unmask.models.google.tensor_bundle import open_bundle


@pytest.fixture
def released(repository: Path, tmp_path: Path) -> Path:
    """A copy of what `tests/golden/make_tensorflow_checkpoint.py` made with TensorFlow."""
    return shutil.copytree(repository / "tests" / "golden" / "tensorflow_checkpoint", tmp_path / "released")


def place_of(entry: dict[int, list[int | bytes]]) -> tuple[int, int]:
    """Offset and size of a variable's bytes."""
    return entry.get(4, [0])[0], entry[5][0]


@pytest.mark.parametrize("folder", [".", "sharded"])
def test_weights_and_names_are_those_of_transformers(released: Path, folder: str) -> None:
    assert is_google_checkpoint(released / folder)
    config, weights = read_google_checkpoint(released / folder)
    assert_equal(weights, load_file(released / "transformers" / "model.safetensors"))
    written = json.loads((released / "transformers" / "config.json").read_text("utf-8"))
    assert config["architectures"] == written["architectures"] == ["BertForPreTraining"]
    assert BertConfig(**config).to_diff_dict() == BertConfig(**written).to_diff_dict()


def test_what_is_none(released: Path, tmp_path: Path) -> None:
    for folder in (released / "transformers", released / "kinds", tmp_path / "missing"):
        assert not is_google_checkpoint(folder)
    (released / "bert_model.ckpt.index").unlink()
    assert not is_google_checkpoint(released)


def test_damage_is_never_taken_for_weights(released: Path) -> None:
    """The slots of the optimizer are not read, so that damage in them changes nothing."""
    data = released / "bert_model.ckpt.data-00000-of-00001"
    expected = {name: tensor.clone() for name, tensor in read_google_checkpoint(released)[1].items()}
    entries = open_bundle(released / "bert_model.ckpt.index").entries
    not_read = [place_of(entry) for name, entry in entries.items() if "adam" in name or name == "global_step"]
    file = data.read_bytes()
    places = [*range(0, len(file), 211), *(offset for offset, _ in not_read)]
    for place in places:
        changed = bytearray(file)
        changed[place] ^= 1 << place % 8
        data.write_bytes(changed)
        if any(0 <= place - offset < size for offset, size in not_read):
            assert_equal(read_google_checkpoint(released)[1], expected)
        else:
            with pytest.raises(ModelError, match=r"do not match their checksum\): get it again"):
                read_google_checkpoint(released)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "bert_config.json: not JSON"), ("[]", "expected a JSON object, found a list"), ("\udcff", "not JSON")],
)
def test_a_damaged_config(released: Path, text: str, message: str) -> None:
    (released / "bert_config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=message):
        read_google_checkpoint(released)


def test_a_directory_that_is_gone_has_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"gone: no model here \(neither config\.json nor \*\.index\): put it back, or name"
    ):
        find_index(tmp_path / "gone")


def test_of_several_checkpoints_the_named_one_is_read(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        bias = {"bert/pooler/dense/bias": np.full(2, number)}
        directory = write_checkpoint(tmp_path, bias, name=f"model.ckpt-{number}")
    with pytest.raises(ModelError, match=r"has 3 checkpoints \(model.ckpt-1.index, .*: move the others away"):
        read_google_checkpoint(directory)
    latest = directory / "checkpoint"
    for named in ("model.ckpt-2", "/elsewhere/training/model.ckpt-2"):
        others = 'all_model_checkpoint_paths: "model.ckpt-1"\n'
        latest.write_text(f'model_checkpoint_path: "{named}"\n{others}', "utf-8")
        assert read_google_checkpoint(directory)[1]["bert.pooler.dense.bias"].tolist() == [2, 2]
    latest.write_text('model_checkpoint_path: "model.ckpt-9"\n', "utf-8")
    with pytest.raises(ModelError, match="no file 'checkpoint' that names one of them"):
        read_google_checkpoint(directory)


ENCODER = ("bert/pooler/dense/bias",)


@pytest.mark.parametrize(
    ("variables", "architecture"),
    [
        (ENCODER, "BertModel"),
        ((*ENCODER, "cls/predictions/output_bias"), "BertForMaskedLM"),
        ((*ENCODER, "cls/predictions/output_bias", "cls/seq_relationship/output_bias"), "BertForPreTraining"),
        ((*ENCODER, "cls/squad/output_bias"), "BertForQuestionAnswering"),
        ((*ENCODER, "output_bias"), "BertForSequenceClassification"),
        (("electra/embeddings/LayerNorm/beta",), "ElectraModel"),
        (("electra/embeddings/LayerNorm/beta", "discriminator_predictions/dense/bias"), "ElectraForPreTraining"),
    ],
)
def test_the_heads_make_the_architecture(tmp_path: Path, variables: tuple[str, ...], architecture: str) -> None:
    directory = write_checkpoint(tmp_path, variables)
    config, weights = read_google_checkpoint(directory)
    assert config["architectures"] == [architecture] == [architecture_in(directory)]
    assert config["model_type"] == ("electra" if architecture.startswith("Electra") else "bert")
    assert len(weights) == len(variables)


def test_fine_tuned_classifiers_and_question_answering(tmp_path: Path) -> None:
    head = np.arange(6).reshape(3, 2)
    directory = write_checkpoint(tmp_path, {"output_weights": head, "output_bias": np.zeros(3)})
    config, weights = read_google_checkpoint(directory)
    assert weights["classifier.weight"].tolist() == head.tolist()
    assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert config["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    (directory / "m.ckpt.index").unlink()
    variables = {"cls/squad/output_weights": head, "cls/squad/output_bias": np.zeros(2)}
    config, weights = read_google_checkpoint(write_checkpoint(tmp_path, variables, name="qa"))
    assert set(weights) == {"qa_outputs.weight", "qa_outputs.bias"}
    assert "id2label" not in config


def test_sizes_come_from_bert_config_and_the_rest_is_what_transformers_says(tmp_path: Path) -> None:
    given = {"hidden_size": 8, "hidden_act": "relu", "pooler_type": "first_token_transform", "model_type": "other"}
    config, _ = read_google_checkpoint(write_checkpoint(tmp_path, ENCODER, given))
    rest = {"layer_norm_eps": 1e-12, "pad_token_id": 0, "tie_word_embeddings": True, "dtype": "float32"}
    assert config == given | rest | {"architectures": ["BertModel"], "model_type": "bert"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        (["scale/.ATTRIBUTES/VARIABLE_VALUE"], "scale/.ATTRIBUTES/VARIABLE_VALUE"),  # TensorFlow 2's
        ([*ENCODER, "bert/encoder/layer_0/surprise"], "bert/encoder/layer_0/surprise"),
        ([*ENCODER, *(f"gpt/{number}/bias" for number in range(5))], "gpt/0/bias, gpt/1/bias, gpt/2/bias and 2 more"),
        (["global_step", "bert/pooler/dense/bias/adam_m"], "none"),
    ],
)
def test_other_models_are_refused_by_the_names_of_variables(tmp_path: Path, variables: list[str], found: str) -> None:
    with pytest.raises(ModelError, match=f"expected the variables of Google's BERT or ELECTRA, .* and found {found}:"):
        read_google_checkpoint(write_checkpoint(tmp_path, variables))


def test_what_optimizers_keep_is_left_out(tmp_path: Path) -> None:
    slots = [f"{ENCODER[0]}/{slot}" for slot in ("adam_m", "adam_v", "Adam", "Adam_1")]
    _, weights = read_google_checkpoint(write_checkpoint(tmp_path, [*ENCODER, *slots, "global_step", "beta1_power"]))
    assert set(weights) == {"bert.pooler.dense.bias"}


@pytest.mark.parametrize("embedding_size", [6, 8])
def test_electra_gives_its_discriminator(tmp_path: Path, embedding_size: int) -> None:
    """The names that google-research/electra gives its variables, from a model of `transformers`."""
    sizes = sizes_of(vocab=11, width=8, layers=1, heads=2, inner=10, positions=6)
    torch.manual_seed(0)
    theirs = ElectraForPreTraining(ElectraConfig(**sizes, embedding_size=embedding_size)).eval()
    variables = {}
    for name, weight in theirs.state_dict().items():
        if name.endswith("_ids"):
            continue
        path = name.replace("layer.0", "layer_0").replace("dense_prediction", "dense_1").replace(".", "/")
        is_embedding = path.endswith("_embeddings/weight")
        is_kernel = weight.ndim == 2 and not is_embedding
        path = path.replace("LayerNorm/weight", "LayerNorm/gamma").replace("LayerNorm/bias", "LayerNorm/beta")
        path = path.removesuffix("/weight") + ("/kernel" if is_kernel else "") if path.endswith("/weight") else path
        variables[path] = (weight.T if is_kernel else weight).numpy()
    assert ("electra/embeddings_project/kernel" in variables) == (embedding_size != 8)
    variables |= {
        "generator/encoder/layer_0/output/dense/bias": np.ones(3),
        "generator_predictions/output_bias": np.ones(11),
        "electra/embeddings/LayerNorm/beta/adam_m": np.ones(2),
    }
    config, weights = read_google_checkpoint(write_checkpoint(tmp_path, variables, sizes))
    assert config["embedding_size"] == embedding_size
    ours = ElectraForPreTraining(ElectraConfig(**config)).eval()
    report = ours.load_state_dict(weights, strict=False)
    assert not report.unexpected_keys
    assert not [name for name in report.missing_keys if not name.endswith("_ids")]
    input_ids = torch.tensor([[1, 5, 9, 10]])
    with torch.no_grad():
        assert torch.equal(ours(input_ids).logits, theirs(input_ids).logits)

"""Model directories: written and read back alike, old spellings, and every fault reported by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.model_files import Edit, edit_config, edit_weights, with_one, without
from support.sizes import small
from support.tensors import assert_equal
from unmask.errors import ModelError, SettingsError
from unmask.models.bert import BertEncoder
from unmask.models.heads.heads import MaskedLMHead, NextSentenceHead, new_head
from unmask.models.hub.config import labels_of
from unmask.models.hub.directory import TunedHead, load_encoder, load_model, save_model, weights_of
from unmask.models.hub.source import LoadedModel
from unmask.models.hub.uses import FINE_TUNED, MASKED

SETTINGS = small(vocab=30, width=12, layers=2, heads=3, inner=20, positions=16)
LAYER_2 = "bert.encoder.layer.2"


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A directory with the heads of pre-training."""
    torch.manual_seed(0)
    save_model(
        tmp_path / "pretrained",
        BertEncoder(SETTINGS),
        {"masked_lm_head": MaskedLMHead(SETTINGS), "next_sentence_head": NextSentenceHead(SETTINGS)},
    )
    return tmp_path / "pretrained"


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A directory with a classifier of three labels."""
    torch.manual_seed(0)
    save_model(
        tmp_path / "classifier",
        BertEncoder(SETTINGS),
        tuned=TunedHead(
            new_head("sequence_classification", SETTINGS, 3), "sequence_classification", labels=["bad", "good", "나쁨"]
        ),
    )
    return tmp_path / "classifier"


def weights_in(model: LoadedModel) -> dict[str, Tensor]:
    return weights_of(model.encoder, model.heads, prefixed=bool(model.heads))


def check_refused(directory: Path, message: list[str]) -> None:
    """That the model is refused, naming these and the directory."""
    with pytest.raises(ModelError) as caught:
        load_model(directory)
    for part in (*message, str(directory)):
        assert part in str(caught.value)


def test_pretrained_round_trip(pretrained: Path) -> None:
    model = load_model(pretrained)
    assert model.architecture == "BertForPreTraining"
    assert model.encoder.settings == SETTINGS
    assert model.head is model.head_kind is model.labels is None
    assert model.unused == model.fresh == ()
    assert_equal(weights_in(model), load_file(pretrained / "model.safetensors"))
    assert all(parameter.requires_grad for parameter in model.encoder.parameters())
    assert sorted(path.name for path in pretrained.iterdir()) == ["config.json", "model.safetensors"]


def test_masked_lm_without_pooler_round_trip(tmp_path: Path) -> None:
    encoder, head = BertEncoder(SETTINGS, pooler=False), MaskedLMHead(SETTINGS)
    save_model(tmp_path / "model", encoder, {"masked_lm_head": head})
    model = load_model(tmp_path / "model", MASKED)
    assert model.architecture == "BertForMaskedLM"
    assert model.encoder.pooler is None
    assert_equal(weights_in(model), weights_of(encoder, {"masked_lm_head": head}, prefixed=True))


def test_nothing_is_given_beside_a_loaded_model(pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a loaded model is saved as it is"):
        save_model(tmp_path / "model", load_model(pretrained), extra_config={"key": 1})


@pytest.mark.parametrize("pooler", [True, False])
def test_bare_encoder_round_trip(tmp_path: Path, pooler: bool) -> None:
    encoder = BertEncoder(SETTINGS, pooler)
    save_model(str(tmp_path / "model"), encoder)
    names = load_file(tmp_path / "model" / "model.safetensors").keys()
    assert not any(name.startswith("bert.") for name in names)
    model = load_model(tmp_path / "model")
    assert (model.encoder.pooler is not None) == pooler
    assert_equal(weights_in(model), weights_of(encoder))


def test_a_loaded_model_does_not_hang_on_its_file(pretrained: Path) -> None:
    model = load_model(pretrained)
    before = {name: tensor.clone() for name, tensor in weights_in(model).items()}
    path = pretrained / "model.safetensors"
    with open(path, "r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert_equal(weights_in(model), before)


def test_an_encoder_for_finetuning_leaves_the_heads_and_says_so(pretrained: Path) -> None:
    loaded = load_encoder(pretrained)
    assert loaded.encoder.pooler is not None
    assert loaded.fresh == ()
    assert "cls.predictions.bias" in loaded.unused
    assert "cls.seq_relationship.weight" in loaded.unused
    assert all(name.startswith("cls.") for name in loaded.unused)
    bare = load_encoder(pretrained, pooler=False)
    assert bare.encoder.pooler is None
    assert "bert.pooler.dense.weight" in bare.unused


def test_a_pooler_that_is_not_there_is_fresh_and_named(tmp_path: Path) -> None:
    save_model(tmp_path / "model", BertEncoder(SETTINGS, pooler=False), {"masked_lm_head": MaskedLMHead(SETTINGS)})
    loaded = load_encoder(tmp_path / "model")
    assert loaded.fresh == ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
    assert loaded.encoder.pooler.dense.weight.any()


def test_old_spellings_are_known(pretrained: Path) -> None:
    expected = load_file(pretrained / "model.safetensors")

    def age(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        aged = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in weights.items()
        }
        aged["bert.embeddings.position_ids"] = torch.arange(16)[None]
        aged["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
        aged["cls.predictions.decoder.bias"] = aged.pop("cls.predictions.bias")
        return aged

    edit_weights(pretrained, age)
    model = load_model(pretrained)
    assert_equal(weights_in(model), expected)
    assert model.unused == ()


def test_half_precision_weights_become_fp32(pretrained: Path) -> None:
    edit_weights(pretrained, lambda weights: {name: tensor.bfloat16() for name, tensor in weights.items()})
    assert {tensor.dtype for tensor in weights_in(load_model(pretrained)).values()} == {torch.float32}


def test_the_released_layout_that_calls_itself_a_masked_lm(pretrained: Path) -> None:
    edit_config(pretrained, architectures=["BertForMaskedLM"])
    model = load_model(pretrained)
    assert model.next_sentence_head is model.encoder.pooler is None
    assert "cls.seq_relationship.bias" in model.unused
    assert "bert.pooler.dense.bias" in model.unused


def test_heads_that_no_class_has_are_refused_where_the_class_is_left_out(pretrained: Path) -> None:
    edit_config(pretrained, architectures=None)
    edit_weights(pretrained, lambda weights: {name: its for name, its in weights.items() if "predictions" not in name})
    check_refused(pretrained, ["config.json: architectures is left out", "next_sentence_head", "name one of BertModel"])


def test_shards_are_put_together(pretrained: Path) -> None:
    expected = load_file(pretrained / "model.safetensors")
    places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(sorted(expected))}
    for shard in set(places.values()):
        save_file({name: expected[name] for name, place in places.items() if place == shard}, pretrained / shard)
    (pretrained / "model.safetensors").unlink()
    index = pretrained / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert_equal(weights_in(load_model(pretrained)), expected)

    (pretrained / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors is missing"):
        load_model(pretrained)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(ModelError, match="elsewhere"):
        load_model(pretrained)
    index.write_text("{}")
    with pytest.raises(ModelError, match="weight_map"):
        load_model(pretrained)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without("bert.pooler.dense.bias"), ["bert.pooler.dense.bias", "missing"]),
        (without("cls.seq_relationship.weight"), ["cls.seq_relationship.weight", "missing"]),
        (with_one(f"{LAYER_2}.output.dense.bias", torch.zeros(12)), ["layer.2.output.dense.bias", "left over"]),
        (with_one("classifier.weight", torch.zeros(2, 12)), ["classifier.weight", "left over"]),
        (with_one("cls.predictions.decoder.weight", torch.zeros(30, 12)), ["decoder.weight", "tied"]),
    ],
)
def test_a_weight_that_does_not_fit_is_named(pretrained: Path, edit: Edit, message: list[str]) -> None:
    edit_weights(pretrained, edit)
    check_refused(pretrained, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, ["model_type", "roberta", "bert"]),
        ({"hidden_act": "gelu_fast"}, ["hidden_act", "gelu_fast", "gelu_new"]),
        ({"is_decoder": True}, ["is_decoder", "True"]),
        ({"is_causal": True}, ["is_causal is True; expected False", "BertForPreTraining sees those on both sides"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key", "absolute"]),
        ({"tie_word_embeddings": False}, ["tie_word_embeddings"]),
        ({"hidden_size": 13}, ["hidden_size 13", "num_attention_heads 3"]),
        ({"num_hidden_layers": "many"}, ["num_hidden_layers", "many"]),
        ({"num_hidden_layers": 3}, ["encoder.layer.2.attention.self.query.weight", "missing"]),
        ({"vocab_size": 31}, ["word_embeddings.weight", "(30, 12)", "(31, 12)"]),
        ({"architectures": ["BertLMHeadModel"]}, ["is_decoder", "None", "true"]),
        ({"architectures": ["BertForNextSentencePrediction"]}, ["BertForNextSentencePrediction", "BertForPreTraining"]),
        ({"architectures": [3]}, ["architectures is [3]", "expected one of BertModel"]),
        ({"architectures": ["T5Model"], "model_type": "t5"}, ["T5Model", "this family", "of bert, roberta, electra"]),
        ({"architectures": None, "model_type": "t5"}, ["model_type is 't5'", "of bert, roberta, electra"]),
        ({"architectures": None, "model_type": None}, ["model_type is None", "of bert, roberta, electra"]),
    ],
)
def test_a_config_that_is_not_supported_is_told(pretrained: Path, changes: dict[str, Any], message: list[str]) -> None:
    edit_config(pretrained, **changes)
    check_refused(pretrained, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "config.json: id2label names 'a' twice"),
        ({"id2label": {"0": "a", "1": "b"}}, r"classifier.weight has the shape \(3, 12\), expected \(2, 12\)"),
        ({"problem_type": "ranking"}, "ranking"),
        ({"classifier_dropout": "much"}, "classifier_dropout"),
    ],
)
def test_a_classifier_config_that_is_wrong_is_reported(classifier: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(classifier, **changes)
    with pytest.raises(ModelError, match=message):
        load_model(classifier, FINE_TUNED)


def test_labels_left_out_are_numbered(tmp_path: Path) -> None:
    head = new_head("sequence_classification", SETTINGS, 2)
    save_model(tmp_path / "model", BertEncoder(SETTINGS), tuned=TunedHead(head, "sequence_classification"))
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if "label" not in k}))
    assert load_model(tmp_path / "model", FINE_TUNED).labels == ("LABEL_0", "LABEL_1")
    edit_config(tmp_path / "model", num_labels=3)
    with pytest.raises(ModelError, match=r"classifier.weight has the shape \(2, 12\), expected \(3, 12\)"):
        load_model(tmp_path / "model", FINE_TUNED)


def test_the_decoder_is_of_no_concern_to_a_class_without_one(classifier: Path) -> None:
    edit_config(classifier, tie_word_embeddings=False)
    assert load_model(classifier, FINE_TUNED).head is not None


def test_labels_are_in_the_order_of_their_numbers() -> None:
    named = {str(number): f"topic {number}" for number in range(12)}
    assert labels_of(Path("config.json"), {"id2label": named}) == tuple(named.values())
    assert labels_of(Path("config.json"), {"id2label": None, "num_labels": 3}) == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert labels_of(Path("config.json"), {"num_labels": None}) == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize("number", [10**12, 0, 2.5, "3"])
def test_only_labels_that_are_there_take_memory(number: object) -> None:
    assert labels_of(Path("config.json"), {"id2label": {"0": "a", "1": "b"}, "num_labels": number}) == ("a", "b")
    with pytest.raises(ModelError, match=r"config\.json: num_labels is .*; expected an integer from 1 to 1,048,576"):
        labels_of(Path("config.json"), {"num_labels": number})


def test_two_labels_without_a_name_are_found_at_once_among_many() -> None:
    named = {str(number): f"topic {number}" for number in range(200_000)} | {"200000": "", "200001": ""}
    with pytest.raises(ModelError, match="names '' twice"):
        labels_of(Path("config.json"), {"id2label": named})


def test_a_directory_without_the_wanted_head_is_refused(classifier: Path) -> None:
    with pytest.raises(ModelError, match=r"\(BertForSequenceClassification\) is a fine-tuned model: expected a masked"):
        load_model(classifier, MASKED)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_config_that_is_not_json_is_reported(pretrained: Path, content: bytes) -> None:
    (pretrained / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(pretrained)


def test_missing_files_are_reported(pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory: expected a model's"):
        load_model(tmp_path / "nowhere")
    (pretrained / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        load_model(pretrained)
    (pretrained / "model.onnx").touch()
    with pytest.raises(
        ModelError, match="holds an ONNX file, and no weights: name the directory that it was made from"
    ):
        load_model(pretrained)
    (pretrained / "model.onnx").unlink()
    (pretrained / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(ModelError, match=r"pickle.*import torch; .*weights_only=True.*model\.safetensors") as message:
        load_model(pretrained)
    torch.save({"encoder.weight": torch.ones(2)}, pretrained / "pytorch_model.bin")
    exec(str(message.value).partition("heads and all: ")[2])
    assert load_file(pretrained / "model.safetensors").keys() == {"encoder.weight"}
    (pretrained / "model.safetensors").unlink()
    (pretrained / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no model here \(no config\.json\)"):
        load_model(pretrained)
    (pretrained / "model.gguf").touch()
    with pytest.raises(ModelError, match=r"model\.gguf is GGUF, which is not read: expected the model that"):
        load_model(pretrained)
    (pretrained / "adapter_config.json").touch()
    with pytest.raises(ModelError, match=r"holds a LoRA adapter and not the model .*merge_and_unload\(\)"):
        load_model(pretrained)
    (pretrained / "ensemble.json").touch()
    with pytest.raises(ModelError, match=r"is an ensemble: name one of its members, which `unmask info .*` lists"):
        load_model(pretrained)


@pytest.mark.parametrize(
    "damage",
    [*(lambda whole, keep=keep: whole[:keep] for keep in (0, 4, 100, -1)), lambda whole: b"\xff" * 40 + whole[40:]],
)
def test_a_file_cut_short_or_damaged_is_reported(pretrained: Path, damage: Callable[[bytes], bytes]) -> None:
    path = pretrained / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=r"model\.safetensors is cut short or damaged"):
        load_model(pretrained)

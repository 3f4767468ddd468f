"""Directories of every family and kind of head: round trips, heads apart, old layouts, and faults reported by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from support.model_files import Edit, edit_config, edit_weights, with_one, without
from support.sizes import small
from support.tensors import assert_equal
from unmask.errors import ModelError
from unmask.info import describe
from unmask.models.encoder import new_encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import HeadKind
from unmask.models.google import checkpoint as google_checkpoint
from unmask.models.heads.heads import DiscriminatorHead, MaskedLMHead, needs_pooler, new_head
from unmask.models.hub.directory import (
    NUM_LABELS,
    TunedHead,
    blank_model,
    load_encoder,
    load_model,
    save_model,
    weights_of,
)
from unmask.models.hub.uses import CAUSAL, FINE_TUNED, MASKED
from unmask.models.settings import Architecture, EncoderSettings, token_families

FAMILIES = tuple(token_families())
KINDS: tuple[HeadKind, ...] = get_args(HeadKind)


def sizes(family: Architecture, **changes: Any) -> EncoderSettings:
    heads = 1 if family == "lstm" else 3
    return small(architecture=family, vocab=30, width=12, layers=2, heads=heads, inner=48, positions=16, **changes)


def save_pretrained(directory: Path, family: Architecture, pooler: bool = False) -> Path:
    """A directory as pre-training leaves it: with the head of the family's own objective."""
    torch.manual_seed(0)
    settings = sizes(family, **{"embedding_size": 6} if family == "electra" else {})
    encoder = new_encoder(settings, pooler)
    if family == "electra":
        save_model(directory, encoder, {"discriminator_head": DiscriminatorHead(settings)})
    else:
        its = ARCHITECTURES[family]
        heads = {"masked_lm_head": MaskedLMHead(settings)} if its.has("masked_lm_head") else {}
        save_model(directory, encoder, heads, causal_lm=its.left_to_right)
    return directory


def save_finetuned(directory: Path, family: Architecture, kind: HeadKind, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    settings = sizes(family)
    head = new_head(kind, settings, NUM_LABELS.get(kind, 2), dropout_prob=0.25)
    encoder, tuned = new_encoder(settings, needs_pooler(settings, kind)), TunedHead(head, kind, **options)
    save_model(directory, encoder, tuned=tuned, extra_config={"note": "kept"})
    return head


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_finetuned_model_comes_back(tmp_path: Path, family: Architecture, kind: HeadKind) -> None:
    labelled = kind not in NUM_LABELS
    head = save_finetuned(tmp_path, family, kind, labels=["나쁨", "good"])
    loaded = load_model(tmp_path, FINE_TUNED)
    assert loaded.encoder.settings == sizes(family)
    assert loaded.head_kind == kind
    assert loaded.labels == (("나쁨", "good") if labelled else None)
    assert loaded.config["note"] == "kept"
    assert loaded.head_weights is None
    has_dropout = kind != "question_answering" or family.startswith("modernbert")
    assert loaded.head.dropout_prob == (0.25 if has_dropout else 0.0)
    assert type(loaded.head) is type(head)
    assert_equal(loaded.head.state_dict(), head.state_dict())
    files = {"config.json", "model.safetensors"} | (set() if ARCHITECTURES[family].has(kind) else {"head.safetensors"})
    assert {path.name for path in tmp_path.iterdir()} == files
    save_model(tmp_path / "again", loaded)
    again = load_model(tmp_path / "again", FINE_TUNED)
    assert_equal(again.head.state_dict(), head.state_dict())
    assert (again.labels, again.encoder.settings) == (loaded.labels, loaded.encoder.settings)


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_the_problem_type_is_kept(tmp_path: Path, problem_type: str) -> None:
    save_finetuned(tmp_path, "electra", "sequence_classification", problem_type=problem_type)
    assert load_model(tmp_path, FINE_TUNED).problem_type == problem_type


class Tagger(nn.Module):
    """A head that `new_head` does not build."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_of_a_head_of_ones_own_are_handed_back(tmp_path: Path, family: Architecture) -> None:
    encoder, head = new_encoder(sizes(family), pooler=False), Tagger()
    labels = ["O", "B-사람", "I-사람"]
    save_model(tmp_path, encoder, tuned=TunedHead(head, "token_classification", labels=labels))
    loaded = load_model(tmp_path, FINE_TUNED)
    assert loaded.head is None
    assert loaded.head_kind == "token_classification"
    assert loaded.labels == tuple(labels)
    head.load_state_dict(dict(loaded.head_weights))
    expected = weights_of(encoder)
    assert load_file(tmp_path / "model.safetensors").keys() == expected.keys()
    assert load_encoder(tmp_path, head="token_classification").unused == ("head.safetensors",)
    with pytest.raises(ModelError, match="is not saved by itself: copy its directory"):
        save_model(tmp_path / "again", loaded)


def test_the_head_of_an_earlier_model_does_not_stay(tmp_path: Path) -> None:
    save_finetuned(tmp_path, "gpt1", "question_answering")
    save_finetuned(tmp_path, "gpt1", "sequence_classification")
    assert not (tmp_path / "head.safetensors").exists()
    assert load_model(tmp_path, FINE_TUNED).architecture == "OpenAIGPTForSequenceClassification"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_decides_about_the_pooler(tmp_path: Path, family: Architecture, kind: HeadKind) -> None:
    loaded = load_encoder(save_pretrained(tmp_path, family), head=kind)
    needed = needs_pooler(loaded.encoder.settings, kind)
    assert (loaded.encoder.pooler is not None) == needed
    names = ARCHITECTURES[family].weights
    fresh = {f"{names.pooler_prefix}dense.{each}" for each in ("weight", "bias")} if needed else set()
    assert set(loaded.fresh) == fresh
    assert all(name.startswith(names.head_prefixes) for name in loaded.unused)
    assert bool(loaded.unused) == ARCHITECTURES[family].has("masked_lm_head")


def test_a_pooler_that_is_not_needed_is_left_and_named(tmp_path: Path) -> None:
    settings = sizes("roberta")
    save_model(tmp_path, new_encoder(settings))
    assert load_encoder(tmp_path, head="multiple_choice").unused == ()
    loaded = load_encoder(tmp_path, head="sequence_classification")
    assert loaded.encoder.pooler is None
    assert loaded.unused == ("roberta.pooler.dense.bias", "roberta.pooler.dense.weight")


@pytest.mark.parametrize("family", ["electra", "gpt1", "lstm"])
def test_there_is_no_pooler_where_the_family_has_none(tmp_path: Path, family: Architecture) -> None:
    assert load_encoder(save_pretrained(tmp_path, family), pooler=True).encoder.pooler is None


def test_robertas_released_layout_loads(tmp_path: Path) -> None:
    """Constants among the weights, the decoder stored a second time, and a pooler that nothing was trained with."""
    save_pretrained(tmp_path, "roberta")

    def age(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights["roberta.embeddings.position_ids"] = torch.arange(16)[None]
        weights["lm_head.decoder.weight"] = weights["roberta.embeddings.word_embeddings.weight"].clone()
        weights["lm_head.decoder.bias"] = weights["lm_head.bias"].clone()
        weights["roberta.pooler.dense.bias"] = torch.zeros(12)
        return weights

    edit_weights(tmp_path, age)
    assert load_model(tmp_path, MASKED).unused == ("roberta.pooler.dense.bias",)
    edit_weights(tmp_path, lambda weights: weights | {"lm_head.decoder.bias": torch.ones(30)})
    with pytest.raises(ModelError, match=r"lm_head\.decoder\.bias differs from lm_head\.bias"):
        load_model(tmp_path)


def test_gpt1s_released_layout_loads(tmp_path: Path) -> None:
    """No prefix though it is a language model, and the triangle of the mask among the weights of each block."""
    save_pretrained(tmp_path, "gpt1")
    expected = load_model(tmp_path)

    def age(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        aged = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
        aged |= {f"h.{number}.attn.bias": torch.ones(1, 1, 16, 16).tril() for number in range(2)}
        return aged | {"lm_head.weight": aged["tokens_embed.weight"].clone()}

    edit_weights(tmp_path, age)
    loaded = load_model(tmp_path)
    assert loaded.architecture == "OpenAIGPTLMHeadModel"
    assert loaded.unused == ()
    assert_equal(loaded.encoder.state_dict(), expected.encoder.state_dict())


def test_a_generator_is_a_masked_lm(tmp_path: Path) -> None:
    settings = sizes("electra", embedding_size=6)
    save_model(tmp_path, new_encoder(settings), {"masked_lm_head": MaskedLMHead(settings)})
    loaded = load_model(tmp_path, MASKED)
    assert loaded.architecture == "ElectraForMaskedLM"
    assert loaded.masked_lm_head.dense.weight.shape == (6, 12)


MATRICES = {
    "bert": ("bert.encoder.layer.1.attention.self.key.weight", (12, 12)),
    "roberta": ("roberta.encoder.layer.1.intermediate.dense.weight", (48, 12)),
    "electra": ("electra.embeddings_project.weight", (12, 6)),
    "gpt1": ("transformer.h.1.mlp.c_fc.weight", (12, 48)),
    "modernbert": ("model.layers.1.mlp.Wi.weight", (96, 12)),
    "modernbert_decoder": ("model.layers.1.attn.q_proj.weight", (12, 12)),
    "lstm": ("encoder.layers.1.lstm.weight_hh_l0", (192, 48)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_weight_that_does_not_fit_is_named_with_its_shape(tmp_path: Path, family: Architecture) -> None:
    save_pretrained(tmp_path, family)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    assert family in MATRICES, f"add a row for {family} to MATRICES in this file (docs/architecture.md, Adding to it)"
    name, shape = MATRICES[family]
    edits: list[tuple[Edit, str]] = [
        (without(name), f"{shape} is missing"),
        (with_one(name, torch.zeros(shape[0], 7)), f"({shape[0]}, 7), expected {shape}"),
        (with_one(name, torch.zeros(shape, dtype=torch.int64)), "int64"),
        (with_one(name + ".odd", torch.zeros(1)), "odd is left over"),
    ]
    for edit, message in edits:
        path.write_bytes(whole)
        edit_weights(tmp_path, edit)
        for load in (load_model, load_encoder):
            with pytest.raises(ModelError) as caught:
                load(tmp_path)
            assert name in str(caught.value)
            assert message in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_of_another_family_are_refused(tmp_path: Path, family: Architecture) -> None:
    other = FAMILIES[(FAMILIES.index(family) + 1) % len(FAMILIES)]
    save_pretrained(tmp_path / "one", family)
    save_pretrained(tmp_path / "other", other)
    (tmp_path / "one" / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    for load in (load_model, load_encoder):
        with pytest.raises(ModelError, match=r"is missing.*is left over"):
            load(tmp_path / "one")
    edit_config(tmp_path / "other", model_type="bart")
    with pytest.raises(ModelError, match="model_type is 'bart'; expected"):
        load_model(tmp_path / "other")


@pytest.mark.parametrize(
    ("family", "kind", "changes", "message"),
    [
        ("gpt1", "sequence_classification", {"afn": "gelu_new"}, "afn is 'gelu_new'; expected one of gelu, relu"),
        ("gpt1", "sequence_classification", {"n_embd": "wide"}, "n_embd is 'wide'"),
        ("gpt1", "sequence_classification", {"n_head": 5}, "not divisible by num_attention_heads 5"),
        ("gpt1", "token_classification", {"unmask_head": "span"}, "unmask_head is 'span'; expected one of seq"),
        ("gpt1", "token_classification", {"classifier_dropout": 2}, "classifier_dropout is 2"),
        ("electra", "multiple_choice", {"summary_type": "mean"}, "summary_type is 'mean'; expected 'first'"),
        ("electra", "multiple_choice", {"summary_activation": None}, "summary_activation is None; expected 'gelu'"),
        ("electra", "multiple_choice", {"summary_last_dropout": "no"}, "summary_last_dropout is 'no'"),
        ("electra", "token_classification", {"id2label": {"1": "a"}}, "id2label"),
        ("roberta", "question_answering", {"pad_token_id": None}, "pad_token_id is null"),
        ("roberta", "question_answering", {"max_position_embeddings": 2}, "leaves no position"),
        ("roberta", "question_answering", {"type_vocab_size": 0}, "at least one segment"),
        ("bert", "multiple_choice", {"architectures": ["RobertaForMultipleChoice"]}, "expected 'roberta'"),
    ],
)
def test_a_config_that_is_not_supported_is_reported(
    tmp_path: Path, family: Architecture, kind: HeadKind, changes: dict[str, Any], message: str
) -> None:
    save_finetuned(tmp_path, family, kind)
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        load_model(tmp_path, FINE_TUNED)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("family", "key", "hidden_key", "usual"),
    [("gpt1", "embd_pdrop", "resid_pdrop", 0.1), ("modernbert", "embedding_dropout", "mlp_dropout", 0.0)],
)
def test_a_dropout_of_the_embeddings_that_is_left_out_is_the_families(
    tmp_path: Path, family: Architecture, key: str, hidden_key: str, usual: float
) -> None:
    save_pretrained(tmp_path, family)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {hidden_key: 0.3}
    del config[key]
    path.write_text(json.dumps(config))
    settings = load_model(tmp_path).encoder.settings
    assert isinstance(settings, EncoderSettings)
    assert (settings.hidden_dropout_prob, settings.embedding_dropout_prob) == (0.3, usual)


def test_a_head_apart_is_read_as_strictly(tmp_path: Path) -> None:
    save_finetuned(tmp_path, "gpt1", "question_answering")
    path = tmp_path / "head.safetensors"
    whole = path.read_bytes()
    for edit, message in (
        (with_one("dense.odd", torch.zeros(1)), r"dense\.odd is left over"),
        (with_one("dense.bias", torch.zeros(3)), r"dense\.bias has the shape \(3,\), expected \(2,\)"),
    ):
        edit_weights(tmp_path, edit, "head.safetensors")
        with pytest.raises(ModelError, match=rf"head\.safetensors: .*{message}"):
            load_model(tmp_path, FINE_TUNED)
        path.write_bytes(whole)
    path.write_bytes(whole[:20])
    with pytest.raises(ModelError, match=r"head\.safetensors is cut short or damaged"):
        load_model(tmp_path, FINE_TUNED)
    path.unlink()
    with pytest.raises(ModelError, match=r"head\.safetensors is missing"):
        load_model(tmp_path, FINE_TUNED)
    assert load_encoder(tmp_path, head="question_answering").architecture == "OpenAIGPTModel"


def test_a_model_that_transformers_saved_anew_has_no_head_apart(tmp_path: Path) -> None:
    """It keeps our keys of `config.json`, and not the file."""
    save_finetuned(tmp_path, "gpt1", "question_answering")
    (tmp_path / "head.safetensors").unlink()
    edit_config(tmp_path, transformers_version="5.23.0", unmask_task={"name": "qa"})
    assert load_model(tmp_path).head_kind is None
    assert {"is": "an encoder without a head"}.items() <= (described := describe(tmp_path)).items()
    assert "task" not in described


def test_a_model_that_transformers_saved_anew_in_its_directory_has_no_head_apart(tmp_path: Path) -> None:
    """The file of the old head is still there."""
    save_finetuned(tmp_path, "bert", "question_answering")
    theirs = {"transformers_version": "5.23.0", "unmask_head": "question_answering", "unmask_head_class": "Custom"}
    save_file({"weight": torch.zeros(2)}, tmp_path / "head.safetensors")
    edit_config(tmp_path, **theirs, unmask_task={"name": "qa"})
    loaded = load_model(tmp_path, FINE_TUNED)
    assert (loaded.head_class, loaded.head_weights, loaded.head is None) == (None, None, False)
    save_model(tmp_path / "copy", loaded)
    assert load_model(tmp_path / "copy").config["transformers_version"] == "5.23.0", "what the record may be of"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pretrained_model_is_not_a_finetuned_one(tmp_path: Path, family: Architecture) -> None:
    with pytest.raises(ModelError, match=r"\) is .*: expected a fine-tuned model, as `unmask finetune` makes one"):
        load_model(save_pretrained(tmp_path, family), FINE_TUNED)


def test_googles_checkpoints_go_through_their_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where there is no config.json; what the reader gives is read as strictly as any directory."""
    hugging_face, google = save_pretrained(tmp_path / "hf", "bert"), tmp_path / "google"
    google.mkdir()
    (google / "bert_config.json").write_text("{}")
    config = json.loads((hugging_face / "config.json").read_text())
    weights = load_file(hugging_face / "model.safetensors")
    monkeypatch.setattr(google_checkpoint, "is_google_checkpoint", lambda directory: directory == google)
    monkeypatch.setattr(google_checkpoint, "read_google_checkpoint", lambda _: (config, weights))
    loaded = load_model(google)
    assert loaded.architecture == "BertForMaskedLM"
    assert_equal(loaded.encoder.state_dict(), load_model(hugging_face).encoder.state_dict())
    fresh = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
    assert load_encoder(google, head="sequence_classification").fresh == fresh
    del weights["bert.embeddings.LayerNorm.bias"]
    with pytest.raises(ModelError, match=r"google: .*bert\.embeddings\.LayerNorm\.bias \(12,\) is missing"):
        load_model(google)
    (google / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json: model_type is None"):
        load_model(google)


@pytest.mark.parametrize("family", ["gpt1", "modernbert_decoder"])
def test_a_head_in_a_file_of_its_own_is_known_without_weights(tmp_path: Path, family: Architecture) -> None:
    """As of an ONNX file of such a model."""
    head = save_finetuned(tmp_path, family, "token_classification", labels=["O", "B-X"])
    blank = blank_model(tmp_path, FINE_TUNED)
    assert (blank.head_kind, blank.labels, type(blank.head)) == ("token_classification", ("O", "B-X"), type(head))


def test_a_language_model_whose_class_is_left_out_is_known_by_its_head(tmp_path: Path) -> None:
    save_pretrained(tmp_path, "modernbert_decoder")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "is_decoder": True}))
    assert load_model(tmp_path, CAUSAL).architecture == "ModernBertDecoderForCausalLM"

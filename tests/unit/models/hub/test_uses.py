"""What models are for: every class that opens here."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.imports import loaded_with
from unmask.errors import ModelError, SettingsError
from unmask.inference.left_to_right.generation import generate
from unmask.inference.mask_filling import fill_mask
from unmask.inference.predictor import predict
from unmask.info import describe
from unmask.io.paths import GENERATOR, SPAN_BOUNDARY
from unmask.models.families.table import ARCHITECTURES
from unmask.models.hub.config import HEAD_KIND
from unmask.models.hub.directory import load_model
from unmask.models.hub.uses import CAUSAL, FINE_TUNED, MASKED, check_kind, use_of

CLASSES = {name: its for family in ARCHITECTURES.values() for name, its in family.classes.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_what_its_parts_make_it(name: str) -> None:
    parts = CLASSES[name].parts
    use = use_of({"architectures": [name]})
    assert (use.kind == CAUSAL) == ("causal_lm" in parts)
    assert (use.kind == MASKED) == ("masked_lm_head" in parts and "causal_lm" not in parts)
    heads = {"sequence_classification", "token_classification", "question_answering", "multiple_choice"}
    assert ("predict" in use.commands) == bool(heads & parts)
    assert {"finetune", "features"} <= set(use.commands)


def test_uses_are_known_without_torch() -> None:
    assert "torch" not in loaded_with("unmask.models.hub.uses")


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": []}, {"architectures": ["Other"]}])
def test_what_is_not_known_is_for_nothing(config: dict[str, Any]) -> None:
    assert use_of(config) is None
    assert use_of({**config, HEAD_KIND: "any"}) is None


FOREIGN = {"DistilBertForMaskedLM": "distilbert", "DebertaV2ForMaskedLM": "deberta-v2", "GPT2LMHeadModel": "gpt2"}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_model_that_does_not_load_has_no_commands(tmp_path: Path, name: str) -> None:
    """Whatever the end of its class's name promises."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "model_type": FOREIGN[name]}))
    message = f"architectures is ['{name}']: models of this family do not load here; expected a model_type of bert, "
    described = describe(tmp_path)
    assert not {"is", "commands"} & described.keys()
    assert message in described["does_not_load"]
    for command in (fill_mask, generate):
        with pytest.raises(ModelError, match=re.escape(message)):
            command(tmp_path, "a [MASK]")


def test_a_model_whose_settings_are_refused_has_no_commands(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"position_embedding_type": "relative_key"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    described = describe(tmp_path)
    assert not {"is", "commands"} & described.keys()
    assert "only learned absolute positions loads here" in described["does_not_load"]


def test_a_head_apart_is_a_fine_tuned_model(tmp_path: Path) -> None:
    use = use_of({"architectures": ["OpenAIGPTModel"], HEAD_KIND: "any"})
    with pytest.raises(ModelError, match=r"\(OpenAIGPTModel\) is a fine-tuned model: expected .* `unmask predict`"):
        check_kind(tmp_path, "OpenAIGPTModel", use, CAUSAL)


def test_a_model_of_another_kind_is_refused_before_its_weights_are_read(tiny_model: Path, tmp_path: Path) -> None:
    """Also one whose class is found by the names of its weights."""
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"\(Bert\w+: config.json names no architectures\) is a masked"):
        generate(tmp_path, "a")
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"\(BertForMaskedLM\) is a masked language model: expected a fine-tuned"):
        predict(tmp_path, [{"text": "a"}])


def test_a_kind_that_does_not_exist_is_refused(tiny_model: Path) -> None:
    with pytest.raises(SettingsError, match=r"^kind='MASKED': expected 'a left-to-right .*', 'a masked .*', 'a fine-"):
        load_model(tiny_model, "MASKED")


def test_a_refusal_names_commands_that_an_onnx_file_is_for(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    use = use_of({"architectures": ["BertForMaskedLM"]})
    commands = "`unmask fill-mask`, `unmask features`, `unmask similarity`, `unmask serve`"
    with pytest.raises(ModelError, match=f"this one is for {commands}$"):
        check_kind(tmp_path, "BertForMaskedLM", use, FINE_TUNED)


def test_info_tells_of_a_head_and_a_generator_beside_the_model(tiny_model: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for folder in (tmp_path, tmp_path / GENERATOR):
        shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    alone = describe(tiny_model)
    assert alone["is"] == MASKED
    assert not {"span_boundary_head", "generator"} & alone.keys()
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(2)}, tmp_path / SPAN_BOUNDARY)
    described = describe(tmp_path)
    assert described["span_boundary_head"] == {"num_parameters": 14}
    assert described["num_parameters"] == alone["num_parameters"] + 14
    assert described["generator"]["num_parameters"] == alone["num_parameters"]
    assert described["generator"]["hidden_size"] == 32

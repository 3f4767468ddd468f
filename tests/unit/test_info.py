"""What a path is, told without torch."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from support.model_files import edit_config
from unmask.errors import InputError, ModelError, SettingsError
from unmask.info import describe, format_description
from unmask.store.preparation import prepare


def test_a_model(tiny_model: Path) -> None:
    description = describe(tiny_model)
    assert description["kind"] == "model"
    assert description["architectures"] == ["BertForPreTraining"]
    with safe_open(tiny_model / "model.safetensors", "np") as file:
        assert description["num_parameters"] == sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118
    assert description["tokenizer"]["vocab_size"] == 400
    shown = format_description(description)
    assert "BertForPreTraining" in shown
    assert "hidden_size" in shown


def test_an_exported_model_is_described_with_its_certificate(tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "export", ignore=shutil.ignore_patterns("*.safetensors")))
    (model / "model.onnx").write_bytes(b"")
    assert "export" not in describe(model), "made by another program"
    told = {"format": "onnx-int8", "opset": 18}
    told |= {"largest_difference": {"logits": 0.02}, "latency_ms": {"before": 4.0, "after": 1.5}}
    (model / "certificate.json").write_text(json.dumps({**told, "examples": 16}), "utf-8")
    description = describe(model)
    assert description["export"] == told
    assert re.search(r"opset +18\n.*\n +logits +0.02\n.*\n +before +4\n +after +1.5\n", format_description(description))


@pytest.mark.parametrize("name", ["en", "ko"])
def test_a_sample_encoder_is_a_model_although_its_recipe_is_beside_it(name: str) -> None:
    description = describe(Path(__file__).parents[2] / "samples" / "models" / name)
    assert description["kind"] == "model"
    assert description["architectures"] == ["ModernBertForMaskedLM"]
    assert description["tokenizer"]["case"] == "cased"


def test_columns_stand_in_line_where_a_letter_takes_two_places() -> None:
    facts = {"kind": "run", "path": "a", "figures": {"f1 of 영화": 1, "accuracy of": 2}}
    assert format_description(facts).splitlines()[-2:] == ["    f1 of 영화   1", "    accuracy of  2"]


def test_a_model_without_a_class_and_without_safetensors_does_not_load(tiny_model: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    edit_config(model, architectures=None)
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    described = describe(model)
    assert "has only pytorch_model.bin" in described["does_not_load"]
    assert (described["architectures"], described.get("is")) == (None, None)


def test_a_store_and_an_unfinished_one(tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("A man is outside. He plays.\n\nTwo \u200bdogs run.\n", encoding="utf-8")
    prepare([text], tiny_model, tmp_path / "store")
    description = describe(tmp_path / "store")
    assert (description["kind"], description["complete"]) == ("store", True)
    assert (description["documents"], description["sentences"]) == (2, 3)
    assert description["stored_bytes_per_token"] == 2
    assert description["bytes_per_token"] == pytest.approx(description["text_bytes"] / description["tokens"])
    assert description["removed"] == {"zero-width characters": 1}
    assert description["sources"][0]["file"] == str(text)
    assert json.loads(json.dumps(description)) == description
    (tmp_path / "store" / "manifest.json").unlink()
    assert describe(tmp_path / "store")["complete"] is False
    assert "an unfinished store" in format_description(describe(tmp_path / "store"))


def test_a_run_half_way(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("corpus: [a.txt]\ntrain: {steps: 200, batch_size: 8}\n")
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 50, "tokens": 900, "examples_hash": 52236900764795, "loss": 5.5}\n'
        '{"step": 50, "eval/mlm_loss": 5.1}\n'
        '{"step": 100, "tokens": 1800, "examples_hash": 70236900764795, "loss": 4}\n'
    )
    description = describe(tmp_path)
    assert (description["kind"], description["program"], description["progress"]) == ("run", "pretrain", 0.5)
    assert description["steps"] == 100
    assert description["last_metrics"] == {"step": 100, "loss": 4, "eval/mlm_loss": 5.1}
    assert "an unfinished run" in format_description(description)
    checkpoint = tmp_path / "checkpoints" / "step-00000150"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text('{"step": 150, "tokens": 2700, "epochs": 1.5, "seconds": 60}')
    assert describe(tmp_path)["progress"] == 0.75
    assert describe(tmp_path)["checkpoints"] == ["step-00000150"]
    assert "budget_changed" not in describe(tmp_path)
    change = {"step": 60, "was": "train.steps=60", "now": "train.steps=200"}
    (tmp_path / "environment.json").write_text(json.dumps({"sessions": [{}, {"budget_change": change}]}))
    shown = format_description(describe(tmp_path))
    assert "budget_changed  at step 60, from train.steps=60 to train.steps=200\n" in shown


def test_a_run_from_a_store_has_no_settings_of_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("store: stores/ko\ntrain: {steps: 200, batch_size: 8}\n")
    settings = describe(tmp_path)["settings"]
    assert settings["store"] == "stores/ko"
    assert "tokenizer" not in settings  # those of the store's own are not in a recipe


def test_a_tokenizer_and_a_recipe(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    assert describe(tmp_path)["kind"] == "tokenizer"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("# source: mine\nseed: 3\n")
    assert describe(recipe) == {
        "kind": "recipe", "path": str(recipe), "about": ["source: mine"], "settings": {"seed": "3"}
    }  # fmt: skip


def test_a_recipe_that_is_not_right_is_shown_or_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("phases: [{until: 0.5}, 3]\n")
    assert format_description(describe(recipe)).endswith("phases  {'until': '0.5'}, 3")
    recipe.write_bytes("# 조리법\nseed: 3\n".encode("cp949"))
    with pytest.raises(SettingsError, match=r"mine\.yaml: not UTF-8 at byte 2: save the recipe as UTF-8"):
        describe(recipe)


def test_a_recipe_that_comes_with_unmask_by_its_name() -> None:
    description = describe("pretrain/bert_tiny")
    assert description["kind"] == "recipe"
    assert any(line.startswith("source: ") for line in description["about"])


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},  # of which nothing is there
        {"dtype": "F32", "shape": "two", "data_offsets": [0, 0]},
        {"dtype": "F33", "shape": [0], "data_offsets": [0, 0]},
        {"shape": [0]},
        1,
    ],
)
def test_weights_that_are_none_are_refused(tmp_path: Path, tensor: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    header = json.dumps({"a": tensor}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match=r"model\.safetensors: cut short or damaged"):
        describe(tmp_path)


def test_a_model_whose_tokenizer_does_not_open(tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (model / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}', "utf-8")
    described = describe(model)
    assert "the model's type is 'Unigram'" in described["tokenizer"]["does_not_load"]
    assert (described["model_type"], "commands" in described) == ("bert", False)
    for file in ("tokenizer.json", "vocab.txt"):
        (model / file).unlink()
    assert "holds no tokenizer" in describe(model)["tokenizer"]["does_not_load"]


def test_refused(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-.replaced-st").mkdir()
    with pytest.raises(InputError, match=r"st: a command that replaced it was stopped half-way, and it is in \.unfin"):
        describe(tmp_path / "st")
    with pytest.raises(InputError, match="no such file or directory"):
        describe(tmp_path / "absent")
    with pytest.raises(InputError, match=r"neither a store .* nor a recipe"):
        describe(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(ModelError, match="holds a LoRA adapter and not the model that it changes: merge the two"):
        describe(tmp_path)
    (tmp_path / "ensemble.json").write_text('{"members": ["a"]}')
    assert describe(tmp_path)["kind"] == "ensemble", "whatever lies beside it"
    (tmp_path / "ensemble.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((1000).to_bytes(8, "little") + b'{"a"')
    with pytest.raises(ModelError, match="cut short or damaged"):
        describe(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("gone")  # as in a Hub cache that was not filled
    with pytest.raises(ModelError, match="cut short or damaged"):
        describe(tmp_path)


def test_torch_is_not_imported() -> None:
    look = "import sys, unmask.info; assert 'torch' not in sys.modules"
    finished = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_a_search_that_was_stopped_in_its_first_trial(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("seed: 0\n")
    (tmp_path / "trials" / "lr1_seed0").mkdir(parents=True)
    expected = f"{tmp_path}: an unfinished search\n  complete  False\n  begun     1\n  finished  0"
    assert format_description(describe(tmp_path)) == expected


def test_a_search_and_an_ensemble(tmp_path: Path) -> None:
    mean = {"accuracy": {"mean": 0.5, "sd": 0.1}}
    summary = {
        "metric": "accuracy",
        "num_trials": 4,
        "num_finished": 2,
        "num_failed": 1,
        "combinations": [{"name": "lr1", "n": 2, "dev": mean}, {"name": "lr2", "n": 0, "dev": {}}],
        "best_on_dev": {"trial": "lr1_seed0", "dev": {"accuracy": 0.6}},
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "recipe.yaml").write_text("seed: 0\n")
    described = describe(tmp_path)
    assert (described["kind"], described["complete"]) == ("search", False)
    assert described["combinations"] == [{"name": "lr1", "runs": 2, "dev_mean": 0.5, "dev_sd": 0.1}]
    assert described["best_on_dev"] == {"trial": "lr1_seed0", "accuracy": 0.6}
    assert format_description(described).startswith(f"{tmp_path}: an unfinished search\n")
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"num_finished": 3}))
    assert format_description(describe(tmp_path)).startswith(f"{tmp_path}: a search\n")
    (tmp_path / "summary.json").write_text('{"pages": 3}')  # somebody else's
    with pytest.raises(InputError, match=r"summary\.json: cannot be read as the summary of a search"):
        describe(tmp_path)
    (tmp_path / "ensemble").mkdir()
    (tmp_path / "ensemble" / "ensemble.json").write_text('{"members": ["../a", "../b"]}')
    assert (
        format_description(describe(tmp_path / "ensemble"))
        == f"{tmp_path}/ensemble: an ensemble\n  members  {tmp_path}/a, {tmp_path}/b"
    )
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "link").symlink_to(tmp_path / "ensemble")
    assert describe(tmp_path / "in" / "a" / "link")["members"] == [f"{tmp_path}/a", f"{tmp_path}/b"]


def test_labels_with_commas_can_be_told_apart() -> None:
    description = {"path": "a", "kind": "model", "labels": ["연기/배우, 음악", "소리"]}
    assert format_description(description).endswith("labels  '연기/배우, 음악', 소리")

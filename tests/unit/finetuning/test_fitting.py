"""A recipe's length and rate follow the model; what the user gives stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask.finetuning.fitting import fit_to_models, rate_for
from unmask.models.bert import BertEncoder
from unmask.models.hub.config import length_config
from unmask.models.hub.directory import save_model
from unmask.models.settings import ModelSettings
from unmask.recipe.loading import load_finetune_recipe


def model_of(directory: Path, width: int = 64, trained: int | None = None) -> Path:
    """An encoder of 512 positions."""
    torch.manual_seed(0)
    sizes = ModelSettings(preset="tiny", hidden_size=width, num_hidden_layers=1, num_attention_heads=2)
    resolved = sizes.resolve(100)
    save_model(directory, BertEncoder(resolved, pooler=True), extra_config=length_config(resolved, trained))
    return directory


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], (64, 21)),  # the recipe's are 384 and 128
        (["task.doc_stride=40"], (64, 40)),
        (["task.max_length=100"], (100, 128)),
    ],
)
def test_a_length_and_a_stride_that_the_user_gives_stay(tmp_path: Path, given: list[str], expected: object) -> None:
    words = [f"init_from={model_of(tmp_path / 'model', trained=64)}", "data.train=train.json", *given]
    task = fit_to_models(load_finetune_recipe("finetune/qa", words), "finetune/qa", words)[0].task
    assert (task.max_length, task.doc_stride) == expected


def test_narrow_encoders_get_larger_rates() -> None:
    assert [rate_for(width) for width in (32, 128, 256, 384, 512, 768, 1024)] == [
        5e-4, 5e-4, 3e-4, 1e-4, 1e-4, 5e-5, 5e-5,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("width", "given", "expected"),
    [
        (64, [], 5e-4),
        (256, [], 3e-4),
        (640, [], 5e-5),
        (64, ["optimizer.learning_rate=5e-5"], 5e-5),
        (64, ["optimizer.name=lamb"], 5e-5),
        (64, ["optimizer.name=adamw"], 5e-4),
    ],
)
def test_a_rate_that_the_user_gives_stays(
    tmp_path: Path, width: int, given: list[str], expected: float, caplog: pytest.LogCaptureFixture
) -> None:
    words = [f"init_from={model_of(tmp_path / 'model', width)}", "data.train=a.csv", "data.dev=b.csv", *given]
    settings = load_finetune_recipe("finetune/classification", words)
    assert fit_to_models(settings, "finetune/classification", words)[0].optimizer.learning_rate == expected
    assert ("in place of the recipe's 5e-05" in caplog.text) == (expected != 5e-5)


def test_a_search_with_rates_of_its_own_can_be_resumed_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [f"init_from={model_of(tmp_path / 'model')}", "data.train=a.csv", "data.dev=b.csv"]
    rates = [*words, "search.learning_rates=[1e-3]"]
    searched = fit_to_models(load_finetune_recipe("finetune/sst2", rates), "finetune/sst2", rates)[0]
    assert caplog.text == ""
    alone = fit_to_models(load_finetune_recipe("finetune/sst2", words), "finetune/sst2", words)[0]
    assert searched.optimizer == alone.optimizer


def test_a_recipe_of_the_user_is_as_she_wrote_it(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"base: finetune/sst2\ninit_from: {model_of(tmp_path / 'model')}\n")
    settings = load_finetune_recipe(str(recipe))
    assert fit_to_models(settings, str(recipe), ())[0] == settings


def test_of_several_models_the_widest_decides_and_for_the_length_the_one_trained_on_least(tmp_path: Path) -> None:
    models = [str(model_of(tmp_path / str(width), width, trained)) for width, trained in ((64, 100), (512, 64))]
    words = [f"search.checkpoints=[{','.join(models)}]", "data.train=a.csv", "data.dev=b.csv"]
    settings, sources = fit_to_models(load_finetune_recipe("finetune/sst2", words), "finetune/sst2", words)
    assert (settings.optimizer.learning_rate, settings.task.max_length) == (1e-4, 64)
    assert [source.settings.hidden_size for source in sources] == [64, 512]

"""What is given in a recipe that has `init_from`: kept when the recipe is written and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from unmask.config import build_settings, changed_keys, dump_settings, read_settings_file
from unmask.models.elmo.settings import ElmoModelSettings
from unmask.models.settings import ModelSettings
from unmask.recipe.tree import PretrainRecipe
from unmask.tokenization.settings import TokenizerSettings
from unmask.training.settings import TrainSettings

SIZES: dict[str, st.SearchStrategy[Any]] = {
    "preset": st.sampled_from(["tiny", "base"]),
    "architecture": st.sampled_from(["bert", "roberta"]),
    "causal": st.booleans(),
    "hidden_size": st.none() | st.integers(1, 99),
    "hidden_dropout_prob": st.sampled_from([0.0, 0.1]),
}
TOKENIZERS = st.fixed_dictionaries(
    {}, optional={"kind": st.sampled_from(["wordpiece", "bpe"]), "vocab_size": st.sampled_from([30522, 50])}
)


def written(recipe: PretrainRecipe, path: Path) -> PretrainRecipe:
    path.write_text(dump_settings(recipe), encoding="utf-8")
    return build_settings(PretrainRecipe, read_settings_file(path), "here")


@given(sizes=st.fixed_dictionaries({}, optional=SIZES), tokenizer=TOKENIZERS, names_a_model=st.booleans())
def test_what_is_given_is_given_when_it_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, Any], tokenizer: dict[str, Any], names_a_model: bool
) -> None:
    recipe = PretrainRecipe(
        corpus=["a.txt"],
        init_from="model" if names_a_model else None,
        model=ModelSettings(**(sizes if names_a_model else {})),
        tokenizer=TokenizerSettings(**tokenizer),
        train=TrainSettings(steps=1),
    )
    back = written(recipe, tmp_path_factory.getbasetemp() / "beside.yaml")
    assert back == recipe
    assert not changed_keys(back, recipe)
    if names_a_model:
        assert isinstance(back.tokenizer, TokenizerSettings)
        assert back.model.model_fields_set == sizes.keys()
        assert back.tokenizer.model_fields_set == tokenizer.keys()


def test_an_elmo_stays_one(tmp_path: Path) -> None:
    model = ElmoModelSettings(cell_size=9)
    recipe = PretrainRecipe(store="words", init_from="elmo", model=model, train=TrainSettings(steps=1))
    assert written(recipe, tmp_path / "recipe.yaml") == recipe
    assert yaml.safe_load(dump_settings(recipe))["model"] == {"cell_size": 9, "architecture": "elmo"}


@pytest.mark.parametrize("model", [ModelSettings(hidden_size=32), ElmoModelSettings(cell_size=32)], ids=str)
def test_of_every_key_written_out_only_what_is_otherwise_by_default_is_given(
    model: ModelSettings | ElmoModelSettings,
) -> None:
    """Recipes of earlier runs are so."""
    recipe = PretrainRecipe(store="a", init_from="b", model=model, train=TrainSettings(steps=1))
    back = build_settings(PretrainRecipe, recipe.model_dump(mode="json"), "here")
    assert back == recipe
    assert back.model.model_fields_set == model.model_fields_set
    assert isinstance(back.tokenizer, TokenizerSettings)
    assert not back.tokenizer.model_fields_set

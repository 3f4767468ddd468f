"""What a recipe says of text, tokenizer and model at once; and settings that are another recipe's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from support.files import write
from unmask.config import changed_keys, dump_settings
from unmask.corpus.files import FORMAT_OF_SUFFIX
from unmask.errors import SettingsError
from unmask.recipe.loading import load_finetune_recipe, load_pretrain_recipe, read_tokenizer_options
from unmask.tokenization.settings import TokenizerSettings


def test_beside_a_store_no_other_tokenizer_is_stated(tmp_path: Path) -> None:
    """That of the recipe is for training one on a corpus; in a run's recipe it would be untrue."""
    with_corpus = load_pretrain_recipe("pretrain/gpt1_tiny", ["corpus=a.txt"])
    with_store = load_pretrain_recipe("pretrain/gpt1_tiny", ["store=s"])
    assert isinstance(with_corpus.tokenizer, TokenizerSettings)
    assert with_corpus.tokenizer.kind == "bpe"
    assert "tokenizer" in yaml.safe_load(dump_settings(with_corpus))
    assert "tokenizer" not in yaml.safe_load(dump_settings(with_store))
    read_back = load_pretrain_recipe(str(write(tmp_path / "recipe.yaml", dump_settings(with_store))))
    assert not changed_keys(read_back, with_store)
    other = load_pretrain_recipe("pretrain/gpt1_tiny", ["corpus=a.txt", "tokenizer.vocab_size=99"])
    assert list(changed_keys(with_corpus, other)) == ["tokenizer.vocab_size"]


def test_a_number_of_entries_replaces_one_of_merges() -> None:
    recipe = load_pretrain_recipe("pretrain/gpt1_base", ["corpus=a.txt", "tokenizer.vocab_size=8000"])
    options = read_tokenizer_options("gpt1", {}, {}, ["tokenizer.vocab_size=8000"]).tokenizer
    given = read_tokenizer_options("gpt1", {"vocab_size": 8000}, {}, []).tokenizer
    assert isinstance(recipe.tokenizer, TokenizerSettings)
    for settings in (recipe.tokenizer, options, given):
        assert (settings.kind, settings.vocab_size, settings.num_merges) == ("bpe", 8000, None)


@pytest.mark.parametrize("tokenizer", ["{vocab_sise: 5}", "{vocab_size: banana}", "[a]"])
def test_beside_a_store_a_tokenizer_is_checked_all_the_same(tokenizer: str, tmp_path: Path) -> None:
    path = write(tmp_path / "recipe.yaml", f"store: s\ntokenizer: {tokenizer}\ntrain: {{steps: 1}}\n")
    with pytest.raises(SettingsError, match="tokenizer"):
        load_pretrain_recipe(str(path))


@pytest.mark.parametrize("name", ["continued", "continued_electra", "continued_electra_short", "continued_elmo"])
def test_a_recipe_that_continues_from_a_model_requires_it(name: str) -> None:
    for words in ([], ["init_from="], ["init_from=null"]):
        with pytest.raises(SettingsError, match=rf"^pretrain/{name} continues from a model: give init_from=MODEL"):
            load_pretrain_recipe(f"pretrain/{name}", ["store=s", *words])
    assert load_pretrain_recipe(f"pretrain/{name}", ["store=s", "init_from=m"]).init_from == "m"


@pytest.mark.parametrize("name", ["books.txt.gz", "texts/*.txt", *(f"a{suffix}" for suffix in FORMAT_OF_SUFFIX)])
def test_a_file_of_text_is_no_recipe(name: str) -> None:
    said = f"{name} is no recipe, which comes first: a .yaml file, or a name. For a file of text give such as "
    usual = f"`unmask finetune finetune/classification init_from=MODEL data.train={name}`"
    with pytest.raises(SettingsError, match=re.escape(said + usual)):
        load_finetune_recipe(name)
    with pytest.raises(SettingsError, match=re.escape(f"{said}`unmask pretrain pretrain/bert_tiny corpus={name}`")):
        load_pretrain_recipe(name)


def test_a_folder_is_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "texts" / "a.txt", "")
    said = "texts is a folder, and a recipe comes first: a .yaml file, or a name. For a folder of text give such as "
    models = "; a model's is init_from"
    usual = f"`unmask finetune finetune/classification init_from=MODEL data.train=texts`{models}"
    with pytest.raises(SettingsError, match=f"^{re.escape(said + usual)}$"):
        load_finetune_recipe("texts")
    usual = f"`unmask pretrain pretrain/bert_tiny corpus=texts`{models}, and a store's is store"
    with pytest.raises(SettingsError, match=f"^{re.escape(said + usual)}$"):
        load_pretrain_recipe("texts")
    write(tmp_path / "runs" / "en" / "recipe.yaml", "")
    with pytest.raises(SettingsError, match=r"^runs/en is a run: give its recipe, runs/en/recipe.yaml, or another"):
        load_pretrain_recipe("runs/en")
    with pytest.raises(SettingsError, match=r"^no recipe ''"):
        load_pretrain_recipe("")
    (tmp_path / "pretrain" / "bert_tiny").mkdir(parents=True)
    assert load_pretrain_recipe("pretrain/bert_tiny", ["store=s"]).store == "s"


@pytest.mark.parametrize("name", ["corpus=x.txt", "train.steps=10", "pretrain/bert-1.5"])
def test_a_recipe_that_is_forgotten_or_misspelt_is_no_text(name: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(name)) as raised:
        load_pretrain_recipe(name)
    assert "For a file of text" not in str(raised.value)


def test_a_recipe_may_have_any_other_suffix(tmp_path: Path) -> None:
    for name in ("mine.v2", "mine.json"):
        (tmp_path / name).write_text('{"base": "pretrain/bert_tiny", "corpus": "a.txt"}')
        assert load_pretrain_recipe(str(tmp_path / name)).corpus == ["a.txt"]


@pytest.mark.parametrize("name", ["classification", "multi_label", "regression", "qa", "choice", "tagging"])
def test_a_recipe_for_ones_own_examples_asks_for_them(name: str) -> None:
    with pytest.raises(SettingsError, match=r"data\.train is required$"):
        load_finetune_recipe(f"finetune/{name}", ["init_from=model"])


def test_settings_of_the_other_program_are_not_taken_for_slips() -> None:
    with pytest.raises(SettingsError, match=r"^task is set in recipes of `unmask finetune`, and pretrain/bert_tiny is"):
        load_pretrain_recipe("pretrain/bert_tiny", ["corpus=a", "task.max_length=8"])
    with pytest.raises(SettingsError, match=r"^packing is set in recipes of `unmask pretrain`, and finetune/sst2 is"):
        load_finetune_recipe("finetune/sst2", ["init_from=m", "packing.max_length=8"])


def test_a_recipe_is_of_the_program_that_alone_has_its_keys(tmp_path: Path) -> None:
    """A file need not say what the command line does: neither its text nor its examples."""
    tuned = str(write(tmp_path / "tuned.yaml", "task: {name: classification}\ntrain: {epochs: 1}\n"))
    either = str(write(tmp_path / "either.yaml", "train: {epochs: 1}\n"))
    words = ["init_from=m", "data.train=a.csv"]
    assert load_finetune_recipe(tuned, words).task.name == "classification"
    assert load_finetune_recipe(either, [*words, "task.name=classification"]).train.epochs == 1
    assert load_pretrain_recipe(either, ["corpus=a"]).train.epochs == 1
    with pytest.raises(SettingsError, match=r"tuned.yaml is a recipe for `unmask finetune`: give it to that"):
        load_pretrain_recipe(tuned, ["corpus=a"])
    stray = str(write(tmp_path / "stray.yaml", "store: s\ninit_from: m\ndata: {train: a}\ntask: {name: sst2}\n"))
    with pytest.raises(SettingsError, match=r"stray.yaml: unknown key store"):
        load_finetune_recipe(stray)


def test_a_phase_of_a_recipe_without_phases_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^pretrain/bert_tiny has no phases, so there is no phases.0 to change"):
        load_pretrain_recipe("pretrain/bert_tiny", ["corpus=a", "phases.0.max_length=64"])
    for words in ("phases={}", "phases={until: 1}"):
        with pytest.raises(SettingsError, match=r"^pretrain/bert_tiny: phases=.*: expected a list"):
            load_pretrain_recipe("pretrain/bert_tiny", ["corpus=a", words])
    with pytest.raises(
        SettingsError, match=r"unknown key phases\.0\.max_lenght; did you mean phases\.0\.max_length\?$"
    ):
        load_pretrain_recipe("pretrain/bert_tiny", ["corpus=a", "phases=[{until: 0.5, max_lenght: 64}, {until: 1}]"])


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        (
            "modern_tiny",
            ["objective.causal_share=1"],
            "every sequence would be read from left to right and none masked",
        ),
        (
            "modern_tiny",
            ["phases=[{until: 0.5, causal_share: 1}, {until: 1, causal_share: 1}]"],
            "give the last phase less, such as phases.1.causal_share=0",
        ),
        (
            "electra_tiny",
            [
                *("objective.causal_share=.5", "objective.discriminator_after=.5"),
                "phases=[{until: 0.5}, {until: 1, causal_share: 0.5}]",
            ],
            "phases.1.causal_share=0.5: objective.causal_share is 0 here, or this objective reads nothing from left",
        ),
        ("modern_tiny", ["model.causal=true"], "predicted from both sides; take model.causal=false"),
    ],
)
def test_shares_that_leave_nothing_to_learn(recipe: str, words: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        load_pretrain_recipe(f"pretrain/{recipe}", ["corpus=a", *words])


@pytest.mark.parametrize("recipe", ["bert_no_nsp_tiny", "electra_joint_mini", "gpt1_tiny"])
def test_a_phase_has_no_causal_share_where_the_objective_has_none(recipe: str) -> None:
    words = ["corpus=a", "phases=[{until: 0.5}, {until: 1, causal_share: 0.5}]"]
    with pytest.raises(SettingsError, match=r"phases\.1\.causal_share=0\.5: objective\.causal_share is 0 here"):
        load_pretrain_recipe(f"pretrain/{recipe}", words)


def test_a_base_says_how_to_train_a_tokenizer_where_none_is_taken_over(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("base: pretrain/modern_mini\ninit_from: runs/before\ncorpus: [a.txt]\n")
    for given, expected in (([], set()), (["init_from=null"], {"vocab_size"})):
        tokenizer = load_pretrain_recipe(str(recipe), given).tokenizer
        assert isinstance(tokenizer, TokenizerSettings)
        assert tokenizer.model_fields_set == expected

"""Recipes: found, laid on a base, overridden, checked for contradictions, and written so that they read back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from support import files
from unmask.config import KEYS_ELSEWHERE, build_settings, dump_settings, read_settings_file, valid_keys
from unmask.errors import SettingsError
from unmask.models.settings import ModelSettings, Preset
from unmask.objectives.settings import CausalLMSettings, MaskedLMSettings, ReplacedTokenSettings
from unmask.objectives.table import CALLED_OTHERWISE, OBJECTIVES
from unmask.packing.settings import PackingSettings, PhaseSettings
from unmask.recipe.loading import ALTERNATIVES, load_finetune_recipe, load_pretrain_recipe, merged_values
from unmask.recipe.names import known_recipes
from unmask.recipe.tree import FinetuneRecipe, PretrainRecipe
from unmask.tasks.settings import ColumnSettings, DataSettings, TaskSettings
from unmask.tokenization.settings import TokenizerSettings
from unmask.training.settings import BUDGETS, OptimizerSettings, ScheduleSettings, TrainSettings

PLAIN = "corpus: [a.txt]\ntrain: {steps: 10}\n"


def write(tmp_path: Path, text: str, name: str = "recipe.yaml") -> str:
    return str(files.write(tmp_path / name, text))


def load(tmp_path: Path, text: str, *overrides: str) -> PretrainRecipe:
    return load_pretrain_recipe(write(tmp_path, text), overrides)


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, text, *overrides)
    return str(refused.value).removeprefix(f"{tmp_path / 'recipe.yaml'}: ")


# ------------------------------------------------------------------------------------------------------------- found


def test_recipes_are_found_by_path_and_by_name(tmp_path: Path) -> None:
    by_name = load_pretrain_recipe("pretrain/bert_tiny", ["corpus=a.txt"])
    assert by_name.model.preset == "tiny"
    assert by_name.corpus == ["a.txt"]
    assert load(tmp_path, PLAIN).train.steps == 10


def test_a_missing_recipe_names_the_nearest() -> None:
    for name, told in (
        ("pretrain/bert_tinny", r"no recipe 'pretrain/bert_tinny'.*did you mean pretrain/bert_tiny or "),
        ("roberta_min.yaml", r"did you mean pretrain/roberta_mini or .*\(`ls .*/recipes/pretrain` lists"),
        ("nothing", r"no recipe '.*': expected a YAML file, or the name of .*: pretrain/afternoon, "),
    ):
        with pytest.raises(SettingsError, match=told):
            load_pretrain_recipe(name)
    with pytest.raises(SettingsError, match=r"no recipe 'sst': .*did you mean finetune/sst2\?"):
        load_finetune_recipe("sst")
    with pytest.raises(SettingsError) as refused:
        load_finetune_recipe("zzz")
    assert "finetune/sst2" in str(refused.value)
    assert "pretrain/" not in str(refused.value)


# -------------------------------------------------------------------------------------------------------------- base


def test_a_base_is_overridden_key_by_key(tmp_path: Path) -> None:
    write(tmp_path, "model: {preset: mini, hidden_act: relu}\ntrain: {steps: 5, batch_size: 7}\n", "base.yaml")
    recipe = load(tmp_path, "base: base.yaml\ncorpus: a.txt\nmodel: {hidden_act: tanh}\ntrain: {tokens: 9}\n")
    assert (recipe.model.preset, recipe.model.hidden_act) == ("mini", "tanh")
    assert (recipe.train.steps, recipe.train.tokens, recipe.train.batch_size) == (None, 9, 7)


def test_a_base_is_named_from_the_recipes_folder_or_as_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "train: {steps: 1}\ncorpus: a", "recipes/base.yaml")
    write(tmp_path, "base: base.yaml", "recipes/recipe.yaml")
    assert load_pretrain_recipe(str(tmp_path / "recipes" / "recipe.yaml")).train.steps == 1
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path, "base: recipes/base.yaml").train.steps == 1
    assert load(tmp_path, "base: pretrain/bert_tiny\ncorpus: a").model.preset == "tiny"


def test_a_base_may_have_a_base_of_its_own(tmp_path: Path) -> None:
    """Each named from the folder of the recipe that names it, and laid on it as any recipe on its base."""
    write(tmp_path, "corpus: a\ntrain: {steps: 5, batch_size: 7}\ntokenizer: {vocab_size: 9}", "other/bottom.yaml")
    write(tmp_path, "base: bottom.yaml\ntrain: {tokens: 9}\noptimizer: {name: lamb}", "other/middle.yaml")
    recipe = load(tmp_path, "base: other/middle.yaml\ntrain: {batch_size: 3}")
    assert (recipe.train.steps, recipe.train.tokens, recipe.train.batch_size) == (None, 9, 3)
    assert (recipe.optimizer.name, recipe.corpus, recipe.tokenizer.vocab_size) == ("lamb", ["a"], 9)
    of_their_own = [name for name, path in known_recipes().items() if "base" in read_settings_file(path)]
    assert {"pretrain/modern_tiny", "pretrain/electra_tiny", "pretrain/spanbert_tiny"} <= set(of_their_own)
    for name in of_their_own:
        if name.startswith("pretrain/"):
            theirs = merged_values(PretrainRecipe, name, ["store=x", "init_from=m"])
            write(tmp_path, f"base: {name}")
            assert merged_values(PretrainRecipe, str(tmp_path / "recipe.yaml"), ["store=x", "init_from=m"]) == theirs


def test_what_continues_from_a_model_learns_no_tokenizer_of_a_base(tmp_path: Path) -> None:
    write(tmp_path, "corpus: a\ntrain: {steps: 5}\ntokenizer: {vocab_size: 9}", "bottom.yaml")
    write(tmp_path, "base: bottom.yaml\ninit_from: m", "middle.yaml")
    assert "tokenizer" not in load(tmp_path, "base: middle.yaml").model_fields_set
    assert load(tmp_path, "base: middle.yaml\ninit_from: null").tokenizer.vocab_size == 9
    assert load(tmp_path, "base: middle.yaml", "init_from=null").tokenizer.vocab_size == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: recipe.yaml", "recipe.yaml: its base recipe.yaml is based on this recipe: name another, or none"),
        ("base: round.yaml", "round.yaml: its base recipe.yaml is based on this recipe: name another, or none"),
        ("base: round_again.yaml", "its base round_again.yaml is based on this recipe: name another, or none"),
        ("base: missing.yaml", "no recipe 'missing.yaml': expected a YAML file"),
        ("base: [bottom.yaml]", r"base=\['bottom.yaml'\]: expected the path or the name of one recipe"),
        ("base: broken.yaml", "broken.yaml, line 1, column 5: not valid YAML"),
    ],
)
def test_a_wrong_base_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, PLAIN, "bottom.yaml")
    write(tmp_path, "base: recipe.yaml", "round.yaml")
    write(tmp_path, "base: round_again.yaml", "round_again.yaml")
    write(tmp_path, "a: b: c", "broken.yaml")
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, text)


def test_a_base_on_the_command_line_is_refused(tmp_path: Path) -> None:
    assert "base cannot be given on the command line: name it in the recipe" in refusal(tmp_path, PLAIN, "base=x.yaml")


# --------------------------------------------------------------------------------------------------------- overrides


def test_overrides_win(tmp_path: Path) -> None:
    words = ["optimizer.learning_rate=1e-4", "optimizer.betas=[0.9, 0.98]", "optimizer.bias_correction=no"]
    recipe = load(tmp_path, PLAIN, *words, "train.save_every=null", "train.steps=1_000", "corpus=*.txt")
    assert recipe.optimizer == OptimizerSettings(learning_rate=1e-4, betas=(0.9, 0.98), bias_correction=False)
    assert (recipe.train.save_every, recipe.train.steps) == (None, 1000)
    assert recipe.corpus == ["*.txt"]


def test_a_phase_is_changed_by_its_number(tmp_path: Path) -> None:
    text = PLAIN + "phases: [{until: .5, max_length: 32}, {until: 1, max_length: 64}]"
    phases = load(tmp_path, text, "phases.0.max_length=16", "phases.1.micro_batch_size=2").phases
    found = [(phase.until, phase.max_length, phase.micro_batch_size) for phase in phases]
    assert found == [(0.5, 16, None), (1, 64, 2)]
    assert "phases.2: phases holds 2 values, phases.0 to phases.1" in refusal(tmp_path, text, "phases.2.max_length=16")


@pytest.mark.parametrize(
    ("share", "phases", "mixes"),
    [
        ("0", "[]", False),
        (".5", "[]", True),
        (".5", "[{until: .5, causal_share: 1}, {until: 1, causal_share: 0}]", False),
        (".5", "[{until: .5, causal_share: 1}, {until: 1}]", True),
    ],
)
def test_whether_a_batch_has_sequences_of_both_directions(tmp_path: Path, share: str, phases: str, mixes: bool) -> None:
    text = PLAIN + f"packing: {{format: full_sentences}}\nphases: {phases}\n"
    text += f"objective: {{sentence_objective: none, causal_share: {share}}}\n"
    assert load(tmp_path, text).mixes_directions == mixes


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_on_the_command_line_takes_the_place_of_the_recipes(tmp_path: Path, budget: str) -> None:
    train = load(tmp_path, PLAIN, f"train.{budget}=3").train
    assert {name: getattr(train, name) for name in BUDGETS} == {**dict.fromkeys(BUDGETS), budget: 3}


def test_other_alternatives_take_each_others_place(tmp_path: Path) -> None:
    assert load(tmp_path, PLAIN, "store=s").corpus is None
    assert load(tmp_path, "store: s\ntrain: {steps: 1}", "corpus=[a, b]").store is None
    warm = load(tmp_path, PLAIN + "schedule: {warmup_steps: 5}", "schedule.warmup_ratio=.5").schedule
    assert (warm.warmup_steps, warm.warmup_ratio) == (None, 0.5)
    data = "init_from: m\ndata: {train: t, columns: {text: x}}"
    words = ["data.columns.text_a=p", "data.columns.text_b=q"]
    assert load_finetune_recipe(write(tmp_path, data), words).data.columns.texts == ("p", "q")
    with pytest.raises(SettingsError, match=r"unknown key data\.columns\.entities; did you mean data\.columns\.tags"):
        load_finetune_recipe(write(tmp_path, data), ["data.columns.entities=개체"])


def test_every_alternative_is_a_key() -> None:
    known = {*valid_keys(PretrainRecipe), *valid_keys(FinetuneRecipe)}
    assert {key for group in ALTERNATIVES for key in group} <= known
    assert set(KEYS_ELSEWHERE.values()) <= {key.rpartition(".")[2] for key in known}
    assert not KEYS_ELSEWHERE.keys() & {key.rpartition(".")[2] for key in known}


def test_a_micro_batch_is_the_batch_at_most(tmp_path: Path) -> None:
    text = PLAIN.replace("10}", "10, micro_batch_size: 64}")
    assert load(tmp_path, text).train.micro_batch_size == 64
    train = load(tmp_path, text, "train.batch_size=8").train
    assert (train.micro_batch_size, train.micro_batch_of(8), train.micro_batch_of(128)) == (64, 8, 64)
    assert load_pretrain_recipe("pretrain/bert_base", ["store=s", "train.batch_size=8"]).train.batch_size == 8


@pytest.mark.parametrize(("name", "words"), [("muon", []), ("adamw", ["optimizer.betas=[.9, .98]"])])
def test_another_optimizer_leaves_the_keys_of_the_former_behind(name: str, words: list[str]) -> None:
    recipe = "pretrain/elmo_tiny"
    given = ["corpus=a", f"optimizer.name={name}", "optimizer.learning_rate=1e-3", *words]
    optimizer = load_pretrain_recipe(recipe, given).optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.weight_decay) == (name, 1e-3, 0)
    assert optimizer.initial_accumulator == OptimizerSettings().initial_accumulator
    with pytest.raises(SettingsError, match=r"initial_accumulator=0\.1 is for adagrad, and name is"):
        load_pretrain_recipe(recipe, [*given, "optimizer.initial_accumulator=0.1"])


def test_the_same_optimizer_keeps_its_keys(tmp_path: Path) -> None:
    words = ["corpus=a", "optimizer.name=adagrad"]
    assert load_pretrain_recipe("pretrain/elmo_tiny", words).optimizer.initial_accumulator == 0.0025
    wrong = PLAIN + "optimizer: {name: muon, initial_accumulator: 0.5}"
    assert "initial_accumulator=0.5 is for adagrad" in refusal(tmp_path, wrong, "optimizer.name=muon")
    assert load(tmp_path, PLAIN + "optimizer:", "optimizer.name=muon").optimizer.name == "muon"
    assert "optimizer=muon: expected `key: value` lines under it" in refusal(tmp_path, PLAIN, "optimizer=muon")


def test_another_schedule_leaves_the_keys_of_the_former_behind(tmp_path: Path) -> None:
    text = PLAIN + "schedule: {name: wsd, warmup_ratio: 0.05, decay_ratio: 0.3}"
    schedule = load(tmp_path, text, "schedule.name=cosine").schedule
    assert (schedule.name, schedule.warmup_ratio, schedule.decay_ratio) == ("cosine", 0.05, 0.1)
    assert load(tmp_path, text).schedule.decay_ratio == 0.3
    message = refusal(tmp_path, text, "schedule.name=cosine", "schedule.decay_ratio=0.2")
    assert "decay_ratio=0.2 is for wsd, and name is cosine" in message


# ----------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("hidden_size=3", "unknown key hidden_size; did you mean model.hidden_size?"),
        ("model.hidden_sizes=3", "unknown key model.hidden_sizes; did you mean model.hidden_size?"),
        ("train.learning_rate=3", "unknown key train.learning_rate; did you mean optimizer.learning_rate?"),
        ("eval.every=3", "unknown key eval.every; did you mean train.eval_every?"),
        ("trian.log_every=3", "unknown key trian; did you mean train?"),
        ("objective.mask_prob=0",
         "unknown key objective.mask_prob; did you mean objective.target_prob or objective.mask_token_prob?"),
        ("mlm_probability=.2", "unknown key mlm_probability; did you mean objective.target_prob?"),
        ("optimizer.lr=1", "unknown key optimizer.lr; did you mean optimizer.learning_rate?"),
        ("tokenizer.vocabsize=9", "unknown key tokenizer.vocabsize; did you mean tokenizer.vocab_size?"),
        ("tokenizer.vocab_size=x", "tokenizer.vocab_size=x: expected a whole number, such as 1000"),
        ("model.hidden_size=big", "model.hidden_size=big: expected a whole number, such as 1000"),
        ("model=base", "model=base: expected `key: value` lines under it"),
        ("device=tpu", "device=tpu: expected auto, cpu or cuda"),
        ("held_out=1", "held_out=1: expected less than 1.0"),
        ("seed=-1", "seed=-1: expected at least 0"),
        ("train.minutes=inf", "train.minutes=inf: expected a finite number"),
        ("train.eval_every=epoch", "train.eval_every=epoch is for fine-tuning: give a number of steps"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_is_refused(tmp_path: Path, word: str, message: str) -> None:
    assert refusal(tmp_path, PLAIN, word) == message


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("train: {steps: 1}", [], "comes from `corpus` (files) or from `store` (made by `unmask prepare`): neither is"),
        (PLAIN + "store: s", [], "both are given"),
        ("corpus: []\nstore: s\ntrain: {steps: 1}", [], "both are given"),
        (PLAIN, ["store=s", "corpus=a"], "both are given"),
        ("corpus: a", [], "train is required"),
        (PLAIN, ["train.steps=null"], "exactly one of steps, tokens, epochs, minutes sets the length of the run; none"),
        (PLAIN, ["train.steps=1", "train.tokens=2"], "train: exactly one of steps, tokens, epochs, minutes sets the"),
        (PLAIN, ["train.steps=1", "train.tokens=2"], "steps=1 and tokens=2"),
        ("store: s\ntrain: {steps: 1}", ["tokenizer=t"], "store='s' brings its own tokenizer: leave out tokenizer='t'"),
        (PLAIN, ["packing.copies=3", "objective.masking_mode=static"], "leave out packing.copies"),
        (
            PLAIN,
            ["objective.name=electra"],
            "objective: there is no objective 'electra'; did you mean objective.name=repl",
        ),
        (
            PLAIN,
            ["objective.name=SpanBERT"],
            "did you mean objective.name=masked_lm objective.masking=span objective.sp",
        ),
        (
            PLAIN,
            ["tokenizer.segmenter=kiwi", "objective.masking=entity"],
            "objective.masking=entity and tokenizer.segmenter=kiwi do not go together",
        ),
        (PLAIN, ["objective.name=elmo"], "did you mean objective.name=bilm?"),
        (PLAIN, ["objective.name=maskedlm"], "did you mean masked_lm?"),
        (PLAIN, ["objective.name=word2vec"], f"expected one of {', '.join(OBJECTIVES)}"),
        (PLAIN, ["objective.name=[bilm]"], "there is no objective ['bilm']; did you mean bilm?"),
        (PLAIN, ["schedule.warmup_steps=1", "schedule.warmup_ratio=.1"], "schedule: warmup_steps and warmup_ratio say"),
        (PLAIN, ["objective.mask_token_prob=.95"], "mask_token_prob 0.95 + random_token_prob 0.1 is over 1"),
    ],
)
def test_a_contradiction_is_refused(tmp_path: Path, text: str, words: list[str], message: str) -> None:
    assert message in refusal(tmp_path, text, *words)


def test_a_refusal_begins_with_the_recipe(tmp_path: Path) -> None:
    name = write(tmp_path, PLAIN)
    with pytest.raises(SettingsError, match=rf"^{name}: seed=x: expected a whole number"):
        load_pretrain_recipe(name, ["seed=x"])


# ---------------------------------------------------------------------------------------------------- there and back

PATHS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(["no", "1e-4", "~"])
POSITIVE = st.floats(min_value=1e-12, max_value=1e12)
SHARES = st.floats(min_value=0, max_value=1, exclude_max=True)
COUNTS = st.integers(1, 10**12)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


TRAIN = st.tuples(st.sampled_from(BUDGETS), COUNTS, st.integers(1, 10**6), st.integers(1, 10**6)).map(
    lambda drawn: TrainSettings(
        **{drawn[0]: drawn[1]}, batch_size=max(drawn[2:]), micro_batch_size=min(drawn[2:]), max_grad_norm=None
    )
)
BETAS = st.tuples(SHARES, SHARES)
OPTIMIZER = st.builds(
    OptimizerSettings, learning_rate=POSITIVE, betas=BETAS, epsilon=POSITIVE, bias_correction=st.booleans()
)
SCHEDULE = st.builds(ScheduleSettings, warmup_steps=optional(COUNTS)) | st.builds(ScheduleSettings, warmup_ratio=SHARES)
PHASES = st.lists(
    st.tuples(st.floats(min_value=1e-3, max_value=0.99), optional(st.integers(8, 512)), optional(COUNTS)),
    max_size=3,
    unique_by=lambda phase: phase[0],
).map(
    lambda drawn: (
        *(
            PhaseSettings(until=until, max_length=length, batch_size=size)
            for until, length, size in sorted(drawn, key=lambda phase: phase[0])
        ),
        PhaseSettings(until=1),
    )
)
PRETRAIN = st.builds(
    PretrainRecipe,
    seed=st.integers(0, 2**63 - 1),
    precision=st.sampled_from(["auto", "fp32", "bf16"]),
    tokenizer=PATHS | st.builds(TokenizerSettings, alphabet_size=optional(COUNTS), lowercase=st.booleans()),
    corpus=st.lists(PATHS, min_size=1, max_size=3),
    held_out=SHARES,
    init_from=optional(PATHS),
    model=st.builds(ModelSettings, preset=st.sampled_from(get_args(Preset)), hidden_size=optional(COUNTS)),
    objective=st.builds(MaskedLMSettings, target_prob=st.floats(min_value=1e-3, max_value=1)),
    packing=st.builds(PackingSettings, max_length=st.integers(8, 512), copies=optional(COUNTS)),
    optimizer=OPTIMIZER,
    schedule=SCHEDULE,
    train=TRAIN,
)
IN_PHASES = st.builds(
    PretrainRecipe,
    corpus=st.just(["a"]),
    phases=PHASES,
    model=st.just(ModelSettings(causal=True)),
    objective=st.just(CausalLMSettings()),
    train=TRAIN.filter(lambda train: train.minutes is None),
)
REPLACED = st.builds(
    PretrainRecipe,
    corpus=st.just(["a"]),
    model=st.builds(ModelSettings, architecture=st.just("electra"), embedding_size=optional(COUNTS)),
    objective=st.builds(ReplacedTokenSettings, mask_token_prob=SHARES, tie_embeddings=st.sampled_from(["all", "none"]))
    | st.just(ReplacedTokenSettings(schedule="two_stage", generator_size=1)),
    train=TRAIN,
)
FINETUNE = st.builds(
    FinetuneRecipe,
    init_from=PATHS,
    task=st.builds(TaskSettings, labels=optional(st.lists(PATHS, min_size=2, max_size=4, unique=True))),
    data=st.builds(DataSettings, train=PATHS, columns=st.builds(ColumnSettings, text=optional(PATHS), label=PATHS)),
    optimizer=OPTIMIZER,
    schedule=SCHEDULE,
    train=TRAIN,
)


@given(recipe=PRETRAIN | IN_PHASES | REPLACED | FINETUNE)
def test_what_is_written_is_a_valid_recipe_and_equal(
    tmp_path_factory: pytest.TempPathFactory, recipe: PretrainRecipe | FinetuneRecipe
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_bytes(dump_settings(recipe).encode())
    assert build_settings(type(recipe), read_settings_file(path), "here") == recipe


@pytest.mark.parametrize("called", CALLED_OTHERWISE)
def test_what_an_objective_is_also_called_leads_to_one_that_is(called: str, tmp_path: Path) -> None:
    words = CALLED_OTHERWISE[called].split()
    name = words[0].removeprefix("objective.name=")
    others = {
        "masked_lm": [],
        "replaced_token": ["model.architecture=electra"],
        "causal_lm": ["model.causal=true"],
        "bilm": ["model.architecture=elmo", "packing.format=stream", "tokenizer.kind=word"],
    }[name]
    if "objective.sentence_objective=none" in words:
        others = ["packing.format=single_segment"]
    assert load(tmp_path, PLAIN, *words, *others).objective.name == name


def test_another_objective_leaves_the_keys_of_the_former_behind(tmp_path: Path) -> None:
    text = "objective: {masking: whole_word, sentence_objective: none}\ntrain: {steps: 1}\nstore: s\n"
    base = write(tmp_path, text, "base.yaml")
    words = ["objective.name=replaced_token", "model.architecture=electra"]
    assert load_pretrain_recipe(base, words).objective.name == "replaced_token"
    derived = load(tmp_path, "base: base.yaml\nobjective: {name: causal_lm}\nmodel: {causal: true}\n")
    assert derived.objective.name == "causal_lm"
    same = load_pretrain_recipe(base, ["objective.name=masked_lm"]).objective
    assert (same.name, getattr(same, "masking", None)) == ("masked_lm", "whole_word")
    with pytest.raises(SettingsError, match=r"objective\.masking belongs to objective\.name=masked_lm.*: leave it out"):
        load_pretrain_recipe(base, [*words, "objective.masking=span"])


def test_checkpoints_of_a_search_are_in_place_of_init_from() -> None:
    values: dict[str, Any] = {"data": {"train": "a.tsv"}, "search": {"checkpoints": ["a", "b"]}}
    recipe = FinetuneRecipe.model_validate(values)
    assert recipe.init_from == "a"
    assert FinetuneRecipe.model_validate(recipe.as_written()) == recipe
    with pytest.raises(ValidationError, match=r"init_from c is none of search\.checkpoints, .*: leave it out"):
        FinetuneRecipe.model_validate({**values, "init_from": "c"})

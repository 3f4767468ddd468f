"""Pre-training that goes on from a model: under another masking or objective, from another program, with new words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from unmask.batch import Batch, pack
from unmask.data.store import TokenStore
from unmask.errors import SettingsError
from unmask.models.electra import ElectraEncoder, new_generator_head
from unmask.models.encoder import new_encoder
from unmask.models.hub import load_model, save_model
from unmask.models.span_boundary_head import SPAN_BOUNDARY_WEIGHTS
from unmask.objectives.table import OBJECTIVES
from unmask.preparation import prepare
from unmask.pretraining import pretrain
from unmask.pretraining_start import build_module
from unmask.recipe import load_pretrain_recipe
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.tokenizer_extension import extend_tokenizer
from unmask.tokenizer_training import train_tokenizer
from unmask.training.run_log import read_metrics

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

SINGLE = "packing.format=single_segment"
RTD = ["objective={name: replaced_token}", SINGLE]

TOLERANCE = 1e-6
"""Hidden states of order 1 from the same operations on the same numbers in fp32: some ten roundings."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Without a word on the model: its sizes are those of the model that a run starts from."""
    path = tmp_path_factory.mktemp("recipe") / "continued.yaml"
    path.write_text(
        "seed: 3\ndevice: cpu\nprecision: fp32\nheld_out: 0.3\npacking: {max_length: 32}\n"
        "optimizer: {learning_rate: 1e-3}\n"
        "train: {steps: 2, batch_size: 8, log_every: 1, eval_sequences: 16}\n"
    )
    return str(path)


@pytest.fixture(scope="module")
def bert(tiny_recipe: Path, tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT after four steps with next-sentence prediction."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.pretraining.write_report", lambda directory: None)
        words = [f"store={tiny_store}", "train.steps=4"]
        return pretrain(str(tiny_recipe), words, out=tmp_path_factory.mktemp("bert") / "run")


def start(recipe: str, words: list[str]) -> Any:
    """What a run begins with."""
    settings = load_pretrain_recipe(recipe, words)
    assert settings.store is not None
    tokenizer = load_tokenizer(TokenStore(Path(settings.store)).tokenizer_directory)
    objective = OBJECTIVES[settings.objective.name](settings.objective, tokenizer.vocabulary)
    torch.manual_seed(settings.seed)
    module: Any = build_module(settings, objective, tokenizer)
    return module.eval()


def batch(first: int = 5, last: int = 36) -> Batch:
    return pack([list(range(first, last)), list(range(first, last, 2))])


@torch.no_grad()
def hidden(encoder: Any) -> Tensor:
    states: Tensor = encoder.eval()(batch())
    return states


def largest_difference(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max())


def assert_it_runs(recipe: str, words: list[str], run: Path) -> Path:
    model = pretrain(recipe, words, out=run)
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row] == [1, 2]
    return model


def test_another_masking_goes_on_with_encoder_and_head(
    recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    words = [
        *(f"store={tiny_store}", f"init_from={bert}", "objective.masking=span", "objective.span_boundary=true"),
        *("objective.sentence_objective=none", SINGLE),
    ]
    module, before = start(recipe, words), load_model(bert)
    assert largest_difference(hidden(module.encoder), hidden(before.encoder)) < TOLERANCE
    assert before.masked_lm_head is not None
    for name, weight in before.masked_lm_head.state_dict().items():
        assert torch.equal(module.masked_lm_head.state_dict()[name], weight), name
    model = assert_it_runs(recipe, words, tmp_path / "run")
    assert json.loads((model / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    store, _, *others = words
    boundary = start(recipe, [store, f"init_from={model}", *others]).span_boundary_head.state_dict()
    saved = load_file(model / SPAN_BOUNDARY_WEIGHTS)
    assert all(any(torch.equal(weight, kept) for kept in boundary.values()) for weight in saved.values())


def test_a_head_for_the_other_sentence_objective_begins_anew(recipe: str, bert: Path, tiny_store: Path) -> None:
    words = [f"store={tiny_store}", f"init_from={bert}"]
    before = load_model(bert).next_sentence_head
    assert before is not None
    for objective, is_kept in (("nsp", True), ("sop", False)):
        module = start(recipe, [*words, f"objective.sentence_objective={objective}"])
        weights = module.next_sentence_head.state_dict()
        assert all(torch.equal(weight, weights[name]) for name, weight in before.state_dict().items()) == is_kept


@pytest.mark.parametrize("stages", [[], ["objective.schedule=two_stage", "objective.generator_size=1"]], ids=str)
def test_a_bert_begins_an_electra_with_the_same_hidden_states(
    stages: list[str], recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    words = [f"store={tiny_store}", f"init_from={bert}", *RTD, *stages]
    module = start(recipe, words)
    before = load_model(bert).encoder
    assert isinstance(module.encoder, ElectraEncoder)
    assert largest_difference(hidden(module.encoder), hidden(before)) < TOLERANCE
    shared = module.generator.word_embeddings is module.encoder.word_embeddings
    assert shared == (not stages)
    if stages:  # the one that is trained first is that masked LM
        masked_lm = load_model(bert).masked_lm_head
        assert masked_lm is not None
        states = hidden(before)
        assert largest_difference(hidden(module.generator), states) < TOLERANCE
        logits = module.generator_head(states, module.generator.word_embeddings)
        assert largest_difference(logits, masked_lm(states, before.word_embeddings)) < TOLERANCE
    model = assert_it_runs(recipe, words, tmp_path / "run")
    assert json.loads((model / "config.json").read_text())["architectures"] == ["ElectraForPreTraining"]


@pytest.mark.parametrize("tied", ["all", "none"])
def test_a_generator_of_the_same_size_is_that_masked_lm(tied: str, recipe: str, bert: Path, tiny_store: Path) -> None:
    """Trained together too; from a generator as from a BERT. Of another size it is fresh."""
    words = [f"store={tiny_store}", *RTD, f"objective.tie_embeddings={tied}", f"init_from={bert}"]
    before = load_model(bert)
    assert before.masked_lm_head is not None
    same, other = start(recipe, [*words, "objective.generator_size=1"]), start(recipe, words)
    assert largest_difference(hidden(same.generator), hidden(before.encoder)) < TOLERANCE
    assert torch.equal(same.generator_head.dense.weight, before.masked_lm_head.dense.weight)
    assert torch.equal(same.generator_head.bias, before.masked_lm_head.bias)
    assert (same.generator.word_embeddings is same.encoder.word_embeddings) == (tied == "all")
    assert not other.generator_head.bias.any()


def test_an_electra_goes_on_under_masked_words(recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    electra = assert_it_runs(recipe, [f"store={tiny_store}", f"init_from={bert}", *RTD], tmp_path / "first")
    words = [f"store={tiny_store}", f"init_from={electra}", "objective.sentence_objective=none", SINGLE]
    assert largest_difference(hidden(start(recipe, words).encoder), hidden(load_model(electra).encoder)) < TOLERANCE
    model = assert_it_runs(recipe, words, tmp_path / "second")
    assert json.loads((model / "config.json").read_text())["architectures"] == ["ElectraForMaskedLM"]
    again = start(recipe, [f"store={tiny_store}", f"init_from={model}", *RTD, "objective.generator_size=1"])
    assert largest_difference(hidden(again.generator), hidden(load_model(model).encoder)) < TOLERANCE


def test_an_electra_goes_on_with_its_generator(recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    first = assert_it_runs(recipe, [f"store={tiny_store}", f"init_from={bert}", *RTD], tmp_path / "first")
    words = [f"store={tiny_store}", f"init_from={first}", *RTD]
    module = start(recipe, words)
    generator = load_model(first / "generator")
    assert largest_difference(hidden(module.generator), hidden(generator.encoder)) < TOLERANCE
    assert largest_difference(hidden(module.encoder), hidden(load_model(first).encoder)) < TOLERANCE
    with pytest.raises(SettingsError, match=r"hidden_size 8, expected 16.*objective\.generator_size=0\.5"):
        start(recipe, [*words, "objective.generator_size=.5"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": 64}, r"hidden_size 64, expected 8.*objective\.generator_size=0\.25"),
        ({"vocab_size": 300}, r"vocab_size 300, expected 200"),
    ],
    ids=["wider than the discriminator", "of another vocabulary"],
)
def test_a_generator_that_does_not_fit_its_discriminator_is_refused(
    changes: dict[str, int], told: str, recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    first = assert_it_runs(recipe, [f"store={tiny_store}", f"init_from={bert}", *RTD], tmp_path / "first")
    sizes = load_model(first / "generator").encoder.settings.model_copy(update=changes)
    save_model(first / "generator", new_encoder(sizes), masked_lm_head=new_generator_head(sizes))
    with pytest.raises(SettingsError, match=told):
        pretrain(recipe, [f"store={tiny_store}", f"init_from={first}", *RTD], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# From other programs


THEIRS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "RobertaForMaskedLM": (
        "byte_bpe",
        {"max_position_embeddings": 40, "pad_token_id": 1, "type_vocab_size": 1},
        ["objective.sentence_objective=none", "packing.format=full_sentences"],
    ),
    "OpenAIGPTLMHeadModel": ("bpe", {"n_positions": 32}, ["objective={name: causal_lm}", SINGLE]),
}
"""The tokenizer, what its configuration says beside the sizes, what the recipe says."""


def their_sizes(class_name: str) -> dict[str, int]:
    if class_name.startswith("OpenAI"):
        return {"n_embd": 32, "n_layer": 2, "n_head": 2}
    return {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize("class_name", THEIRS)
def test_a_directory_that_transformers_saved_is_a_start(
    class_name: str, recipe: str, tiny_text: Path, tmp_path: Path
) -> None:
    kind, config, words = THEIRS[class_name]
    settings = TokenizerSettings.model_validate({"kind": kind, "vocab_size": 300})
    tokenizer, _ = train_tokenizer([tiny_text], tmp_path / "tokenizer", settings)
    prepare([tiny_text], tmp_path / "tokenizer", tmp_path / "store")
    torch.manual_seed(0)
    model_class = getattr(transformers, class_name)
    sizes = {"vocab_size": tokenizer.vocab_size, **their_sizes(class_name), **config}
    theirs = model_class(model_class.config_class(**sizes)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    words = [f"store={tmp_path / 'store'}", f"init_from={tmp_path / 'theirs'}", *words]
    for has_tokenizer in (False, True):
        if has_tokenizer:
            transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer").save_pretrained(tmp_path / "theirs")
        ours = start(recipe, words)
        ids = torch.tensor([list(range(5, 36))])
        with torch.no_grad():
            states = theirs.base_model(input_ids=ids).last_hidden_state[0]
        assert largest_difference(hidden(ours.encoder)[:31], states) < 1e-5  # two implementations, fp32
    model = assert_it_runs(recipe, words, tmp_path / "run")
    assert json.loads((model / "config.json").read_text())["architectures"] == [class_name]
    again = model_class.from_pretrained(model).eval()
    with torch.no_grad():
        states = again.base_model(input_ids=ids).last_hidden_state[0]
    assert largest_difference(hidden(load_model(model).encoder)[:31], states) < 1e-5


# New vocabulary entries


@pytest.fixture(scope="module")
def wider_store(tiny_store: Path, tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose tokenizer has the model's entries and then two words and a piece."""
    directory = tmp_path_factory.mktemp("wider")
    shutil.copytree(tiny_store / "tokenizer", directory / "tokenizer")
    path = directory / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    entries = content["model"]["vocab"]
    for word in ("gutenberg", "morning", "##nesses"):
        assert word not in entries
        entries[word] = len(entries)
    path.write_text(json.dumps(content))
    prepare([tiny_text], directory / "tokenizer", directory / "store")
    return directory / "store"


def test_new_entries_are_known_to_a_boundary_head(recipe: str, bert: Path, wider_store: Path, tmp_path: Path) -> None:
    words = [f"store={wider_store}", f"init_from={bert}", "objective.masking=span", "objective.span_boundary=true"]
    words += ["objective.sentence_objective=none"]
    module = start(recipe, words)
    assert len(module.span_boundary_head.bias) == len(module.encoder.word_embeddings)
    assert_it_runs(recipe, words, tmp_path / "run")


def test_a_run_tells_of_new_entries_at_its_start(
    recipe: str, bert: Path, tiny_store: Path, wider_store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = (
        f"3 of the 203 entries of the store's tokenizer are new to init_from={bert}: each starts as the mean of the "
        "pieces that the model's own tokenizer makes of it, a special token as the mean of all entries"
    )
    with caplog.at_level("INFO", "unmask"):
        pretrain(recipe, [f"store={wider_store}", f"init_from={bert}"], out=tmp_path / "run")
        assert caplog.messages.count(told) == 1
        caplog.clear()
        pretrain(recipe, [f"store={wider_store}", f"init_from={bert}"], out=tmp_path / "run", resume=True)
        pretrain(recipe, [f"store={tiny_store}", f"init_from={bert}"], out=tmp_path / "other")
    assert not [line for line in caplog.messages if "are new to" in line]


def test_sizes_that_are_the_models_may_be_given(recipe: str, bert: Path, tiny_store: Path) -> None:
    module = start(recipe, [f"store={tiny_store}", f"init_from={bert}", "model.hidden_size=32"])
    assert module.encoder.settings.hidden_size == 32


def test_new_entries_begin_as_the_mean_of_their_pieces(
    recipe: str, bert: Path, wider_store: Path, tmp_path: Path
) -> None:
    words = [f"store={wider_store}", f"init_from={bert}"]
    module, before = start(recipe, words), load_model(bert)
    assert before.masked_lm_head is not None
    rows, bias = before.encoder.word_embeddings, before.masked_lm_head.bias
    words_now = module.encoder.word_embeddings
    size = len(rows)
    assert len(words_now) == size + 3
    assert torch.equal(words_now[:size], rows)
    tokenizer = load_tokenizer(bert)
    continuing = ["##n", "##es", "##se", "##s"]  # the longest that matches, each time
    assert {"##ne", "##ess", "##ses"}.isdisjoint(tokenizer.token_strings)
    pieces_of = dict(zip(("gutenberg", "morning"), tokenizer.encode_batch(["gutenberg", "morning"]), strict=True))
    pieces_of["##nesses"] = [tokenizer.token_strings.index(entry) for entry in continuing]
    for place, pieces in enumerate(pieces_of.values()):
        assert len(pieces) > 1
        assert largest_difference(words_now[size + place], rows[pieces].mean(0)) < TOLERANCE
    assert largest_difference(hidden(module.encoder), hidden(before.encoder)) < TOLERANCE
    head_bias = module.masked_lm_head.bias
    assert torch.equal(head_bias[:size], bias)
    [pieces] = tokenizer.encode_batch(["morning"])
    assert largest_difference(head_bias[size + 1], bias[pieces].mean()) < TOLERANCE
    model = assert_it_runs(recipe, words, tmp_path / "run")
    theirs = transformers.AutoModel.from_pretrained(model)
    assert theirs.get_input_embeddings().weight.shape == (size + 3, 32)
    assert len(transformers.AutoTokenizer.from_pretrained(model)) == size + 3


def resized(model: Path, class_name: str, num_rows: int, out: Path) -> Path:
    """A copy of a model with its tokenizer, with rows of padding as `transformers` makes them."""
    theirs = getattr(transformers, class_name).from_pretrained(model)
    theirs.resize_token_embeddings(num_rows, mean_resizing=False)
    theirs.save_pretrained(out)
    for path in model.glob("*token*"):
        shutil.copy(path, out)
    return out


@pytest.mark.parametrize("num_rows", [202, 256])
def test_new_entries_take_the_padding_of_a_bert(
    num_rows: int, recipe: str, bert: Path, wider_store: Path, tmp_path: Path
) -> None:
    """Of three new entries all or two have rows already."""
    padded = resized(bert, "BertForPreTraining", num_rows, tmp_path / "padded")
    module, before = start(recipe, [f"store={wider_store}", f"init_from={padded}"]), load_model(bert)
    assert before.masked_lm_head is not None
    rows, now = before.encoder.word_embeddings, module.encoder.word_embeddings
    assert len(now) == len(module.masked_lm_head.bias) == max(num_rows, 203)
    assert torch.equal(now[:200], rows)
    pieces = load_tokenizer(bert).encode_batch(["gutenberg", "morning"])
    for place, entry in enumerate(pieces, start=200):
        assert largest_difference(now[place], rows[entry].mean(0)) < TOLERANCE
        assert (
            largest_difference(module.masked_lm_head.bias[place], before.masked_lm_head.bias[entry].mean()) < TOLERANCE
        )
    words = [f"store={wider_store}", f"init_from={padded}"]
    model = assert_it_runs(recipe, words, tmp_path / "run")
    assert transformers.AutoModel.from_pretrained(model).get_input_embeddings().weight.shape == (len(now), 32)


@pytest.mark.parametrize("tied", ["all", "none"])
def test_new_entries_take_the_padding_of_both_halves_of_an_electra(
    tied: str, recipe: str, bert: Path, tiny_store: Path, wider_store: Path, tmp_path: Path
) -> None:
    objective = [*RTD, f"objective.tie_embeddings={tied}"]
    first = assert_it_runs(recipe, [f"store={tiny_store}", f"init_from={bert}", *objective], tmp_path / "first")
    padded = resized(first, "ElectraForPreTraining", 256, tmp_path / "padded")
    resized(first / "generator", "ElectraForMaskedLM", 256, padded / "generator")
    words = [f"store={wider_store}", f"init_from={padded}", *objective]
    module = start(recipe, words)
    [pieces] = load_tokenizer(bert).encode_batch(["morning"])
    for encoder in (module.encoder, module.generator):
        rows = encoder.word_embeddings
        assert (len(rows), encoder.settings.vocab_size) == (256, 256)
        assert largest_difference(rows[201], rows[pieces].mean(0)) < TOLERANCE
    bias = module.generator_head.bias
    assert len(bias) == 256
    assert largest_difference(bias[201], bias[pieces].mean()) < TOLERANCE
    assert_it_runs(recipe, words, tmp_path / "second")


def test_tokens_added_to_the_tokenizer_alone_are_new_entries(
    recipe: str, bert: Path, tiny_text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As `add_tokens` leaves a directory without `resize_token_embeddings`; a special one starts as the mean of all."""
    shutil.copytree(bert, tmp_path / "theirs")
    theirs = transformers.AutoTokenizer.from_pretrained(bert)
    theirs.add_tokens(["morning", "gutenberg"])
    theirs.add_tokens(["[SPEAKER]"], special_tokens=True)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer = load_tokenizer(tmp_path / "theirs")
    assert tokenizer.vocab_size == 203
    prepare([tiny_text], tmp_path / "theirs", tmp_path / "store")
    assert TokenStore(tmp_path / "store").token_counts()[200:].any()
    words = [f"store={tmp_path / 'store'}", f"init_from={tmp_path / 'theirs'}"]
    module, rows = start(recipe, words), load_model(bert).encoder.word_embeddings
    assert "200 vocabulary entries by its config.json, and the tokenizer beside it 203" in caplog.text
    assert "the 3 that it lacks (morning, gutenberg, [SPEAKER])" in caplog.text
    now = module.encoder.word_embeddings
    for place, pieces in enumerate(load_tokenizer(bert).encode_batch(["morning", "gutenberg"]), start=200):
        assert len(pieces) > 1
        assert largest_difference(now[place], rows[pieces].mean(0)) < TOLERANCE
    assert largest_difference(now[202], rows.mean(0)) < TOLERANCE
    assert len(load_model(assert_it_runs(recipe, words, tmp_path / "run")).encoder.word_embeddings) == 203


def test_a_tokenizer_of_a_larger_model_is_refused(recipe: str, bert: Path, wider_store: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "theirs")
    shutil.copytree(wider_store / "tokenizer", tmp_path / "theirs", dirs_exist_ok=True)
    told = r"has 200 vocabulary entries by its config.json, and the tokenizer beside it 203, which are not added tokens"
    with pytest.raises(SettingsError, match=told):
        pretrain(recipe, [f"store={wider_store}", f"init_from={tmp_path / 'theirs'}"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("class_name", THEIRS)
def test_added_tokens_of_merges_begin_as_the_mean_of_their_pieces(
    class_name: str, recipe: str, tiny_text: Path, tmp_path: Path
) -> None:
    """In a padded model of another program."""
    kind, config, words = THEIRS[class_name]
    settings = TokenizerSettings.model_validate({"kind": kind, "vocab_size": 300})
    before, _ = train_tokenizer([tiny_text], tmp_path / "tokenizer", settings)
    (tmp_path / "words.txt").write_text("serendipity\nCaterpillar\n")
    extend_tokenizer(tmp_path / "tokenizer", tmp_path / "words.txt", tmp_path / "wider")
    prepare([tiny_text], tmp_path / "wider", tmp_path / "store")
    torch.manual_seed(0)
    model_class = getattr(transformers, class_name)
    num_rows = before.vocab_size + 1
    theirs = model_class(model_class.config_class(vocab_size=num_rows, **their_sizes(class_name), **config))
    theirs.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer").save_pretrained(tmp_path / "theirs")
    words = [f"store={tmp_path / 'store'}", f"init_from={tmp_path / 'theirs'}", *words]
    rows, now = theirs.get_input_embeddings().weight, start(recipe, words).encoder.word_embeddings
    assert len(now) == num_rows + 1
    written = ["serendipity", "Caterpillar" if kind == "byte_bpe" else "caterpillar"]
    for place, pieces in enumerate(before.encode_batch(written), start=before.vocab_size):
        assert len(pieces) > 1
        assert largest_difference(now[place], rows[pieces].mean(0)) < TOLERANCE
    counts = TokenStore(tmp_path / "store").token_counts()
    assert counts[before.vocab_size + 1] > 0, "it occurs in the text"
    model = assert_it_runs(recipe, words, tmp_path / "run")
    assert len(transformers.AutoTokenizer.from_pretrained(model)) == num_rows + 1


def test_so_they_do_in_both_halves_of_an_electra(
    recipe: str, bert: Path, tiny_store: Path, wider_store: Path, tmp_path: Path
) -> None:
    first = assert_it_runs(recipe, [f"store={tiny_store}", f"init_from={bert}", *RTD], tmp_path / "first")
    for origin in (bert, first):
        words = [f"store={wider_store}", f"init_from={origin}", *RTD]
        module = start(recipe, words)
        assert module.generator.word_embeddings is module.encoder.word_embeddings
        rows = load_model(origin).encoder.word_embeddings
        [pieces] = load_tokenizer(origin).encode_batch(["morning"])
        assert largest_difference(module.encoder.word_embeddings[len(rows) + 1], rows[pieces].mean(0)) < TOLERANCE
        assert len(module.generator_head.bias) == len(rows) + 3
        assert {module.encoder.settings.vocab_size, module.generator.settings.vocab_size} == {len(rows) + 3}
    assert_it_runs(recipe, words, tmp_path / "second")


def test_so_they_do_left_to_right(
    recipe: str, tiny_recipe: Path, tiny_store: Path, wider_store: Path, tmp_path: Path
) -> None:
    causal = ["objective={name: causal_lm}"]
    origin = pretrain(
        str(tiny_recipe),
        [f"store={tiny_store}", *causal, "model.causal=true", "train.steps=2"],
        out=tmp_path / "first",
    )
    words = [f"store={wider_store}", f"init_from={origin}", *causal]
    before, module = load_model(origin), start(recipe, words)
    assert before.masked_lm_head is not None
    [pieces] = load_tokenizer(origin).encode_batch(["morning"])
    bias = module.masked_lm_head.bias
    assert largest_difference(bias[201], before.masked_lm_head.bias[pieces].mean()) < TOLERANCE
    assert_it_runs(recipe, words, tmp_path / "second")


# Refused


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["objective={name: causal_lm}"],
            "objective.name=causal_lm and init_from=.*, bidirectional by its config.json, do not go together",
        ),
        (
            ["model.preset=mini"],
            r"model\.\* says other sizes than init_from=.* by its config.json: .*hidden_size 256 and not 32.*leave",
        ),
        (
            ["model.hidden_size=64"],  # which the preset's 12 heads do not divide
            r"^model\.\* says other sizes than init_from=.*: hidden_size 64 and not 32; the model that is there has",
        ),
        (
            ["model.architecture=elmo", "model.preset=tiny"],
            r"^model\.\* says other sizes than init_from=.*: architecture elmo and not bert; the model",
        ),
        (
            ["objective={name: bilm}", "packing.format=stream"],
            "objective.name=bilm and init_from=.*, of the family bert",
        ),
        (["packing.max_length=64"], "packing.max_length 64 is over the 32 positions of init_from=.*: shorten the seq"),
        (
            ["phases=[{until: .5}, {until: 1, max_length: 64}]"],
            r"phases\.1\.max_length 64 is over the 32 positions of init_from=.*: shorten the sequences$",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_a_model_is_refused(
    words: list[str], told: str, recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=told):
        pretrain(recipe, [f"store={tiny_store}", f"init_from={bert}", *words], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("vocab_size", [200, 150])
def test_another_vocabulary_is_refused(
    vocab_size: int, recipe: str, bert: Path, samples_dir: Path, tmp_path: Path
) -> None:
    """Of the same size too."""
    text = samples_dir / "text" / "ko-constitution.jsonl"
    train_tokenizer([text], tmp_path / "tokenizer", TokenizerSettings(vocab_size=vocab_size, alphabet_size=60))
    prepare([text], tmp_path / "tokenizer", tmp_path / "store")
    for words in (["objective.sentence_objective=none", SINGLE], RTD):
        with pytest.raises(SettingsError, match=r"has other vocabulary entries than the store's tokenizer"):
            pretrain(recipe, [f"store={tmp_path / 'store'}", f"init_from={bert}", *words], out=tmp_path / "run")
        assert not (tmp_path / "run").exists()

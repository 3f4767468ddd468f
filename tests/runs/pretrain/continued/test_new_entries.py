"""Pre-training that goes on from a model with new vocabulary entries: what each begins as, in every part of a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from support.continued import hidden_states, largest_difference, module_of, run_two_steps
from unmask.errors import SettingsError
from unmask.models.hub.directory import load_model
from unmask.pretraining.run import pretrain
from unmask.store.preparation import prepare
from unmask.tokenization.tokenizer import load_tokenizer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

RTD = ["objective={name: replaced_token}", "packing.format=single_segment"]

TOLERANCE = 1e-6
"""Hidden states of order 1 from the same operations on the same numbers in fp32: some ten roundings."""


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
    module = module_of(recipe, words)
    assert len(module.span_boundary_head.bias) == len(module.encoder.word_embeddings)
    run_two_steps(recipe, words, tmp_path / "run")


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


def test_new_entries_begin_as_the_mean_of_their_pieces(
    recipe: str, bert: Path, wider_store: Path, tmp_path: Path
) -> None:
    words = [f"store={wider_store}", f"init_from={bert}"]
    module, before = module_of(recipe, words), load_model(bert)
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
    assert largest_difference(hidden_states(module.encoder), hidden_states(before.encoder)) < TOLERANCE
    head_bias = module.masked_lm_head.bias
    assert torch.equal(head_bias[:size], bias)
    [pieces] = tokenizer.encode_batch(["morning"])
    assert largest_difference(head_bias[size + 1], bias[pieces].mean()) < TOLERANCE
    model = run_two_steps(recipe, words, tmp_path / "run")
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
    module, before = module_of(recipe, [f"store={wider_store}", f"init_from={padded}"]), load_model(bert)
    assert before.masked_lm_head is not None
    rows, now = before.encoder.word_embeddings, module.encoder.word_embeddings
    assert len(now) == len(module.masked_lm_head.bias) == max(num_rows, 203)
    assert torch.equal(now[:200], rows)
    pieces = load_tokenizer(bert).encode_batch(["gutenberg", "morning"])
    for place, entry in enumerate(pieces, start=200):
        assert largest_difference(now[place], rows[entry].mean(0)) < TOLERANCE
        mean = before.masked_lm_head.bias[entry].mean()
        assert largest_difference(module.masked_lm_head.bias[place], mean) < TOLERANCE
    words = [f"store={wider_store}", f"init_from={padded}"]
    model = run_two_steps(recipe, words, tmp_path / "run")
    assert transformers.AutoModel.from_pretrained(model).get_input_embeddings().weight.shape == (len(now), 32)


@pytest.mark.parametrize("tied", ["all", "none"])
def test_new_entries_take_the_padding_of_both_halves_of_an_electra(
    tied: str, recipe: str, bert: Path, tiny_store: Path, wider_store: Path, tmp_path: Path
) -> None:
    objective = [*RTD, f"objective.tie_embeddings={tied}"]
    first = run_two_steps(recipe, [f"store={tiny_store}", f"init_from={bert}", *objective], tmp_path / "first")
    padded = resized(first, "ElectraForPreTraining", 256, tmp_path / "padded")
    resized(first / "generator", "ElectraForMaskedLM", 256, padded / "generator")
    words = [f"store={wider_store}", f"init_from={padded}", *objective]
    module = module_of(recipe, words)
    [pieces] = load_tokenizer(bert).encode_batch(["morning"])
    for encoder in (module.encoder, module.generator):
        rows = encoder.word_embeddings
        assert (len(rows), encoder.settings.vocab_size) == (256, 256)
        assert largest_difference(rows[201], rows[pieces].mean(0)) < TOLERANCE
    bias = module.generator_head.bias
    assert len(bias) == 256
    assert largest_difference(bias[201], bias[pieces].mean()) < TOLERANCE
    run_two_steps(recipe, words, tmp_path / "second")


def test_so_they_do_in_both_halves_of_an_electra(
    recipe: str, bert: Path, tiny_store: Path, wider_store: Path, tmp_path: Path
) -> None:
    first = run_two_steps(recipe, [f"store={tiny_store}", f"init_from={bert}", *RTD], tmp_path / "first")
    for origin in (bert, first):
        words = [f"store={wider_store}", f"init_from={origin}", *RTD]
        module = module_of(recipe, words)
        assert module.generator.word_embeddings is module.encoder.word_embeddings
        rows = load_model(origin).encoder.word_embeddings
        [pieces] = load_tokenizer(origin).encode_batch(["morning"])
        assert largest_difference(module.encoder.word_embeddings[len(rows) + 1], rows[pieces].mean(0)) < TOLERANCE
        assert len(module.generator_head.bias) == len(rows) + 3
        assert {module.encoder.settings.vocab_size, module.generator.settings.vocab_size} == {len(rows) + 3}
    run_two_steps(recipe, words, tmp_path / "second")


def test_so_they_do_left_to_right(
    recipe: str, tiny_recipe: Path, tiny_store: Path, wider_store: Path, tmp_path: Path
) -> None:
    causal = "objective={name: causal_lm}"
    words = [f"store={tiny_store}", causal, "model.causal=true", "train.steps=2"]
    origin = pretrain(str(tiny_recipe), words, out=tmp_path / "first")
    words = [f"store={wider_store}", f"init_from={origin}", causal]
    before, module = load_model(origin), module_of(recipe, words)
    assert before.masked_lm_head is not None
    [pieces] = load_tokenizer(origin).encode_batch(["morning"])
    bias = module.masked_lm_head.bias
    assert largest_difference(bias[201], before.masked_lm_head.bias[pieces].mean()) < TOLERANCE
    run_two_steps(recipe, words, tmp_path / "second")


def test_a_tokenizer_of_a_larger_model_is_refused(recipe: str, bert: Path, wider_store: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "theirs")
    shutil.copytree(wider_store / "tokenizer", tmp_path / "theirs", dirs_exist_ok=True)
    told = r"has 200 vocabulary entries by its config.json, and the tokenizer beside it 203, which are not added tokens"
    with pytest.raises(SettingsError, match=told):
        pretrain(recipe, [f"store={wider_store}", f"init_from={tmp_path / 'theirs'}"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

"""Pre-training that goes on from directories that `transformers` saved, with tokens added to their tokenizers too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from support.continued import hidden_states, largest_difference, module_of, run_two_steps
from unmask.models.hub.directory import load_model
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore
from unmask.tokenization.learning.extension import extend_tokenizer
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

TOLERANCE = 1e-6
"""Hidden states of order 1 from the same operations on the same numbers in fp32: some ten roundings."""


THEIRS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "RobertaForMaskedLM": (
        "byte_bpe",
        {"max_position_embeddings": 40, "pad_token_id": 1, "type_vocab_size": 1},
        ["objective.sentence_objective=none", "packing.format=full_sentences"],
    ),
    "OpenAIGPTLMHeadModel": (
        "bpe",
        {"n_positions": 32},
        ["objective={name: causal_lm}", "packing.format=single_segment"],
    ),
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
        ours = module_of(recipe, words)
        ids = torch.tensor([list(range(5, 36))])
        with torch.no_grad():
            states = theirs.base_model(input_ids=ids).last_hidden_state[0]
        assert largest_difference(hidden_states(ours.encoder)[:31], states) < 1e-5  # two implementations, fp32
    model = run_two_steps(recipe, words, tmp_path / "run")
    assert json.loads((model / "config.json").read_text())["architectures"] == [class_name]
    again = model_class.from_pretrained(model).eval()
    with torch.no_grad():
        states = again.base_model(input_ids=ids).last_hidden_state[0]
    assert largest_difference(hidden_states(load_model(model).encoder)[:31], states) < 1e-5


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
    module, rows = module_of(recipe, words), load_model(bert).encoder.word_embeddings
    assert "200 vocabulary entries by its config.json, and the tokenizer beside it 203" in caplog.text
    assert "the 3 that it lacks (morning, gutenberg, [SPEAKER])" in caplog.text
    now = module.encoder.word_embeddings
    for place, pieces in enumerate(load_tokenizer(bert).encode_batch(["morning", "gutenberg"]), start=200):
        assert len(pieces) > 1
        assert largest_difference(now[place], rows[pieces].mean(0)) < TOLERANCE
    assert largest_difference(now[202], rows.mean(0)) < TOLERANCE
    assert len(load_model(run_two_steps(recipe, words, tmp_path / "run")).encoder.word_embeddings) == 203


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
    rows, now = theirs.get_input_embeddings().weight, module_of(recipe, words).encoder.word_embeddings
    assert len(now) == num_rows + 1
    written = ["serendipity", "Caterpillar" if kind == "byte_bpe" else "caterpillar"]
    for place, pieces in enumerate(before.encode_batch(written), start=before.vocab_size):
        assert len(pieces) > 1
        assert largest_difference(now[place], rows[pieces].mean(0)) < TOLERANCE
    counts = TokenStore(tmp_path / "store").token_counts()
    assert counts[before.vocab_size + 1] > 0, "it occurs in the text"
    model = run_two_steps(recipe, words, tmp_path / "run")
    assert len(transformers.AutoTokenizer.from_pretrained(model)) == num_rows + 1

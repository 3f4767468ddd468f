"""How likely sentences are, against `transformers` asked one masked copy at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

from support.model_files import edit_config
from support.sizes import small, small_elmo
from support.untrained import save_bert, save_discriminator
from unmask.batch import pack
from unmask.errors import InputError, ModelError
from unmask.inference.pairs import open_scorer
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.encoder import new_encoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.directory import load_model, save_model
from unmask.models.settings import EncoderSettings
from unmask.tasks.minimal_pairs import scorers
from unmask.tasks.minimal_pairs.comparing import encode_pairs, score_pairs
from unmask.tasks.minimal_pairs.reading import MinimalPair, Paradigm
from unmask.tasks.minimal_pairs.scorers import score_sentences
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.learning.word_training import train_word_tokenizer
from unmask.tokenization.settings import TokenizerSettings

SENTENCES = (
    "The keys to the cabinet are lost.",
    "The keys to the cabinet is lost.",
    "Reading!",
    "Unbelievable, they ran",
)


def save_masked_lm(directory: Path, architecture: str = "bert", kind: str = "wordpiece") -> None:
    tokenizer, _ = learn_tokenizer(iter(SENTENCES * 5), TokenizerSettings(kind=kind, vocab_size=280), seed=0)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = EncoderSettings(
        architecture=architecture,
        vocab_size=tokenizer.vocab_size,
        pad_token_id=tokenizer.pad_id,
        initializer_range=0.3,
        max_position_embeddings=40,
        **sizes,
    )
    encoder = new_encoder(settings, pooler=False)
    save_model(directory, encoder, {"masked_lm_head": MaskedLMHead(settings)})
    tokenizer.save(directory)


def save_left_to_right(directory: Path) -> Any:
    """Returns its tokenizer."""
    tokenizer, _ = learn_tokenizer(iter(SENTENCES * 5), TokenizerSettings(kind="bpe", vocab_size=120), seed=0)
    torch.manual_seed(0)
    settings = small(
        architecture="gpt1", vocab=tokenizer.vocab_size, width=32, layers=2, heads=2, positions=64, std=0.3
    )
    save_model(directory, new_encoder(settings), causal_lm=True)
    tokenizer.save(directory)
    return tokenizer


def expected_score(model: Any, tokenizer: Any, sentence: str, whole_words: bool) -> float:
    encoding = tokenizer(sentence, return_tensors="pt")
    ids, words = encoding["input_ids"][0], encoding.word_ids()
    total = 0.0
    for place, word in enumerate(words):
        if word is None:
            continue
        masked = ids.clone()
        for other in range(place, len(ids)):
            if other == place or (whole_words and words[other] == word):
                masked[other] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(input_ids=masked[None]).logits[0, place].double()
        total += float(torch.log_softmax(logits, -1)[ids[place]])
    return total


@pytest.mark.parametrize(
    ("architecture", "kind"), [("bert", "wordpiece"), ("roberta", "byte_bpe"), ("modernbert", "byte_bpe")]
)
@pytest.mark.parametrize("pll", ["original", "word-left-to-right"])
def test_pseudo_log_likelihoods(tmp_path: Path, architecture: str, kind: str, pll: Any) -> None:
    """Tolerance: sums of some ten logarithms of order 10, each from logits within 1e-5."""
    save_masked_lm(tmp_path, architecture, kind)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    scorer = open_scorer(tmp_path, pll=pll)
    found = score_sentences(scorer, scorer.encode(SENTENCES))
    expected = [expected_score(model, tokenizer, sentence, pll != "original") for sentence in SENTENCES]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert len({round(score, 2) for score in found}) == len(SENTENCES)


def test_a_text_that_is_no_sentence_is_refused_before_it_takes_hours(tmp_path: Path) -> None:
    save_masked_lm(tmp_path, "modernbert", "byte_bpe")
    edit_config(tmp_path, max_position_embeddings=8192)
    with pytest.raises(InputError, match=r"'they they .*: 604 tokens, and at most 512 are read: expected a sentence"):
        open_scorer(tmp_path).encode(["they " * 300])


@pytest.mark.parametrize("save", [save_masked_lm, save_left_to_right])
def test_positions_that_training_has_not_reached_are_not_read(tmp_path: Path, save: Any) -> None:
    save(tmp_path)
    edit_config(tmp_path, unmask_trained_length=8)
    with pytest.raises(InputError, match="and at most 8 are read: expected a sentence"):
        open_scorer(tmp_path).encode(["a man is talking . " * 4])


def test_a_model_that_computes_nothing_finite_is_refused(tmp_path: Path) -> None:
    save_masked_lm(tmp_path)
    scorer: Any = open_scorer(tmp_path)
    next(scorer.encoder.parameters()).data[:] = torch.nan
    with pytest.raises(ModelError, match="what the model computes is not finite"):
        score_sentences(scorer, scorer.encode(["a man is talking ."]))


def test_batches_on_several_threads_score_as_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_masked_lm(tmp_path, "modernbert", "byte_bpe")
    scorer = open_scorer(tmp_path)
    monkeypatch.setitem(scorers.BATCH_TOKENS, "cpu", 40)  # several batches of these few sentences
    threads = torch.get_num_threads()
    found, advanced = [], ([], [])
    try:
        for num_threads, shares in zip((1, 3), advanced, strict=True):
            torch.set_num_threads(num_threads)
            found.append(score_sentences(scorer, scorer.encode(SENTENCES), shares.append))
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(*found)
    assert advanced[0] == advanced[1]


@pytest.mark.parametrize("save", [save_masked_lm, save_left_to_right])
def test_each_batch_that_is_scored_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any) -> None:
    save(tmp_path)
    scorer, advanced = open_scorer(tmp_path), []
    monkeypatch.setitem(scorers.BATCH_TOKENS, "cpu", 20)
    pairs = tuple(MinimalPair(good, bad) for good, bad in zip(SENTENCES[0::2], SENTENCES[1::2], strict=True))
    score_pairs(scorer, [Paradigm("agreement", "", pairs)], encode_pairs(scorer, pairs), advanced.append).figures()
    assert len(advanced) > 1
    assert sum(advanced) == pytest.approx(2)


def test_log_likelihoods_from_left_to_right(tmp_path: Path) -> None:
    tokenizer = save_left_to_right(tmp_path)
    model = transformers.OpenAIGPTLMHeadModel.from_pretrained(tmp_path).eval()
    expected = []
    for sentence in SENTENCES:
        ids = torch.tensor(tokenizer.encode_batch([sentence])[0])
        with torch.no_grad():
            logits = model(ids[None]).logits[0, :-1].double()
        expected.append(-float(functional.cross_entropy(logits, ids[1:], reduction="sum")))
    scorer = open_scorer(tmp_path)
    np.testing.assert_allclose(score_sentences(scorer, scorer.encode(SENTENCES)), expected, atol=1e-3)


@torch.no_grad()
def test_tokens_that_a_discriminator_finds_original(tmp_path: Path) -> None:
    save_discriminator(tmp_path, SENTENCES * 5)
    model = transformers.ElectraForPreTraining.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = []
    for sentence in SENTENCES:
        replaced = model(**tokenizer(sentence, return_tensors="pt")).logits[0].double().sigmoid()
        expected.append(float(torch.log(1 - replaced[1:-1]).sum()))  # all but [CLS] and [SEP]
    scorer = open_scorer(tmp_path, discriminator=True)
    np.testing.assert_allclose(score_sentences(scorer, scorer.encode(SENTENCES)), expected, atol=1e-4)
    assert len({round(score, 3) for score in expected}) == len(SENTENCES)


@torch.no_grad()
def test_log_likelihoods_of_both_directions_of_elmo(tmp_path: Path) -> None:
    """Each word after those before it, and before those after it, of which nothing else is shown to the encoder."""
    tokenizer, _ = train_word_tokenizer(SENTENCES * 5, TokenizerSettings(vocab_size=12))
    settings = small_elmo(vocab_size=tokenizer.vocab_size, max_characters=tokenizer.max_characters)
    torch.manual_seed(0)
    save_model(tmp_path, ElmoEncoder(settings), {"softmax": WordSoftmax(settings)})
    tokenizer.save(tmp_path)
    loaded = load_model(tmp_path)
    encoder, softmax = loaded.encoder.eval(), loaded.softmax
    encoder.set_words(tokenizer.table)

    def log_likelihood(word: int, hidden: torch.Tensor) -> float:
        known = word if word < tokenizer.vocab_size else tokenizer.unk_id
        logits = functional.linear(hidden, softmax.weight, softmax.bias)
        return float(torch.log_softmax(logits.double(), -1)[known])

    expected, unknown = [], 0
    for sentence in SENTENCES:
        ids = [tokenizer.bos_id, *tokenizer.encode_batch([sentence])[0], tokenizer.eos_id]
        unknown += tokenizer.count_unknown(ids)
        total = 0.0
        for place, word in enumerate(ids):
            if before := ids[:place]:
                total += log_likelihood(word, encoder(pack([before]))[-1].chunk(2)[0])
            if after := ids[place + 1 :]:
                total += log_likelihood(word, encoder(pack([after]))[0].chunk(2)[1])
        expected.append(total)
    assert unknown > 0
    scorer = open_scorer(tmp_path)
    np.testing.assert_allclose(score_sentences(scorer, scorer.encode(SENTENCES)), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (save_bert, "is a BertModel, which cannot say how likely a sentence is: expected a masked, left-to-right or"),
        (save_discriminator, "is a discriminator without its generator, .*: give discriminator=True"),
    ],
)
def test_a_model_that_cannot_score_says_so(tmp_path: Path, save: Any, message: str) -> None:
    save(tmp_path, SENTENCES * 5)
    with pytest.raises(ModelError, match=message):
        open_scorer(tmp_path)

"""Sampling from left-to-right models: the draws, the window, prompts and what is printed of Korean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.model_files import edit_config
from support.untrained import save_language_model
from unmask.batch import pack
from unmask.errors import InputError, ModelError, SettingsError
from unmask.inference.left_to_right.generation import Sampling, generate, readable
from unmask.inference.left_to_right.language_model import LanguageModel, load_language_model

TEXTS = ["the man went to the store", "키보드는 컴퓨터 자판의 한 종류이다", "she cooked pasta and it was delicious"] * 3
POSITIONS = 12


def new_language_model(directory: Path, architecture: str, kind: str) -> LanguageModel:
    sizes = {"positions": POSITIONS, "std": 0.5}
    save_language_model(directory, architecture, kind, TEXTS, 400, spare_rows=3, **sizes)
    return load_language_model(directory, device="cpu")


@pytest.fixture(scope="module", params=[("gpt1", "bpe"), ("lstm", "byte_bpe"), ("bert", "wordpiece")], ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    architecture, kind = request.param
    return new_language_model(tmp_path_factory.mktemp("lm") / architecture, architecture, kind)


def logits(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def drawn(sampling: Sampling, values: torch.Tensor, count: int = 1000) -> np.ndarray[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    return np.bincount([sampling.choose(values, generator) for _ in range(count)], minlength=len(values)) / count


def test_draws_are_from_the_models_distribution() -> None:
    """1,000 draws: a share has a standard deviation of at most .016, and 4 of them are allowed."""
    values = logits(1.0, 3.0, 2.0, -torch.inf)
    for temperature in (1.0, 0.5):
        expected = torch.softmax(values / temperature, -1).numpy()
        assert np.abs(drawn(Sampling(temperature), values) - expected).max() < 0.064
    assert drawn(Sampling(temperature=0), values, 10).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_refused(wrong: float, model: LanguageModel) -> None:
    """Minus infinity is what a token has that may not come: no model gives it."""
    special = torch.tensor([next(iter(model.tokenizer.special_ids), 5)])
    next_logits = model.next_logits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModel, "next_logits", lambda _, ids: next_logits(ids).index_fill(0, special, wrong))
        with pytest.raises(ModelError, match="not finite"):
            generate(model, "the", 2)


@pytest.mark.parametrize("temperature", [1e-10, 1e-40, 1e-50, 5e-324])
def test_however_low_a_temperature_the_likeliest_is_drawn(temperature: float, model: LanguageModel) -> None:
    values = logits(-3e38, 5.0, 3e38, -torch.inf)
    assert drawn(Sampling(temperature), values, 10).tolist() == [0, 0, 1, 0]
    assert drawn(Sampling(temperature, top_k=2, top_p=0.5), values, 10).tolist() == [0, 0, 1, 0]
    assert generate(model, "the", 5, temperature=temperature) == generate(model, "the", 5, temperature=0)


def test_however_high_a_temperature_all_tokens_may_come() -> None:
    assert np.abs(drawn(Sampling(1e300), logits(5.0, -50.0, -torch.inf)) - [0.5, 0.5, 0]).max() < 0.064


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, -(2**63) - 1, None, 1.5])
def test_a_seed_out_of_range_is_told(model: LanguageModel, seed: Any) -> None:
    with pytest.raises(SettingsError, match=rf"seed {seed}: expected a whole number from 0 to 2\*\*63 - 1"):
        generate(model, "the", 2, seed=seed)


def test_the_largest_seed_is_taken(model: LanguageModel) -> None:
    generated = generate(model, "the", 2, seed=2**63 - 1)
    assert generated == generate(model, "the", 2, seed=2**63 - 1)
    assert generated == generate(model, "the", np.int64(2), seed=np.int64(2**63 - 1), top_k=np.int64(0))


def test_top_k_and_top_p_leave_the_likeliest() -> None:
    values = logits(0.1, 0.4, 0.3, 0.2).log()
    assert np.abs(drawn(Sampling(top_k=2), values) - [0, 4 / 7, 3 / 7, 0]).max() < 0.064
    assert np.abs(drawn(Sampling(top_p=0.65), values) - [0, 4 / 7, 3 / 7, 0]).max() < 0.064
    assert np.abs(drawn(Sampling(top_p=0.75), values) - [0, 4 / 9, 3 / 9, 2 / 9]).max() < 0.064
    for least in (1e-6, 1e-320):  # one is always left, also where float32 has no such probability
        assert drawn(Sampling(top_p=least), values, 10).tolist() == [0, 1, 0, 0]
    assert drawn(Sampling(top_k=9), values, 10).sum() == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"temperature": -1.0}, "temperature -1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_p": 0.0}, "top_p 0"),
        ({"top_p": 1.1}, r"top_p 1\.1"),
        ({"temperature": "1"}, "temperature '1': expected a number"),
        ({"top_p": None}, "top_p None: expected a number"),
        ({"top_k": 1.5}, r"top_k 1\.5: expected a whole number of tokens, or 0 for all"),
    ],
)
def test_values_out_of_range_are_told(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Sampling(**wrong)


def test_greedy_text_is_the_likeliest_token_each_time_over_a_sliding_window(model: LanguageModel) -> None:
    """Step by step by hand, past the positions that the model has."""
    prompt = "the man"
    [ids] = model.tokenizer.encode_batch([prompt])
    ids = [*model.prefix, *ids]
    begin = len(ids)
    for _ in range(2 * POSITIONS):
        scores = model.next_logits(ids[-POSITIONS:])
        assert len(scores) == model.tokenizer.vocab_size
        scores[list(model.tokenizer.special_ids)] = -torch.inf
        ids.append(int(scores.argmax()))
    found = generate(model, prompt, 2 * POSITIONS, temperature=0)
    expected = readable(model.tokenizer.decode(ids[len(model.prefix) :]))
    assert readable(model.tokenizer.decode(ids[len(model.prefix) : begin])) + found == expected
    assert not set(ids[begin:]) & set(model.tokenizer.special_ids)


def test_a_model_reads_no_more_than_its_sequences_in_pre_training_had(tmp_path: Path) -> None:
    model = new_language_model(tmp_path / "gpt1", "gpt1", "bpe")
    assert model.window == POSITIONS
    edit_config(tmp_path / "gpt1", unmask_trained_length=5)
    model = load_language_model(tmp_path / "gpt1", device="cpu")
    [ids] = model.tokenizer.encode_batch(["the man and the dog and the man again"])
    assert (model.window, len(ids) > 5) == (5, True)
    assert torch.equal(model.next_logits(ids), model.next_logits(ids[-5:]))


def test_a_word_after_an_unknown_one_has_its_space(tmp_path: Path) -> None:
    model = new_language_model(tmp_path / "gpt1", "gpt1", "bpe")
    [ids] = model.tokenizer.encode_batch(["the man \u2603"])
    assert ids[-1] == model.tokenizer.unk_id
    assert generate(model, "the man \u2603", 3).startswith(" ")
    assert not generate(model, "the man \u2603 ", 3).startswith(" ")


def test_a_seed_repeats_its_text(model: LanguageModel) -> None:
    first = generate(model, "키보드는", 20, seed=3)
    assert first == generate(model, "키보드는", 20, seed=3)
    assert len({generate(model, "키보드는", 20, seed=seed) for seed in range(5)}) > 1
    assert generate(model, "the", 0) == ""


def test_text_never_ends_inside_a_character(model: LanguageModel) -> None:
    for seed in range(5):
        for count in range(1, 8):
            text = generate(model, "키보드는 컴", count, seed=seed)
            assert not text.endswith("\ufffd")
            assert not text or not "\u1100" <= text[-1] <= "\u115f"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("한글", "한글"),
        ("한\ufffd", "한"),
        ("한\ufffd\ufffd", "한"),
        ("\u1112\u1161\u11ab\u1100", "한"),  # decomposed, then a first consonant alone
        ("\u1112\u1161", "하"),
        ("", ""),
    ],
)
def test_what_is_readable(text: str, expected: str) -> None:
    assert readable(text) == expected


def test_prompts_without_a_token_or_without_sense_are_refused(tmp_path: Path) -> None:
    gpt1 = new_language_model(tmp_path / "gpt1", "gpt1", "bpe")
    assert gpt1.prefix == ()
    with pytest.raises(InputError, match="holds no token"):
        generate(gpt1, "  ", 3)
    with pytest.raises(InputError, match="half of a surrogate pair"):
        generate(gpt1, "a\ud800", 3)
    with pytest.raises(InputError, match="the prompt is '5': expected one text"):
        generate(gpt1, 5, 3)  # type: ignore[arg-type]
    for wrong in (-1, 2.5):
        with pytest.raises(SettingsError, match=f"num_tokens {wrong}: expected a whole number"):
            generate(gpt1, "a", wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="precision=bf16: a loaded LanguageModel has its precision"):
        generate(gpt1, "a", 3, precision="bf16")
    bert = new_language_model(tmp_path / "bert", "bert", "wordpiece")
    assert bert.prefix == (bert.tokenizer.cls_id,)
    generate(bert, "", 3)


def test_a_model_of_another_kind_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="expected a left-to-right language model"):
        generate(tiny_model, "a man", 3)


def test_log_probabilities_are_of_each_token_given_those_before(model: LanguageModel) -> None:
    """Tolerance: fp32 sums in another order."""
    sequences = [[20, 21, 22, 23], [30], [25, 20]]
    found = model.log_probabilities(sequences)
    assert [len(values) for values in found] == [3, 0, 1]
    for sequence, values in zip(sequences, found, strict=True):
        for place, value in enumerate(values.tolist(), start=1):
            states = model.encoder(pack([sequence[:place]]))[-1:]
            words = model.encoder.word_embeddings
            every = states @ words.T if model.masked_lm_head is None else model.masked_lm_head(states, words)
            assert value == pytest.approx(float(every.detach().log_softmax(-1)[0, sequence[place]]), abs=1e-4)

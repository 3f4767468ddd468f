"""The decoded examples of a run, from models whose answers are known, and how the report draws them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from support.sizes import sizes_of
from unmask.batch import Batch, pack
from unmask.models.encoder import new_encoder
from unmask.models.settings import EncoderSettings
from unmask.objectives.causal_lm import CausalLM, CausalLMModule
from unmask.objectives.masked_lm import MaskedLM, MaskedLMModule
from unmask.objectives.replaced_token import ReplacedToken, ReplacedTokenModule
from unmask.objectives.settings import CausalLMSettings, MaskedLMSettings, ReplacedTokenSettings
from unmask.reports.layout import render
from unmask.reports.sample_rows import view_samples
from unmask.reports.samples import samples_of, show_tokens
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer

TEXT = "the dog and the dogs ran and the man ran on"
SIZES = sizes_of(width=16, layers=1, heads=2, inner=64, positions=40, dropout=0)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, TextTokenizer]:
    kinds = ("wordpiece", "bpe", "byte_bpe")
    settings = {kind: TokenizerSettings.model_validate({"kind": kind, "vocab_size": 300}) for kind in kinds}
    return {kind: learn_tokenizer(iter([TEXT] * 20), settings[kind], seed=0)[0] for kind in kinds}


def batch_of(tokenizer: TextTokenizer, *texts: str, framed: bool = True) -> Batch:
    """`[CLS] text [SEP]`, or the text alone."""
    encoded = tokenizer.encode_batch(texts)
    ids = [[tokenizer.cls_id, *each, tokenizer.sep_id] if framed else each for each in encoded]
    batch = pack(ids, keys=list(range(1, len(ids) + 1)))
    special = torch.isin(batch.input_ids, torch.tensor(tokenizer.special_ids))
    labels = torch.arange(len(ids)) % 2
    return batch.with_columns(special_tokens_mask=special, sentence_order_label=labels, next_sentence_label=labels)


def sizes_for(tokenizer: TextTokenizer, architecture: str, **more: Any) -> EncoderSettings:
    return EncoderSettings(**{"architecture": architecture, "vocab_size": tokenizer.vocab_size, **SIZES, **more})


def masked(tokenizer: TextTokenizer, **settings: Any) -> tuple[MaskedLM, MaskedLMModule]:
    torch.manual_seed(0)
    objective = MaskedLM(MaskedLMSettings(target_prob=0.4, **settings), tokenizer.vocabulary)
    return objective, objective.build(new_encoder(sizes_for(tokenizer, "bert"), pooler=objective.needs_pooler))


def words_of(sample: dict[str, Any]) -> str:
    """The text of a sample as it is read, without `[CLS]` and `[SEP]`, which left-to-right models predict too."""
    shown = ""
    for token in sample["text"]:
        if token["kind"] != "special" and token["token"] != "[SEP]":
            entry = str(token.get("original") or (token["label"] if token["kind"] == "masked" else token["token"]))
            bare = entry.removeprefix("##").removeprefix("␣").removesuffix("</w>")
            shown += ("" if token["joined"] else " ") + bare
    return shown.strip()


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_a_masked_lm(tokenizers: dict[str, TextTokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    objective, module = masked(tokenizer, sentence_objective="none")
    batch = objective.prepare(batch_of(tokenizer, *[TEXT] * 9))
    with torch.no_grad():
        module.masked_lm_head.bias[tokenizer.encode_batch(["the"])[0][0]] = 50.0  # it always says the same
    samples = samples_of(module, batch, tokenizer)
    assert [sample["title"] for sample in samples] == [f"held-out sequence {number}" for number in range(1, 9)]
    assert [words_of(sample) for sample in samples] == [TEXT] * 8
    targets = [token for sample in samples for token in sample["text"] if token["kind"] == "masked"]
    assert len(targets) == int((batch.columns["labels"][: batch.bounds[8]] != -100).sum()) > 0
    assert {token["prediction"] for token in targets} == {"the"}
    assert all(token["probability"] > 0.99 for token in targets)
    assert all(token["correct"] == (token["label"] == "the") for token in targets)


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        ("nsp", ["IsNext, the model says IsNext with 75%", "NotNext, the model says IsNext with 75%"]),
        ("sop", ["in order, the model says in order with 75%", "swapped, the model says in order with 75%"]),
    ],
)
def test_what_is_said_of_segments(tokenizers: dict[str, TextTokenizer], objective: str, told: list[str]) -> None:
    tokenizer = tokenizers["wordpiece"]
    learnt, module = masked(tokenizer, sentence_objective=objective)
    dense: Any = module.get_submodule("next_sentence_head.dense")
    with torch.no_grad():
        dense.weight.zero_()
        dense.bias.copy_(torch.tensor([3.0, 1.0]).log())
    samples = samples_of(module, learnt.prepare(batch_of(tokenizer, TEXT, TEXT)), tokenizer)
    assert [sample["title"].partition(": ")[2] for sample in samples] == told


def test_spans_are_shown_as_targets(tokenizers: dict[str, TextTokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    objective, module = masked(tokenizer, sentence_objective="none", masking="span", span_boundary=True)
    (sample,) = samples_of(module, objective.prepare(batch_of(tokenizer, TEXT)), tokenizer)
    assert words_of(sample) == TEXT
    assert "masked" in {token["kind"] for token in sample["text"]}


@pytest.mark.parametrize(("kind", "architecture"), [("bpe", "gpt1"), ("wordpiece", "bert")])
def test_a_left_to_right_model(tokenizers: dict[str, TextTokenizer], kind: str, architecture: str) -> None:
    tokenizer = tokenizers[kind]
    torch.manual_seed(0)
    objective = CausalLM(CausalLMSettings(), tokenizer.vocabulary)
    causal = {"causal": True} if architecture == "bert" else {}
    module = objective.build(new_encoder(sizes_for(tokenizer, architecture, **causal), pooler=False))
    assert isinstance(module, CausalLMModule)
    batch = objective.prepare(batch_of(tokenizer, TEXT, "the man", framed=architecture == "bert"))
    samples = samples_of(module, batch, tokenizer)
    assert [words_of(sample) for sample in samples] == [TEXT, "the man"]
    with torch.no_grad():
        decoder, labels = module.decoder(batch)
    logits = (decoder.states @ decoder.weight.T + (0 if decoder.bias is None else decoder.bias)).detach()
    probabilities = torch.softmax(logits, -1)
    expected = [token for sample in samples for token in sample["text"] if token["kind"] == "next"]
    assert len(expected) == len(labels)
    for token, chances, label in zip(expected, probabilities, labels.tolist(), strict=True):
        assert token["label"] == token["token"] == tokenizer.token_strings[label]
        assert token["prediction"] == tokenizer.token_strings[int(chances.argmax())]
        assert token["probability"] == pytest.approx(float(chances.max()))
        assert token["label_probability"] == pytest.approx(float(chances[label]))
    assert [sample["text"][0]["kind"] for sample in samples] == ["special" if architecture == "bert" else "plain"] * 2


def electra(tokenizer: TextTokenizer, **settings: Any) -> tuple[ReplacedToken, ReplacedTokenModule]:
    torch.manual_seed(0)
    objective = ReplacedToken(ReplacedTokenSettings(target_prob=0.4, **settings), tokenizer.vocabulary)
    return objective, objective.build(new_encoder(sizes_for(tokenizer, "electra", embedding_size=16)))


def test_replaced_tokens(tokenizers: dict[str, TextTokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    objective, module = electra(tokenizer)
    the = tokenizer.encode_batch(["the"])[0][0]
    with torch.no_grad():
        module.generator_head.bias[the] = 50.0  # what it samples is always this
        module.discriminator_head.output.weight.zero_()
        module.discriminator_head.output.bias.fill_(2.0)  # and everything is called replaced
    batch = objective.prepare(batch_of(tokenizer, TEXT))
    (sample,) = samples_of(module, batch, tokenizer)
    assert words_of(sample) == TEXT
    targets = batch.columns["target_positions"].tolist()
    for place, token in enumerate(sample["text"]):
        if token["kind"] == "special":
            assert place in (0, batch.num_tokens - 1)
            continue
        original = int(batch.columns["labels"][place] if place in targets else batch.input_ids[place])
        replaced = place in targets and original != the
        assert token["token"] == tokenizer.token_strings[the if place in targets else original]
        assert (token["label"], token["prediction"]) == ("replaced" if replaced else "original", "replaced")
        assert token.get("original") == (tokenizer.token_strings[original] if replaced else None)
        assert token["correct"] == replaced
        assert token["probability"] == pytest.approx(1 / (1 + torch.e**-2))
    assert {token.get("label") for token in sample["text"]} == {None, "original", "replaced"}


def test_a_generator_that_is_trained_alone_is_asked_as_a_masked_lm(tokenizers: dict[str, TextTokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    objective, module = electra(tokenizer, schedule="two_stage", generator_size=1)
    batch = objective.prepare(batch_of(tokenizer, TEXT))
    assert {token["kind"] for token in samples_of(module, batch, tokenizer)[0]["text"]} >= {"masked", "special"}
    module.begin_stage(1)
    assert {token["kind"] for token in samples_of(module, batch, tokenizer)[0]["text"]} == {"checked", "special"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("byte_bpe", ["<s>", "the", "␣dog", *"␣ééفف", "<mask>", *"👩👩👩👩", "↵"]),
        ("wordpiece", ["[CLS]", "the", "dog", "[UNK]", "[MASK]", "[UNK]"]),
    ],
)
def test_tokens_of_bytes_are_shown_as_text(
    tokenizers: dict[str, TextTokenizer], kind: str, expected: list[str]
) -> None:
    tokenizer = tokenizers[kind]
    mask = tokenizer.token_strings[tokenizer.mask_id]
    (ids,) = tokenizer.encode_batch([f"the dog éف{mask}👩\n"], specials_in_text=True)
    assert show_tokens(tokenizer, [tokenizer.cls_id, *ids]) == expected


# ---- Drawn


def drawn(*tokens: dict[str, Any]) -> str:
    return render("samples.html", **view_samples([{"title": "one", "text": list(tokens)}]))


def test_a_note_for_each_kind_of_token() -> None:
    assert "at masked positions" in drawn({"kind": "masked", "label": "a", "prediction": "a", "correct": True})
    assert "from those before it" in drawn({"kind": "next", "label": "a", "prediction": "a", "correct": True})
    assert "generator" in drawn({"kind": "checked", "token": "a", "label": "original"})
    assert render("samples.html", **view_samples([])).strip() == ""


def test_what_was_expected_next() -> None:
    token = {"token": "man</w>", "kind": "next", "label": "man</w>", "prediction": "dog</w>", "probability": 0.5}
    page = drawn(token | {"correct": False, "label_probability": 0.25})
    title = "expected dog with probability 0.50 · man itself with 0.25"
    assert f'<span title="{title}">man</span>' in page
    page = drawn(token | {"correct": True, "prediction": "man</w>"})
    assert '<mark class="right" title="expected man with probability 0.50">man</mark>' in page


def test_what_was_masked_has_its_probability_beside_it() -> None:
    token = {"token": "[MASK]", "kind": "masked", "label": "man", "prediction": "dog", "probability": 0.5}
    assert "<del>dog</del> <ins>man</ins> <small>50%</small></mark>" in drawn(token | {"correct": False})
    page = drawn(token | {"correct": True, "prediction": "man", "probability": 0.93})
    assert "man <small>93%</small></mark>" in page


def test_what_a_discriminator_says() -> None:
    caught = {"token": "dog", "kind": "checked", "label": "replaced", "prediction": "replaced", "original": "man"}
    page = drawn(caught | {"probability": 0.75, "correct": True})
    assert "<del>man</del> <ins>dog</ins> <small>75%</small></mark>" in page
    page = drawn({"token": "##s", "kind": "checked", "label": "original", "prediction": "replaced", "correct": False})
    assert '<mark class="wrong" title="original · the discriminator says replaced: replaced">s</mark>' in page


def test_pieces_of_a_word_stand_together() -> None:
    pieces = [{"token": "do", "kind": "plain"}, {"token": "##gs", "kind": "plain", "joined": True}]
    assert '<p class="text" dir="auto">dogs</p>' in drawn(*pieces)
    marked: list[dict[str, Any]] = [
        {"token": "␣do", "kind": "plain", "joined": False}, {"token": "gs", "kind": "plain", "joined": True}
    ]  # fmt: skip
    assert '<p class="text" dir="auto">dogs</p>' in drawn(*marked)


def test_texts_from_right_to_left_stand_beside_what_is_said_of_them() -> None:
    said = {"input": {"text": "דוד [sic]!"}, "label": None, "prediction": "Müller [اسم], דוד [اسم]"}
    page = render("samples.html", **view_samples([said]))
    assert "<td><bdi>דוד [sic]!</bdi></td>" in page
    assert '<mark class=""><bdi>Müller [اسم]</bdi>, <bdi>דוד [اسم]</bdi></mark>' in page
    text = drawn({"token": "[CLS]", "kind": "special"}, {"token": "דוד", "kind": "plain"})
    assert '<p class="text" dir="auto"><span class="special"><bdi>[CLS]</bdi></span> דוד</p>' in text


def test_an_answer_is_marked_as_its_task_compares_it() -> None:
    said = {"input": {"text": "t"}, "label": "kite", "prediction": "The kite", "probability": 0.5}
    page = render("samples.html", **view_samples([said, {**said, "correct": True}, {**said, "prediction": "kite"}]))
    assert re.findall('<mark class="(.*?)">', page) == ["wrong", "right", "right"]
    assert "<th>probability</th>" in page


def test_numbers_are_neither_right_nor_wrong_and_have_no_probability() -> None:
    said = {"input": {"text": "t"}, "label": "3.2", "prediction": "3.1", "probability": None, "correct": None}
    page = render("samples.html", **view_samples([said]))
    assert "wrong" not in page
    assert "probability" not in page
    assert page.count("<td>") == page.count("<th>") == 3

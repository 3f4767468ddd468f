"""Padding masks: the answers of the fill-mask pipeline of `transformers`, and a start that imports little."""

from __future__ import annotations

import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Literal

import pytest
import torch

from support.model_files import edit_config
from support.untrained import save_bert, save_masked_lm
from unmask.errors import InputError, ModelError
from unmask.inference.inspection import answers_of_layers
from unmask.inference.mask_filling import MaskFiller, fill_mask
from unmask.tokenization.learning.extension import extend_tokenizer


@pytest.mark.parametrize("text", ["a man [MASK] outside.", "[MASK]", "A [MASK], isn't it? The [MASK] plays!"])
def test_answers_are_those_of_transformers(tiny_model: Path, text: str) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer, FillMaskPipeline

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    pipeline = FillMaskPipeline(model=AutoModelForMaskedLM.from_pretrained(tiny_model), tokenizer=tokenizer)
    every = pipeline(text, top_k=len(tokenizer))
    by_mask = every if isinstance(every[0], list) else [every]
    expected = [
        {"mask": number, **answer} if len(by_mask) > 1 else answer
        for number, answers in enumerate(by_mask)
        for answer in [each for each in answers if each["token"] not in tokenizer.all_special_ids][:7]
    ]
    answers = fill_mask(tiny_model, text, top_k=7)
    for answer, other in zip(answers, expected, strict=True):
        # Probabilities in float32 from two implementations: the last digits differ.
        assert answer.pop("score") == pytest.approx(other.pop("score"), abs=1e-5)
        assert answer.keys() == other.keys()
        of_token = {"mask", "token", "token_str"} & answer.keys()  # their sequence is in lower case, with other blanks
        assert [answer[name] for name in of_token] == [other[name] for name in of_token]


def words_in_place(model: Path, text: str) -> dict[str, str]:
    """By its entry in the vocabulary, what each token gives in place of the first mask."""
    filler = MaskFiller(model)
    answers = [answer for answer in filler.fill(text, 10**6) if not answer.get("mask")]
    return {filler.tokenizer.token_strings[answer["token"]]: answer["sequence"] for answer in answers}


def test_the_rest_of_the_text_stays_as_it_was_written(tiny_model: Path) -> None:
    found = words_in_place(tiny_model, 'A  Man isn\'t\t[MASK] (now) , "so"...')
    assert found["man"] == 'A  Man isn\'t\tman (now) , "so"...'
    assert found[","] == 'A  Man isn\'t\t, (now) , "so"...'
    assert found["##ing"] == 'A  Man isn\'ting (now) , "so"...', "it continues a word"
    assert words_in_place(tiny_model, "([MASK]) the [MASK].")["man"] == "(man) the [MASK]."
    assert words_in_place(tiny_model, "[MASK]")["man"] == "man"


def test_byte_level_tokens_bring_their_blank(tmp_path: Path) -> None:
    model = save_masked_lm(tmp_path / "model", "roberta", ["a man isn't walking, the man talks"] * 9)
    found = words_in_place(model, "The  Man,\n<mask> now .")
    assert found["Ġman"] == "The  Man,\nman now ."
    assert found["t"] == "The  Man,t now ."
    assert words_in_place(model, "<mask>")["Ġman"] == "man"


def test_a_text_cut_into_morphemes_stays_as_it_was_written(tmp_path: Path) -> None:
    pytest.importorskip("kiwipiepy", reason="needs the extra ko")
    model = save_bert(tmp_path / "model", ["나는 학교에 간다. 너는 집에 간다."] * 9, masked_lm=True, segmenter="kiwi")
    assert words_in_place(model, "나는 [MASK]에  간다.")["집"] == "나는 집에  간다."
    filler = MaskFiller(model)
    read = filler.encode("나는 [MASK]에  간다.")
    assert filler.tokenizer.token_strings[read.ids[read.places[0] + 1]] == "에", "a morpheme is a word of its own"


def test_words_that_are_asked_for_have_the_scores_of_the_whole_list(tmp_path: Path) -> None:
    model = save_masked_lm(tmp_path / "model", "roberta", ["a man isn't walking, the man talks"] * 9)
    filler = MaskFiller(model)
    text = filler.encode("the <mask> talks <mask>")
    every = filler.answer([text], 10**6)[0]
    asked = ["man", " t", "absent"]  # tokens that begin a word have its blank
    expected = [answer for answer in every if answer["token_str"].strip() in ("man", "t")]
    assert filler.answer([text], 1, filler.find_tokens(asked)) == [expected]
    assert {answer["mask"] for answer in expected} == {0, 1}
    assert filler.answer([text], 1, filler.find_tokens(["absent"])) == [[]]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_word_is_found_however_it_is_composed(tmp_path: Path, form: Literal["NFC", "NFD"]) -> None:
    filler = MaskFiller(save_bert(tmp_path / "model", ["서울 사람이 간다"] * 9, masked_lm=True))
    [found] = filler.find_tokens([unicodedata.normalize(form, "서울")])
    assert filler.tokenizer.token_strings[found] == "서울"


def test_special_tokens_fill_no_blank_unless_they_are_asked_for(tiny_model: Path) -> None:
    filler = MaskFiller(tiny_model)
    text = filler.encode("a man [MASK] outside.")
    special = filler.tokenizer.special_ids
    every = filler.answer([text], 10**6)[0]
    assert {answer["token"] for answer in every} == set(range(filler.tokenizer.vocab_size)) - set(special)
    [unknown] = filler.answer([text], among=filler.find_tokens(["[UNK]"]))[0]
    assert unknown["token"] == filler.tokenizer.unk_id
    of_special = filler.answer([text], among=special)[0]
    assert sum(answer["score"] for answer in every + of_special) == pytest.approx(1, abs=1e-5)


def test_no_answer_is_of_a_row_that_pads_the_models_matrix(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    padded = AutoModelForMaskedLM.from_pretrained(tiny_model)
    padded.resize_token_embeddings(401, pad_to_multiple_of=64)
    shutil.copytree(tiny_model, tmp_path / "model")
    padded.save_pretrained(tmp_path / "model")
    filler = MaskFiller(tmp_path / "model")
    assert filler.encoder.settings.vocab_size == 448
    every = filler.fill("a man [MASK] outside.", 10**6)
    assert {answer["token"] for answer in every} == set(range(400)) - set(filler.tokenizer.special_ids)
    text = filler.encode("a man [MASK] outside.")
    layers = answers_of_layers(filler.encoder, filler.head, filler.tokenizer, text.ids, text.places[0], 10**6)
    assert {len(layer.scores) for layer in layers} == {len(every)}


def test_refused(tiny_model: Path, tmp_path: Path) -> None:
    filler = MaskFiller(tiny_model)
    with pytest.raises(InputError, match=r"no \[MASK\] in 'a man': put \[MASK\] where a word is wanted"):
        filler.fill("a man")
    with pytest.raises(InputError, match="the text has 82 tokens and the model takes 64"):
        filler.fill("a " * 79 + "[MASK]")
    with pytest.raises(InputError, match=r"the text is .*: expected one text; for many, keep a MaskFiller"):
        filler.fill(["[MASK]"])  # type: ignore[arg-type]
    for wrong in (0, 1.5, None):
        with pytest.raises(InputError, match=f"top_k is {wrong}: expected a whole number"):
            filler.fill("[MASK]", wrong)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no such directory"):
        fill_mask(tmp_path / "absent", "[MASK]")
    assert len(filler.fill("[MASK]", 10**6)) == 400 - 5  # all there are, special tokens left out


def test_positions_that_training_has_not_reached_are_not_read(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    edit_config(tmp_path / "model", unmask_trained_length=8)
    filler = MaskFiller(tmp_path / "model")
    assert len(filler.fill("a a a a a [MASK]", 3)) == 3
    with pytest.raises(InputError, match="the text has 9 tokens and the model takes 8: shorten it"):
        filler.fill("a a a a a a [MASK]")


def test_a_tokenizer_with_more_entries_than_the_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "words.txt").write_text("zyzzyva\n")
    extend_tokenizer(tiny_model, tmp_path / "words.txt", tmp_path / "extended")
    for file in (tmp_path / "extended").iterdir():
        shutil.copy(file, tmp_path / "model")
    with pytest.raises(ModelError, match=r"has \d+ entries and the model \d+: put the tokenizer that the model was"):
        MaskFiller(tmp_path / "model")


def test_a_tokenizer_with_another_padding_than_positions_are_counted_from_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save_masked_lm(tmp_path, "roberta", ["the sky is blue"] * 9)
    MaskFiller(directory)
    assert not caplog.messages
    edit_config(directory, pad_token_id=2)
    MaskFiller(directory)
    [message] = caplog.messages
    assert "pad_token_id is 2 in config.json and 1 in the tokenizer; transformers gives the token 2 no" in message


def test_a_model_that_computes_nothing_finite_is_refused(tiny_model: Path) -> None:
    filler = MaskFiller(tiny_model)
    next(filler.encoder.parameters()).data[:] = torch.nan
    with pytest.raises(ModelError, match="what the model computes is not finite"):
        filler.fill("[MASK]")


def test_the_precision_is_the_one_asked_for(tiny_model: Path) -> None:
    filler = MaskFiller(tiny_model, precision="bf16")
    modules = (filler.encoder, filler.head)
    assert {weight.dtype for module in modules for weight in module.parameters()} == {torch.bfloat16}
    [expected], [found] = fill_mask(tiny_model, "a man [MASK] outside.", 1), filler.fill("a man [MASK] outside.", 1)
    assert found["token_str"] == expected["token_str"]
    assert found["score"] == pytest.approx(expected["score"], rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_answers_as_the_processor(tiny_model: Path, precision: str) -> None:
    texts = ["a man [MASK] outside.", "the [MASK] plays [MASK] ."]
    answers, layers = [], []
    for device in ("cpu", "cuda"):
        filler = MaskFiller(tiny_model, device=device, precision=precision)
        read = [filler.encode(text) for text in texts]
        among = filler.find_tokens(["man", "plays", "outside"])
        answers.append([filler.answer(read, 400), filler.answer(read, among=among)])
        its = read[0]
        layers.append(answers_of_layers(filler.encoder, filler.head, filler.tokenizer, its.ids, its.places[0], 3))  # type: ignore[arg-type]
    for ours, theirs in zip(*answers, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            scores = [{(each.get("mask"), each["token"]): each["score"] for each in its} for its in (one, other)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-3 if precision == "fp32" else 0.2)
    assert [each.layer for each in layers[0]] == [each.layer for each in layers[1]]
    assert layers[1][-1].scores == pytest.approx(layers[0][-1].scores, rel=1e-3 if precision == "fp32" else 0.2)


def test_imports_little() -> None:
    look = "import sys, unmask.inference.mask_filling; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "torch" in modules
    heavy = {"matplotlib", "tensorboard", "sklearn", "yaml", "rich", "torch._dynamo"}
    assert not (heavy | {"unmask.recipe.tree", "unmask.reports.run_page"}) & modules

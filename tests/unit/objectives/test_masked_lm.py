"""The module that learns, against `transformers` on the same batches padded: losses, gradients, scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, RobertaConfig, RobertaForMaskedLM

from support.sizes import sizes_of, small
from unmask.batch import Batch, pack
from unmask.errors import SettingsError
from unmask.models.encoder import new_encoder
from unmask.models.hub.directory import load_model, save_model
from unmask.models.hub.source import open_source
from unmask.models.hub.weight_names import hub_names, split
from unmask.objectives.floors import by_figure
from unmask.objectives.masked_lm import MaskedLM, MaskedLMModule
from unmask.objectives.settings import MaskedLMSettings, ReplacedTokenSettings
from unmask.objectives.settings_base import ObjectiveSettings
from unmask.objectives.table import new_objective
from unmask.tokenization.vocabulary import Vocabulary

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SIZE, CLS, SEP, MASK = 61, 2, 3, 4
VOCABULARY = Vocabulary(SIZE, MASK, (0, 1, 2, 3, 4), np.arange(SIZE) >= 40)
LENGTHS = (16, 9, 12, 5, 16, 7)
SIZES = sizes_of(vocab=SIZE, width=24, layers=2, heads=3, inner=40, positions=16, std=0.2)
SIZES["attn_implementation"] = "eager"
ROBERTA = {"max_position_embeddings": 18, "type_vocab_size": 1}
Theirs = BertForPreTraining | BertForMaskedLM | RobertaForMaskedLM
THEIRS: dict[str, Callable[[], Theirs]] = {
    "BertForPreTraining": lambda: BertForPreTraining(BertConfig(**SIZES)),
    "BertForMaskedLM": lambda: BertForMaskedLM(BertConfig(**SIZES)),
    # Its positions begin after the padding's entry.
    "RobertaForMaskedLM": lambda: RobertaForMaskedLM(RobertaConfig(**SIZES | ROBERTA)),
}

TOLERANCE = 1e-5
"""Some hundred roundings of fp32 (6e-8 each) on losses of order 1 and gradients taken relative to the largest entry of
each; a wrong label, count or class is a thousand times more (`test_the_tolerance_can_fail`)."""


def draw_batch(lengths: tuple[int, ...] = LENGTHS) -> Batch:
    """`[CLS] A [SEP] B [SEP]` sequences with labels for next-sentence prediction."""
    generator = torch.Generator().manual_seed(0)
    rows, segments = [], []
    for length in lengths:
        row = torch.randint(5, SIZE, (length,), generator=generator).tolist()
        row[0], row[length // 2], row[-1] = CLS, SEP, SEP
        rows.append(row)
        segments.append([0] * (length // 2 + 1) + [1] * (length - length // 2 - 1))
    batch = pack(rows, segments, keys=list(range(len(rows))))
    labels = torch.randint(2, (len(rows),), generator=generator)
    return batch.with_columns(special_tokens_mask=batch.input_ids < 5, next_sentence_label=labels)


def objective(with_next_sentence: bool) -> MaskedLM:
    settings = MaskedLMSettings(target_prob=0.3, sentence_objective="nsp" if with_next_sentence else "none")
    return MaskedLM(settings, VOCABULARY)


def both(directory: Path, kind: str) -> tuple[Theirs, MaskedLMModule, Batch]:
    """`transformers`' model with random weights, biases and norms included, ours with the same ones, and a batch."""
    torch.manual_seed(0)
    with_next_sentence = kind == "BertForPreTraining"
    theirs = THEIRS[kind]().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    theirs.save_pretrained(directory)
    loaded = load_model(directory)
    assert loaded.masked_lm_head is not None
    ours = objective(with_next_sentence).build(loaded.encoder)
    ours.masked_lm_head = loaded.masked_lm_head
    if with_next_sentence:
        ours.next_sentence_head = loaded.next_sentence_head
    plain = draw_batch()
    if kind == "RobertaForMaskedLM":  # it knows one segment
        plain = replace(plain, token_type_ids=torch.zeros_like(plain.token_type_ids))
    return theirs, ours.eval(), objective(with_next_sentence).prepare(plain)


def pad(batch: Batch, packed: Tensor, value: int) -> Tensor:
    rows = packed.split(batch.lengths)
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def their_output(theirs: Theirs, batch: Batch) -> Any:
    labels = {}
    if isinstance(theirs, BertForPreTraining):
        labels["next_sentence_label"] = batch.columns["next_sentence_label"]
    return theirs(
        input_ids=pad(batch, batch.input_ids, 0),
        token_type_ids=pad(batch, batch.token_type_ids, 0),
        attention_mask=pad(batch, torch.ones_like(batch.input_ids), 0),
        labels=pad(batch, batch.columns["labels"], -100),
        **labels,
    )


def our_loss(ours: MaskedLMModule, batch: Batch) -> Tensor:
    counts = {"mlm": len(batch.columns["target_positions"]), "nsp": batch.num_sequences}
    return torch.stack([term.coefficient * term.total / counts[term.name] for term in ours(batch)]).sum()


def differences(theirs: Theirs, ours: MaskedLMModule, batch: Batch) -> dict[str, float]:
    """Of the loss, and of each gradient relative to its largest entry."""
    expected = their_output(theirs, batch).loss
    expected.backward()
    loss = our_loss(ours, batch)
    loss.backward()
    heads = {name: getattr(ours, name) for name in ("masked_lm_head", "next_sentence_head") if hasattr(ours, name)}
    names = hub_names(ours.encoder, heads)
    found: dict[str, Tensor] = {}
    for parameter, parts in names.items():
        assert parameter.grad is not None
        found |= split(parts, parameter.grad)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert found.keys() == gradients.keys()
    scales = {name: float(gradient.abs().max()) for name, gradient in gradients.items()}
    for name in scales:
        if name.endswith("key.bias"):  # zero but for rounding, since softmax cannot see it
            scales[name] = scales[name.replace("bias", "weight")]
    off = {name: float((found[name] - gradient).abs().max()) / scales[name] for name, gradient in gradients.items()}
    return off | {"loss": abs(float(loss.detach()) - float(expected.detach()))}


@pytest.mark.parametrize("kind", THEIRS)
def test_loss_and_gradients_equal_transformers(tmp_path: Path, kind: str) -> None:
    found = differences(*both(tmp_path, kind))
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize("mistake", ["label", "class"])
def test_the_tolerance_can_fail(tmp_path: Path, mistake: str) -> None:
    theirs, ours, batch = both(tmp_path, "BertForPreTraining")
    expected = float(their_output(theirs, batch).loss.detach())
    labels, classes = batch.columns["labels"].clone(), batch.columns["next_sentence_label"].clone()
    if mistake == "label":
        labels[batch.columns["target_positions"][0]] += 1
    else:
        classes[0] = 1 - classes[0]
    wrong = our_loss(ours, batch.with_columns(labels=labels, next_sentence_label=classes))
    assert abs(float(wrong.detach()) - expected) > 100 * TOLERANCE


@pytest.mark.parametrize("kind", THEIRS)
@torch.no_grad()
def test_scores_equal_what_transformers_logits_give(tmp_path: Path, kind: str) -> None:
    theirs, ours, batch = both(tmp_path, kind)
    output = their_output(theirs, batch)
    scores = ours.scores(batch)
    with_next_sentence = kind == "BertForPreTraining"
    logits = output.prediction_logits if with_next_sentence else output.logits
    labels = pad(batch, batch.columns["labels"], -100)
    is_target = labels != -100
    correct, count = scores["mlm_accuracy"]
    assert count == int(is_target.sum())
    assert int(correct) == int((logits.argmax(-1) == labels)[is_target].sum())
    loss, count = scores["mlm_loss"]
    mean = torch.nn.functional.cross_entropy(logits[is_target], labels[is_target])
    assert float(loss) / count == pytest.approx(float(mean), abs=TOLERANCE)
    assert ("nsp_accuracy" in scores) == with_next_sentence
    if with_next_sentence:
        correct, count = scores["nsp_accuracy"]
        classes = batch.columns["next_sentence_label"]
        guesses = output.seq_relationship_logits.argmax(-1)
        assert (int(correct), count) == (int((guesses == classes).sum()), len(LENGTHS))


@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertForMaskedLM"])
def test_a_micro_batch_without_targets_has_a_loss_of_zero_and_a_gradient(tmp_path: Path, kind: str) -> None:
    """Whole-word masking may find no word that fits."""
    _, ours, _ = both(tmp_path, kind)
    no_targets = torch.zeros(0, dtype=torch.int64)
    batch = draw_batch((8,)).with_columns(labels=torch.full((8,), -100), target_positions=no_targets)
    terms = {term.name: term for term in ours(batch)}
    assert float(terms["mlm"].total.detach()) == 0
    terms["mlm"].total.backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in ours.parameters())


# Second objectives, other families, and what a run begins and ends with.


def fresh(settings: MaskedLMSettings, seed: int = 0) -> MaskedLMModule:
    """A module whose every weight is random."""
    torch.manual_seed(seed)
    sizes = small(vocab=SIZE, width=24, layers=1, heads=3)
    masker = MaskedLM(settings, VOCABULARY)
    module = masker.build(new_encoder(sizes, pooler=masker.needs_pooler))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def save(directory: Path, module: MaskedLMModule) -> None:
    """What a finished run does with `saved()`."""
    ((folder, saved),) = module.saved().items()
    save_model(
        directory / folder,
        saved.encoder,
        saved.heads,
        span_boundary_head=saved.span_boundary_head,
        extra_config=saved.extra_config,
    )


def settings_of(**values: object) -> MaskedLMSettings:
    return MaskedLMSettings.model_validate({"sentence_objective": "none", **values})


@torch.no_grad()
def test_sentence_order_is_a_second_term_with_labels_of_its_own() -> None:
    """Its logits are written out from the last hidden state of each sequence's first token."""
    masker = MaskedLM(settings_of(sentence_objective="sop"), VOCABULARY)
    module = fresh(settings_of(sentence_objective="sop")).eval()
    drawn = draw_batch()
    batch = masker.prepare(drawn.with_columns(sentence_order_label=1 - drawn.columns["next_sentence_label"]))
    terms = {term.name: term for term in module(batch)}
    assert list(terms) == list(masker.counts(batch)) == ["mlm", "sop"]
    assert module.encoder.pooler is not None
    pooler, head = module.encoder.pooler.dense, module.get_submodule("next_sentence_head.dense")
    head.bias.add_(torch.tensor([0.3, -0.2]))
    terms = {term.name: term for term in module(batch)}
    first = module.encoder(batch)[batch.bounds[:-1]]
    logits = torch.tanh(first @ pooler.weight.T + pooler.bias) @ head.weight.T + head.bias
    chances = logits.softmax(1)[torch.arange(len(LENGTHS)), batch.columns["sentence_order_label"]]
    assert float(terms["sop"].total) == pytest.approx(float(-chances.log().sum()), rel=TOLERANCE)
    assert set(module.scores(batch)) == {"mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy"}


@pytest.mark.parametrize("settings", [MaskedLMSettings(), ReplacedTokenSettings()], ids=str)
def test_a_vocabulary_without_a_mask_token_is_refused(settings: ObjectiveSettings) -> None:
    with pytest.raises(SettingsError, match=rf"objective\.name={settings.name} needs a tokenizer with a mask token"):
        new_objective(settings, Vocabulary(SIZE, None, (0, 1), np.zeros(SIZE, dtype=np.bool_)))


def test_random_entries_are_all_the_ordinary_ones_and_never_a_special_one() -> None:
    vocabulary = Vocabulary(9, MASK, (0, 1, 2, 3, 4), np.zeros(9, dtype=np.bool_))
    settings = settings_of(target_prob=1.0, mask_token_prob=0.0, random_token_prob=1.0)
    batch = pack([[CLS, *[5] * 100, SEP]] * 5, keys=list(range(5)))
    prepared = MaskedLM(settings, vocabulary).prepare(batch.with_columns(special_tokens_mask=batch.input_ids < 5))
    targets = prepared.columns["target_positions"]
    assert len(targets) == 500
    assert set(prepared.input_ids[targets].tolist()) == {5, 6, 7, 8}


def test_the_floors_are_those_of_who_uses_no_context() -> None:
    """Four entries after the special ones, alike: masked they are one in four, and what is shown is the target by .2
    kept and .2 of .8 drawn, or else one of three."""
    counts, vocabulary = np.array([0] * 5 + [5] * 4), Vocabulary(9, MASK, (0, 1, 2, 3, 4), np.zeros(9, dtype=np.bool_))
    shares: dict[str, object] = {"mask_token_prob": 0.0, "random_token_prob": 0.8}
    loss = -0.4 * np.log(0.4) - 0.6 * np.log(0.6 / 3)
    losses = {"no context": pytest.approx(loss), "unigram entropy": pytest.approx(np.log(4))}
    expected = {"loss/mlm": losses, "eval/mlm_accuracy": {"no context": pytest.approx(0.4)}}
    assert by_figure(MaskedLM(settings_of(**shares), vocabulary).floors(counts)) == expected
    with_boundaries = by_figure(MaskedLM(settings_of(span_boundary=True, **shares), vocabulary).floors(counts))
    beside = {  # the boundary head reads the tokens beside a span, and its target never
        "loss/sbo": {"unigram entropy": pytest.approx(np.log(4))},
        "eval/sbo_accuracy": {"no context": pytest.approx(1 / 4)},
    }
    assert with_boundaries == expected | beside
    masks_alone = MaskedLM(settings_of(mask_token_prob=1.0, random_token_prob=0.0), vocabulary)
    assert by_figure(masks_alone.floors(counts))["loss/mlm"] == {"unigram entropy": pytest.approx(np.log(4))}


def test_a_head_for_the_other_sentence_objective_stays_out(tmp_path: Path) -> None:
    save(tmp_path, fresh(settings_of(sentence_objective="sop")))
    settings = settings_of(sentence_objective="nsp")
    module = fresh(settings, seed=1)
    was = module.state_dict()["next_sentence_head.dense.weight"].clone()
    MaskedLM(settings, VOCABULARY).restore_heads(module, open_source(tmp_path))
    assert torch.equal(module.state_dict()["next_sentence_head.dense.weight"], was)


def test_a_model_with_a_boundary_head_opens_in_transformers(tmp_path: Path) -> None:
    module = fresh(settings_of(masking="span", span_boundary=True)).eval()
    save(tmp_path, module)
    theirs, report = BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = MaskedLM(settings_of(), VOCABULARY).prepare(draw_batch())
    with torch.no_grad():
        (logits, _), *_ = module.logits(batch.with_columns(**EMPTY_BOUNDARIES))
        expected = their_output(theirs.eval(), batch).logits
    is_target = pad(batch, batch.columns["labels"], -100) != -100
    scale = float(expected.abs().max())
    torch.testing.assert_close(logits / scale, expected[is_target] / scale, rtol=0, atol=TOLERANCE)


EMPTY_BOUNDARIES = {
    name: torch.zeros(0, dtype=torch.int64)
    for name in ("boundary_positions", "boundary_targets", "boundary_left", "boundary_right", "boundary_places")
}

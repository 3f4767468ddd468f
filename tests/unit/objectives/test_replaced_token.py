"""Replaced-token detection: against the formulas on `transformers`' models, and what becomes of tokens and stages."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.errors import ModelError, SettingsError
from unmask.models.electra import ElectraEncoder
from unmask.models.encoder import new_encoder
from unmask.models.hub import load_encoder, save_model
from unmask.models.hub_config import config_of
from unmask.models.settings import EncoderSettings
from unmask.models.weight_names import hub_names, split
from unmask.objectives.replaced_token import ReplacedToken, ReplacedTokenModule
from unmask.objectives.settings import ReplacedTokenSettings
from unmask.tokenization.vocabulary import Vocabulary
from unmask.training.loop import set_training_mode

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SIZE, CLS, SEP, MASK = 61, 2, 3, 4
VOCABULARY = Vocabulary(SIZE, MASK, (0, 1, 2, 3, 4), np.arange(SIZE) >= 40)
LENGTHS = (16, 9, 12, 5, 16, 7)

TOLERANCE = 1e-5
"""Relative: some hundred roundings of fp32 (6e-8 each) on a loss and on gradients, each taken relative to the largest
entry of its parameter's. A loss that is off by one label is 1000 times more (`test_the_tolerance_can_fail`)."""

DISCRIMINATOR = EncoderSettings(
    architecture="electra",
    vocab_size=SIZE,
    embedding_size=10,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=16,
    initializer_range=0.3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tied, a third as wide": ({"generator_size": 1 / 3}, {}),
    "tied, embeddings as wide as the discriminator": ({"generator_size": 1 / 3}, {"embedding_size": 24}),
    "tied, of equal size": ({"generator_size": 1}, {}),
    "untied": ({"generator_size": 1 / 3, "tie_embeddings": "none"}, {}),
    "another weight, some targets left": ({"discriminator_weight": 7.0, "mask_token_prob": 0.6}, {}),
}


def rows(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(5, SIZE, (length,), generator=generator).tolist() for length in lengths]
    return [[CLS, *row[1:-1], SEP] for row in drawn]


def packed(sequences: list[list[int]], first_key: int = 0) -> Batch:
    batch = pack(sequences, keys=list(range(first_key, first_key + len(sequences))))
    return batch.with_columns(special_tokens_mask=batch.input_ids < 5)


def objective(**settings: Any) -> ReplacedToken:
    return ReplacedToken(ReplacedTokenSettings(**{"target_prob": 0.3} | settings), VOCABULARY)


def new_module(**settings: Any) -> ReplacedTokenModule:
    torch.manual_seed(0)
    return objective(**settings).build(ElectraEncoder(DISCRIMINATOR))


# Masks and draws


@pytest.mark.parametrize("mask_token_prob", [1.0, 0.85])
def test_targets_are_masked_or_left_and_never_replaced_at_random(mask_token_prob: float) -> None:
    plain = packed(rows((16,) * 300))
    batch = objective(mask_token_prob=mask_token_prob, target_prob=0.15).prepare(plain)
    targets, labels = batch.columns["target_positions"], batch.columns["labels"]
    is_target = labels != IGNORE_INDEX
    assert torch.equal(torch.nonzero(is_target).squeeze(1), targets)
    assert len(targets) == 300 * 2  # 15 % of 16 are 2.4
    assert not plain.columns["special_tokens_mask"][targets].any()
    assert torch.equal(labels[targets], plain.input_ids[targets])
    masked = batch.input_ids == MASK
    assert torch.equal(batch.input_ids[~masked], plain.input_ids[~masked])
    share = float(masked[targets].double().mean())
    spread = 4 * math.sqrt(mask_token_prob * (1 - mask_token_prob) / 600)  # four standard deviations
    assert abs(share - mask_token_prob) <= spread


def test_masks_and_draws_are_the_same_whatever_the_micro_batch() -> None:
    its, sequences = objective(), rows()
    whole = its.prepare(packed(sequences))
    parts = [its.prepare(packed(sequences[:2])), its.prepare(packed(sequences[2:], first_key=2))]
    assert torch.equal(whole.input_ids, torch.cat([part.input_ids for part in parts]))
    for name in ("labels", "sample_fractions"):
        assert torch.equal(whole.columns[name], torch.cat([part.columns[name] for part in parts]))
    torch.manual_seed(7)
    assert torch.equal(its.prepare(packed(sequences)).columns["sample_fractions"], whole.columns["sample_fractions"])
    other = its.prepare(packed(sequences, first_key=50))
    assert not torch.equal(other.columns["labels"], whole.columns["labels"])


def test_draws_are_uniform_and_other_numbers_than_those_that_masks_come_from() -> None:
    from scipy.stats import kstest

    batch = objective(target_prob=0.15).prepare(packed(rows((16,) * 2000)))
    # The draws are fixed; right ones would be under 0.001 once in a thousand choices of them. Targets are the tokens of
    # the smallest numbers, so those would all be under 0.5 or so.
    assert kstest(batch.columns["sample_fractions"].numpy(), "uniform").pvalue > 0.001


# Against the formulas


class Reference:
    """Generator and discriminator of `transformers`, random biases and norms included, and the losses by hand."""

    def __init__(self, directory: Path, module: ReplacedTokenModule, is_tied: bool) -> None:
        torch.manual_seed(1)
        settings = {"attn_implementation": "eager"}
        self.generator = ElectraForMaskedLM(ElectraConfig(**config_of(module.generator.settings), **settings)).eval()
        self.discriminator = ElectraForPreTraining(ElectraConfig(**config_of(module.encoder.settings), **settings))
        self.discriminator.eval()
        with torch.no_grad():
            for parameter in [*self.generator.parameters(), *self.discriminator.parameters()]:
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        if is_tied:
            theirs, shared = self.generator.electra.embeddings, self.discriminator.electra.embeddings
            for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
                setattr(theirs, name, getattr(shared, name))
            self.generator.generator_lm_head.weight = shared.word_embeddings.weight
        self.discriminator.save_pretrained(directory)
        self.generator.save_pretrained(directory / "generator")

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The means of both losses, and for each token whether it was replaced."""
        predicted, corrupted, replaced = [], [], []
        fractions = iter(batch.columns["sample_fractions"].tolist())
        places = zip(batch.input_ids.split(batch.lengths), batch.columns["labels"].split(batch.lengths), strict=True)
        for ids, labels in places:
            logits = self.generator(input_ids=ids[None]).logits[0]
            shown, marks = ids.tolist(), [0.0] * len(ids)
            for place, original in enumerate(labels.tolist()):
                if original == IGNORE_INDEX:
                    continue
                probabilities = logits[place].exp() / logits[place].exp().sum()
                predicted.append(-probabilities[original].log())
                fraction, drawn, total = next(fractions), 0, probabilities[0].item()
                while total <= fraction:
                    drawn += 1
                    total += probabilities[drawn].item()
                shown[place], marks[place] = drawn, float(drawn != original)
            corrupted.append(shown)
            replaced.append(torch.tensor(marks))
        told = []
        for shown, marks in zip(corrupted, replaced, strict=True):
            probability = torch.sigmoid(self.discriminator(input_ids=torch.tensor([shown])).logits[0])
            told.append(-(marks * probability.log() + (1 - marks) * (1 - probability).log()))
        return torch.stack(predicted).mean(), torch.cat(told).mean(), torch.cat(replaced)


def both(directory: Path, kind: str) -> tuple[ReplacedToken, ReplacedTokenModule, Reference]:
    settings, changes = KINDS[kind]
    its = objective(**settings)
    sizes = DISCRIMINATOR.model_copy(update=changes)
    reference = Reference(directory, its.build(ElectraEncoder(sizes)), settings.get("tie_embeddings") != "none")
    encoder = load_encoder(directory).encoder
    assert encoder.settings.model_copy(update={"embedding_size": sizes.embedding_size}) == sizes
    module = its.build(encoder)
    its.restore_heads(module, directory)
    return its, module.eval(), reference


def gradients_of(module: ReplacedTokenModule) -> dict[str, Tensor]:
    """Under the names that `transformers` has, those of the generator after `generator:`."""
    found: dict[str, Tensor] = {}
    places = {
        "": hub_names(module.encoder, discriminator_head=module.discriminator_head),
        "generator:": hub_names(module.generator, module.generator_head),
    }
    for which, names in places.items():
        for parameter, place in names.items():
            assert parameter.grad is not None
            found |= {which + name: part for name, part in split(place, parameter.grad).items()}
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_the_formulas(tmp_path: Path, kind: str) -> None:
    its, module, reference = both(tmp_path, kind)
    batch = its.prepare(packed(rows()))
    weight = KINDS[kind][0].get("discriminator_weight", 50.0)
    generator_loss, discriminator_loss, replaced = reference.losses(batch)
    (generator_loss + weight * discriminator_loss).backward()

    terms = {term.name: term for term in module(batch)}
    assert {name: term.count for name, term in terms.items()} == its.counts(batch)
    assert terms["discriminator"].count == sum(LENGTHS)
    assert (terms["generator"].coefficient, terms["discriminator"].coefficient) == (1.0, weight)
    means = {name: term.total / term.count for name, term in terms.items()}
    (means["generator"] + weight * means["discriminator"]).backward()
    assert float(means["generator"].detach()) == pytest.approx(float(generator_loss.detach()), rel=TOLERANCE)
    assert float(means["discriminator"].detach()) == pytest.approx(float(discriminator_loss.detach()), rel=TOLERANCE)
    with torch.no_grad():
        scores = {name: float(total) / max(1, count) for name, (total, count) in module.scores(batch).items()}
    assert scores["replaced_share"] == pytest.approx(float(replaced.mean()))

    found = gradients_of(module)
    expected = {name: parameter.grad for name, parameter in reference.discriminator.named_parameters()}
    expected |= {"generator:" + name: parameter.grad for name, parameter in reference.generator.named_parameters()}
    assert found.keys() == expected.keys()
    floor = 1e-2 * max(float(gradient.abs().max()) for gradient in expected.values())  # keys' biases are 0 but for this
    for name, gradient in expected.items():
        scale = max(float(gradient.abs().max()), floor)
        assert float((found[name] - gradient).abs().max()) / scale < TOLERANCE, name


def test_the_tolerance_can_fail(tmp_path: Path) -> None:
    its, module, reference = both(tmp_path, "tied, a third as wide")
    batch = its.prepare(packed(rows()))
    _, expected, _ = reference.losses(batch)
    fractions = batch.columns["sample_fractions"].clone()
    fractions[0] = 1 - fractions[0]  # one draw is another
    wrong = next(term for term in module(batch.with_columns(sample_fractions=fractions)) if term.name[0] == "d")
    assert abs(float((wrong.total / wrong.count / expected).detach()) - 1) > 100 * TOLERANCE


@torch.no_grad()
def test_scores_are_what_they_are_called(tmp_path: Path) -> None:
    its, module, reference = both(tmp_path, "tied, a third as wide")
    batch = its.prepare(packed(rows()))
    generator_loss, discriminator_loss, replaced = reference.losses(batch)
    logits, _ = module.generator_logits(batch)
    called = (module.discriminator_logits(batch, logits)[0] > 0).double()
    right = float((called * replaced).sum())
    scores = {name: float(total) / max(1, count) for name, (total, count) in module.scores(batch).items()}
    originals = batch.columns["labels"][batch.columns["target_positions"]]
    assert scores == {
        "generator_loss": pytest.approx(float(generator_loss), rel=TOLERANCE),
        "generator_accuracy": pytest.approx(float((logits.argmax(-1) == originals).double().mean())),
        "discriminator_loss": pytest.approx(float(discriminator_loss), rel=TOLERANCE),
        "discriminator_accuracy": pytest.approx(float((called == replaced).double().mean())),
        "discriminator_precision": pytest.approx(right / float(called.sum())),
        "discriminator_recall": pytest.approx(right / float(replaced.sum())),
        "replaced_share": pytest.approx(float(replaced.mean())),
    }
    assert set(its.perplexities) <= scores.keys()


@torch.no_grad()
def test_a_draw_equal_to_the_original_counts_as_original() -> None:
    its, module = objective(), new_module().eval()
    same = packed([[CLS, *[9] * 14, SEP]] * 5)
    batch = its.prepare(same)
    for favourite, share in ((9, 0.0), (10, 5 / 16)):  # 30 % of 16 are 5
        module.generator_head.bias.zero_()
        module.generator_head.bias[favourite] = 1e4
        logits, _ = module.generator_logits(batch)
        _, replaced = module.discriminator_logits(batch, logits)
        assert float(replaced.double().mean()) == pytest.approx(share)
    assert torch.equal(torch.nonzero(replaced).squeeze(1), batch.columns["target_positions"])


def test_the_discriminator_s_loss_says_nothing_to_the_generator_but_through_what_they_share() -> None:
    its, module = objective(tie_embeddings="none"), new_module(tie_embeddings="none")
    discriminator = next(term for term in module(its.prepare(packed(rows()))) if term.name == "discriminator")
    discriminator.total.backward()
    assert all(p.grad is None for part in (module.generator, module.generator_head) for p in part.parameters())
    assert all(p.grad is not None for part in (module.encoder, module.discriminator_head) for p in part.parameters())


def test_a_micro_batch_without_targets_has_a_generator_loss_of_zero() -> None:
    batch = objective().prepare(packed([[CLS, SEP]]))
    assert len(batch.columns["target_positions"]) == 0
    terms = {term.name: term for term in new_module()(batch)}
    assert (float(terms["generator"].total.detach()), terms["generator"].count) == (0.0, 0)
    assert float(terms["discriminator"].total.detach()) > 0


# Two stages

TWO_STAGE = {"schedule": "two_stage", "generator_size": 1}


def train_a_step(module: ReplacedTokenModule, its: ReplacedToken, batch: Batch) -> set[str]:
    """Names of what the step has changed."""
    before = copy.deepcopy(dict(module.named_parameters()))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    counts = its.counts(batch)
    terms = module(batch)
    assert {term.name: counts[term.name] for term in terms} == {term.name: term.count for term in terms}
    loss = torch.stack([term.coefficient * term.total / term.count for term in terms]).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}


def parts(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_two_stages_train_the_generator_then_a_discriminator_that_starts_from_it() -> None:
    its, module = objective(**TWO_STAGE), new_module(**TWO_STAGE)
    batch = its.prepare(packed(rows()))
    assert parts(train_a_step(module, its, batch)) == {"generator", "generator_head"}
    assert set(module.scores(batch)) == {"generator_loss", "generator_accuracy"}

    module.begin_stage(1)
    assert torch.equal(module.encoder(batch), module.generator(batch))
    [term] = module(batch)
    assert (term.name, term.coefficient) == ("discriminator", 1.0)
    assert parts(train_a_step(module, its, batch)) == {"encoder", "discriminator_head"}
    trained = module.encoder(batch)
    assert not torch.equal(trained, module.generator(batch))
    module.begin_stage(1)  # which it is in
    assert torch.equal(module.encoder(batch), trained)
    assert {"generator_loss", "discriminator_loss"} <= module.scores(batch).keys()


def test_a_frozen_generator_stays_in_eval_mode() -> None:
    module = new_module(**TWO_STAGE).train()
    assert module.generator.training
    module.begin_stage(1)
    assert not module.generator.training
    assert not module.generator_head.training
    assert module.encoder.training
    module.eval()
    set_training_mode(module)
    assert not module.generator.training
    assert module.encoder.training


def test_a_restored_module_is_in_the_stage_that_it_was_saved_in() -> None:
    module = new_module(**TWO_STAGE)
    first = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.begin_stage(1)
    with torch.no_grad():
        module.encoder.word_embeddings.add_(1.0)
    resumed = new_module(**TWO_STAGE)
    resumed.load_state_dict(module.state_dict())
    assert resumed.stage == 1
    resumed.begin_stage(1)
    assert torch.equal(resumed.encoder.word_embeddings, module.encoder.word_embeddings)
    resumed.load_state_dict(first)  # as a run that goes back does
    assert resumed.stage == 0
    assert resumed.generator.training


def test_two_stages_share_nothing_and_start_from_the_given_encoder() -> None:
    module = new_module(**TWO_STAGE)
    generator, others = set(module.generator.parameters()), set(module.encoder.parameters())
    assert not generator & others
    assert torch.equal(module.generator.word_embeddings, module.encoder.word_embeddings)
    assert module.generator.settings == module.encoder.settings


# Directories


def test_what_is_saved_opens_in_transformers_and_starts_another_run(tmp_path: Path) -> None:
    its, module = objective(), new_module().eval()
    for folder, saved in module.saved().items():
        save_model(tmp_path / folder, saved.encoder, **saved.parts)
    discriminator, report = ElectraForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    generator, report = ElectraForMaskedLM.from_pretrained(tmp_path / "generator", output_loading_info=True)
    assert not any(report.values()), report
    shared = discriminator.electra.embeddings.word_embeddings.weight
    assert torch.equal(generator.electra.embeddings.word_embeddings.weight, shared)

    again = its.build(load_encoder(tmp_path).encoder)
    its.restore_heads(again, tmp_path)
    batch = its.prepare(packed(rows()))
    for first, second in zip(module(batch), again.eval()(batch), strict=True):
        assert torch.equal(first.total, second.total)
    assert again.generator.word_embeddings is again.encoder.word_embeddings


def test_without_a_generator_s_folder_the_generator_is_fresh(tmp_path: Path) -> None:
    save_model(tmp_path, ElectraEncoder(DISCRIMINATOR))
    its, module = objective(), new_module()
    before = module.state_dict()
    its.restore_heads(module, tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


MISFITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "wider": ({"generator_size": 2 / 3}, {}, r"hidden_size 16, expected 8.*generator_size=0\.4.*tie_embeddings=all"),
    "as wide as the discriminator": ({"generator_size": 1}, {}, r"hidden_size 24, expected 8"),
    "another vocabulary": ({}, {"vocab_size": SIZE + 1}, rf"vocab_size {SIZE + 1}, expected {SIZE}"),
    "its own embeddings": ({"tie_embeddings": "none"}, {}, r"embedding_size 8, expected 10.*tie_embeddings=all"),
    "deeper": ({}, {"num_hidden_layers": 3}, r"num_hidden_layers 3, expected 2"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_generator_of_other_sizes_is_refused_with_the_settings_named(tmp_path: Path, misfit: str) -> None:
    settings, changes, message = MISFITS[misfit]
    other = objective(**{"generator_size": 0.4} | settings).build(
        ElectraEncoder(DISCRIMINATOR.model_copy(update=changes))
    )
    save_model(tmp_path, ElectraEncoder(DISCRIMINATOR))
    save_model(tmp_path / "generator", other.generator, masked_lm_head=other.generator_head)
    with pytest.raises(SettingsError, match=message):
        objective(generator_size=0.4).restore_heads(new_module(generator_size=0.4), tmp_path)


def test_other_dropout_is_no_misfit(tmp_path: Path) -> None:
    other = objective().build(ElectraEncoder(DISCRIMINATOR.model_copy(update={"hidden_dropout_prob": 0.1})))
    for folder, saved in other.saved().items():
        save_model(tmp_path / folder, saved.encoder, **saved.parts)
    module = new_module()
    objective().restore_heads(module, tmp_path)
    assert torch.equal(module.generator_head.bias, other.generator_head.bias)
    assert torch.equal(module.generator_head.dense.weight, other.generator_head.dense.weight)


def test_a_folder_called_generator_with_another_model_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, ElectraEncoder(DISCRIMINATOR))
    save_model(tmp_path / "generator", ElectraEncoder(DISCRIMINATOR))
    with pytest.raises(ModelError, match="is a ElectraModel; expected a generator, an ElectraForMaskedLM"):
        objective().restore_heads(new_module(), tmp_path)


# Refusals and figures


def test_a_vocabulary_without_a_mask_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"replaced_token needs a tokenizer with a mask token"):
        ReplacedToken(ReplacedTokenSettings(), replace(VOCABULARY, mask_id=None))


def test_another_family_is_refused() -> None:
    bert = new_encoder(DISCRIMINATOR.model_copy(update={"architecture": "bert", "embedding_size": None}))
    with pytest.raises(SettingsError, match=r"objective\.name=replaced_token and model\.architecture=bert"):
        objective().build(bert)


def test_the_floors_are_the_generator_s() -> None:
    counts, entropy = np.array([0, 0, 0, 0, 0, 2, 1, 1]), 1.5 * math.log(2)
    assert objective().floors(counts) == {
        "loss/generator": {"unigram entropy": pytest.approx(entropy)},
        "eval/generator_accuracy": {"no context": pytest.approx(0.5)},
    }
    # What is not masked is kept: it is known.
    assert objective(mask_token_prob=0.85).floors(counts) == {
        "loss/generator": {"no context": pytest.approx(0.85 * entropy), "unigram entropy": pytest.approx(entropy)},
        "eval/generator_accuracy": {"no context": pytest.approx(0.85 * 0.5 + 0.15)},
    }

"""Replaced-token detection: against the formulas on `transformers`' models, and the fate of tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics import roc_auc_score
from torch import Tensor
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from support.electra import (
    CLS,
    DISCRIMINATOR,
    LENGTHS,
    MASK,
    SEP,
    new_module,
    new_objective,
    pack_with_specials,
    random_batch,
    random_rows,
)
from unmask.batch import IGNORE_INDEX, Batch
from unmask.models.electra import ElectraEncoder
from unmask.models.hub.config import config_of
from unmask.models.hub.directory import load_encoder
from unmask.models.hub.source import open_source
from unmask.models.hub.weight_names import hub_names, split
from unmask.objectives.floors import by_figure
from unmask.objectives.replaced_token import ReplacedToken, ReplacedTokenModule

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
"""Relative: some hundred roundings of fp32 (6e-8 each) on a loss and on gradients, each taken relative to the largest
entry of its parameter's. A loss that is off by one label is 1000 times more (`test_the_tolerance_can_fail`)."""

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tied, a third as wide": ({"generator_size": 1 / 3}, {}),
    "tied, embeddings as wide as the discriminator": ({"generator_size": 1 / 3}, {"embedding_size": 24}),
    "tied, of equal size": ({"generator_size": 1}, {}),
    "untied": ({"generator_size": 1 / 3, "tie_embeddings": "none"}, {}),
    "another weight, some targets left": ({"discriminator_weight": 7.0, "mask_token_prob": 0.6}, {}),
}
TWO_STAGES: tuple[dict[str, Any], dict[str, Any]] = ({"schedule": "two_stage", "generator_size": 1}, {})


# Masks and draws


@pytest.mark.parametrize("mask_token_prob", [1.0, 0.85])
def test_targets_are_masked_or_left_and_never_replaced_at_random(mask_token_prob: float) -> None:
    plain = pack_with_specials(random_rows((16,) * 300))
    batch = new_objective(mask_token_prob=mask_token_prob, target_prob=0.15).prepare(plain)
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


def test_draws_are_uniform_and_other_numbers_than_those_that_masks_come_from() -> None:
    from scipy.stats import kstest

    batch = new_objective(target_prob=0.15).prepare(random_batch((16,) * 2000))
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
        judged = []
        for shown, marks in zip(corrupted, replaced, strict=True):
            output = self.discriminator(input_ids=torch.tensor([shown]), labels=marks[None])
            probability = torch.sigmoid(output.logits[0])
            judged.append(-(marks * probability.log() + (1 - marks) * (1 - probability).log()))
            assert float(judged[-1].mean().detach()) == pytest.approx(float(output.loss.detach()), rel=TOLERANCE)
        return torch.stack(predicted).mean(), torch.cat(judged).mean(), torch.cat(replaced)


def both(directory: Path, kind: str) -> tuple[ReplacedToken, ReplacedTokenModule, Reference]:
    """An objective, its module, and the reference of the same weights, which go by way of a directory."""
    settings, changes = KINDS.get(kind, TWO_STAGES)
    its = new_objective(**settings)
    sizes = DISCRIMINATOR.model_copy(update=changes)
    is_tied = settings.get("tie_embeddings") != "none" and settings.get("schedule") != "two_stage"
    reference = Reference(directory, its.build(ElectraEncoder(sizes)), is_tied)
    encoder = load_encoder(directory).encoder
    assert encoder.settings.model_copy(update={"embedding_size": sizes.embedding_size}) == sizes
    module = its.build(encoder)
    its.restore_heads(module, open_source(directory))
    return its, module.eval(), reference


def gradients_of(module: ReplacedTokenModule) -> dict[str, Tensor]:
    """Under the names that `transformers` has, those of the generator after `generator:`; of what has one."""
    found: dict[str, Tensor] = {}
    places = {
        "": hub_names(module.encoder, {"discriminator_head": module.discriminator_head}),
        "generator:": hub_names(module.generator, {"masked_lm_head": module.generator_head}),
    }
    for which, names in places.items():
        for parameter, place in names.items():
            if parameter.grad is not None:
                found |= {which + name: part for name, part in split(place, parameter.grad).items()}
    return found


def check_gradients(module: ReplacedTokenModule, reference: Reference) -> None:
    """That the same parameters have one, and nearly the same."""
    found = gradients_of(module)
    theirs = {name: parameter.grad for name, parameter in reference.discriminator.named_parameters()}
    theirs |= {"generator:" + name: parameter.grad for name, parameter in reference.generator.named_parameters()}
    expected = {name: gradient for name, gradient in theirs.items() if gradient is not None}
    assert found.keys() == expected.keys()
    floor = 1e-2 * max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        scaled_by = expected[name.replace("key.bias", "key.weight")]  # keys' biases have none but for rounding
        scale = max(float(scaled_by.abs().max()), floor)
        assert float((found[name] - gradient).abs().max()) / scale < TOLERANCE, name


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_the_formulas(tmp_path: Path, kind: str) -> None:
    its, module, reference = both(tmp_path, kind)
    batch = its.prepare(random_batch())
    weight = KINDS[kind][0].get("discriminator_weight", 50.0)
    generator_loss, discriminator_loss, replaced = reference.losses(batch)
    (generator_loss + weight * discriminator_loss).backward()

    terms = {term.name: term for term in module(batch)}
    counts = its.counts(batch)
    assert terms.keys() == counts.keys()
    assert counts["discriminator"] == sum(LENGTHS)
    assert (terms["generator"].coefficient, terms["discriminator"].coefficient) == (1.0, weight)
    means = {name: term.total / counts[name] for name, term in terms.items()}
    (means["generator"] + weight * means["discriminator"]).backward()
    assert float(means["generator"].detach()) == pytest.approx(float(generator_loss.detach()), rel=TOLERANCE)
    assert float(means["discriminator"].detach()) == pytest.approx(float(discriminator_loss.detach()), rel=TOLERANCE)
    with torch.no_grad():
        scores = {name: float(total) / max(1, count) for name, (total, count) in module.scores(batch).items()}
    assert scores["replaced_share"] == pytest.approx(float(replaced.mean()))
    check_gradients(module, reference)
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_in_two_stages_they_are_those_of_one_mean_after_the_other(tmp_path: Path) -> None:
    """The second stage's is the discriminator's mean as it is, not fifty times that."""
    its, module, reference = both(tmp_path, "in two stages")
    batch = its.prepare(random_batch())
    for stage in (0, 1):
        module.begin_stage(stage)
        if stage == 1:
            reference.discriminator.electra.load_state_dict(reference.generator.electra.state_dict())
        for part in (module, reference.generator, reference.discriminator):
            part.zero_grad()
        expected = reference.losses(batch)[stage]
        expected.backward()
        [term] = module(batch)
        mean = term.coefficient * term.total / its.counts(batch)[term.name]
        mean.backward()
        assert float(mean.detach()) == pytest.approx(float(expected.detach()), rel=TOLERANCE)
        check_gradients(module, reference)


def test_the_tolerance_can_fail(tmp_path: Path) -> None:
    its, module, reference = both(tmp_path, "tied, a third as wide")
    batch = its.prepare(random_batch())
    _, expected, _ = reference.losses(batch)
    fractions = batch.columns["sample_fractions"].clone()
    fractions[0] = 1 - fractions[0]  # one draw is another
    wrong = next(term for term in module(batch.with_columns(sample_fractions=fractions)) if term.name[0] == "d")
    assert abs(float((wrong.total / sum(LENGTHS) / expected).detach()) - 1) > 100 * TOLERANCE


@torch.no_grad()
def test_scores_are_what_they_are_called(tmp_path: Path) -> None:
    its, module, reference = both(tmp_path, "tied, a third as wide")
    batch = its.prepare(random_batch())
    generator_loss, discriminator_loss, replaced = reference.losses(batch)
    logits, _ = module.generator_logits(batch)
    guesses = module.head(module.encoder(module.corrupt(batch, logits).batch))
    called = (guesses > 0).double()
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
        "discriminator_auc": pytest.approx(roc_auc_score(replaced, guesses)),
        "replaced_share": pytest.approx(float(replaced.mean())),
    }


@torch.no_grad()
def test_a_draw_equal_to_the_original_counts_as_original() -> None:
    its, module = new_objective(), new_module().eval()
    same = pack_with_specials([[CLS, *[9] * 14, SEP]] * 5)
    batch = its.prepare(same)
    for favourite, share in ((9, 0.0), (10, 5 / 16)):  # 30 % of 16 are 5
        module.generator_head.bias.zero_()
        module.generator_head.bias[favourite] = 1e4
        logits, _ = module.generator_logits(batch)
        replaced = module.corrupt(batch, logits).replaced
        assert float(replaced.double().mean()) == pytest.approx(share)
    assert torch.equal(torch.nonzero(replaced).squeeze(1), batch.columns["target_positions"])


def test_the_discriminator_s_loss_says_nothing_to_the_generator_but_through_what_they_share() -> None:
    its, module = new_objective(tie_embeddings="none"), new_module(tie_embeddings="none")
    terms = {term.name: term for term in module(its.prepare(random_batch()))}
    terms["discriminator"].total.backward()
    assert all(p.grad is None for part in (module.generator, module.generator_head) for p in part.parameters())
    assert all(p.grad is not None for part in (module.encoder, module.discriminator_head) for p in part.parameters())


def test_a_micro_batch_without_targets_has_a_generator_loss_of_zero() -> None:
    batch = new_objective().prepare(pack_with_specials([[CLS, SEP]]))
    assert len(batch.columns["target_positions"]) == 0
    terms = {term.name: term for term in new_module()(batch)}
    assert float(terms["generator"].total.detach()) == 0
    assert float(terms["discriminator"].total.detach()) > 0


# Refusals and figures


def test_the_floors_are_the_generator_s() -> None:
    counts, entropy = np.array([0, 0, 0, 0, 0, 2, 1, 1]), 1.5 * math.log(2)
    assert by_figure(new_objective().floors(counts, evaluation={})) == {
        "loss/generator": {"unigram entropy": pytest.approx(entropy)},
        "eval/generator_accuracy": {"no context": pytest.approx(0.5)},
    }
    # What is not masked is kept: it is known.
    assert by_figure(new_objective(mask_token_prob=0.85).floors(counts, evaluation={})) == {
        "loss/generator": {"no context": pytest.approx(0.85 * entropy), "unigram entropy": pytest.approx(entropy)},
        "eval/generator_accuracy": {"no context": pytest.approx(0.85 * 0.5 + 0.15)},
    }


def test_the_discriminator_s_floors_follow_what_was_replaced() -> None:
    counts = np.array([0, 0, 0, 0, 0, 2, 1, 1])
    floors = by_figure(new_objective().floors(counts, evaluation={"eval/replaced_share": 0.1}))
    assert floors["loss/discriminator"]["share entropy"] == pytest.approx(-0.1 * math.log(0.1) - 0.9 * math.log(0.9))
    assert floors["eval/discriminator_accuracy"] == {"always original": pytest.approx(0.9)}
